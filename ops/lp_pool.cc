// LpPool and GlobalLpPool: y = (sum over the window of |x|^p)^(1/p), and ortrain.LpPoolGrad. 1 to 3
// spatial axes, dilations, ceil_mode, auto_pad.
//
// dx = sum over windows of dy sign(x) (|x| / y)^(p-1), in an order that does not depend on threads:
// each takes whole planes. p = 1 and 2 run row by row over taps, others element by element. Where y
// = 0 the gradient is 0, as PyTorch; sign(0) = 0 for p = 1.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/ref.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

int64_t norm_of(const Attrs& a) {
  const int64_t p = a.i("p", 2);
  if (p < 1) fail(ErrorCode::kShape, "p is ", p, ", expected 1 or more");
  return p;
}
void check_rank(InferCtx& c) {
  if (c.rank(0) < 3 || c.rank(0) > 5) c.fail(cat("takes rank 3 to 5, not ", c.shape(0).str()));
  if (!is_float(c.dtype(0))) c.fail(cat("takes floats, not ", name_of(c.dtype(0))));
  norm_of(c.attrs());
}
void infer_pool(InferCtx& c) {
  check_rank(c);
  const Shape& x = c.shape(0);
  const Attrs& a = c.attrs();
  c.out(0, c.dtype(0),
        assemble(a, x[0], x[1],
                 window_output(c, spatial_dims(x, a), a.ints("kernel_shape"),
                               a.i("ceil_mode", 0) != 0)));
}
void infer_global(InferCtx& c) {
  check_rank(c);
  Shape y{c.shape(0)[0], c.shape(0)[1]};
  for (int d = 2; d < c.rank(0); ++d) y.push_back(Dim(1));
  c.out(0, c.dtype(0), y);
}
void infer_grad(InferCtx& c) { c.out(0, c.dtype(1), c.shape(1)); }

// |x|^p and the other way round, p = 1 and 2 without pow.
double power(double x, int64_t p) {
  x = std::abs(x);
  return p == 1 ? x : p == 2 ? x * x : std::pow(x, static_cast<double>(p));
}
double root(double x, int64_t p) {
  return p == 1 ? x : p == 2 ? std::sqrt(x) : std::pow(x, 1 / static_cast<double>(p));
}

// Calls f(offset of a row of windows in y, offset in x, first, last, step) for every tap and row:
// window i of [first, last) reads x at offset + i * step.
template <class F>
void tap_rows(const Window& w, F&& f) {
  std::array<int64_t, 3> t;
  for (t[0] = 0; t[0] < w.kernel[0]; ++t[0])
    for (t[1] = 0; t[1] < w.kernel[1]; ++t[1])
      for (t[2] = 0; t[2] < w.kernel[2]; ++t[2])
        for (int64_t o0 = 0; o0 < w.out[0]; ++o0) {
          const int64_t i0 = o0 * w.stride[0] - w.begin[0] + t[0] * w.dilation[0];
          if (i0 < 0 || i0 >= w.in[0]) continue;
          for (int64_t o1 = 0; o1 < w.out[1]; ++o1) {
            const int64_t i1 = o1 * w.stride[1] - w.begin[1] + t[1] * w.dilation[1];
            if (i1 < 0 || i1 >= w.in[1]) continue;
            const int64_t start = t[2] * w.dilation[2] - w.begin[2], step = w.stride[2];
            const int64_t first = start < 0 ? (-start + step - 1) / step : 0;
            const int64_t last =
                start >= w.in[2] ? 0 : std::min(w.out[2], (w.in[2] - start + step - 1) / step);
            f((o0 * w.out[1] + o1) * w.out[2], (i0 * w.in[1] + i1) * w.in[2] + start, first, last,
              step);
          }
        }
}

// powers: in_count() places, sums: out_count().
template <class T>
void pool_plane(const Window& w, int64_t p, const T* x, double* powers, double* sums, T* y) {
  for (int64_t i = 0; i < w.in_count(); ++i) powers[i] = power(load(x[i]), p);
  std::fill_n(sums, w.out_count(), 0.0);
  tap_rows(w, [&](int64_t to, int64_t from, int64_t first, int64_t last, int64_t step) {
    for (int64_t i = first; i < last; ++i) sums[to + i] += powers[from + i * step];
  });
  for (int64_t i = 0; i < w.out_count(); ++i) y[i] = store<T>(root(sums[i], p));
}

