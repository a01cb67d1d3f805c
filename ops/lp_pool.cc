// LpPool and GlobalLpPool: y = (sum over the window of |x|^p)^(1/p), and ortrain.LpPoolGrad. 1 to 3
// spatial axes, dilations, ceil_mode, auto_pad.
//
// dx = sum over windows of dy sign(x) (|x| / y)^(p-1), gathered per input element, so that the
// order of sums is fixed. Where y = 0 the gradient is 0, as PyTorch; sign(0) = 0 for p = 1.
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

// Offset in x of tap t of window o.
int64_t offset_of(const Window& w, const std::array<int64_t, 3>& o,
                  const std::array<int64_t, 3>& t) {
  int64_t offset = 0;
  for (size_t i = 0; i < 3; ++i)
    offset += (o[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i]) * w.x.s[i];
  return offset;
}

template <class T>
void pool_plane(const Window& w, int64_t p, const T* x, T* y) {
  std::array<int64_t, 3> o, a, b, t;
  for (o[0] = 0; o[0] < w.out[0]; ++o[0])
    for (o[1] = 0; o[1] < w.out[1]; ++o[1])
      for (o[2] = 0; o[2] < w.out[2]; ++o[2]) {
        for (size_t i = 0; i < 3; ++i) w.valid(static_cast<int>(i), o[i], a[i], b[i]);
        double sum = 0;
        for (t[0] = a[0]; t[0] < b[0]; ++t[0])
          for (t[1] = a[1]; t[1] < b[1]; ++t[1])
            for (t[2] = a[2]; t[2] < b[2]; ++t[2]) sum += power(load(x[offset_of(w, o, t)]), p);
        y[o[0] * w.y.s[0] + o[1] * w.y.s[1] + o[2] * w.y.s[2]] = store<T>(root(sum, p));
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
              if (norm != 0) sum += load(dy[from]) * (p == 1 ? 1 : power(v / norm, p - 1));
            });
          });
        });
        dx[at] = store<T>(sign * sum);
      }
}

Kernel prepare(const KernelQuery& q) {
  const Window w = window_of(q.attrs, q.in[0].dims, q.out[0].dims, q.attrs.ints("kernel_shape"));
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [w, p = norm_of(q.attrs), threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, w.n * w.cx, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i)
                  pool_plane(w, p, a.x<T>(0) + i * w.in_count(), a.y<T>(0) + i * w.out_count());
              });
            }};
  });
}
Kernel prepare_grad(const KernelQuery& q) {
  const Window w = window_of(q.attrs, q.in[1].dims, q.in[0].dims, q.attrs.ints("kernel_shape"));
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [w, p = norm_of(q.attrs), threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, w.n * w.cx, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t x = i * w.in_count(), y = i * w.out_count();
                  grad_plane(w, p, a.x<T>(0) + y, a.x<T>(1) + x, a.x<T>(2) + y, a.y<T>(0) + x);
                }
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
