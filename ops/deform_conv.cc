// DeformConv (2-D): a convolution whose taps are moved by `offset` and weighted by `mask`; the
// formulas and gradients are torchvision's deform_conv2d. X [N,C,H,W], W [M,C/g,kh,kw],
// offset [N,og*kh*kw*2,oh,ow] (y before x), B [M], mask [N,og*kh*kw,oh,ow].
//
// It means a product of W with ortrain.DeformColumns: the sampled taps, [C*kh*kw, N, oh*ow].
// ortrain.DeformColumnsGrad gives the gradients of X, offset and mask. Positions outside read 0 and
// get no gradient. Threads share channels, then taps: sums keep their order. Other ranks are
// refused.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// Attributes with their defaults; kernel_shape from W when it is given.
struct Spec {
  int64_t batch = 0, channels = 0, height = 0, width = 0;
  int64_t kh = 1, kw = 1, oh = 0, ow = 0, groups = 1;  // groups: of offsets
  int64_t stride[2] = {1, 1}, dilation[2] = {1, 1}, begin[2] = {0, 0};
  int64_t taps() const { return kh * kw; }
  int64_t points() const { return oh * ow; }
  int64_t plane() const { return height * width; }
};

int64_t item(const Attrs& a, const char* name, size_t i, int64_t missing) {
  const Dims v = a.ints(name);
  return v.empty() ? missing : v[i];
}

// Checks the attributes and gives the output's extents from W's or kernel_shape's taps.
Shape output_extents(InferCtx& c, const Dims& kernel) {
  const Attrs& a = c.attrs();
  for (const char* name : {"strides", "dilations", "kernel_shape"})
    if (const size_t n = a.ints(name).size(); n != 0 && n != 2)
      c.fail(cat(name, " has ", n, " numbers, expected 2"));
  if (const size_t n = a.ints("pads").size(); n != 0 && n != 4)
    c.fail(cat("pads has ", n, " numbers, expected 4"));
  Shape out;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t stride = item(a, "strides", i, 1), dilation = item(a, "dilations", i, 1);
    const int64_t before = item(a, "pads", i, 0), after = item(a, "pads", i + 2, 0);
    if (stride < 1 || dilation < 1 || kernel[i] < 1 || before < 0 || after < 0 ||
        std::max({stride, dilation, kernel[i], before, after}) > 1 << 30)
      c.fail("strides, dilations and kernel must be positive, pads not negative");
    const Dim room =
        c.shape(0)[static_cast<int>(i) + 2] + Dim(before + after - dilation * (kernel[i] - 1) - 1);
    if (room.is_const() && room.value() < 0) c.fail("the kernel is larger than the padded image");
    out.push_back(floordiv(room, stride) + Dim(1));
  }
  return out;
}

void check_sides(InferCtx& c, int offset, int mask, const Shape& out, const Dims& kernel) {
  const int64_t groups = c.attrs().i("offset_group", 1);
  const Dim channels = c.shape(0)[1];
  if (groups < 1 || groups > 1 << 20 || (channels.is_const() && channels.value() % groups != 0))
    c.fail(cat("offset_group ", groups, " does not divide ", channels.str(), " channels"));
  const int64_t taps = groups * kernel[0] * kernel[1];
  const auto expect = [&](int i, int64_t planes, const char* name) {
    if (!c.has(i)) return;
    const Shape wanted{c.shape(0)[0], planes, out[0], out[1]};
    if (prove_equal(c.shape(i), wanted) == Tri::kNo)
      c.fail(cat(name, " has shape ", c.shape(i).str(), ", expected ", wanted.str()));
    if (c.dtype(i) != c.dtype(0)) c.fail(cat(name, " differs from X in type"));
  };
  expect(offset, 2 * taps, "offset");
  expect(mask, taps, "mask");
}