// p = 1 or 2: dx = x^(p-1) sum of dy / y^(p-1), spread per window; 16-bit and f32 numbers stay far
// from the limits of double, and f64 ones down to norms of 1e-300.
template <class T>
void grad_plane_low(const Window& w, int64_t p, const T* dy, const T* x, const T* y,
                    double* factors, double* sums, T* dx) {
  for (int64_t i = 0; i < w.out_count(); ++i) {
    const double norm = load(y[i]);
    factors[i] = norm == 0 ? 0 : p == 1 ? load(dy[i]) : load(dy[i]) / norm;
  }
  std::fill_n(sums, w.in_count(), 0.0);
  tap_rows(w, [&](int64_t from, int64_t to, int64_t first, int64_t last, int64_t step) {
    for (int64_t i = first; i < last; ++i) sums[to + i * step] += factors[from + i];
  });
  for (int64_t i = 0; i < w.in_count(); ++i) {
    const double v = load(x[i]);
    dx[i] = store<T>(sums[i] * (p == 2 ? v : v > 0 ? 1 : v < 0 ? -1 : v));
  }
}

template <class T>
void grad_plane(const Window& w, int64_t p, const T* dy, const T* x, const T* y, T* dx) {
  for (int64_t i0 = 0; i0 < w.in[0]; ++i0)
    for (int64_t i1 = 0; i1 < w.in[1]; ++i1)
      for (int64_t i2 = 0; i2 < w.in[2]; ++i2) {
        const int64_t at = i0 * w.x.s[0] + i1 * w.x.s[1] + i2 * w.x.s[2];
        const double v = load(x[at]), sign = v > 0 ? 1 : v < 0 ? -1 : v;
        double sum = 0;
        w.covering(0, i0, [&](int64_t o0, int64_t) {
          w.covering(1, i1, [&](int64_t o1, int64_t) {
            w.covering(2, i2, [&](int64_t o2, int64_t) {
              const int64_t from = o0 * w.y.s[0] + o1 * w.y.s[1] + o2 * w.y.s[2];
              const double norm = load(y[from]);
              if (norm != 0) sum += load(dy[from]) * power(v / norm, p - 1);
            });
          });
        });
        dx[at] = store<T>(sign * sum);
      }
}

// Calls f(plane, input buffer, output buffer), spread over threads.
struct Planes {
  Window w;
  int64_t p, count, pieces;
  int threads;
  Planes(const KernelQuery& q, const Dims& x, const Dims& y)
      : w(window_of(q.attrs, x, y, q.attrs.ints("kernel_shape"))),
        p(norm_of(q.attrs)),
        count(w.n * w.cx),
        pieces(std::max<int64_t>(1, std::min<int64_t>(q.threads, count))),
        threads(q.threads) {}
  int64_t places() const { return count == 0 ? 0 : w.in_count() + w.out_count(); }
  size_t workspace() const { return static_cast<size_t>(places() * pieces) * sizeof(double); }
  template <class F>
  void each(void* workspace, F&& f) const {
    parallel_for(threads, pieces, 1, [&](int64_t piece, int64_t end) {
      for (; piece < end; ++piece) {
        double* own = static_cast<double*>(workspace) + piece * places();
        for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i)
          f(i, own, own + w.in_count());
      }
    });
  }
};

