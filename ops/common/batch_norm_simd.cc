// See batch_norm_simd.h. A number costs its conversion to double and back and two to five
// operations, about what memory takes to deliver it. So factors and sums are loaded once for four
// rows where that does not disturb the order in which memory is read: where the rows' lines are in
// a cache, or each row fills pages of its own. The lines of the four rows to come are asked for in
// their order. Measured on a Zen 4 (2 cores, AVX-512): docs/performance.md.
#include "ops/common/batch_norm_simd.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Two x86 sets beyond the baseline are enough; blocks of registers need vectors of fixed size.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/batch_norm_simd.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
// As many numbers of each type as a vector has doubles.
using D = hn::ScalableTag<double>;
using DF = hn::Rebind<float, D>;
using DI = hn::Rebind<int32_t, D>;
using DU = hn::Rebind<uint32_t, D>;
using DH = hn::Rebind<uint16_t, D>;
using V = hn::Vec<D>;
using VF = hn::Vec<DF>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kRows = 4;                       // that share loaded factors
constexpr int kVectors = 2;                    // of a row at a time
constexpr int64_t kLongRow = 4096;             // bytes: a page
constexpr int64_t kCached = int64_t{2} << 20;  // bytes of a tensor, of this thread's rows

HWY_INLINE VF widen(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF widen(const bf16* p) {
  const auto bits = hn::LoadU(DH(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
}
HWY_INLINE void narrow(VF v, float* p) { hn::StoreU(v, DF(), p); }
HWY_INLINE void narrow(VF v, bf16* p) {
  const auto u = hn::BitCast(DU(), v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(DU(), 1));
  const auto near = hn::Add(u, hn::Add(odd, hn::Set(DU(), 0x7fff)));
  const auto quiet = hn::Or(u, hn::Set(DU(), 0x400000));
  const auto bits = hn::IfThenElse(hn::RebindMask(DU(), hn::IsNaN(v)), quiet, near);
  const auto high = hn::BitCast(DI(), hn::ShiftRight<16>(bits));
  hn::StoreU(hn::DemoteTo(DH(), high), DH(), reinterpret_cast<uint16_t*>(p));
}
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
using D16 = hn::Rebind<hwy::float16_t, D>;
HWY_INLINE VF widen(const f16* p) {
  return hn::PromoteTo(DF(), hn::LoadU(D16(), reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE void narrow(VF v, f16* p) {
  hn::StoreU(hn::DemoteTo(D16(), v), D16(), reinterpret_cast<hwy::float16_t*>(p));
}
#else
HWY_INLINE VF widen(const f16* p) {
  HWY_ALIGN float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(p[i]);
  return hn::Load(DF(), lanes);
}
HWY_INLINE void narrow(VF v, f16* p) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, DF(), lanes);
  for (int i = 0; i < kLanes; ++i) p[i] = f16(lanes[i]);
}
#endif

template <bool kPart, class T>
HWY_INLINE VF get(const T* p, int64_t count) {
  if constexpr (!kPart) return widen(p);
  T whole[kLanes] = {};
  std::copy_n(p, count, whole);
  return widen(whole);
}
template <bool kPart, class T>
HWY_INLINE void put(VF v, T* p, int64_t count) {
  if constexpr (!kPart) return narrow(v, p);
  T whole[kLanes];
  narrow(v, whole);
  std::copy_n(whole, count, p);
}
template <bool kPart>
HWY_INLINE V get_double(const double* p, int64_t count) {
  if constexpr (!kPart) return hn::LoadU(D(), p);
  HWY_ALIGN double whole[kLanes] = {};
  std::copy_n(p, count, whole);
  return hn::Load(D(), whole);
}
template <bool kPart>
HWY_INLINE void put_double(V v, double* p, int64_t count) {
  if constexpr (!kPart) return hn::StoreU(v, D(), p);
  HWY_ALIGN double whole[kLanes];
  hn::Store(v, D(), whole);
  std::copy_n(whole, count, p);
}
template <bool kPart, class T>
HWY_INLINE V get_wide(const T* p, int64_t count) {
  return hn::PromoteTo(D(), get<kPart>(p, count));
}

// N vectors of each of R rows: row r begins at element `at` + r * pitch, its channels at c; the
// last vector of a row has only `count` numbers (kPart). What is asked for lies at `ahead` + r *
// step.
struct Patch {
  int64_t at, pitch, c, count, ahead, step;
};
template <int R, int N, class T>
HWY_INLINE void ask_for(const T* p, const Patch& b) {
  if constexpr (R == 1) return;
  for (int r = 0; r < R; ++r) {
    const char* line = reinterpret_cast<const char*>(p + b.ahead + r * b.step);
    for (size_t i = 0; i < sizeof(T) * N * kLanes; i += 64) hwy::Prefetch(line + i);
  }
}

// R rows from row `first` on.
template <int R, class K>
HWY_INLINE void walk_rows(const NormRows& n, int64_t first, const K& kernel) {
  const bool dense = n.pitch == n.channels;
  const int64_t next_rows = (first + R) * n.pitch;
  Patch b{first * n.pitch, n.pitch, 0, kLanes, 0, 0};
  const auto patch = [&]<int N, bool kPart>() HWY_ATTR {
    b.ahead = next_rows + (dense ? R * b.c : b.c), b.step = dense ? N * kLanes : n.pitch;
    kernel.template patch<R, N, kPart>(b);
    b.at += N * kLanes, b.c += N * kLanes;
  };
  while (b.c + kVectors * kLanes <= n.channels) patch.template operator()<kVectors, false>();
  while (b.c + kLanes <= n.channels) patch.template operator()<1, false>();
  b.count = n.channels - b.c;
  if (b.count > 0) patch.template operator()<1, true>();
}
// Calls kernel.patch<R, N, kPart>(Patch) so that all numbers are met once.
template <class K>
HWY_INLINE void walk(const NormRows& n, const K& kernel) {
  const int64_t row_bytes = n.pitch * static_cast<int64_t>(size_of(n.dtype));
  const bool several = row_bytes >= kLongRow || n.rows * row_bytes <= kCached;
  int64_t r = 0;
  for (; several && r + kRows <= n.rows; r += kRows) walk_rows<kRows>(n, r, kernel);
  for (; r < n.rows; ++r) walk_rows<1>(n, r, kernel);
}

// Unrolled, so that arrays of vectors are registers.
#define ORTRAIN_EACH(i, n) _Pragma("GCC unroll 4") for (int i = 0; i < (n); ++i)

// Factors or sums of a patch.
template <bool kPart, int N>
struct Vectors {
  V v[N];
  HWY_INLINE Vectors(const double* p, const Patch& b) {
    ORTRAIN_EACH(j, N) v[j] = get_double<kPart>(p + b.c + j * kLanes, b.count);
  }
  HWY_INLINE void write(double* p, const Patch& b) const {
    ORTRAIN_EACH(j, N) put_double<kPart>(v[j], p + b.c + j * kLanes, b.count);
  }
};

template <class T>
struct Sums {
  const T* x;
  const double* k;
  double *s, *q;
  template <int R, int N, bool kPart>
  HWY_INLINE void patch(const Patch& b) const {
    ask_for<R, N>(x, b);
    const Vectors<kPart, N> first(k, b);
    Vectors<kPart, N> sum(s, b), squares(q, b);
    ORTRAIN_EACH(r, R) {
      const T* p = x + b.at + r * b.pitch;
      ORTRAIN_EACH(j, N) {
        const V d = hn::Sub(get_wide<kPart>(p + j * kLanes, b.count), first.v[j]);
        sum.v[j] = hn::Add(sum.v[j], d);
        squares.v[j] = hn::MulAdd(d, d, squares.v[j]);
      }
    }
    sum.write(s, b), squares.write(q, b);
  }
};

// The bounds of a relu: a value v in double is open where v rounded to f32 lies strictly between
// low and high. closed_below is the largest v that rounds to `low` or less, closed_above the
// smallest that rounds to `high` or more: no rounding is needed.
double closed_below(float low) {
  if (!std::isfinite(low)) return static_cast<double>(low);
  const float next = std::nextafter(low, std::numeric_limits<float>::infinity());
  const double middle = static_cast<double>(low) / 2 + static_cast<double>(next) / 2;
  if (static_cast<float>(middle) <= low) return middle;  // a tie goes to the even one
  return std::nextafter(middle, -std::numeric_limits<double>::infinity());
}
double closed_above(float high) { return -closed_below(-high); }

enum class Clip { kNone, kLow, kBoth };
// Calls f<Clip>().
template <class F>
HWY_INLINE void with_clip(const NormFactors& n, F&& f) {
  if (std::isfinite(n.high)) return f.template operator()<Clip::kBoth>();
  if (std::isfinite(n.low)) return f.template operator()<Clip::kLow>();
  f.template operator()<Clip::kNone>();
}

// (x - mean) scale + bias: the expression that forward and backward share.
HWY_INLINE V affine(V centred, V scale, V bias) { return hn::MulAdd(centred, scale, bias); }

template <class T, bool kResidual, Clip kClip>
struct Apply {
  const T *x, *z;
  T* y;
  const NormFactors& f;
  template <int R, int N, bool kPart>
  HWY_INLINE void patch(const Patch& b) const {
    ask_for<R, N>(x, b);
    if constexpr (kResidual) ask_for<R, N>(z, b);
    const Vectors<kPart, N> mean(f.mean, b), scale(f.scale, b), bias(f.bias, b);
    const VF low = hn::Set(DF(), f.low), high = hn::Set(DF(), f.high);
    ORTRAIN_EACH(r, R) {
      const int64_t row = b.at + r * b.pitch;
      ORTRAIN_EACH(j, N) {
        const int64_t i = row + j * kLanes;
        const V d = hn::Sub(get_wide<kPart>(x + i, b.count), mean.v[j]);
        V v = affine(d, scale.v[j], bias.v[j]);
        if constexpr (kResidual) v = hn::Add(v, get_wide<kPart>(z + i, b.count));
        VF to = hn::DemoteTo(DF(), v);
        if constexpr (kClip != Clip::kNone) to = hn::IfThenElse(hn::Lt(to, low), low, to);
        if constexpr (kClip == Clip::kBoth) to = hn::IfThenElse(hn::Gt(to, high), high, to);
        put<kPart>(to, y + i, b.count);  // NaN stays
      }
    }
  }
};

// Gradient sums where dz is written.
template <class T>
struct ResidualSums {
  const T *dy, *x, *y;
  T* dz;
  const NormFactors& f;
  double *s, *q;
  template <int R, int N, bool kPart>
  HWY_INLINE void patch(const Patch& b) const {
    ask_for<R, N>(x, b), ask_for<R, N>(y, b), ask_for<R, N>(dy, b);
    const Vectors<kPart, N> mean(f.mean, b);
    Vectors<kPart, N> sum(s, b), products(q, b);
    const VF low = hn::Set(DF(), f.low), high = hn::Set(DF(), f.high);
    ORTRAIN_EACH(r, R) {
      const int64_t row = b.at + r * b.pitch;
      ORTRAIN_EACH(j, N) {
        const int64_t i = row + j * kLanes;
        const VF out = get<kPart>(y + i, b.count);
        const auto closed = hn::Or(hn::Le(out, low), hn::Ge(out, high));
        const VF open = hn::IfThenZeroElse(closed, get<kPart>(dy + i, b.count));
        put<kPart>(open, dz + i, b.count);
        const V g = hn::PromoteTo(D(), open);
        const V d = hn::Sub(get_wide<kPart>(x + i, b.count), mean.v[j]);
        sum.v[j] = hn::Add(sum.v[j], g);
        products.v[j] = hn::MulAdd(g, d, products.v[j]);
      }
    }
    sum.write(s, b), products.write(q, b);
  }
};

// dy where the relu let v through.
template <Clip kClip>
HWY_INLINE V open_part(V dy, V v, V below, V above) {
  if constexpr (kClip == Clip::kLow) return hn::IfThenZeroElse(hn::Le(v, below), dy);
  if constexpr (kClip == Clip::kBoth)
    return hn::IfThenZeroElse(hn::Or(hn::Le(v, below), hn::Ge(v, above)), dy);
  return dy;
}

template <class T, Clip kClip>
struct GradSums {
  const T *dy, *x;
  const NormFactors& f;
  double *s, *q;
  double below = closed_below(f.low), above = closed_above(f.high);
  template <int R, int N, bool kPart>
  HWY_INLINE void patch(const Patch& b) const {
    ask_for<R, N>(x, b), ask_for<R, N>(dy, b);
    const Vectors<kPart, N> mean(f.mean, b), scale(f.scale, b), bias(f.bias, b);
    Vectors<kPart, N> sum(s, b), products(q, b);
    const V low = hn::Set(D(), below), high = hn::Set(D(), above);
    ORTRAIN_EACH(r, R) {
      const int64_t row = b.at + r * b.pitch;
      ORTRAIN_EACH(j, N) {
        const int64_t i = row + j * kLanes;
        const V d = hn::Sub(get_wide<kPart>(x + i, b.count), mean.v[j]);
        const V v = affine(d, scale.v[j], bias.v[j]);
        const V g = open_part<kClip>(get_wide<kPart>(dy + i, b.count), v, low, high);
        sum.v[j] = hn::Add(sum.v[j], g);
        products.v[j] = hn::MulAdd(g, d, products.v[j]);
      }
    }
    sum.write(s, b), products.write(q, b);
  }
};

template <class T, Clip kClip>
struct GradInput {
  const T *dy, *x;
  T* dx;
  const NormFactors& f;
  const double *slope, *shift;
  double below = closed_below(f.low), above = closed_above(f.high);
  template <int R, int N, bool kPart>
  HWY_INLINE void patch(const Patch& b) const {
    ask_for<R, N>(x, b), ask_for<R, N>(dy, b);
    const Vectors<kPart, N> mean(f.mean, b), scale(f.scale, b), bias(f.bias, b);
    const Vectors<kPart, N> by(slope, b), plus(shift, b);
    const V low = hn::Set(D(), below), high = hn::Set(D(), above);
    ORTRAIN_EACH(r, R) {
      const int64_t row = b.at + r * b.pitch;
      ORTRAIN_EACH(j, N) {
        const int64_t i = row + j * kLanes;
        const V d = hn::Sub(get_wide<kPart>(x + i, b.count), mean.v[j]);
        const V v = affine(d, scale.v[j], bias.v[j]);
        const V g = open_part<kClip>(get_wide<kPart>(dy + i, b.count), v, low, high);
        const V to = hn::MulAdd(g, scale.v[j], hn::MulAdd(d, by.v[j], plus.v[j]));
        put<kPart>(hn::DemoteTo(DF(), to), dx + i, b.count);
      }
    }
  }
};
#undef ORTRAIN_EACH

// f of a null pointer of the data's type.
template <class F>
HWY_INLINE void with_type(DType dtype, F&& f) {
  if (dtype == DType::kBF16) return f(static_cast<bf16*>(nullptr));
  if (dtype == DType::kF16) return f(static_cast<f16*>(nullptr));
  f(static_cast<float*>(nullptr));
}

void sums(const NormRows& n, const void* x, const double* k, double* s, double* q) {
  with_type(n.dtype, [&]<class T>(T*) HWY_ATTR {
    walk(n, Sums<T>{static_cast<const T*>(x), k, s, q});
  });
}
void apply(const NormRows& n, const void* x, const void* z, void* y, const NormFactors& f) {
  with_type(n.dtype, [&]<class T>(T*) HWY_ATTR {
    const T *px = static_cast<const T*>(x), *pz = static_cast<const T*>(z);
    T* py = static_cast<T*>(y);
    with_clip(f, [&]<Clip kClip>() HWY_ATTR {
      if (z)
        walk(n, Apply<T, true, kClip>{px, pz, py, f});
      else
        walk(n, Apply<T, false, kClip>{px, pz, py, f});
    });
  });
}
void grad_sums(const NormRows& n, const void* dy, const void* x, const void* y, void* dz,
               const NormFactors& f, double* s, double* q) {
  with_type(n.dtype, [&]<class T>(T*) HWY_ATTR {
    const T *g = static_cast<const T*>(dy), *px = static_cast<const T*>(x);
    if (y)
      return walk(n,
                  ResidualSums<T>{g, px, static_cast<const T*>(y), static_cast<T*>(dz), f, s, q});
    with_clip(f, [&]<Clip kClip>() HWY_ATTR { walk(n, GradSums<T, kClip>{g, px, f, s, q}); });
  });
}
void grad_input(const NormRows& n, const void* dy, const void* x, void* dx, const NormFactors& f,
                const double* slope, const double* shift) {
  with_type(n.dtype, [&]<class T>(T*) HWY_ATTR {
    const T *g = static_cast<const T*>(dy), *px = static_cast<const T*>(x);
    T* out = static_cast<T*>(dx);
    with_clip(f, [&]<Clip kClip>() HWY_ATTR {
      walk(n, GradInput<T, kClip>{g, px, out, f, slope, shift});
    });
  });
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(sums);
HWY_EXPORT(apply);
HWY_EXPORT(grad_sums);
HWY_EXPORT(grad_input);

void norm_sums(const NormRows& n, const void* x, const double* k, double* s, double* q) {
  HWY_DYNAMIC_DISPATCH(sums)(n, x, k, s, q);
}
void norm_apply(const NormRows& n, const void* x, const void* z, void* y, const NormFactors& f) {
  HWY_DYNAMIC_DISPATCH(apply)(n, x, z, y, f);
}
void norm_grad_sums(const NormRows& n, const void* dy, const void* x, const void* y, void* dz,
                    const NormFactors& f, double* s, double* q) {
  HWY_DYNAMIC_DISPATCH(grad_sums)(n, dy, x, y, dz, f, s, q);
}
void norm_grad_input(const NormRows& n, const void* dy, const void* x, void* dx,
                     const NormFactors& f, const double* slope, const double* shift) {
  HWY_DYNAMIC_DISPATCH(grad_input)(n, dy, x, dx, f, slope, shift);
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
