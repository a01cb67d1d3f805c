// Hardmax: 1 at the first maximum along `axis`, else 0; NaN counts as the maximum. The gradient is
// zero: the output is constant between the jumps. Before opset 13 the tensor is seen as a matrix,
// axes from `axis` on being one row (`flatten`, as Softmax's).
#include <algorithm>

#include "graph/error.h"
#include "ops/common/movement.h"
#include "ops/common/softmax_lines.h"

namespace ortrain::ops {

namespace {

void infer(InferCtx& c) {
  if (!is_float(c.dtype(0))) c.fail(cat("takes floats, not ", name_of(c.dtype(0))));
  if (c.rank(0) > 0) normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  infer_same_as_first(c);
}

Kernel prepare(const KernelQuery& q) {
  const auto [outer, n, inner] = split_of(q.attrs, q.in[0].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [outer = outer, n = n, inner = inner, threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, outer * inner, 1 + 8192 / std::max<int64_t>(1, n),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t i = begin; i < end; ++i) {
                               const int64_t base = i / inner * n * inner + i % inner;
                               const T* x = a.x<T>(0) + base;
                               T* y = a.y<T>(0) + base;
                               int64_t best = 0;
                               for (int64_t k = 1; k < n; ++k) {
                                 const auto v = static_cast<Acc<T>>(x[k * inner]);
                                 const auto top = static_cast<Acc<T>>(x[best * inner]);
                                 if (v > top || (v != v && top == top)) best = k;
                               }
                               for (int64_t k = 0; k < n; ++k)
                                 y[k * inner] = T(static_cast<float>(k == best));
                             }
                           });
            }};
  });
}

}  // namespace

void register_hardmax(OpTable& table) {
  table.add({
      .name = "Hardmax",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer,
      .grad = {no_grad("input")},
      .adapt = adapt_flatten,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({3, 5})}},
                   {.in = {f({2, 3, 4})}, .attrs = {{"axis", int64_t{0}}}},
                   {.in = {f({2, 3, 4})}, .attrs = {{"axis", int64_t{1}}, {"flatten", int64_t{1}}}},
                   {.in = {floats({1, 4}, {1, 3, 3, 0})}},
                   {.in = {f({4, 1})}},
                   {.in = {f({0, 3})}},
                   {.in = {f({3, 0})}}},
      .note = "the first maximum; zero gradient",
  });
}

}  // namespace ortrain::ops
