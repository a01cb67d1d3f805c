// Trilu: the upper (default) or lower triangle of the last two axes, from diagonal k; zeros
// elsewhere. Gradient: the same triangle of dy.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  if (c.rank(0) < 2) c.fail(cat("needs at least two axes, got ", c.shape(0).str()));
  if (c.has(1) && (c.dtype(1) != DType::kI64 || prove_equal(c.shape(1).count(), 1) == Tri::kNo))
    c.fail(cat("k must be one i64, got ", name_of(c.dtype(1)), " ", c.shape(1).str()));
  c.out(0, c.dtype(0), c.shape(0));
}

Kernel kernel(const KernelQuery& q) {
  const int rank = q.in[0].rank();
  const int64_t columns = q.in[0].dims.back(), rows = q.in[0].dims[static_cast<size_t>(rank - 2)];
  const int64_t count = columns == 0 ? 0 : q.in[0].count() / columns;
  return {0, [=, upper = q.attrs.i("upper", 1) != 0, has_k = q.has_in(1),
              size = size_of(q.in[0].dtype), threads = q.threads](const KernelArgs& a) {
            const int64_t k = has_k ? a.x<int64_t>(1)[0] : 0;
            by_size(size, [&]<class T>() {
              parallel_for(
                  threads, count, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, columns)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      const T* x = a.x<T>(0) + r * columns;
                      T* y = a.y<T>(0) + r * columns;
                      // Upper keeps columns >= i + k, lower those <= i + k.
                      const int64_t edge = std::clamp<int64_t>(r % rows + k + !upper, 0, columns);
                      const int64_t low = upper ? edge : 0, high = upper ? columns : edge;
                      std::fill(y, y + low, T{});
                      if (x != y) std::copy(x + low, x + high, y + low);
                      std::fill(y + high, y + columns, T{});
                    }
                  });
            });
          }};
}

}  // namespace

void register_trilu(OpTable& table) {
  table.add({
      .name = "Trilu",
      .inputs = {"input", "k?"},
      .outputs = {"output"},
      .since = 14,
      .infer = infer,
      .grad = {grad("input",
                    [](Grad& g) {
                      return g.b.op("Trilu", {g.dy(), g.has_x(1) ? g.x(1) : Expr()},
                                    {{"upper", g.attrs().i("upper", 1)}});
                    }),
               no_grad("k")},
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {f({3, 4})}},
                   {.in = {f({2, 4, 3})}, .attrs = {{"upper", 0}}},
                   {.in = {f({4, 4}), iconst({}, {1})}},
                   {.in = {f({4, 5}), iconst({}, {-2})}, .attrs = {{"upper", 0}}},
                   {.in = {f({3, 3}), iconst({}, {9})}},
                   {.in = {f({3, 3}), iconst({}, {9})}, .attrs = {{"upper", 0}}},
                   {.in = {f({0, 3})}},
                   {.in = {f({1, 1})}}},
  });
}

}  // namespace ortrain::ops
