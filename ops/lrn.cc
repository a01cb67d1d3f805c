// LRN: y = x / d^beta with d = bias + alpha / size * (sum of x^2 over `size` neighbouring
// channels), and ortrain.LRNGrad. The window reaches (size-1)/2 channels back, rounded down, and as
// many forward, rounded up. [N, C, ...], floats; sums in the type, in double for f64.
//
// dx_c = dy_c d_c^-beta - 2 alpha beta / size x_c (sum of dy_j x_j d_j^(-beta-1) over the channels
// j whose window holds c). Both walk pieces of the planes channel by channel, so that the inner
// loops run over contiguous memory; d is computed again in the gradient. beta = 0.75 takes square
// roots.
#include <algorithm>
#include <array>
#include <cmath>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {

namespace {

void check(InferCtx& c, int i) {
  if (c.rank(i) < 2) c.fail(cat("takes [N, C, ...], not ", c.shape(i).str()));
  if (c.attrs().i("size", 0) < 1) c.fail(cat("size is ", c.attrs().i("size", 0)));
}
void infer(InferCtx& c) {
  check(c, 0);
  infer_same_as_first(c);
}
void infer_grad(InferCtx& c) {
  check(c, 1);
  c.out(0, c.dtype(1), c.shape(1));
}

constexpr int64_t kPiece = 256;  // elements of a plane taken at a time

struct Spec {
  int64_t n, channels, plane, back, ahead, pieces;
  double alpha, beta, bias;
  int threads;
  Spec(const KernelQuery& q, size_t x) : threads(q.threads) {
    const Dims& d = q.in[x].dims;
    n = d[0], channels = d[1], plane = product(d, 2, static_cast<int>(d.size()));
    const int64_t size = q.attrs.i("size", 1);
    back = std::min((size - 1) / 2, channels), ahead = std::min(size / 2, channels);
    alpha = q.attrs.f("alpha", 1e-4) / static_cast<double>(size);
    beta = q.attrs.f("beta", 0.75);
    bias = q.attrs.f("bias", 1.0);
    pieces = (plane + kPiece - 1) / kPiece;
  }
  // Two buffers [channels, kPiece] per thread.
  template <class C>
  size_t workspace() const {
    return 2 * sizeof(C) * static_cast<size_t>(channels * kPiece) * static_cast<size_t>(threads);
  }
  // Calls f(offset of the piece in x, its length, the thread's buffers).
  template <class C, class F>
  void each(void* workspace, F&& f) const {
    const int64_t all = n * pieces, parts = std::max<int64_t>(1, std::min<int64_t>(threads, all));
    parallel_for(threads, parts, 1, [&](int64_t part, int64_t end) {
      for (; part < end; ++part) {
        C* own = static_cast<C*>(workspace) + part * 2 * channels * kPiece;
        for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
          const int64_t at = i % pieces * kPiece;
          f(i / pieces * channels * plane + at, std::min(kPiece, plane - at), own);
        }
      }
    });
  }
};

// sums[c] = sum of v[j] for j in [c - back, c + ahead], rows of kPiece.
template <class C>
void windows(int64_t channels, int64_t back, int64_t ahead, int64_t n, const C* v, C* sums) {
  for (int64_t c = 0; c < channels; ++c) {
    C* s = sums + c * kPiece;
    std::fill_n(s, n, C(0));
    for (int64_t j = std::max<int64_t>(0, c - back); j <= std::min(channels - 1, c + ahead); ++j)
      for (int64_t i = 0; i < n; ++i) s[i] += v[j * kPiece + i];
  }
}

template <class C>
C inverse_power(C d, double beta) {  // d^-beta
  if (beta == 0.75) {
    const C root = std::sqrt(d);
    return 1 / (root * std::sqrt(root));
  }
  return std::pow(d, static_cast<C>(-beta));
}

// Squares into `v`, window sums as d into `d`.
template <class T, class C>
void denominators(const Spec& s, const T* x, int64_t n, C* v, C* d) {
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t i = 0; i < n; ++i) {
      const C e = static_cast<C>(x[c * s.plane + i]);
      v[c * kPiece + i] = e * e;
    }
  windows(s.channels, s.back, s.ahead, n, v, d);
  const C alpha = static_cast<C>(s.alpha), bias = static_cast<C>(s.bias);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t i = 0; i < n; ++i) d[c * kPiece + i] = bias + alpha * d[c * kPiece + i];
}

