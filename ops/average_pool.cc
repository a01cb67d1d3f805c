// AveragePool, GlobalAveragePool and their gradient ortrain.AveragePoolGrad. 1 to 3 spatial axes,
// dilations, auto_pad.
//
// A window's sum is divided by the taps inside the tensor, or, with count_include_pad, by those
// inside the padded tensor (in ceil mode the last window may pass its end): as PyTorch. The
// gradient uses the same divisor, gathered per input element.
#include <span>

#include "graph/pad_axes.h"
#include "ops/common/pool_planes.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

void check_rank(InferCtx& c) {
  if (c.rank(0) < 3 || c.rank(0) > 5) c.fail(cat("takes rank 3 to 5, not ", c.shape(0).str()));
}
void infer_pool(InferCtx& c) {
  check_rank(c);
  const Shape& x = c.shape(0);
  const Attrs& a = c.attrs();
  c.out(0, c.dtype(0),
        assemble(a, x[0], x[channel_axis(a, x.rank())],
                 window_output(c, spatial_dims(x, a), a.ints("kernel_shape"),
                               a.i("ceil_mode", 0) != 0)));
}
void infer_global(InferCtx& c) {
  check_rank(c);
  const Shape& x = c.shape(0);
  const Attrs& a = c.attrs();
  c.out(0, c.dtype(0),
        assemble(a, x[0], x[channel_axis(a, x.rank())],
                 std::vector<Dim>(static_cast<size_t>(x.rank() - 2), Dim(1))));
}
void infer_grad(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("in_shape"))); }

struct Pool {
  Window w;
  bool include_pad;
  // 1 / the taps that count along one axis; 0 where there are none.
  double scale_along(size_t i, int64_t o) const {
    int64_t first, last;
    if (include_pad) {
      const int64_t room = w.in[i] + w.end[i] + w.begin[i] - o * w.stride[i];
      last = std::min(w.kernel[i], (room + w.dilation[i] - 1) / w.dilation[i]);
      first = 0;
    } else {
      w.valid(static_cast<int>(i), o, first, last);
    }
    return last > first ? 1.0 / static_cast<double>(last - first) : 0;
  }
  double scale(const std::array<int64_t, 3>& o) const {
    return scale_along(0, o[0]) * scale_along(1, o[1]) * scale_along(2, o[2]);
  }
};

// `kernel_shape` is absent on the global ops: one window over everything.
Pool pool_of(const KernelQuery& q, const Dims& x, const Dims& y) {
  Dims kernel = q.attrs.ints("kernel_shape");
  if (kernel.empty())
    for (const Dim& d : spatial_dims(Shape(x), q.attrs)) kernel.push_back(d.value());
  for (int64_t& k : kernel) k = std::max<int64_t>(k, 1);
  return {window_of(q.attrs, x, y, kernel), q.attrs.i("count_include_pad", 0) != 0};
}
Pool forward(const KernelQuery& q) { return pool_of(q, q.in[0].dims, q.out[0].dims); }
Pool backward(const KernelQuery& q) { return pool_of(q, q.attrs.ints("in_shape"), q.in[0].dims); }

