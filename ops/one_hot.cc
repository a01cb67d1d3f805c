// OneHot: values[1] where the class index matches, values[0] elsewhere; the new axis has `depth`
// positions. Indices may be negative (from the end); outside [-depth, depth) the whole row is off,
// as ONNX says. Depth must be known before training. Gradient to values only.
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  Dim depth;
  if (const HostTensor* t = c.constant(1)) {
    if (t->count() != 1) c.fail("depth is not one number");
    depth = t->as_int(0);
  } else {
    const std::vector<Dim> d = c.need_ints(1, "depth");
    if (d.size() != 1) c.fail("depth is not one number");
    depth = d[0];
  }
  if (depth.is_const() && depth.value() < 0) c.fail(cat("depth is ", depth.value()));
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0) + 1);
  std::vector<Dim> out = c.shape(0).dims();
  out.insert(out.begin() + axis, depth);
  c.out(0, c.dtype(2), Shape(std::move(out)));
}

// Output [outer, depth, inner], indices [outer, inner] of any numeric type.
Kernel kernel(const KernelQuery& q) {
  const int axis = normalize_axis(q.attrs.i("axis", -1), q.out[0].rank());
  const int64_t outer = product(q.out[0].dims, 0, axis);
  const int64_t inner = product(q.out[0].dims, axis + 1, q.out[0].rank());
  const int64_t depth = q.out[0].dims[static_cast<size_t>(axis)];
  return {0, [=, from = q.in[0].dtype, size = size_of(q.in[2].dtype)](const KernelArgs& a) {
            const auto run = [&]<class T>(auto index) {
              const T off = a.x<T>(2)[0], on = a.x<T>(2)[1];
              T* y = a.y<T>(0);
              std::fill_n(y, outer * depth * inner, off);
              for (int64_t o = 0; o < outer; ++o)
                for (int64_t i = 0; i < inner; ++i) {
                  int64_t v = index(o * inner + i);
                  if (v < 0) v += depth;
                  if (v >= 0 && v < depth) y[(o * depth + v) * inner + i] = on;
                }
            };
            by_size(size, [&]<class T>() {
              dispatch(from, [&]<class I>() {
                run.template operator()<T>([&](int64_t i) {
                  return static_cast<int64_t>(static_cast<Acc<I>>(a.x<I>(0)[i]));
                });
              });
            });
          }};
}

// [sum of dy where off, sum of dy where on]
Expr values_grad(Grad& g) {
  Builder& b = g.b;
  Expr unit = b.concat(
      {b.reshape(b.scalar(g.dy().dtype(), 0), {1}), b.reshape(b.scalar(g.dy().dtype(), 1), {1})},
      0);
  Expr mask = b.op("OneHot", {g.x(0), g.x(1), unit}, {{"axis", g.attrs().i("axis", -1)}});
  const auto total = [&](Expr e) {
    return b.reshape(b.sum(b.reshape(e, {-1}), {0}, /*keepdims=*/false), {1});
  };
  return b.concat({total(g.dy() * (1 - mask)), total(g.dy() * mask)}, 0);
}

}  // namespace

void register_one_hot(OpTable& table) {
  table.add({
      .name = "OneHot",
      .inputs = {"indices", "depth", "values"},
      .outputs = {"output"},
      .since = 9,
      .infer = infer,
      .grad = {no_grad("indices"), no_grad("depth"), grad("values", values_grad)},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {ints({2, 3}, -5, 5), iconst({}, {5}), f({2})}},
                   {.in = {ints({2, 3}, -9, 9), ivals({4}), f({2})}, .attrs = {{"axis", 0}}},
                   {.in = {ints({2, 3}, 0, 4), ivals({4}), f({2})}, .attrs = {{"axis", -2}}},
                   {.in = {iconst({}, {1}), iconst({}, {3}), f({2})}},
                   {.in = {ints({0}, 0, 1), iconst({}, {3}), f({2})}}},
      .note = "an index outside [-depth, depth) gives a row of off values",
  });
}

}  // namespace ortrain::ops
