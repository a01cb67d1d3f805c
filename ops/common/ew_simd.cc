// Tile functions for f32 with vector instructions (Highway), compiled for several instruction sets;
// the best one that the CPU has is chosen at run time.
//
// Promises against the exact value, over the whole range (tests/ops/ew_simd_test.cc): exp, tanh,
// erf, log 2 ulp; sigmoid, expm1, log1p 3 ulp; sin, cos 1.2e-7 absolute; asin, acos, atan, sinh,
// cosh, asinh, acosh, atanh and (|x| <= 100) tan 4 ulp; the rest correctly rounded. NaN,
// infinities, signed zeros and denormals as in ew_scalar.h. The rest of a tile that does not fill a
// vector goes through the same instructions, so a result does not depend on where the tile starts.
// erf and tanh: polynomials after N. Juffa; exp and log: the coefficients of Cephes (S. Moshier).
#include <cmath>

#include "ops/common/ew_engine.h"

// Two x86 sets beyond the baseline are enough; each costs seconds to compile.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/ew_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;
using DI = hn::RebindToSigned<D>;

HWY_INLINE V set(float v) { return hn::Set(D(), v); }
HWY_INLINE V zero() { return hn::Zero(D()); }
HWY_INLINE V select(M m, V yes, V no) { return hn::IfThenElse(m, yes, no); }
HWY_INLINE V truth(M m) { return hn::IfThenElseZero(m, set(1)); }
HWY_INLINE M is(V v) { return hn::Not(hn::Eq(v, zero())); }  // Ne is ordered on AVX-512
HWY_INLINE M nan(V v) { return hn::IsNaN(v); }
// Bounds that let NaN through. x86's minimum returns its second operand when one is NaN.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE V at_most(V x, float high) { return hn::Min(set(high), x); }
HWY_INLINE V at_least(V x, float low) { return hn::Max(set(low), x); }
#else
HWY_INLINE V at_most(V x, float high) { return select(hn::Gt(x, set(high)), set(high), x); }
HWY_INLINE V at_least(V x, float low) { return select(hn::Lt(x, set(low)), set(low), x); }
#endif
// 2^n for integral n in [-126, 127].
HWY_INLINE V power_of_two(V n) {
  const DI di;
  return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
}
// p 2^n for integral n in [-150, 128], rounded once: denormal results, overflow to infinity.
HWY_INLINE V scale(V p, V n) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(p.raw, n.raw)};
#else
  const DI di;
  const auto all = hn::ConvertTo(di, n), half = hn::ShiftRight<1>(all);
  const auto power = [&](auto k) HWY_ATTR {
    return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127))));
  };
  return hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(all, half)));
#endif
}

