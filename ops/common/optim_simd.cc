// Optimizer steps over vectors with Highway; formulas as in torch.optim (single-tensor form).
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

// What the rules share: constants as vectors, the gradient after clipping and L2.
template <class T>
struct Shared {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  D d;
  V scale, limit, low, l2, keep, lr, beta1, beta2, rest1, rest2, eps;
  HWY_INLINE explicit Shared(const UpdateStep& s) {
    scale = set(s.scale), limit = set(s.limit), low = set(-s.limit), l2 = set(s.l2);
    keep = set(s.keep), lr = set(s.lr), eps = set(s.eps);
    beta1 = set(s.beta1), beta2 = set(s.beta2), rest1 = set(1 - s.beta1), rest2 = set(1 - s.beta2);
  }
  HWY_INLINE V set(double v) const { return hn::Set(d, static_cast<T>(v)); }
  HWY_INLINE V gradient(const UpdateMemory<T>& x, V p, int64_t i, int64_t k) const {
    const V g = hn::Mul(get(d, x.in[1] + i, k), scale);
    return hn::MulAdd(l2, p, hn::Max(hn::Min(g, limit), low));
  }
};

template <class T>
HWY_INLINE void adam_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const auto root = c.set(s.scale_root);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k), m = get(d, x.in[2] + i, k), v = get(d, x.in[3] + i, k);
    const auto g = c.gradient(x, p, i, k);
    const auto m2 = hn::MulAdd(c.rest1, hn::Sub(g, m), m);  // torch: lerp(m, g, 1 - beta1)
    const auto v2 = hn::MulAdd(hn::Mul(c.rest2, g), g, hn::Mul(c.beta2, v));
    auto large = v2;
    if (s.amsgrad) {
      large = hn::Max(get(d, x.in[4] + i, k), v2);
      put(d, large, x.out[3] + i, k);
    }
    const auto denominator = hn::MulAdd(hn::Sqrt(large), root, c.eps);
    const auto p2 = hn::NegMulAdd(c.lr, hn::Div(m2, denominator), hn::Mul(p, c.keep));
    put(d, m2, x.out[1] + i, k);
    put(d, v2, x.out[2] + i, k);
    put(d, p2, x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void sgd_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const auto fresh = c.set(1 - s.dampening);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k);
    auto g = c.gradient(x, p, i, k);
    if (s.momentum) {
      const auto b = s.first ? g : hn::MulAdd(c.beta1, get(d, x.in[2] + i, k), hn::Mul(fresh, g));
      put(d, b, x.out[1] + i, k);
      g = s.nesterov ? hn::MulAdd(c.beta1, b, g) : b;
    }
    put(d, hn::NegMulAdd(c.lr, g, p), x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void adagrad_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k);
    const auto g = c.gradient(x, p, i, k);
    const auto sum = hn::MulAdd(g, g, get(d, x.in[2] + i, k));
    put(d, sum, x.out[1] + i, k);
    put(d, hn::NegMulAdd(c.lr, hn::Div(g, hn::Add(hn::Sqrt(sum), c.eps)), p), x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void rmsprop_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const int mean_at = s.momentum ? 4 : 3;
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k);
    const auto g = c.gradient(x, p, i, k);
    const auto square =
        hn::MulAdd(hn::Mul(c.rest2, g), g, hn::Mul(c.beta2, get(d, x.in[2] + i, k)));
    put(d, square, x.out[1] + i, k);
    auto variance = square;
    if (s.centered) {
      const auto old = get(d, x.in[mean_at] + i, k);
      const auto mean = hn::MulAdd(c.rest2, hn::Sub(g, old), old);
      put(d, mean, x.out[mean_at - 1] + i, k);
      variance = hn::NegMulAdd(mean, mean, square);
    }
    auto move = hn::Div(g, hn::Add(hn::Sqrt(variance), c.eps));
    if (s.momentum) {
      move = hn::MulAdd(c.beta1, get(d, x.in[3] + i, k), move);
      put(d, move, x.out[2] + i, k);
    }
    put(d, hn::NegMulAdd(c.lr, move, p), x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void lion_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const auto zero = hn::Zero(d);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k), m = get(d, x.in[2] + i, k);
    const auto g = c.gradient(x, p, i, k);
    const auto way = hn::MulAdd(c.rest1, g, hn::Mul(c.beta1, m));
    const auto move = hn::IfThenElse(hn::Eq(way, zero), zero, hn::CopySign(c.lr, way));
    put(d, hn::MulAdd(c.rest2, g, hn::Mul(c.beta2, m)), x.out[1] + i, k);
    put(d, hn::MulSub(p, c.keep, move), x.out[0] + i, k);
  });
}

// m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd p
template <class T, class V>
HWY_INLINE V lamb_direction(const Shared<T>& c, V first, V root, V decay, V p, V m, V v) {
  const V denominator = hn::MulAdd(hn::Sqrt(v), root, c.eps);
  return hn::MulAdd(decay, p, hn::Div(hn::Mul(m, first), denominator));
}

template <class T>
HWY_INLINE void lamb_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const auto first = c.set(s.scale_first), root = c.set(s.scale_root), decay = c.set(s.decay);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k), m = get(d, x.in[2] + i, k), v = get(d, x.in[3] + i, k);
    const auto g = c.gradient(x, p, i, k);
    const auto m2 = hn::MulAdd(c.rest1, g, hn::Mul(c.beta1, m));
    const auto v2 = hn::MulAdd(hn::Mul(c.rest2, g), g, hn::Mul(c.beta2, v));
    put(d, m2, x.out[1] + i, k);
    put(d, v2, x.out[2] + i, k);
    put(d, lamb_direction(c, first, root, decay, p, m2, v2), x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void lamb_apply_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  const Shared<T> c(s);
  const auto d = c.d;
  const auto first = c.set(s.scale_first), root = c.set(s.scale_root), decay = c.set(s.decay);
  sweep(d, n, [&](int64_t i, int64_t k) HWY_ATTR {
    const auto p = get(d, x.in[0] + i, k), m = get(d, x.in[2] + i, k), v = get(d, x.in[3] + i, k);
    const auto way = lamb_direction(c, first, root, decay, p, m, v);
    put(d, hn::NegMulAdd(c.lr, way, p), x.out[0] + i, k);
  });
}

template <class T>
HWY_INLINE void step_of(const UpdateStep& s, const UpdateMemory<T>& x, int64_t n) {
  switch (s.rule) {
    case UpdateRule::kSgd: return sgd_of(s, x, n);
    case UpdateRule::kAdam: return adam_of(s, x, n);
    case UpdateRule::kAdagrad: return adagrad_of(s, x, n);
    case UpdateRule::kRmsprop: return rmsprop_of(s, x, n);
    case UpdateRule::kLion: return lion_of(s, x, n);
    case UpdateRule::kLamb: return lamb_of(s, x, n);
  }
}

void step32(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n) { step_of(s, x, n); }
void step64(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n) { step_of(s, x, n); }
void lamb32(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n) {
  lamb_apply_of(s, x, n);
}
void lamb64(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n) {
  lamb_apply_of(s, x, n);
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(step32);
HWY_EXPORT(step64);
HWY_EXPORT(lamb32);
HWY_EXPORT(lamb64);

void update_step(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(step32)(s, x, n);
}
void update_step(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(step64)(s, x, n);
}
void lamb_apply(const UpdateStep& s, const UpdateMemory<float>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(lamb32)(s, x, n);
}
void lamb_apply(const UpdateStep& s, const UpdateMemory<double>& x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(lamb64)(s, x, n);
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
