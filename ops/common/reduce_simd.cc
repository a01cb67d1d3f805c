// Row and column reductions of f32 with Highway; see reduce_simd.h.
//
// Rows: four vector accumulators over blocks of 64 vectors, each block summed into a double.
// Columns: 16 rows are added pairwise in registers and join a double accumulator once.
#include "ops/common/reduce_simd.h"

#include <algorithm>
#include <cmath>

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/reduce_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int64_t kBlockVectors = 256;  // 64 additions per lane and accumulator

HWY_INLINE double lane_sum(V v) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, D(), lanes);
  double s = 0;
  for (size_t i = 0; i < hn::Lanes(D()); ++i) s += static_cast<double>(lanes[i]);
  return s;
}

template <bool squares>
HWY_INLINE double sum_of(const float* x, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto add = [](V acc, V v)
                       HWY_ATTR { return squares ? hn::MulAdd(v, v, acc) : hn::Add(acc, v); };
  double total = 0;
  int64_t i = 0;
  while (i + lanes <= n) {
    V a = hn::Zero(d), b = a, c = a, e = a;
    const int64_t end = i + std::min(kBlockVectors * lanes, (n - i) / lanes * lanes);
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      a = add(a, hn::LoadU(d, x + i));
      b = add(b, hn::LoadU(d, x + i + lanes));
      c = add(c, hn::LoadU(d, x + i + 2 * lanes));
      e = add(e, hn::LoadU(d, x + i + 3 * lanes));
    }
    for (; i < end; i += lanes) a = add(a, hn::LoadU(d, x + i));
    total += lane_sum(hn::Add(hn::Add(a, b), hn::Add(c, e)));
  }
  for (; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    total += squares ? v * v : v;
  }
  return total;
}
double sum(const float* x, int64_t n) { return sum_of<false>(x, n); }
double sum_squares(const float* x, int64_t n) { return sum_of<true>(x, n); }

// b where it is NaN or beyond a, else a; NaN in a stays.
template <bool largest>
HWY_INLINE V extreme(V a, V b) {
  const auto beyond = largest ? hn::Gt(b, a) : hn::Lt(b, a);
  return hn::IfThenElse(hn::Or(hn::IsNaN(b), beyond), hn::IfThenElse(hn::IsNaN(a), a, b), a);
}
template <bool largest>
HWY_INLINE float extreme_one(float a, float b) {
  return a != a ? a : (b != b || (largest ? b > a : b < a)) ? b : a;
}
template <bool largest>
HWY_INLINE float extreme_of(const float* x, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float best = x[0];
  int64_t i = 0;
  if (n >= lanes) {
    V a = hn::LoadU(d, x), b = a;
    for (i = lanes; i + 2 * lanes <= n; i += 2 * lanes) {
      a = extreme<largest>(a, hn::LoadU(d, x + i));
      b = extreme<largest>(b, hn::LoadU(d, x + i + lanes));
    }
    a = extreme<largest>(a, b);
    HWY_ALIGN float out[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(a, d, out);
    best = out[0];
    for (int64_t k = 1; k < lanes; ++k) best = extreme_one<largest>(best, out[k]);
  }
  for (; i < n; ++i) best = extreme_one<largest>(best, x[i]);
  return best;
}
float max(const float* x, int64_t n) { return extreme_of<true>(x, n); }
float min(const float* x, int64_t n) { return extreme_of<false>(x, n); }

bool all_finite(const float* x, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  V bad = hn::Zero(d), bad1 = bad, bad2 = bad, bad3 = bad;  // x - x is 0 for finite x, else NaN
  const auto difference = [&](int64_t at) HWY_ATTR {
    const V v = hn::LoadU(d, x + at);
    return hn::Sub(v, v);
  };
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    bad = hn::Add(bad, difference(i));
    bad1 = hn::Add(bad1, difference(i + lanes));
    bad2 = hn::Add(bad2, difference(i + 2 * lanes));
    bad3 = hn::Add(bad3, difference(i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) bad = hn::Add(bad, difference(i));
  bad = hn::Add(hn::Add(bad, bad1), hn::Add(bad2, bad3));
  bool finite = hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)));
  for (; i < n; ++i) finite &= std::isfinite(x[i]);
  return finite;
}

// Adds rows [0, count) of one vector of columns.
template <int64_t count>
HWY_INLINE V add_rows(const float* x, int64_t pitch) {
  if constexpr (count == 1)
    return hn::LoadU(D(), x);
  else
    return hn::Add(add_rows<count / 2>(x, pitch),
                   add_rows<count / 2>(x + count / 2 * pitch, pitch));
}
template <int64_t count>
HWY_INLINE void sum_group(const float* x, int64_t pitch, int64_t n, double* acc) {
  int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  const hn::ScalableTag<double> dd;
  const hn::Half<D> half;
  const int64_t wide = static_cast<int64_t>(hn::Lanes(dd));
  for (; j + lanes <= n; j += lanes) {
    const V s = add_rows<count>(x + j, pitch);
    const auto low = hn::PromoteTo(dd, hn::LowerHalf(half, s));
    const auto high = hn::PromoteTo(dd, hn::UpperHalf(half, s));
    hn::StoreU(hn::Add(hn::LoadU(dd, acc + j), low), dd, acc + j);
    hn::StoreU(hn::Add(hn::LoadU(dd, acc + j + wide), high), dd, acc + j + wide);
  }
#endif
  for (; j < n; ++j) {
    float s = 0;
    for (int64_t r = 0; r < count; ++r) s += x[r * pitch + j];
    acc[j] += static_cast<double>(s);
  }
}
void sum_rows(const float* x, int64_t rows, int64_t pitch, int64_t n, double* acc) {
  for (; rows >= 16; rows -= 16, x += 16 * pitch) sum_group<16>(x, pitch, n, acc);
  if (rows & 8) sum_group<8>(x, pitch, n, acc), x += 8 * pitch;
  if (rows & 4) sum_group<4>(x, pitch, n, acc), x += 4 * pitch;
  if (rows & 2) sum_group<2>(x, pitch, n, acc), x += 2 * pitch;
  if (rows & 1) sum_group<1>(x, pitch, n, acc);
}

template <bool largest>
HWY_INLINE void extreme_group(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    V a = hn::LoadU(d, acc + j);
    for (int64_t r = 0; r < rows; ++r) a = extreme<largest>(a, hn::LoadU(d, x + r * pitch + j));
    hn::StoreU(a, d, acc + j);
  }
  for (; j < n; ++j)
    for (int64_t r = 0; r < rows; ++r) acc[j] = extreme_one<largest>(acc[j], x[r * pitch + j]);
}
// 16 rows at a time: memory is read in long runs, the accumulators stay in cache.
template <bool largest>
HWY_INLINE void extreme_rows(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc) {
  for (; rows > 0; rows -= 16, x += 16 * pitch)
    extreme_group<largest>(x, std::min<int64_t>(rows, 16), pitch, n, acc);
}
void max_rows(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc) {
  extreme_rows<true>(x, rows, pitch, n, acc);
}
void min_rows(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc) {
  extreme_rows<false>(x, rows, pitch, n, acc);
}

void fill(ReduceSimd& t) {
  t = {sum, sum_squares, max, min, all_finite, sum_rows, max_rows, min_rows};
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(fill);

const ReduceSimd& reduce_simd() {
  static const ReduceSimd table = [] {
    ReduceSimd t;
    HWY_DYNAMIC_DISPATCH(fill)(t);
    return t;
  }();
  return table;
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