// --- reference ----------------------------------------------------------------------------------
template <class T>
void ref_plane(const Pool& p, const T* x, T* y) {
  const Window& w = p.w;
  std::array<int64_t, 3> o, a, b, t;
  for (o[0] = 0; o[0] < w.out[0]; ++o[0])
    for (o[1] = 0; o[1] < w.out[1]; ++o[1])
      for (o[2] = 0; o[2] < w.out[2]; ++o[2]) {
        for (size_t i = 0; i < 3; ++i) w.valid(static_cast<int>(i), o[i], a[i], b[i]);
        double sum = 0;
        for (t[0] = a[0]; t[0] < b[0]; ++t[0])
          for (t[1] = a[1]; t[1] < b[1]; ++t[1])
            for (t[2] = a[2]; t[2] < b[2]; ++t[2]) {
              int64_t offset = 0;
              for (size_t i = 0; i < 3; ++i)
                offset += (o[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i]) * w.x.s[i];
              sum += load(x[offset]);
            }
        y[o[0] * w.y.s[0] + o[1] * w.y.s[1] + o[2] * w.y.s[2]] = store<T>(sum * p.scale(o));
      }
}
template <class T>
void ref_grad_plane(const Pool& p, const T* dy, T* dx) {
  const Window& w = p.w;
  for (int64_t i0 = 0; i0 < w.in[0]; ++i0)
    for (int64_t i1 = 0; i1 < w.in[1]; ++i1)
      for (int64_t i2 = 0; i2 < w.in[2]; ++i2) {
        double sum = 0;
        w.covering(0, i0, [&](int64_t o0, int64_t) {
          w.covering(1, i1, [&](int64_t o1, int64_t) {
            w.covering(2, i2, [&](int64_t o2, int64_t) {
              sum +=
                  load(dy[o0 * w.y.s[0] + o1 * w.y.s[1] + o2 * w.y.s[2]]) * p.scale({o0, o1, o2});
            });
          });
        });
        dx[i0 * w.x.s[0] + i1 * w.x.s[1] + i2 * w.x.s[2]] = store<T>(sum);
      }
}
template <bool kGrad>
Kernel prepare_ref(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [p = kGrad ? backward(q) : forward(q), threads = q.threads](const KernelArgs& args) {
      const Window& w = p.w;
      parallel_for(threads, w.n * w.cx, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t n = i / w.cx, c = i % w.cx;
          const int64_t x = n * w.x.n + c * w.x.c, y = n * w.y.n + c * w.y.c;
          if constexpr (kGrad)
            ref_grad_plane(p, args.x<T>(0) + y, args.y<T>(0) + x);
          else
            ref_plane(p, args.x<T>(0) + x, args.y<T>(0) + y);
        }
      });
    };
  });
  return out;
}

// --- channels-last f32
// ----------------------------------------------------------------------------
ORTRAIN_SIMD void add_to(const float* x, float* sum, int64_t n) {
  for (int64_t c = 0; c < n; ++c) sum[c] += x[c];
}
ORTRAIN_SIMD void add_scaled(const float* x, float scale, float* sum, int64_t n) {
  for (int64_t c = 0; c < n; ++c) sum[c] += x[c] * scale;
}
ORTRAIN_SIMD void scale_by(float* x, float scale, int64_t n) {
  for (int64_t c = 0; c < n; ++c) x[c] *= scale;
}

void nhwc_window(const Pool& p, const float* x, float* y, const std::array<int64_t, 3>& o) {
  const Window& w = p.w;
  std::array<int64_t, 3> a, b, t;
  for (size_t i = 0; i < 3; ++i) w.valid(static_cast<int>(i), o[i], a[i], b[i]);
  std::fill(y, y + w.cx, 0.0f);
  for (t[0] = a[0]; t[0] < b[0]; ++t[0])
    for (t[1] = a[1]; t[1] < b[1]; ++t[1])
      for (t[2] = a[2]; t[2] < b[2]; ++t[2]) {
        int64_t offset = 0;
        for (size_t i = 0; i < 3; ++i)
          offset += (o[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i]) * w.x.s[i];
        add_to(x + offset, y, w.cx);
      }
  scale_by(y, static_cast<float>(p.scale(o)), w.cx);
}
Kernel prepare_nhwc(const KernelQuery& q) {
  return {0, [p = forward(q), threads = q.threads](const KernelArgs& a) {
            const Window& w = p.w;
            const int64_t windows = w.out_count();
            const int64_t grain = 1 + 8192 / std::max<int64_t>(1, w.taps() * w.cx);
            parallel_for(threads, w.n * windows, grain, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t at = i % windows;
                nhwc_window(p, a.x<float>(0) + i / windows * w.x.n, a.y<float>(0) + i * w.cx,
                            {at / (w.out[1] * w.out[2]), at / w.out[2] % w.out[1], at % w.out[2]});
              }
            });
          }};
}
Kernel prepare_grad_nhwc(const KernelQuery& q) {
  return {0, [p = backward(q), threads = q.threads](const KernelArgs& a) {
            const Window& w = p.w;
            const int64_t rows = w.in[0] * w.in[1];
            const int64_t grain = 1 + 8192 / std::max<int64_t>(1, w.in[2] * w.cx);
            parallel_for(threads, w.n * rows, grain, [&](int64_t begin, int64_t end) {
              for (int64_t r = begin; r < end; ++r) {
                const float* dy = a.x<float>(0) + r / rows * w.y.n;
                for (int64_t i2 = 0; i2 < w.in[2]; ++i2) {
                  float* dx = a.y<float>(0) + (r * w.in[2] + i2) * w.cx;
                  std::fill(dx, dx + w.cx, 0.0f);
                  w.covering(0, r / w.in[1] % w.in[0], [&](int64_t o0, int64_t) {
                    w.covering(1, r % w.in[1], [&](int64_t o1, int64_t) {
                      w.covering(2, i2, [&](int64_t o2, int64_t) {
                        add_scaled(dy + o0 * w.y.s[0] + o1 * w.y.s[1] + o2 * w.y.s[2],
                                   static_cast<float>(p.scale({o0, o1, o2})), dx, w.cx);
                      });
                    });
                  });
                }
              }
            });
          }};
}
std::string reject_nhwc(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  return channels_last(q.attrs) ? "" : "takes channels-last data";
}