void infer(InferCtx& c) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  if (x.rank() != 4 || w.rank() != 4)
    fail(ErrorCode::kUnsupported, "X is ", x.str(), ", W ", w.str(), "; only two spatial axes");
  if (!is_float(c.dtype(0)) || c.dtype(1) != c.dtype(0))
    c.fail("X and W must be of one float type");
  if (!w[2].is_const() || !w[3].is_const()) c.fail("the extents of W must be known");
  const Dims kernel{w[2].value(), w[3].value()};
  const Dims given = c.attrs().ints("kernel_shape");
  const Shape out = output_extents(c, kernel);
  if (!given.empty() && given != kernel) c.fail("kernel_shape differs from W");
  const int64_t group = c.attrs().i("group", 1);
  if (group < 1 || group > 1 << 20 || prove_equal(w[1] * Dim(group), x[1]) == Tri::kNo ||
      (w[0].is_const() && w[0].value() % group != 0))
    c.fail(cat("group ", group, " does not fit X ", x.str(), " and W ", w.str()));
  if (c.has(3) && prove_equal(c.shape(3), Shape{w[0]}) == Tri::kNo)
    c.fail(cat("B has shape ", c.shape(3).str(), ", expected ", Shape{w[0]}.str()));
  check_sides(c, 2, 4, out, kernel);
  c.out(0, c.dtype(0), {x[0], w[0], out[0], out[1]});
}

std::vector<Expr> decompose(Decompose& d) {
  const Attrs attrs = d.attrs();
  const int64_t group = attrs.i("group", 1);
  const Dims x = d.x(0).shape().values(), w = d.x(1).shape().values();
  const Dims out = d.b.graph().value(d.node().outputs[0]).shape.values();
  Attrs a = attrs;
  a.erase("group");
  a.set("kernel_shape", std::vector<int64_t>{w[2], w[3]});
  const bool has_bias = d.has_x(3);
  const Expr mask = d.has_x(4) ? d.x(4) : Expr();
  const Expr columns = d.b.op("ortrain.DeformColumns", {d.x(0), d.x(2), mask}, a);
  // One product per group: [g, M/g, C/g*taps] x [g, C/g*taps, N*points].
  const int64_t depth = w[1] * w[2] * w[3], points = out[2] * out[3];
  Expr y = d.b.matmul(d.b.reshape(d.x(1), {group, w[0] / group, depth}),
                      d.b.reshape(columns, {group, depth, x[0] * points}));
  y = d.b.transpose(d.b.reshape(y, {w[0], x[0], points}), {1, 0, 2});
  y = d.b.reshape(y, out);
  return {has_bias ? y + d.b.reshape(d.x(3), {w[0], 1, 1}) : y};
}

// --- ortrain.DeformColumns(x, offset, mask?) -> [C*taps, N, points]
void infer_columns(InferCtx& c) {
  const Dims kernel = c.attrs().ints("kernel_shape");
  const Shape out = output_extents(c, kernel), x = c.shape(0);
  check_sides(c, 1, 2, out, kernel);
  c.out(0, c.dtype(0), {x[1] * Dim(kernel[0] * kernel[1]), x[0], out[0] * out[1]});
}

Spec spec_of(const KernelQuery& q, size_t x, size_t offset) {
  const Dims &d = q.in[x].dims, &o = q.in[offset].dims;
  Spec s{d[0], d[1], d[2], d[3]};
  const Dims kernel = q.attrs.ints("kernel_shape");
  s.kh = kernel[0], s.kw = kernel[1], s.oh = o[2], s.ow = o[3];
  s.groups = q.attrs.i("offset_group", 1);
  for (size_t i = 0; i < 2; ++i) {
    s.stride[i] = item(q.attrs, "strides", i, 1);
    s.dilation[i] = item(q.attrs, "dilations", i, 1);
    s.begin[i] = item(q.attrs, "pads", i, 0);
  }
  return s;
}

// A bilinear sample: up to four pixels; those outside are left out.
template <class C>
struct Sample {
  int count = 0;
  int64_t at[4];
  C weight[4], down[4], right[4];  // weight, and its slopes by y and x
};

template <class C>
Sample<C> sample(const Spec& s, C y, C x) {
  Sample<C> out;
  const C h = static_cast<C>(s.height), w = static_cast<C>(s.width);
  if (!(y > -1 && y < h && x > -1 && x < w)) return out;
  const C y_floor = std::floor(y), x_floor = std::floor(x);
  const C ly = y - y_floor, lx = x - x_floor;
  const auto y0 = static_cast<int64_t>(y_floor), x0 = static_cast<int64_t>(x_floor);
  for (int k = 0; k < 4; ++k) {
    const int64_t yy = y0 + k / 2, xx = x0 + k % 2;
    if (yy < 0 || yy >= s.height || xx < 0 || xx >= s.width) continue;
    const C wy = k / 2 ? ly : 1 - ly, wx = k % 2 ? lx : 1 - lx;
    out.at[out.count] = yy * s.width + xx;
    out.weight[out.count] = wy * wx;
    out.down[out.count] = k / 2 ? wx : -wx;
    out.right[out.count++] = k % 2 ? wy : -wy;
  }
  return out;
}

