// See toy_ops.h.
#include "tests/runtime/toy_ops.h"

#include <cmath>
#include <cstring>

#include "runtime/kernel.h"

namespace ortrain::test {
namespace {

template <class F>
Kernel binary(const KernelQuery& q, F f) {
  const int64_t n = q.out[0].count(), a = q.in[0].count(), b = q.in[1].count();
  return {0, [=](const KernelArgs& k) {
            for (int64_t i = 0; i < n; ++i)
              k.y<float>(0)[i] = f(k.x<float>(0)[a == n ? i : 0], k.x<float>(1)[b == n ? i : 0]);
          }};
}

template <class F>
Kernel unary(const KernelQuery& q, F f) {
  const int64_t n = q.out[0].count();
  return {0, [=](const KernelArgs& k) {
            for (int64_t i = 0; i < n; ++i) k.y<float>(0)[i] = f(k.x<float>(0)[i]);
          }};
}

Kernel shift1(const KernelQuery& q) {
  const int64_t n = q.out[0].count();
  return {static_cast<size_t>(n) * 4, [=](const KernelArgs& k) {
            float* w = static_cast<float*>(k.workspace);
            for (int64_t i = 0; i < n; ++i) w[i] = k.x<float>(0)[i];
            for (int64_t i = 0; i < n; ++i) k.y<float>(0)[i] = w[(i + n - 1) % n];
          }};
}

Kernel gather(const KernelQuery& q) {
  const int64_t rows = q.in[0].dims[0], width = q.in[0].dims[1], n = q.in[1].count();
  return {0, [=](const KernelArgs& k) {
            for (int64_t i = 0; i < n; ++i) {
              const int64_t r = k.x<int64_t>(1)[i];
              float* y = k.y<float>(0) + i * width;
              if (r < 0 || r >= rows) {
                k.fault->report(i, r, 0, rows);
                std::memset(y, 0, static_cast<size_t>(width) * 4);
              } else {
                std::memcpy(y, k.x<float>(0) + r * width, static_cast<size_t>(width) * 4);
              }
            }
          }};
}

Kernel sum(const KernelQuery& q) {
  const int64_t n = q.in[0].count();
  return {0, [=](const KernelArgs& k) {
            float total = 0;
            for (int64_t i = 0; i < n; ++i) total += k.x<float>(0)[i];
            k.y<float>(0)[0] = total;
          }};
}

Kernel two(const KernelQuery& q) {
  const int64_t n = q.in[0].count();
  const bool first = q.has_out(0), second = q.has_out(1);
  return {0, [=](const KernelArgs& k) {
            for (int64_t i = 0; i < n; ++i) {
              const float x = k.x<float>(0)[i];
              if (first) k.y<float>(0)[i] = x + 1;
              if (second) k.y<float>(1)[i] = x * 2;
            }
          }};
}

std::vector<KernelEntry> ref(Kernel (*prepare)(const KernelQuery&)) {
  return {{"cpu", "ref", nullptr, prepare}};
}

OpTable make() {
  OpTable t;
  const std::vector<std::pair<int, int>> both = {{0, 0}, {0, 1}};
  t.add({.name = "Add",
         .inputs = {"a", "b"},
         .outputs = {"y"},
         .infer = infer_broadcast,
         .ew = Ew::kAdd,
         .inplace = both,
         .flops =
             [](const Graph& g, const Node& n) {
               return static_cast<double>(g.value(n.outputs[0]).shape.count().value());
             },
         .kernels = ref([](const KernelQuery& q) {
           return binary(q, [](float a, float b) { return a + b; });
         })});
  t.add({.name = "Sub",
         .inputs = {"a", "b"},
         .outputs = {"y"},
         .infer = infer_broadcast,
         .ew = Ew::kSub,
         .inplace = both,
         .kernels = ref([](const KernelQuery& q) {
           return binary(q, [](float a, float b) { return a - b; });
         })});
  t.add({.name = "Mul",
         .inputs = {"a", "b"},
         .outputs = {"y"},
         .infer = infer_broadcast,
         .ew = Ew::kMul,
         .inplace = both,
         .kernels = ref([](const KernelQuery& q) {
           return binary(q, [](float a, float b) { return a * b; });
         })});
  t.add(
      {.name = "Neg",
       .inputs = {"x"},
       .outputs = {"y"},
       .infer = infer_same_as_first,
       .ew = Ew::kNeg,
       .inplace = {{0, 0}},
       .kernels = ref([](const KernelQuery& q) { return unary(q, [](float x) { return -x; }); })});
  t.add({.name = "Log",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_same_as_first,
         .ew = Ew::kLog,
         .kernels = ref(
             [](const KernelQuery& q) { return unary(q, [](float x) { return std::log(x); }); })});
  t.add({.name = "Flat",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = [](InferCtx& c) { c.out(0, c.dtype(0), Shape{c.shape(0).count()}); },
         .view = true});
  t.add({.name = "Sum",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = [](InferCtx& c) { c.out(0, c.dtype(0), Shape{}); },
         .kernels = ref(sum)});
  t.add({.name = "Shift1",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_same_as_first,
         .kernels = ref(shift1)});
  t.add({.name = "Gather",
         .inputs = {"data", "indices"},
         .outputs = {"y"},
         .infer =
             [](InferCtx& c) {
               c.out(0, c.dtype(0), Shape{c.shape(1).count(), c.shape(0)[1]});
             },
         .kernels = ref(gather)});
  t.add({.name = "Two",
         .inputs = {"x"},
         .outputs = {"a", "b"},
         .infer =
             [](InferCtx& c) {
               c.out(0, c.dtype(0), c.shape(0));
               c.out(1, c.dtype(0), c.shape(0));
             },
         .inplace = {{0, 0}, {1, 0}},
         .kernels = ref(two)});
  t.add({.name = "Twice",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_same_as_first,
         .decompose = [](Decompose& d) { return std::vector<Expr>{d.x() + d.x()}; }});
  t.add({.name = "Picky",
         .inputs = {"x"},
         .outputs = {"y"},
         .infer = infer_same_as_first,
         .kernels = {{"cpu", "fast",
                      [](const KernelQuery& q) {
                        return q.in[0].count() % 2 ? std::string("odd count") : std::string();
                      },
                      [](const KernelQuery& q) { return unary(q, [](float x) { return -x; }); }},
                     {"cpu", "ref", nullptr, [](const KernelQuery& q) {
                        return unary(q, [](float x) { return 0 - x; });
                      }}}});
  t.add({.name = "Lonely", .inputs = {"x"}, .outputs = {"y"}, .infer = infer_same_as_first});
  return t;
}
}  // namespace

const OpTable& toy_ops() {
  static const OpTable table = make();
  return table;
}

ValueId add(Graph& g, std::string_view op, std::vector<ValueId> inputs, int outputs,
            std::string origin) {
  const NodeId n = g.add_node(g.ops().get(op), std::move(inputs), {}, outputs,
                              origin.empty() ? "n" + std::to_string(g.node_count()) : origin);
  g.infer(n);
  return g.node(n).outputs[0];
}

}  // namespace ortrain::test
