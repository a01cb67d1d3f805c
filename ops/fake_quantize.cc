// ortrain.FakeQuantize: y = DequantizeLinear(QuantizeLinear(x)), the form that a Q -> DQ pair has
// in every compiled graph (ops/quantize_linear.cc makes it). `dtype` is the quantized type.
//
// Gradients as PyTorch's fake quantization. dx: dy where the code lies inside the type's range, 0
// where it was clipped (straight-through with clipping mask). dscale: the learned-scale rule (LSQ,
// arXiv 1902.08153, and torch._fake_quantize_learnable_*, without their gradient factor): dy times
// (round(x/s) - x/s) inside, times the clipped code minus the zero point outside, summed over the
// elements that share the scale.
#include "graph/error.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/movement.h"
#include "ops/common/quantize.h"
#include "ops/common/share_node.h"
#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

// Inputs x, scale, zero? begin at `first`.
struct Spec {
  Spec(const KernelQuery& q, size_t first)
      : z(type_attribute(q.attrs, "dtype", DType::kU8),
          type_attribute(q.attrs, "precision", q.in[first + 1].dtype),
          q.attrs.i("saturate", 1) != 0),
        map(q.attrs, q.in[first].dims, q.in[first + 1].dims),
        x(q.in[first].dtype),
        scale(q.in[first + 1].dtype),
        zero(q.has_in(first + 2) ? q.in[first + 2].dtype : DType::kUndefined),
        n(q.in[first].count()),
        threads(q.threads) {}
  Quantizer z;
  ScaleMap map;
  DType x, scale, zero;
  int64_t n;
  int threads;
};

void infer(InferCtx& c) {
  check_scale(c, 1);
  c.out(0, c.dtype(0), c.shape(0));
}
void infer_grad(InferCtx& c) {
  c.out(0, c.dtype(1), c.shape(1));
  c.out(1, c.dtype(1), c.shape(1));
}

// --- reference
Kernel forward_ref(const KernelQuery& q) {
  return {0, [s = Spec(q, 0)](const KernelArgs& a) {
            for_scaled_runs(s.threads, s.n, s.map, s.scale, a.in[1], s.zero,
                            s.zero == DType::kUndefined ? nullptr : a.in[2],
                            [&](int64_t at, int64_t count, const double* scale, const double* zero,
                                int64_t step) {
                              std::array<double, kRun> run;
                              load_run(s.x, a.in[0], at, count, run.data());
                              for (int64_t i = 0; i < count; ++i) {
                                double& v = run[static_cast<size_t>(i)];
                                const double by = scale[i * step], z = zero[i * step];
                                v = (s.z.code(s.z.divide(v, by), z).value - z) * by;
                              }
                              store_run(s.x, run.data(), count, a.out[0], at);
                            });
          }};
}

Kernel backward_ref(const KernelQuery& q) {
  return {0, [s = Spec(q, 1), dy_type = q.in[0].dtype](const KernelArgs& a) {
            for_scaled_runs(s.threads, s.n, s.map, s.scale, a.in[2], s.zero,
                            s.zero == DType::kUndefined ? nullptr : a.in[3],
                            [&](int64_t at, int64_t count, const double* scale, const double* zero,
                                int64_t step) {
                              std::array<double, kRun> x, dy;
                              load_run(s.x, a.in[1], at, count, x.data());
                              load_run(dy_type, a.in[0], at, count, dy.data());
                              for (int64_t i = 0; i < count; ++i) {
                                const auto k = static_cast<size_t>(i);
                                const double v = s.z.divide(x[k], scale[i * step]),
                                             z = zero[i * step];
                                const Quantizer::Code c = s.z.code(v, z);
                                x[k] = dy[k] * (c.inside ? c.value - z - v : c.value - z);
                                if (!c.inside) dy[k] = 0;
                              }
                              if (a.out[0]) store_run(s.x, dy.data(), count, a.out[0], at);
                              if (a.out[1]) store_run(s.x, x.data(), count, a.out[1], at);
                            });
          }};
}

// --- f32 to integers. The range [low, high] is moved by the zero point. kStep 0: one scale for the
// run; 1: one per element (a vector of channels along the last axis).
constexpr float kShift = 12582912.f;  // 1.5 * 2^23: adding it rounds |v| <= 2^22 to nearest even