// --- channels first f32
// ----------------------------------------------------------------------------
PoolPlanes::Inverse inverse_counts(const Pool& p) {
  PoolPlanes::Inverse out;
  for (size_t a = 0; a < 3; ++a)
    for (int64_t o = 0; o < p.w.out[a]; ++o)
      out[a].push_back(static_cast<float>(p.scale_along(a, o)));
  return out;
}
template <bool kGrad>
Kernel prepare_planes(const KernelQuery& q) {
  const Pool p = kGrad ? backward(q) : forward(q);
  return {0,
          [planes = PoolPlanes(p.w, q.threads), inverse = inverse_counts(p)](const KernelArgs& a) {
            if constexpr (kGrad)
              planes.average_grad(a.x<float>(0), inverse, a.y<float>(0));
            else
              planes.average(a.x<float>(0), inverse, a.y<float>(0));
          }};
}
std::string reject_planes(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  return channels_last(q.attrs) ? "takes channels-first data" : "";
}

// --- records ------------------------------------------------------------------------------------
Expr grad_x(Grad& g) {
  Attrs a = g.attrs();
  a.set("in_shape", g.x(0).shape().values());
  return g.b.op("ortrain.AveragePoolGrad", {g.dy()}, std::move(a));
}
std::optional<LayoutChange> to_channels_last(Graph& g, NodeId n) {
  g.node(n).attrs.set("channels_last", int64_t{1});
  return LayoutChange{{0}, {0}};
}
std::vector<KernelEntry> kernels() {
  return {{"cpu", "nhwc", reject_nhwc, prepare_nhwc},
          {"cpu", "planes", reject_planes, prepare_planes<false>},
          {"cpu", "ref", nullptr, prepare_ref<false>}};
}

using L = std::vector<int64_t>;

