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
  if (!is_float(c.dtype(i))) c.fail(cat("takes floats, not ", name_of(c.dtype(i))));
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
  int64_t n, channels, plane, back, ahead, piece, pieces;
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
    piece = std::min(kPiece, plane);
    pieces = piece ? (plane + piece - 1) / piece : 0;
  }
  // Two buffers [channels, piece] per thread.
  template <class C>
  size_t workspace() const {
    if (n == 0 || plane == 0) return 0;
    return 2 * sizeof(C) * static_cast<size_t>(channels * piece) * static_cast<size_t>(threads);
  }
  // Calls f(offset of the piece in x, its length, the thread's buffers).
  template <class C, class F>
  void each(void* workspace, F&& f) const {
    const int64_t all = n * pieces, parts = std::max<int64_t>(1, std::min<int64_t>(threads, all));
    parallel_for(threads, parts, 1, [&](int64_t part, int64_t end) {
      for (; part < end; ++part) {
        C* own = static_cast<C*>(workspace) + part * 2 * channels * piece;
        for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
          const int64_t at = i % pieces * piece;
          f(i / pieces * channels * plane + at, std::min(piece, plane - at), own);
        }
      }
    });
  }
};

// to = sum of the rows [first, last] of v.
template <class C>
void sum_rows(int64_t first, int64_t last, int64_t piece, int64_t n, const C* v, C* to) {
  std::fill_n(to, n, C(0));
  for (int64_t j = first; j <= last; ++j)
    for (int64_t i = 0; i < n; ++i) to[i] += v[j * piece + i];
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
      v[c * s.piece + i] = e * e;
    }
  for (int64_t c = 0; c < s.channels; ++c)
    sum_rows(std::max<int64_t>(0, c - s.back), std::min(s.channels - 1, c + s.ahead), s.piece, n, v,
             d + c * s.piece);
  const C alpha = static_cast<C>(s.alpha), bias = static_cast<C>(s.bias);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t i = 0; i < n; ++i) d[c * s.piece + i] = bias + alpha * d[c * s.piece + i];
}

Kernel prepare(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    using C = Acc<T>;
    const Spec s(q, 0);
    return {s.workspace<C>(), [s](const KernelArgs& a) {
              s.each<C>(a.workspace, [&](int64_t at, int64_t n, C* v) {
                C* d = v + s.channels * s.piece;
                const T* x = a.x<T>(0) + at;
                T* y = a.y<T>(0) + at;
                denominators(s, x, n, v, d);
                for (int64_t c = 0; c < s.channels; ++c)
                  for (int64_t i = 0; i < n; ++i)
                    y[c * s.plane + i] = static_cast<T>(static_cast<C>(x[c * s.plane + i]) *
                                                        inverse_power(d[c * s.piece + i], s.beta));
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
                C* d = v + s.channels * s.piece;
                const T *dy = a.x<T>(0) + at, *x = a.x<T>(1) + at;
                T* dx = a.y<T>(0) + at;
                denominators(s, x, n, v, d);
                // v takes dy x d^(-beta-1).
                for (int64_t c = 0; c < s.channels; ++c)
                  for (int64_t i = 0; i < n; ++i) {
                    const C e = d[c * s.piece + i], g = static_cast<C>(dy[c * s.plane + i]);
                    const C direct = g * inverse_power(e, s.beta);
                    v[c * s.piece + i] = direct * static_cast<C>(x[c * s.plane + i]) / e;
                  }
                // Channel c lies in the windows of [c - ahead, c + back].
                const C factor = static_cast<C>(2 * s.alpha * s.beta);
                std::array<C, kPiece> sum;
                for (int64_t c = 0; c < s.channels; ++c) {
                  sum_rows(std::max<int64_t>(0, c - s.ahead), std::min(s.channels - 1, c + s.back),
                           s.piece, n, v, sum.data());
                  for (int64_t i = 0; i < n; ++i) {
                    const C g = static_cast<C>(dy[c * s.plane + i]);
                    const C e = static_cast<C>(x[c * s.plane + i]);
                    dx[c * s.plane + i] =
                        static_cast<T>(g * inverse_power(d[c * s.piece + i], s.beta) -
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