struct Ranges {
  const float *scale, *low, *high;
};

template <int kStep>
[[gnu::always_inline]] inline void forward_loop(const float* x, Ranges r, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float scale = r.scale[i * kStep], low = r.low[i * kStep], high = r.high[i * kStep];
    float v = x[i] / scale;
    v = v > low ? v : low;
    v = v < high ? v : high;
    y[i] = ((v + kShift) - kShift) * scale;
  }
}
template <int kStep>
[[gnu::always_inline]] inline void dx_loop(const float* dy, const float* x, Ranges r, float* dx,
                                           int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float low = r.low[i * kStep], high = r.high[i * kStep];
    float v = x[i] / r.scale[i * kStep];
    v = v > low - 1 ? v : low - 1;
    v = v < high + 1 ? v : high + 1;
    const float code = (v + kShift) - kShift;
    dx[i] = code >= low && code <= high ? dy[i] : 0.f;
  }
}
template <int kStep>
[[gnu::always_inline]] inline void dscale_loop(const float* dy, const float* x, Ranges r,
                                               float* term, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float low = r.low[i * kStep], high = r.high[i * kStep];
    const float v = x[i] / r.scale[i * kStep];
    float c = v > low - 1 ? v : low - 1;
    c = c < high + 1 ? c : high + 1;
    const float code = (c + kShift) - kShift, outside = code < low ? low : high;
    term[i] = dy[i] * (code >= low && code <= high ? code - v : outside);
  }
}
ORTRAIN_SIMD void forward_run(const float* x, Ranges r, int64_t step, float* y, int64_t n) {
  if (step)
    forward_loop<1>(x, r, y, n);
  else
    forward_loop<0>(x, r, y, n);
}
ORTRAIN_SIMD void dx_run(const float* dy, const float* x, Ranges r, int64_t step, float* dx,
                         int64_t n) {
  if (step)
    dx_loop<1>(dy, x, r, dx, n);
  else
    dx_loop<0>(dy, x, r, dx, n);
}
ORTRAIN_SIMD void dscale_run(const float* dy, const float* x, Ranges r, int64_t step, float* term,
                             int64_t n) {
  if (step)
    dscale_loop<1>(dy, x, r, term, n);
  else
    dscale_loop<0>(dy, x, r, term, n);
}

// Calls f(at, count, ranges, step).
template <class F>
void float_runs(const Spec& s, const void* scale, const void* zero, F&& f) {
  for_scaled_runs(s.threads, s.n, s.map, s.scale, scale, s.zero,
                  s.zero == DType::kUndefined ? nullptr : zero,
                  [&](int64_t at, int64_t count, const double* by, const double* z, int64_t step) {
                    std::array<float, kRun> scales, low, high;
                    for (size_t i = 0; i < static_cast<size_t>(step ? count : 1); ++i) {
                      scales[i] = static_cast<float>(by[i]);
                      low[i] = static_cast<float>(s.z.low - z[i]);
                      high[i] = static_cast<float>(s.z.high - z[i]);
                    }
                    f(at, count, Ranges{scales.data(), low.data(), high.data()}, step);
                  });
}

std::string reject(const KernelQuery& q, size_t first) {
  const Spec s(q, first);
  if (s.x != DType::kF32 || s.scale != DType::kF32 || s.z.precision != DType::kF32)
    return "takes f32";
  return s.z.integer ? "" : "quantizes to integers";
}
Kernel forward_simd(const KernelQuery& q) {
  return {0, [s = Spec(q, 0)](const KernelArgs& a) {
            float_runs(s, a.in[1], a.in[2], [&](int64_t at, int64_t n, Ranges r, int64_t step) {
              forward_run(a.x<float>(0) + at, r, step, a.y<float>(0) + at, n);
            });
          }};
}
Kernel backward_simd(const KernelQuery& q) {
  return {0, [s = Spec(q, 1)](const KernelArgs& a) {
            float_runs(s, a.in[2], a.in[3], [&](int64_t at, int64_t n, Ranges r, int64_t step) {
              const float *dy = a.x<float>(0) + at, *x = a.x<float>(1) + at;
              if (a.out[1]) dscale_run(dy, x, r, step, a.y<float>(1) + at, n);
              if (a.out[0]) dx_run(dy, x, r, step, a.y<float>(0) + at, n);
            });
          }};
}

