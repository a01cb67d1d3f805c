// AdamW and SGD over vectors with Highway; formulas as in torch.optim (single-tensor form).
#include "ops/common/optim_simd.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/optim_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls f(i, n) for whole vectors, then once for the rest with n < lanes.
template <class D, class F>
HWY_INLINE void sweep(D d, int64_t n, F f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> get(D d, const T* x, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, x);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  for (int64_t k = 0; k < n; ++k) buffer[k] = x[k];
  return hn::Load(d, buffer);
}
template <class D, class T>
HWY_INLINE void put(D d, hn::Vec<D> v, T* y, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(v, d, y);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, buffer);
  for (int64_t k = 0; k < n; ++k) y[k] = buffer[k];
}

template <class T>
HWY_INLINE void adam_of(const AdamStep& s, const AdamMemory<T>& x, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto set = [&](double v) HWY_ATTR { return hn::Set(d, static_cast<T>(v)); };
  const auto clip = set(s.clip), keep = set(s.keep), l2 = set(s.l2), beta2 = set(s.beta2);
  const auto rest1 = set(1 - s.beta1), rest2 = set(1 - s.beta2), eps = set(s.eps);
  const auto step = set(s.step_size), root = set(s.scale_root);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.p + i, k), m = get(d, x.m + i, k), v = get(d, x.v + i, k);
    const auto g = hn::MulAdd(l2, p, hn::Mul(get(d, x.g + i, k), clip));
    const auto m2 = hn::MulAdd(rest1, hn::Sub(g, m), m);  // torch: lerp(m, g, 1 - beta1)
    const auto v2 = hn::MulAdd(hn::Mul(rest2, g), g, hn::Mul(beta2, v));
    const auto denominator = hn::MulAdd(hn::Sqrt(v2), root, eps);
    const auto p2 = hn::NegMulAdd(step, hn::Div(m2, denominator), hn::Mul(p, keep));
    put(d, m2, x.m_out + i, k);
    put(d, v2, x.v_out + i, k);
    put(d, p2, x.p_out + i, k);
  });
}

template <class T>
HWY_INLINE void sgd_of(const SgdStep& s, const SgdMemory<T>& x, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto set = [&](double v) HWY_ATTR { return hn::Set(d, static_cast<T>(v)); };
  const auto clip = set(s.clip), l2 = set(s.l2), lr = set(s.lr), momentum = set(s.momentum);
  const auto fresh = set(1 - s.dampening);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.p + i, k);
    auto g = hn::MulAdd(l2, p, hn::Mul(get(d, x.g + i, k), clip));
    if (x.buffer) {
      const auto b = s.first ? g : hn::MulAdd(momentum, get(d, x.buffer + i, k), hn::Mul(fresh, g));
      put(d, b, x.buffer_out + i, k);
      g = s.nesterov ? hn::MulAdd(momentum, b, g) : b;
    }
    put(d, hn::NegMulAdd(lr, g, p), x.p_out + i, k);
  });
}

void adam32(const AdamStep& s, const AdamMemory<float>& x, int64_t n) { adam_of(s, x, n); }
void adam64(const AdamStep& s, const AdamMemory<double>& x, int64_t n) { adam_of(s, x, n); }
void sgd32(const SgdStep& s, const SgdMemory<float>& x, int64_t n) { sgd_of(s, x, n); }
void sgd64(const SgdStep& s, const SgdMemory<double>& x, int64_t n) { sgd_of(s, x, n); }

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(adam32);
HWY_EXPORT(adam64);
HWY_EXPORT(sgd32);
HWY_EXPORT(sgd64);

void adam_step(const AdamStep& s, const AdamMemory<float>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(adam32)(s, x, n);
}
void adam_step(const AdamStep& s, const AdamMemory<double>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(adam64)(s, x, n);
}
void sgd_step(const SgdStep& s, const SgdMemory<float>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(sgd32)(s, x, n);
}
void sgd_step(const SgdStep& s, const SgdMemory<double>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(sgd64)(s, x, n);
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