// What tap k of offset group g in image n reads at output point p: calls f(sample, mask, p).
template <class C, class T, class F>
void tap_points(const Spec& s, const T* offset, const T* mask, int64_t n, int64_t g, int64_t k,
                F&& f) {
  const int64_t points = s.points(), taps = s.taps();
  const T* dy = offset + ((n * s.groups + g) * taps + k) * 2 * points;
  const T* dx = dy + points;
  const T* m = mask ? mask + ((n * s.groups + g) * taps + k) * points : nullptr;
  const int64_t top = k / s.kw * s.dilation[0] - s.begin[0];
  const int64_t left = k % s.kw * s.dilation[1] - s.begin[1];
  int64_t p = 0;
  for (int64_t i = 0; i < s.oh; ++i)
    for (int64_t j = 0; j < s.ow; ++j, ++p)
      f(sample<C>(s, static_cast<C>(top + i * s.stride[0]) + static_cast<C>(dy[p]),
                  static_cast<C>(left + j * s.stride[1]) + static_cast<C>(dx[p])),
        m ? static_cast<C>(m[p]) : C(1), p);
}

Kernel columns_kernel(const KernelQuery& q) {
  return {0,
          [s = spec_of(q, 0, 1), dtype = q.in[0].dtype, threads = q.threads](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              parallel_for(threads, s.channels * s.batch, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t c = i / s.batch, n = i % s.batch;
                  const int64_t g = c / (s.channels / s.groups);
                  const T* x = a.x<T>(0) + (n * s.channels + c) * s.plane();
                  for (int64_t k = 0; k < s.taps(); ++k) {
                    T* y = a.y<T>(0) + ((c * s.taps() + k) * s.batch + n) * s.points();
                    tap_points<C>(s, a.x<T>(1), a.x<T>(2), n, g, k,
                                  [&](const Sample<C>& at, C mask, int64_t p) {
                                    C sum = 0;
                                    for (int j = 0; j < at.count; ++j)
                                      sum += at.weight[j] * static_cast<C>(x[at.at[j]]);
                                    y[p] = static_cast<T>(mask * sum);
                                  });
                  }
                }
              });
            });
          }};
}

// --- ortrain.DeformColumnsGrad(dcolumns, x, offset, mask?) -> dx, doffset, dmask
void infer_columns_grad(InferCtx& c) {
  c.out(0, c.dtype(1), c.shape(1));
  c.out(1, c.dtype(2), c.shape(2));
  if (c.has(3))
    c.out(2, c.dtype(3), c.shape(3));
  else
    c.out(2, c.dtype(1), Shape{0});
}

template <class T>
void image_gradient(const Spec& s, const KernelArgs& a, int threads) {
  using C = Acc<T>;
  parallel_for(threads, s.channels * s.batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c = i / s.batch, n = i % s.batch, g = c / (s.channels / s.groups);
      T* dx = a.y<T>(0) + (n * s.channels + c) * s.plane();
      std::fill_n(dx, s.plane(), T(0));
      for (int64_t k = 0; k < s.taps(); ++k) {
        const T* dy = a.x<T>(0) + ((c * s.taps() + k) * s.batch + n) * s.points();
        tap_points<C>(s, a.x<T>(2), a.x<T>(3), n, g, k,
                      [&](const Sample<C>& at, C mask, int64_t p) {
                        const C flow = mask * static_cast<C>(dy[p]);
                        for (int j = 0; j < at.count; ++j) {
                          T& to = dx[at.at[j]];
                          to = static_cast<T>(static_cast<C>(to) + at.weight[j] * flow);
                        }
                      });
      }
    }
  });
}