// --- records
Expr gradient(Grad& g, int output) {
  const Attrs attrs = g.attrs();
  std::vector<Expr> in{g.dy(), g.x(0), g.x(1)};
  if (g.has_x(2)) in.push_back(g.x(2));
  return share_node(g.b, "ortrain.FakeQuantizeGrad", in, attrs, output);
}
Expr scale_gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  const Shape scale = g.x(1).shape();
  return sum_to_scale(g.b, gradient(g, 1), attrs, scale);
}

// One scale, or one per channel, follows the data; blocks stay.
std::optional<LayoutChange> to_channels_last(Graph& g, NodeId n) {
  const Shape scale = g.value(g.node(n).inputs[1]).shape;
  if (!(scale.count() == Dim(1))) {
    Attrs& a = g.node(n).attrs;
    if (a.i("block_size", 0) > 0) return std::nullopt;
    const int rank = g.value(g.node(n).inputs[0]).shape.rank();
    a.set("axis", last_axis(normalize_axis(a.i("axis", 1), rank), rank));
  }
  return LayoutChange{{0}, {0}};
}

ExampleInput u8(Dims dims, std::vector<double> values) {
  return typed(DType::kU8, floats(std::move(dims), std::move(values)));
}
std::vector<Example> examples(bool backward) {
  const auto type = [](const char* t) { return Attrs{{"dtype", std::string(t)}}; };
  Attrs blocked = type("i4"), rows = type("i8");
  blocked.set("block_size", int64_t{2});
  rows.set("axis", int64_t{-1});
  std::vector<Example> all = {
      {.in = {f({2, 3, 700}), floats({}, {0.0111}), u8({}, {100})}, .attrs = type("u8")},
      {.in = {f({2, 3, 40}), floats({3}, {0.011, 0.0151, 0.031}), u8({3}, {0, 128, 255})},
       .attrs = type("u8")},
      {.in = {f({5, 3}), floats({3}, {0.011, 0.0151, 0.031})}, .attrs = rows},
      {.in = {f({2, 5, 3}), f({2, 3, 3}, 0.1, 0.5)}, .attrs = blocked},
      {.in = {f({9}, -9, 9), floats({}, {0.01})}, .attrs = type("f8e4m3fn")},
      {.in = {f({0, 3}), floats({}, {0.5})}, .attrs = type("i8")},
      {.in = {f({}), floats({}, {0.5})}, .attrs = type("u16")}};
  for (Example& e : all) {
    e.check_grad = false;
    e.note = "the straight-through estimator is no derivative";
    if (!backward) continue;
    e.in.insert(e.in.begin(), f(e.in[0].dims));
    e.outputs = 2;
  }
  return all;
}

}  // namespace

void register_fake_quantize(OpTable& table) {
  table.add({
      .name = "ortrain.FakeQuantize",
      .inputs = {"x", "y_scale", "zero_point?"},
      .outputs = {"y"},
      .infer = infer,
      .grad = {grad("x", [](Grad& g) { return gradient(g, 0); }), grad("y_scale", scale_gradient),
               no_grad("zero_point")},
      .channels_last = to_channels_last,
      .storage = true,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", [](const KernelQuery& q) { return reject(q, 0); }, forward_simd},
                  {"cpu", "ref", nullptr, forward_ref}},
      .examples = examples(false),
      .note = "0 outside of the range; the scale by the learned-scale rule",
  });
  table.add({
      .name = "ortrain.FakeQuantizeGrad",
      .inputs = {"dy", "x", "y_scale", "zero_point?"},
      .outputs = {"dx", "scale_term?"},
      .infer = infer_grad,
      .storage = true,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", [](const KernelQuery& q) { return reject(q, 1); }, backward_simd},
                  {"cpu", "ref", nullptr, backward_ref}},
      .examples = examples(true),
  });
}

}  // namespace ortrain::ops