struct Reduced {
  V n, minus_one;  // exp(x) = 2^n (1 + minus_one)
};
// x in [-104, 89] or NaN.
HWY_INLINE Reduced exp_reduce(V x) {
  const V n = hn::Round(hn::Mul(x, set(1.44269504088896341f)));
  V r = hn::NegMulAdd(n, set(0.693359375f), x);
  r = hn::NegMulAdd(n, set(-2.12194440e-4f), r);
  V p = hn::MulAdd(set(1.9875691500e-4f), r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  return {n, hn::MulAdd(hn::Mul(r, r), p, r)};
}
// e^x for x <= 89 (or NaN).
HWY_INLINE V exp_below(V x) {
  const Reduced e = exp_reduce(at_least(x, -104));
  return scale(hn::Add(e.minus_one, set(1)), e.n);
}
HWY_INLINE V exp(V x) { return exp_below(at_most(x, 89)); }

HWY_INLINE V expm1(V x) {
  const Reduced e = exp_reduce(at_least(at_most(x, 88), -30));
  const V power = power_of_two(e.n);
  V y = hn::MulAdd(power, e.minus_one, hn::Sub(power, set(1)));
  y = select(hn::Eq(e.n, zero()), e.minus_one, y);
  y = select(hn::Eq(x, zero()), x, y);
  return select(hn::Lt(x, set(88)), y, exp(x));  // NaN goes through exp
}

HWY_INLINE V log_positive(V x) {
  const DI di;
  const M tiny = hn::Lt(x, set(1.17549435e-38f));
  x = select(tiny, hn::Mul(x, set(8388608.0f)), x);
  const auto bits = hn::BitCast(di, x);
  // m in [sqrt(1/2), sqrt(2)), x = m 2^e.
  const auto shifted = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  V e = hn::ConvertTo(D(), hn::ShiftRight<23>(shifted));
  const V m =
      hn::BitCast(D(), hn::Add(hn::And(shifted, hn::Set(di, 0x7fffff)), hn::Set(di, 0x3f3504f3)));
  e = hn::Sub(e, hn::IfThenElseZero(tiny, set(23)));
  const V r = hn::Sub(m, set(1)), z = hn::Mul(r, r);
  V p = hn::MulAdd(set(7.0376836292e-2f), r, set(-1.1514610310e-1f));
  p = hn::MulAdd(p, r, set(1.1676998740e-1f));
  p = hn::MulAdd(p, r, set(-1.2420140846e-1f));
  p = hn::MulAdd(p, r, set(1.4249322787e-1f));
  p = hn::MulAdd(p, r, set(-1.6668057665e-1f));
  p = hn::MulAdd(p, r, set(2.0000714765e-1f));
  p = hn::MulAdd(p, r, set(-2.4999993993e-1f));
  p = hn::MulAdd(p, r, set(3.3333331174e-1f));
  V y = hn::Mul(hn::Mul(p, r), z);
  y = hn::MulAdd(e, set(-2.12194440e-4f), y);
  y = hn::NegMulAdd(set(0.5f), z, y);
  return hn::MulAdd(e, set(0.693359375f), hn::Add(r, y));
}

HWY_INLINE V log(V x) {
  const V inf = hn::Inf(D());
  V y = log_positive(x);
  y = select(hn::Eq(x, inf), inf, y);
  y = select(hn::Eq(x, zero()), hn::Neg(inf), y);
  y = select(hn::Lt(x, zero()), hn::NaN(D()), y);
  return select(nan(x), x, y);
}

HWY_INLINE V log1p(V x) {
  const V u = hn::Add(set(1), x);
  const V lost = hn::Div(hn::Sub(x, hn::Sub(u, set(1))), u);
  V y = hn::Add(log(u), lost);
  y = select(hn::Eq(u, zero()), hn::Neg(hn::Inf(D())), y);
  y = select(hn::Eq(x, hn::Inf(D())), x, y);
  return select(hn::Eq(u, set(1)), x, y);
}

HWY_INLINE V tanh(V x) {
  const V t = hn::Abs(x), s = hn::Mul(x, x);
  V small = hn::MulAdd(set(1.57394409e-2f), s, set(-5.23025580e-2f));
  small = hn::MulAdd(small, s, set(1.33152470e-1f));
  small = hn::MulAdd(small, s, set(-3.33327681e-1f));
  small = hn::MulAdd(hn::Mul(small, s), x, x);
  const Reduced e = exp_reduce(at_most(hn::Add(t, t), 40));
  const V big = hn::Add(scale(hn::Add(e.minus_one, set(1)), e.n), set(1));
  const V y = hn::CopySign(hn::Sub(set(1), hn::Div(set(2), big)), x);
  return select(hn::Lt(t, set(0.599609375f)), small, y);
}

HWY_INLINE V sigmoid(V x) { return hn::Div(set(1), hn::Add(set(1), exp(hn::Neg(x)))); }

HWY_INLINE V erf(V x) {
  const V t = at_most(hn::Abs(x), 4.2f), s = hn::Mul(t, t);  // 1 - erf(4) < 2^-25
  V r = hn::MulAdd(set(-1.72853470e-5f), t, set(3.83197126e-4f));
  const V u = hn::MulAdd(set(-3.88396438e-3f), t, set(2.42546219e-2f));
  r = hn::MulAdd(r, s, u);
  r = hn::MulAdd(r, t, set(-1.06777877e-1f));
  r = hn::MulAdd(r, t, set(-6.34846687e-1f));
  r = hn::MulAdd(r, t, set(-1.28717512e-1f));
  r = hn::MulAdd(r, t, hn::Neg(t));
  const Reduced e = exp_reduce(r);
  const V big = hn::Sub(set(1), scale(hn::Add(e.minus_one, set(1)), e.n));
  V p = hn::MulAdd(set(-5.96761703e-4f), s, set(4.99119423e-3f));
  p = hn::MulAdd(p, s, set(-2.67681349e-2f));
  p = hn::MulAdd(p, s, set(1.12819925e-1f));
  p = hn::MulAdd(p, s, set(-3.76125336e-1f));
  p = hn::MulAdd(p, s, set(1.28379166e-1f));
  p = hn::MulAdd(p, x, x);
  return select(hn::Gt(t, set(0.927734375f)), hn::CopySign(big, x), p);
}

// Sine and cosine of x reduced to [-pi/4, pi/4], and the quadrant; |x| <= 8192. Cephes'
// polynomials.
struct Circle {
  V sine, cosine;
  hn::Vec<DI> quadrant;
};
HWY_INLINE Circle circle(V x) {
  const V n = hn::Round(hn::Mul(x, set(0.636619772367581343f)));
  V r = hn::NegMulAdd(n, set(1.5703125f), x);
  r = hn::NegMulAdd(n, set(4.837512969970703e-4f), r);
  r = hn::NegMulAdd(n, set(7.549789954891882e-8f), r);
  const V z = hn::Mul(r, r);
  V s = hn::MulAdd(set(-1.9515295891e-4f), z, set(8.3321608736e-3f));
  s = hn::MulAdd(s, z, set(-1.6666654611e-1f));
  s = hn::MulAdd(hn::Mul(s, z), r, r);
  V c = hn::MulAdd(set(2.443315711809948e-5f), z, set(-1.388731625493765e-3f));
  c = hn::MulAdd(c, z, set(4.166664568298827e-2f));
  c = hn::MulAdd(hn::Mul(c, z), z, hn::NegMulAdd(set(0.5f), z, set(1)));
  return {s, c, hn::ConvertTo(DI(), n)};
}
HWY_INLINE M odd(hn::Vec<DI> quadrant) {
  const auto one = hn::Set(DI(), 1);
  return hn::RebindMask(D(), hn::Eq(hn::And(quadrant, one), one));
}
// sin(x + shift pi/2)
HWY_INLINE V sine(V x, int shift) {
  const DI di;
  const Circle at = circle(x);
  const auto quadrant = hn::Add(at.quadrant, hn::Set(di, shift));
  const auto sign = hn::BitCast(D(), hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  return hn::Xor(select(odd(quadrant), at.cosine, at.sine), sign);
}
HWY_INLINE V tangent(V x) {
  const Circle at = circle(x);
  const M turned = odd(at.quadrant);
  return hn::Div(select(turned, hn::Neg(at.cosine), at.sine), select(turned, at.sine, at.cosine));
}

// Inverse functions of the circle: Cephes' polynomials.
HWY_INLINE V atan(V x) {
  const V t = hn::Abs(x);
  const M big = hn::Gt(t, set(2.41421356f)), middle = hn::Gt(t, set(0.414213562f));
  const V top = select(big, set(-1), select(middle, hn::Sub(t, set(1)), t));
  const V r = hn::Div(top, select(big, t, select(middle, hn::Add(t, set(1)), set(1))));
  const V z = hn::Mul(r, r);
  V p = hn::MulAdd(set(8.05374449538e-2f), z, set(-1.38776856032e-1f));
  p = hn::MulAdd(p, z, set(1.99777106478e-1f));
  p = hn::MulAdd(p, z, set(-3.33329491539e-1f));
  const V base = select(big, set(1.57079632679f), hn::IfThenElseZero(middle, set(0.785398163397f)));
  return hn::CopySign(hn::Add(base, hn::MulAdd(hn::Mul(p, z), r, r)), x);
}
// asin of |x| up to 1/2, else of sqrt((1 - |x|) / 2), which is half the way to pi/2.
HWY_INLINE V arc(V t, M big) {
  const V z = select(big, hn::Mul(set(0.5f), hn::Sub(set(1), t)), hn::Mul(t, t));
  const V s = select(big, hn::Sqrt(z), t);
  V p = hn::MulAdd(set(4.2163199048e-2f), z, set(2.4181311049e-2f));
  p = hn::MulAdd(p, z, set(4.5470025998e-2f));
  p = hn::MulAdd(p, z, set(7.4953002686e-2f));
  p = hn::MulAdd(p, z, set(1.6666752422e-1f));
  return hn::MulAdd(hn::Mul(p, z), s, s);
}
HWY_INLINE V asin(V x) {
  const V t = hn::Abs(x);
  const M big = hn::Gt(t, set(0.5f));
  const V r = arc(t, big);
  return hn::CopySign(select(big, hn::NegMulAdd(set(2), r, set(1.57079632679f)), r), x);
}
HWY_INLINE V acos(V x) {
  const V t = hn::Abs(x);
  const M big = hn::Gt(t, set(0.5f));
  const V r = arc(t, big), twice = hn::Add(r, r);
  const V far = select(hn::Lt(x, zero()), hn::Sub(set(3.14159265359f), twice), twice);
  return select(big, far, hn::Sub(set(1.57079632679f), hn::CopySign(r, x)));
}

// Hyperbolic functions by exp and log; beyond 88 the square of e^(x/2), where e^x overflows early.
HWY_INLINE V half_square(V t) {
  const V h = exp(hn::Mul(set(0.5f), t));
  return hn::Mul(hn::Mul(set(0.5f), h), h);
}
HWY_INLINE V sinh(V x) {
  const V t = hn::Abs(x), e = expm1(at_most(t, 88));
  const V y = hn::Mul(set(0.5f), hn::Add(e, hn::Div(e, hn::Add(e, set(1)))));
  return hn::CopySign(select(hn::Gt(t, set(88)), half_square(t), y), x);
}
HWY_INLINE V cosh(V x) {
  const V t = hn::Abs(x), e = exp(at_most(t, 88));
  const V y = hn::MulAdd(set(0.5f), e, hn::Div(set(0.5f), e));
  return select(hn::Gt(t, set(88)), half_square(t), y);
}
HWY_INLINE V log_twice(V t) { return hn::Add(log(t), set(0.693147181f)); }
HWY_INLINE V asinh(V x) {
  const V t = hn::Abs(x), z = hn::Mul(t, t);
  const V y = log1p(hn::Add(t, hn::Div(z, hn::Add(set(1), hn::Sqrt(hn::Add(set(1), z))))));
  return hn::CopySign(select(hn::Gt(t, set(1e10f)), log_twice(t), y), x);
}
HWY_INLINE V acosh(V x) {
  const V u = hn::Sub(x, set(1));
  const V y = log1p(hn::Add(u, hn::Sqrt(hn::Mul(u, hn::Add(u, set(2))))));
  const V at = select(hn::Gt(x, set(1e10f)), log_twice(x), y);
  return select(hn::Lt(x, set(1)), hn::NaN(D()), at);
}
HWY_INLINE V atanh(V x) {
  const V t = hn::Abs(x);
  const V y = log1p(hn::Div(hn::Add(t, t), hn::Sub(set(1), t)));
  return hn::CopySign(hn::Mul(set(0.5f), y), x);
}

HWY_INLINE V softplus(V x) {
  const V e = exp_below(hn::Neg(hn::Abs(x)));  // in [0, 1]
  const V u = hn::Add(set(1), e), lost = hn::Div(hn::Sub(e, hn::Sub(u, set(1))), u);
  return hn::Add(at_least(x, 0), hn::Add(log_positive(u), lost));
}
HWY_INLINE V cdf(V x) {
  return hn::MulAdd(set(0.5f), erf(hn::Mul(x, set(0.70710678118654752f))), set(0.5f));
}
HWY_INLINE V gelu_tanh_inner(V x) {
  return hn::Mul(set(0.79788456080286536f),
                 hn::MulAdd(hn::Mul(hn::Mul(set(0.044715f), x), x), x, x));
}
HWY_INLINE V gelu_tanh_grad(V dy, V x) {
  const V t = tanh(gelu_tanh_inner(x));
  const V slope =
      hn::Mul(set(0.79788456080286536f), hn::MulAdd(hn::Mul(set(3 * 0.044715f), x), x, set(1)));
  const V left = hn::MulAdd(set(0.5f), t, set(0.5f));
  const V right = hn::Mul(hn::Mul(hn::Mul(set(0.5f), x), hn::NegMulAdd(t, t, set(1))), slope);
  return hn::Mul(dy, hn::Add(left, right));
}
HWY_INLINE V gelu_grad(V dy, V x) {
  const V pdf = hn::Mul(set(0.39894228040143268f), exp_below(hn::Mul(hn::Mul(set(-0.5f), x), x)));
  return hn::Mul(dy, hn::MulAdd(x, pdf, cdf(x)));
}

// --- loops over a tile --------------------------------------------------------------------------
struct Operand {
  const float* p;
  bool one;
  V number;
  Operand(const EwCall& c, int i)
      : p(static_cast<const float*>(c.x[i])), one(c.step[i] == 0), number(set(*p)) {}
};

template <bool one>
HWY_INLINE V at(const Operand& x, int64_t i) {
  if constexpr (one)
    return x.number;
  else
    return hn::LoadU(D(), x.p + i);
}
// The last n < lanes elements, through memory that may be read in full.
template <bool one>
HWY_INLINE V at_end(const Operand& x, int64_t i, int64_t n) {
  if constexpr (one) {
    return x.number;
  } else {
    HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
    for (int64_t k = 0; k < n; ++k) buffer[k] = x.p[i + k];
    return hn::Load(D(), buffer);
  }
}
HWY_INLINE void put_end(V v, float* y, int64_t n) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, D(), buffer);
  for (int64_t k = 0; k < n; ++k) y[k] = buffer[k];
}