template <class T>
void side_gradients(const Spec& s, const KernelArgs& a, int threads) {
  using C = Acc<T>;
  const int64_t each = s.channels / s.groups, points = s.points();
  parallel_for(threads, s.batch * s.groups * s.taps(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t k = i % s.taps(), g = i / s.taps() % s.groups, n = i / s.taps() / s.groups;
      T* down = a.out[1] ? a.y<T>(1) + i * 2 * points : nullptr;
      T* to_mask = a.out[2] && a.in[3] ? a.y<T>(2) + i * points : nullptr;
      tap_points<C>(s, a.x<T>(2), a.x<T>(3), n, g, k, [&](const Sample<C>& at, C mask, int64_t p) {
        C y = 0, x = 0, m = 0;
        for (int64_t c = g * each; c < (g + 1) * each; ++c) {
          const T* image = a.x<T>(1) + (n * s.channels + c) * s.plane();
          const C dy = static_cast<C>(a.x<T>(0)[((c * s.taps() + k) * s.batch + n) * points + p]);
          for (int j = 0; j < at.count; ++j) {
            const C v = dy * static_cast<C>(image[at.at[j]]);
            y += v * at.down[j], x += v * at.right[j], m += v * at.weight[j];
          }
        }
        if (down) down[p] = static_cast<T>(y * mask), down[points + p] = static_cast<T>(x * mask);
        if (to_mask) to_mask[p] = static_cast<T>(m);
      });
    }
  });
}

Kernel columns_grad_kernel(const KernelQuery& q) {
  return {0,
          [s = spec_of(q, 1, 2), dtype = q.in[0].dtype, threads = q.threads](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              if (a.out[0]) image_gradient<T>(s, a, threads);
              if (a.out[1] || a.out[2]) side_gradients<T>(s, a, threads);
            });
          }};
}

Expr part(Grad& g, size_t output) {
  const Expr mask = g.has_x(2) ? g.x(2) : Expr();
  return g.b.ops("ortrain.DeformColumnsGrad", {g.dy(), g.x(0), g.x(1), mask}, Attrs(g.attrs()),
                 3)[output];
}

}  // namespace

void register_deform_conv(OpTable& table) {
  using Ints = std::vector<int64_t>;
  const Attrs strided{{"strides", Ints{2, 1}},
                      {"dilations", Ints{1, 2}},
                      {"pads", Ints{1, 2, 0, 1}},
                      {"kernel_shape", Ints{3, 2}},
                      {"offset_group", int64_t{2}}};
  Attrs grouped = strided;
  grouped.set("group", int64_t{2});
  table.add({
      .name = "DeformConv",
      .inputs = {"X", "W", "offset", "B?", "mask?"},
      .outputs = {"Y"},
      .since = 19,
      .infer = infer,
      .decompose = decompose,
      .examples = {{.in = {f({1, 1, 3, 3}), f({1, 1, 2, 2}), f({1, 8, 2, 2}, -0.9, -0.1)}},
                   {.in = {f({2, 4, 5, 6}), f({6, 2, 3, 2}), f({2, 24, 2, 7}, 0.1, 0.9), f({6}),
                           f({2, 12, 2, 7})},
                    .attrs = grouped},
                   {.in = {f({1, 1, 4, 4}), f({1, 1, 3, 3}), f({1, 18, 2, 2}, -1.9, -1.1)}},
                   {.in = {f({0, 1, 3, 3}), f({1, 1, 2, 2}), f({0, 8, 2, 2})}}},
      .note = "two spatial axes; gradients as torchvision.ops.deform_conv2d",
  });
  table.add({
      .name = "ortrain.DeformColumns",
      .inputs = {"x", "offset", "mask?"},
      .outputs = {"columns"},
      .infer = infer_columns,
      .grad = {grad("x", [](Grad& g) { return part(g, 0); }),
               grad("offset", [](Grad& g) { return part(g, 1); }),
               grad("mask", [](Grad& g) { return part(g, 2); })},
      .kernels = {{"cpu", "ref", nullptr, columns_kernel}},
      .examples = {{.in = {f({2, 4, 5, 6}), f({2, 24, 2, 7}, 0.1, 0.9), f({2, 12, 2, 7})},
                    .attrs = strided}},
  });
  table.add({
      .name = "ortrain.DeformColumnsGrad",
      .inputs = {"dcolumns", "x", "offset", "mask?"},
      .outputs = {"dx?", "doffset?", "dmask?"},
      .infer = infer_columns_grad,
      .kernels = {{"cpu", "ref", nullptr, columns_grad_kernel}},
      .examples = {{.in = {f({24, 2, 14}), f({2, 4, 5, 6}), f({2, 24, 2, 7}, 0.1, 0.9),
                           f({2, 12, 2, 7})},
                    .attrs = strided,
                    .outputs = 3}},
  });
}

}  // namespace ortrain::ops
