// CumSum: running sums along `axis` (a constant input); `exclusive` leaves the element itself out,
// `reverse` sums from the end. Floats add in double. Gradient: CumSum of dy in the other direction.
#include <algorithm>
#include <type_traits>

#include "graph/error.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

void infer_cum_sum(InferCtx& c) {
  const auto axis = c.need_ints(1, "the axis of CumSum");
  if (axis.size() != 1 || !axis[0].is_const()) c.fail("axis must be one number");
  normalize_axis(axis[0].value(), c.rank(0));
  c.out(0, c.dtype(0), c.shape(0));
}

template <class T>
constexpr bool kReal =
    std::is_floating_point_v<T> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

constexpr int64_t kLines = 64;

template <class T>
void run(const Dims& dims, size_t axis, bool exclusive, bool reverse, int threads,
         const KernelArgs& args) {
  using Sum = std::conditional_t<kReal<T>, double, uint64_t>;
  int64_t outer = 1, inner = 1;
  const int64_t n = dims[axis];
  for (size_t d = 0; d < axis; ++d) outer *= dims[d];
  for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  const T* x = args.x<T>(0);
  T* y = args.y<T>(0);
  const auto wide = [](T v) {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
      return static_cast<double>(static_cast<float>(v));
    else
      return static_cast<Sum>(v);
  };
  const auto narrow = [](Sum v) {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
      return T(static_cast<float>(v));
    else
      return static_cast<T>(v);
  };
  if (inner == 1)
    return parallel_for(threads, outer, 1 + 16384 / std::max<int64_t>(1, n),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) {
                            Sum sum = 0;
                            for (int64_t k = 0; k < n; ++k) {
                              const int64_t at = i * n + (reverse ? n - 1 - k : k);
                              const Sum v = wide(x[at]);
                              y[at] = narrow(exclusive ? sum : sum + v);
                              sum += v;
                            }
                          }
                        });
  // Neighbouring lines together, so that memory is met in order.
  const int64_t blocks = (inner + kLines - 1) / kLines;
  const int64_t work = std::max<int64_t>(1, n * std::min(inner, kLines));
  parallel_for(threads, outer * blocks, 1 + 16384 / work, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b % blocks * kLines, lines = std::min(kLines, inner - first);
      Sum sum[kLines] = {};
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = (b / blocks * n + (reverse ? n - 1 - k : k)) * inner + first;
        const T* from = x + at;
        T* to = y + at;
        for (int64_t j = 0; j < lines; ++j) {
          const Sum v = wide(from[j]);
          to[j] = narrow(exclusive ? sum[j] : sum[j] + v);
          sum[j] += v;
        }
      }
    }
  });
}

Kernel prepare(const KernelQuery& q) {
  const Dims dims = q.in[0].dims;
  const int64_t named = q.need_ints(1, "the axis of CumSum").at(0);
  const size_t axis = static_cast<size_t>(normalize_axis(named, q.in[0].rank()));
  const bool exclusive = q.attrs.i("exclusive", 0) != 0, reverse = q.attrs.i("reverse", 0) != 0;
  return dispatch(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {.run = [=, threads = q.threads](const KernelArgs& args) {
      run<T>(dims, axis, exclusive, reverse, threads, args);
    }};
  });
}

Expr other_direction(Grad& g) {
  Attrs attrs = g.attrs();
  attrs.set("reverse", int64_t{attrs.i("reverse", 0) == 0});
  return g.b.op("CumSum", {g.dy(), g.x(1)}, attrs);
}

}  // namespace

OpDef cum_sum_op() {
  const auto with = [](int64_t exclusive, int64_t reverse) {
    return Attrs{{"exclusive", exclusive}, {"reverse", reverse}};
  };
  return {
      .name = "CumSum",
      .inputs = {"x", "axis"},
      .outputs = {"y"},
      .since = 11,
      .infer = infer_cum_sum,
      .grad = {grad("x", other_direction), no_grad("axis")},
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 3, 4}), iconst({}, {1})}},
                   {.in = {f({2, 5}), iconst({}, {-1})}, .attrs = with(1, 0)},
                   {.in = {f({2, 5, 70}), iconst({}, {1})}, .attrs = with(1, 1)},
                   {.in = {f({2, 5}), iconst({1}, {0})}, .attrs = with(0, 1)},
                   {.in = {f({2, 5}), iconst({}, {1})}, .attrs = with(1, 1)},
                   {.in = {ints({2, 5}, -9, 9), iconst({}, {1})}},
                   {.in = {f({0, 5}), iconst({}, {1})}}},
  };
}

void register_cum_sum(OpTable& table) { table.add(cum_sum_op()); }

}  // namespace ortrain::ops