template <bool a1, bool b1, bool c1, class F>
HWY_INLINE void sweep(const EwCall& call, F f) {
  const Operand a(call, 0), b(call, 1), c(call, 2);
  float* HWY_RESTRICT y = static_cast<float*>(call.y);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= call.n; i += lanes)
    hn::StoreU(f(at<a1>(a, i), at<b1>(b, i), at<c1>(c, i)), D(), y + i);
  if (i < call.n) {
    const int64_t n = call.n - i;
    put_end(f(at_end<a1>(a, i, n), at_end<b1>(b, i, n), at_end<c1>(c, i, n)), y + i, n);
  }
}

template <class F>
HWY_INLINE void unary_with(const EwCall& call, F apply) {
  const auto f = [apply](V a, V, V) HWY_ATTR { return apply(a); };
  if (call.step[0])
    sweep<false, true, true>(call, f);
  else
    sweep<true, true, true>(call, f);
}
template <class F>
void unary(const EwCall& call) {
  unary_with(call, [](V a) HWY_ATTR { return F::apply(a); });
}
template <class F>
void binary(const EwCall& call) {
  const auto f = [](V a, V b, V) HWY_ATTR { return F::apply(a, b); };
  if (call.step[0] && call.step[1])
    sweep<false, false, true>(call, f);
  else if (call.step[0])
    sweep<false, true, true>(call, f);
  else if (call.step[1])
    sweep<true, false, true>(call, f);
  else
    sweep<true, true, true>(call, f);
}
void where(const EwCall& call) {
  const auto f = [](V c, V a, V b) HWY_ATTR { return select(is(c), a, b); };
  if (call.step[0] == 0) {
    const int from = *static_cast<const float*>(call.x[0]) != 0 ? 1 : 2;
    EwCall copy = call;
    copy.x[0] = call.x[from], copy.step[0] = call.step[from];
    const auto same = [](V a, V, V) HWY_ATTR { return a; };
    if (copy.step[0])
      sweep<false, true, true>(copy, same);
    else
      sweep<true, true, true>(copy, same);
  } else if (call.step[1] && call.step[2]) {
    sweep<false, false, false>(call, f);
  } else if (call.step[1]) {
    sweep<false, false, true>(call, f);
  } else if (call.step[2]) {
    sweep<false, true, false>(call, f);
  } else {
    sweep<false, true, true>(call, f);
  }
}
// Lanes beyond the range of the reduction are done by the C++ library. which: sine, cosine,
// tangent.
template <int which>
void circle_tile(const EwCall& call) {
  unary_with(call, [](V a) HWY_ATTR {
    const auto near = hn::Le(hn::Abs(a), set(8192));
    const V in_range = hn::IfThenElseZero(near, a);
    const V y = which == 2 ? tangent(in_range) : sine(in_range, which);
    if (HWY_LIKELY(hn::AllTrue(D(), near))) return y;
    HWY_ALIGN float in[HWY_MAX_BYTES / sizeof(float)], out[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(a, D(), in);
    hn::Store(y, D(), out);
    for (size_t k = 0; k < hn::Lanes(D()); ++k)
      if (!(std::fabs(in[k]) <= 8192))
        out[k] = which == 0 ? std::sin(in[k]) : which == 1 ? std::cos(in[k]) : std::tan(in[k]);
    return hn::Load(D(), out);
  });
}

// Frequent exponents by arithmetic, as PyTorch does; the rest number by number.
void pow(const EwCall& call) {
  if (call.step[1] == 0 && call.step[0] == 1) {
    const float e = *static_cast<const float*>(call.x[1]);
    if (e == 1.0f) return sweep<false, true, true>(call, [](V a, V, V) HWY_ATTR { return a; });
    if (e == 2.0f)
      return sweep<false, true, true>(call, [](V a, V, V) HWY_ATTR { return hn::Mul(a, a); });
    if (e == 3.0f)
      return sweep<false, true, true>(call,
                                      [](V a, V, V) HWY_ATTR { return hn::Mul(hn::Mul(a, a), a); });
    if (e == 0.5f)
      return sweep<false, true, true>(call, [](V a, V, V) HWY_ATTR { return hn::Sqrt(a); });
    if (e == -1.0f)
      return sweep<false, true, true>(call, [](V a, V, V) HWY_ATTR { return hn::Div(set(1), a); });
    if (e == -0.5f)
      return sweep<false, true, true>(
          call, [](V a, V, V) HWY_ATTR { return hn::Div(set(1), hn::Sqrt(a)); });
  }
  ew_ref_table(DType::kF32).fn[static_cast<size_t>(Ew::kPow)](call);
}

// Bool tensors are bytes 0 and 1.
void load_bool(const void* from, int64_t step, void* to, int64_t n) {
  const uint8_t* x = static_cast<const uint8_t*>(from);
  float* y = static_cast<float*>(to);
  if (step == 0) {
    for (int64_t i = 0; i < n; ++i) y[i] = *x ? 1.0f : 0.0f;
    return;
  }
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const DI di;
  const hn::Rebind<uint8_t, DI> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(di));
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(truth(is(hn::ConvertTo(D(), hn::PromoteTo(di, hn::LoadU(d8, x + i))))), D(), y + i);
#endif
  for (; i < n; ++i) y[i] = x[i] ? 1.0f : 0.0f;
}
void store_bool(const void* from, int64_t step, void* to, int64_t n) {
  const float* x = static_cast<const float*>(from);
  uint8_t* y = static_cast<uint8_t*>(to);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if (step == 1) {
    const DI di;
    const hn::Rebind<uint8_t, DI> d8;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(di));
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, truth(is(hn::LoadU(D(), x + i))))), d8, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = x[i * step] != 0.0f;
}