Kernel prepare(const KernelQuery& q) {
  const Planes planes(q, q.in[0].dims, q.out[0].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {planes.workspace(), [planes](const KernelArgs& a) {
              const Window& w = planes.w;
              planes.each(a.workspace, [&](int64_t i, double* in, double* out) {
                pool_plane(w, planes.p, a.x<T>(0) + i * w.in_count(), in, out,
                           a.y<T>(0) + i * w.out_count());
              });
            }};
  });
}
Kernel prepare_grad(const KernelQuery& q) {
  const Planes planes(q, q.in[1].dims, q.in[0].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {planes.workspace(), [planes](const KernelArgs& a) {
              const Window& w = planes.w;
              planes.each(a.workspace, [&](int64_t i, double* in, double* out) {
                const int64_t x = i * w.in_count(), y = i * w.out_count();
                const T *dy = a.x<T>(0) + y, *from = a.x<T>(1) + x, *norms = a.x<T>(2) + y;
                T* dx = a.y<T>(0) + x;
                if (planes.p <= 2)
                  grad_plane_low(w, planes.p, dy, from, norms, out, in, dx);
                else
                  grad_plane(w, planes.p, dy, from, norms, dx);
              });
            }};
  });
}

Expr gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  return g.b.op("ortrain.LpPoolGrad", {g.dy(), g.x(0), g.y(0)}, attrs);
}

// One window over everything; an empty image has the norm 0, which no window gives.
std::vector<Expr> decompose_global(Decompose& d) {
  const Expr x = d.x(0);
  const Dims dims = x.shape().values();
  const Dims kernel(dims.begin() + 2, dims.end());
  Attrs a = d.attrs();
  if (element_count(kernel) == 0) {
    Dims y(dims.begin(), dims.begin() + 2);
    y.resize(dims.size(), 1);
    return {d.b.expand(d.b.scalar(x.dtype(), 0), y)};
  }
  a.set("kernel_shape", kernel);
  return {d.b.op("LpPool", {x}, std::move(a))};
}

using L = std::vector<int64_t>;
Attrs with(Attrs a, const char* name, AttrValue v) {
  a.set(name, std::move(v));
  return a;
}

}  // namespace

void register_lp_pool(OpTable& table) {
  const Attrs square{{"kernel_shape", L{3, 3}}, {"strides", L{2, 2}}, {"pads", L{1, 1, 1, 1}}};
  const Attrs plain{{"kernel_shape", L{2, 2}}};
  const auto positive = [](Dims dims) { return f(std::move(dims), 0.1, 2); };
  table.add({
      .name = "LpPool",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 2,
      .infer = infer_pool,
      .grad = {grad("X", gradient)},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 3, 6, 8})}, .attrs = with(plain, "strides", L{2, 2})},
                   {.in = {f({2, 3, 7, 8})}, .attrs = with(square, "p", int64_t{3})},
                   {.in = {positive({2, 3, 7, 8})}, .attrs = with(square, "p", int64_t{1})},
                   {.in = {f({1, 2, 6, 6})}, .attrs = with(square, "ceil_mode", int64_t{1})},
                   {.in = {f({1, 2, 7, 6})},
                    .attrs = with(with(plain, "auto_pad", std::string("SAME_UPPER")), "strides",
                                  L{2, 2})},
                   {.in = {f({1, 2, 7, 6})}, .attrs = with(plain, "dilations", L{2, 3})},
                   {.in = {f({2, 3, 9})}, .attrs = {{"kernel_shape", L{2}}, {"strides", L{3}}}},
                   {.in = {f({1, 2, 4, 5, 3})}, .attrs = {{"kernel_shape", L{2, 2, 2}}}},
                   {.in = {f({0, 3, 6, 8})}, .attrs = plain}},
      .note = "gradient 0 where the norm is 0",
  });
  table.add({
      .name = "ortrain.LpPoolGrad",
      .inputs = {"dy", "x", "y"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {f({2, 3, 4, 4}), f({2, 3, 7, 8}), positive({2, 3, 4, 4})},
                    .attrs = square}},
  });
  table.add({
      .name = "GlobalLpPool",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 2,
      .infer = infer_global,
      .decompose = decompose_global,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 3, 6, 5})}},
                   {.in = {f({2, 3, 7})}, .attrs = {{"p", int64_t{3}}}},
                   {.in = {positive({2, 3, 7})}, .attrs = {{"p", int64_t{1}}}},
                   {.in = {f({2, 3, 0})}}},
      .note = "gradient 0 where the norm is 0",
  });
}

}  // namespace ortrain::ops