Kernel prepare(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    using C = Acc<T>;
    const Spec s(q, 0);
    return {s.workspace<C>(), [s](const KernelArgs& a) {
              s.each<C>(a.workspace, [&](int64_t at, int64_t n, C* v) {
                C* d = v + s.channels * kPiece;
                const T* x = a.x<T>(0) + at;
                T* y = a.y<T>(0) + at;
                denominators(s, x, n, v, d);
                for (int64_t c = 0; c < s.channels; ++c)
                  for (int64_t i = 0; i < n; ++i)
                    y[c * s.plane + i] = static_cast<T>(static_cast<C>(x[c * s.plane + i]) *
                                                        inverse_power(d[c * kPiece + i], s.beta));
              });
            }};
  });
}

Kernel prepare_grad(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    using C = Acc<T>;
    const Spec s(q, 1);
    return {s.workspace<C>(), [s](const KernelArgs& a) {
              s.each<C>(a.workspace, [&](int64_t at, int64_t n, C* v) {
                C* d = v + s.channels * kPiece;
                const T *dy = a.x<T>(0) + at, *x = a.x<T>(1) + at;
                T* dx = a.y<T>(0) + at;
                denominators(s, x, n, v, d);
                // v takes dy x d^(-beta-1).
                for (int64_t c = 0; c < s.channels; ++c)
                  for (int64_t i = 0; i < n; ++i) {
                    const C e = d[c * kPiece + i], g = static_cast<C>(dy[c * s.plane + i]);
                    const C direct = g * inverse_power(e, s.beta);
                    v[c * kPiece + i] = direct * static_cast<C>(x[c * s.plane + i]) / e;
                  }
                // Channel c lies in the windows of [c - ahead, c + back].
                const C factor = static_cast<C>(2 * s.alpha * s.beta);
                std::array<C, kPiece> sum;
                for (int64_t c = 0; c < s.channels; ++c) {
                  std::fill_n(sum.data(), n, C(0));
                  const int64_t last = std::min(s.channels - 1, c + s.back);
                  for (int64_t j = std::max<int64_t>(0, c - s.ahead); j <= last; ++j)
                    for (int64_t i = 0; i < n; ++i)
                      sum[static_cast<size_t>(i)] += v[j * kPiece + i];
                  for (int64_t i = 0; i < n; ++i) {
                    const C g = static_cast<C>(dy[c * s.plane + i]);
                    const C e = static_cast<C>(x[c * s.plane + i]);
                    dx[c * s.plane + i] =
                        static_cast<T>(g * inverse_power(d[c * kPiece + i], s.beta) -
                                       factor * e * sum[static_cast<size_t>(i)]);
                  }
                }
              });
            }};
  });
}

Expr gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  return g.b.op("ortrain.LRNGrad", {g.dy(), g.x(0)}, attrs);
}

Attrs form(int64_t size, double alpha, double beta, double bias) {
  return {{"size", size}, {"alpha", alpha}, {"beta", beta}, {"bias", bias}};
}

}  // namespace

void register_lrn(OpTable& table) {
  table.add({
      .name = "LRN",
      .inputs = {"X"},
      .outputs = {"Y"},
      .infer = infer,
      .grad = {grad("X", gradient)},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 5, 3, 4})}, .attrs = form(3, 0.5, 0.5, 2)},
                   {.in = {f({2, 7, 20, 30})}, .attrs = form(5, 0.3, 0.75, 1)},
                   {.in = {f({1, 6, 5})}, .attrs = form(4, 0.3, 1.5, 1)},
                   {.in = {f({1, 2, 2, 2})}, .attrs = form(9, 0.3, 0.75, 1)},
                   {.in = {f({2, 3, 2, 2, 2})}, .attrs = {{"size", int64_t{1}}}},
                   {.in = {f({0, 3, 2})}, .attrs = {{"size", int64_t{3}}}}},
  });
  table.add({
      .name = "ortrain.LRNGrad",
      .inputs = {"dy", "x"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {f({2, 5, 3, 4}), f({2, 5, 3, 4})}, .attrs = form(4, 0.5, 0.5, 2)}},
  });
}

}  // namespace ortrain::ops