// --- the table ----------------------------------------------------------------------------------
#define UNARY(code, expression)                             \
  {                                                         \
    struct F {                                              \
      static HWY_INLINE V apply(V a) { return expression; } \
    };                                                      \
    t.fn[static_cast<size_t>(Ew::code)] = unary<F>;         \
  }
#define BINARY(code, expression)                                 \
  {                                                              \
    struct F {                                                   \
      static HWY_INLINE V apply(V a, V b) { return expression; } \
    };                                                           \
    t.fn[static_cast<size_t>(Ew::code)] = binary<F>;             \
  }

void fill(EwTable& t) {
  UNARY(kIdentity, a)
  UNARY(kCast, a)
  UNARY(kToBool, truth(is(a)))
  UNARY(kNot, truth(hn::Eq(a, zero())))
  UNARY(kNeg, hn::Neg(a))
  UNARY(kAbs, hn::Abs(a))
  UNARY(kSign, select(hn::Gt(a, zero()), set(1), select(hn::Lt(a, zero()), set(-1), a)))
  UNARY(kSqrt, hn::Sqrt(a))
  UNARY(kRsqrt, hn::Div(set(1), hn::Sqrt(a)))
  UNARY(kReciprocal, hn::Div(set(1), a))
  UNARY(kExp, exp(a))
  UNARY(kLog, log(a))
  UNARY(kExpm1, expm1(a))
  UNARY(kLog1p, log1p(a))
  UNARY(kTanh, tanh(a))
  UNARY(kAsin, asin(a))
  UNARY(kAcos, acos(a))
  UNARY(kAtan, atan(a))
  UNARY(kSinh, sinh(a))
  UNARY(kCosh, cosh(a))
  UNARY(kAsinh, asinh(a))
  UNARY(kAcosh, acosh(a))
  UNARY(kAtanh, atanh(a))
  UNARY(kSigmoid, sigmoid(a))
  UNARY(kErf, erf(a))
  UNARY(kSoftplus, softplus(a))
  UNARY(kRelu, select(hn::Le(a, zero()), zero(), a))
  UNARY(kFloor, hn::Floor(a))
  UNARY(kCeil, hn::Ceil(a))
  UNARY(kRound, hn::Round(a))
  UNARY(kTrunc, hn::Trunc(a))
  UNARY(kIsNan, truth(nan(a)))
  UNARY(kIsInf, truth(hn::Eq(hn::Abs(a), hn::Inf(D()))))
  UNARY(kGelu, hn::Mul(a, cdf(a)))
  UNARY(kGeluTanh, hn::Mul(hn::Mul(set(0.5f), a), hn::Add(set(1), tanh(gelu_tanh_inner(a)))))
  BINARY(kAdd, hn::Add(a, b))
  BINARY(kSub, hn::Sub(a, b))
  BINARY(kMul, hn::Mul(a, b))
  BINARY(kDiv, hn::Div(a, b))
  BINARY(kMin, select(hn::Or(nan(b), hn::Lt(b, a)), select(nan(a), a, b), a))
  BINARY(kMax, select(hn::Or(nan(b), hn::Gt(b, a)), select(nan(a), a, b), a))
  BINARY(kEqual, truth(hn::Eq(a, b)))
  BINARY(kGreater, truth(hn::Gt(a, b)))
  BINARY(kGreaterEqual, truth(hn::Ge(a, b)))
  BINARY(kLess, truth(hn::Lt(a, b)))
  BINARY(kLessEqual, truth(hn::Le(a, b)))
  BINARY(kAnd, truth(hn::And(is(a), is(b))))
  BINARY(kOr, truth(hn::Or(is(a), is(b))))
  BINARY(kXor, truth(hn::Ne(truth(is(a)), truth(is(b)))))
  BINARY(kReluGrad, select(hn::Le(b, zero()), zero(), a))
  BINARY(kGeluGrad, gelu_grad(a, b))
  BINARY(kGeluTanhGrad, gelu_tanh_grad(a, b))
  BINARY(kLeakyRelu, select(hn::Ge(a, zero()), a, hn::Mul(a, b)))
  t.fn[static_cast<size_t>(Ew::kWhere)] = where;
  t.fn[static_cast<size_t>(Ew::kPow)] = pow;
  t.fn[static_cast<size_t>(Ew::kSin)] = circle_tile<0>;
  t.fn[static_cast<size_t>(Ew::kCos)] = circle_tile<1>;
  t.fn[static_cast<size_t>(Ew::kTan)] = circle_tile<2>;
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(fill);
HWY_EXPORT(load_bool);
HWY_EXPORT(store_bool);

EwTable ew_make_simd_table() {
  EwTable t = ew_ref_table(DType::kF32);
  HWY_DYNAMIC_DISPATCH(fill)(t);
  return t;
}
const EwTable& ew_simd_table() {
  static const EwTable table = ew_make_simd_table();
  return table;
}
void ew_load_bool_simd(const void* from, int64_t step, void* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(load_bool)(from, step, to, n);
}
void ew_store_bool_simd(const void* from, int64_t step, void* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(store_bool)(from, step, to, n);
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