OpDef average_pool_op() {
  const Attrs ceil_include = {{"kernel_shape", L{3, 3}},
                              {"strides", L{2, 2}},
                              {"pads", L{1, 1, 1, 1}},
                              {"ceil_mode", int64_t{1}},
                              {"count_include_pad", int64_t{1}}};
  Attrs ceil_nhwc = ceil_include;
  ceil_nhwc.set("channels_last", int64_t{1});
  return {
      .name = "AveragePool",
      .inputs = {"X"},
      .outputs = {"Y"},
      .infer = infer_pool,
      .grad = {grad("X", grad_x)},
      .channels_last = to_channels_last,
      .kernels = kernels(),
      .examples =
          {{.in = {f({2, 3, 6, 8})}, .attrs = {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}}},
           {.in = {f({2, 3, 7, 8})},
            .attrs = {{"kernel_shape", L{3, 3}}, {"strides", L{2, 2}}, {"pads", L{1, 1, 1, 1}}}},
           {.in = {f({2, 3, 6, 8})}, .attrs = ceil_include},
           {.in = {f({2, 6, 8, 3})}, .attrs = ceil_nhwc},
           {.in = {f({2, 9, 8, 5})},
            .attrs = {{"kernel_shape", L{3, 2}},
                      {"dilations", L{2, 3}},
                      {"pads", L{2, 0, 1, 1}},
                      {"channels_last", int64_t{1}}}},
           {.in = {f({2, 3, 7, 6})},
            .attrs = {{"kernel_shape", L{3, 2}},
                      {"strides", L{2, 2}},
                      {"auto_pad", std::string("SAME_UPPER")}}},
           {.in = {f({2, 3, 7, 6})},
            .attrs = {{"kernel_shape", L{3, 2}},
                      {"dilations", L{2, 1}},
                      {"auto_pad", std::string("SAME_LOWER")}}},
           {.in = {f({2, 3, 9})}, .attrs = {{"kernel_shape", L{2}}, {"strides", L{3}}}},
           {.in = {f({1, 2, 4, 5, 6})}, .attrs = {{"kernel_shape", L{2, 2, 2}}}},
           {.in = {f({1, 2, 300})}, .attrs = {{"kernel_shape", L{3}}, {"strides", L{2}}}},
           {.in = {f({0, 3, 6, 8})}, .attrs = {{"kernel_shape", L{2, 2}}}}},
  };
}
OpDef global_average_pool_op() {
  return {
      .name = "GlobalAveragePool",
      .inputs = {"X"},
      .outputs = {"Y"},
      .infer = infer_global,
      .grad = {grad("X", grad_x)},
      .channels_last = to_channels_last,
      .kernels = kernels(),
      .examples = {{.in = {f({2, 3, 6, 5})}},
                   {.in = {f({2, 3, 7})}},
                   {.in = {f({2, 3, 5, 70})}, .attrs = {{"channels_last", int64_t{1}}}},
                   {.in = {f({1, 2, 3, 4, 5})}}},
  };
}
OpDef average_pool_grad_op() {
  return {
      .name = "ortrain.AveragePoolGrad",
      .inputs = {"dy"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .kernels = {{"cpu", "nhwc", reject_nhwc, prepare_grad_nhwc},
                  {"cpu", "planes", reject_planes, prepare_planes<true>},
                  {"cpu", "ref", nullptr, prepare_ref<true>}},
      .examples = {{.in = {f({2, 3, 3, 4})},
                    .attrs = {{"kernel_shape", L{2, 2}},
                              {"strides", L{2, 2}},
                              {"in_shape", L{2, 3, 6, 8}}}},
                   {.in = {f({2, 6, 7, 3})},
                    .attrs = {{"kernel_shape", L{3, 3}},
                              {"pads", L{1, 1, 1, 1}},
                              {"channels_last", int64_t{1}},
                              {"in_shape", L{2, 6, 7, 3}}}},
                   {.in = {f({1, 2, 150})},
                    .attrs = {{"kernel_shape", L{3}},
                              {"strides", L{2}},
                              {"pads", L{1, 1}},
                              {"in_shape", L{1, 2, 299}}}},
                   {.in = {f({2, 3, 1, 1})}, .attrs = {{"in_shape", L{2, 3, 6, 7}}}},
                   {.in = {f({2, 1, 1, 3})},
                    .attrs = {{"channels_last", int64_t{1}}, {"in_shape", L{2, 6, 7, 3}}}}},
  };
}

}  // namespace

void register_average_pool(OpTable& table) {
  add_pad_rule("AveragePool", {pad_axes_of_channels});
  add_pad_rule("GlobalAveragePool", {pad_axes_of_channels});
  table.add(average_pool_op());
  table.add(global_average_pool_op());
  table.add(average_pool_grad_op());
}

}  // namespace ortrain::ops
