// Range: start, start + delta, ... before limit. Its length must be known before training: integer
// inputs may be symbolic extents, float ones must be constants. Integer results are carried through
// inference. Element i is start + i * delta, rounded once.
#include <cmath>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  for (int i = 1; i < 3; ++i)
    if (c.dtype(i) != c.dtype(0)) c.fail("start, limit and delta differ in type");
  if (is_float(c.dtype(0))) {
    double v[3];
    for (int i = 0; i < 3; ++i) {
      const HostTensor* t = c.constant(i);
      if (!t || t->count() != 1)
        fail(ErrorCode::kUnsupported,
             "the length depends on data; start, limit and delta must be constants");
      v[i] = t->as_double(0);
    }
    if (v[2] == 0) c.fail("delta is 0");
    const double n = std::ceil((v[1] - v[0]) / v[2]);
    if (!(n <= 2147483647.0)) c.fail("the range has no usable length");
    c.out(0, c.dtype(0), Shape{Dim(n > 0 ? static_cast<int64_t>(n) : 0)});
    return;
  }
  Dim v[3];
  const char* const names[] = {"start", "limit", "delta"};
  for (int i = 0; i < 3; ++i) {
    const std::vector<Dim> one = c.need_ints(i, names[i]);
    if (one.size() != 1) c.fail(cat(names[i], " is not one number"));
    v[i] = one[0];
  }
  const Dim start = v[0], limit = v[1];
  const int64_t delta = numbers({v[2]}, "delta")[0];
  if (delta == 0) c.fail("delta is 0");
  Dim n = delta > 0 ? ceildiv(limit - start, delta) : ceildiv(start - limit, -delta);
  // A plain extent is never negative.
  if (n.is_const() || !(start == Dim(0) && delta == 1)) n = max(n, 0);
  c.out(0, c.dtype(0), Shape{n});
  if (!n.is_const() || n.value() > 4096) return;
  std::vector<Dim> all;
  for (int64_t i = 0; i < n.value(); ++i) all.push_back(start + Dim(i * delta));
  c.out_ints(0, std::move(all));
}

Kernel kernel(const KernelQuery& q) {
  return {0, [n = q.out[0].count(), dtype = q.out[0].dtype](const KernelArgs& a) {
            dispatch(dtype, [&]<class T>() {
              using N = std::conditional_t<(sizeof(Acc<T>) < 8 && !std::is_integral_v<Acc<T>>),
                                           double, Acc<T>>;
              const N start = static_cast<N>(static_cast<Acc<T>>(a.x<T>(0)[0]));
              const N delta = static_cast<N>(static_cast<Acc<T>>(a.x<T>(2)[0]));
              for (int64_t i = 0; i < n; ++i)
                a.y<T>(0)[i] =
                    static_cast<T>(static_cast<Acc<T>>(start + static_cast<N>(i) * delta));
            });
          }};
}

}  // namespace

void register_range(OpTable& table) {
  const auto c = [](double v) {
    ExampleInput e = floats({}, {v});
    e.constant = true;
    return e;
  };
  table.add({
      .name = "Range",
      .inputs = {"start", "limit", "delta"},
      .outputs = {"output"},
      .since = 11,
      .infer = infer,
      .grad = {no_grad("start"), no_grad("limit"), no_grad("delta")},
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {iconst({}, {0}), iconst({}, {7}), iconst({}, {2})}},
                   {.in = {iconst({}, {5}), iconst({}, {-4}), iconst({}, {-3})}},
                   {.in = {iconst({}, {5}), iconst({}, {2}), iconst({}, {1})}},
                   {.in = {c(1), c(2.1), c(0.25)}},
                   {.in = {c(10), c(-1), c(-3)}}},
  });
}

}  // namespace ortrain::ops
