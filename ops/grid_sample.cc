// GridSample: x [N, C, spatial...] sampled at the normalised positions of grid [N, out..., d], for
// any number d of spatial axes (cubic too). Modes linear, nearest, cubic; padding zeros, border,
// reflection. The formulas and their gradients, also at clipped and reflected positions, are
// PyTorch's (aten/src/ATen/native/GridSampler.h), but for cubic with border: ONNX clips positions
// outside first, PyTorch each tap. Cubic coefficient -0.75; nearest rounds half to even.
// ortrain.GridSampleGrad gives both gradients; threads share the batch, so sums keep their order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/movement.h"
#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

constexpr int kMaxSpatial = 4, kMaxTaps = 4;

enum class Mode { kLinear, kNearest, kCubic };
enum class Padding { kZeros, kBorder, kReflection };

struct Spec {
  Mode mode = Mode::kLinear;
  Padding padding = Padding::kZeros;
  bool align = false;
};

Spec spec_of(const Attrs& a) {
  Spec s;
  const std::string mode = a.s("mode", "linear"), padding = a.s("padding_mode", "zeros");
  s.mode = mode == "nearest" ? Mode::kNearest : mode == "cubic" ? Mode::kCubic : Mode::kLinear;
  s.padding = padding == "border"       ? Padding::kBorder
              : padding == "reflection" ? Padding::kReflection
                                        : Padding::kZeros;
  s.align = a.i("align_corners", 0) != 0;
  if (s.mode == Mode::kLinear && mode != "linear")
    fail(ErrorCode::kUnsupported, "mode '", mode, "'");
  if (s.padding == Padding::kZeros && padding != "zeros")
    fail(ErrorCode::kUnsupported, "padding_mode '", padding, "'");
  return s;
}

void infer(InferCtx& c) {
  spec_of(c.attrs());
  same_floats(c, {0, 1});
  const Shape x = c.shape(0), grid = c.shape(1);
  const int d = x.rank() - 2;
  if (d < 1 || d > kMaxSpatial || grid.rank() != x.rank() ||
      prove_equal(grid[grid.rank() - 1], d) == Tri::kNo || prove_equal(x[0], grid[0]) == Tri::kNo)
    c.fail(cat("x ", x.str(), " and grid ", grid.str(), " do not fit"));
  Shape out{x[0], x[1]};
  for (int i = 0; i < d; ++i) out.push_back(grid[i + 1]);
  c.out(0, c.dtype(0), out);
}

// A coordinate or weight with its derivative by the normalised grid value.
template <class T>
struct Dual {
  T v, d;
};

template <class T>
Dual<T> reflected(Dual<T> x, T n, bool align) {
  const T low = align ? T(0) : T(-0.5), span = align ? n - 1 : n;
  if (span <= 0) return {0, 0};
  T in = x.v - low;
  if (in < 0) in = -in, x.d = -x.d;
  const T extra = std::fmod(in, span);
  const bool even = std::fmod(std::floor(in / span), T(2)) == 0;
  return even ? Dual<T>{extra + low, x.d} : Dual<T>{span - extra + low, -x.d};
}

template <class T>
Dual<T> clipped(Dual<T> x, T n) {
  if (x.v <= 0) return {0, 0};
  if (x.v >= n - 1) return {n - 1, 0};
  return x;
}

template <class T>
Dual<T> padded(Dual<T> x, T n, const Spec& s) {
  if (s.padding == Padding::kReflection) x = reflected(x, n, s.align);
  return s.padding == Padding::kZeros ? x : clipped(x, n);
}

template <class T>
Dual<T> cubic(T x) {  // Keys' kernel with a = -0.75, and its derivative by x
  const T a = T(-0.75), s = x < 0 ? T(-1) : T(1);
  x = std::abs(x);
  if (x <= 1) return {((a + 2) * x - (a + 3)) * x * x + 1, s * (3 * (a + 2) * x - 2 * (a + 3)) * x};
  return {((a * x - 5 * a) * x + 8 * a) * x - 4 * a, s * ((3 * a * x - 10 * a) * x + 8 * a)};
}

// The input positions that one output position reads along an axis. at < 0: reads zero.
template <class T>
struct Taps {
  int count = 0;
  int64_t at[kMaxTaps];
  T weight[kMaxTaps], slope[kMaxTaps];
  void add(int64_t i, int64_t n, T w, T d) {
    at[count] = i >= 0 && i < n ? i : -1;
    weight[count] = w;
    slope[count++] = d;
  }
};

template <class T>
Taps<T> taps(T g, int64_t size, const Spec& s) {
  const T n = static_cast<T>(size);
  Dual<T> x =
      s.align ? Dual<T>{(g + 1) / 2 * (n - 1), (n - 1) / 2} : Dual<T>{((g + 1) * n - 1) / 2, n / 2};
  Taps<T> t;
  if (!(std::abs(x.v) < T(1e9))) x = {-100, 0};  // NaN and far away: outside, as in PyTorch
  if (s.mode == Mode::kNearest) {
    t.add(static_cast<int64_t>(std::nearbyint(padded(x, n, s).v)), size, 1, 0);
    return t;
  }
  if (s.mode == Mode::kLinear) {
    x = padded(x, n, s);
    const T base = std::floor(x.v);
    t.add(static_cast<int64_t>(base), size, base + 1 - x.v, -x.d);
    t.add(static_cast<int64_t>(base) + 1, size, x.v - base, x.d);
    return t;
  }
  // Border: beyond the outermost pixel edges (align: centres) ONNX reads the border itself.
  const T edge = s.align ? T(0) : T(0.5);
  if (s.padding == Padding::kBorder && (x.v < -edge || x.v > n - 1 + edge)) x = clipped(x, n);
  const T base = std::floor(x.v);
  for (int k = -1; k <= 2; ++k) {
    const Dual<T> w = cubic(x.v - base - static_cast<T>(k));
    const T at = padded(Dual<T>{base + static_cast<T>(k), 0}, n, s).v;
    t.add(static_cast<int64_t>(at), size, w.v, w.d * x.d);
  }
  return t;
}

struct Sizes {
  int d;
  int64_t batch, channels, points, plane;  // points per image; plane = elements per channel of x
  int64_t in[kMaxSpatial], stride[kMaxSpatial];
};

Sizes sizes(const Dims& x, const Dims& grid) {
  Sizes s{};
  s.d = static_cast<int>(x.size()) - 2;
  s.batch = x[0];
  s.channels = x[1];
  s.points = product(grid, 1, s.d + 1);
  s.plane = product(x, 2, s.d + 2);
  for (int k = 0; k < s.d; ++k) {
    s.in[k] = x[static_cast<size_t>(k) + 2];
    s.stride[k] = product(x, k + 3, s.d + 2);
  }
  return s;
}

// Calls f(offset in the plane, weight, tap index per axis, taps) for every combination in range.
template <class T, class F>
void combinations(const Sizes& s, const Taps<T>* all, F&& f) {
  int at[kMaxSpatial] = {};
  for (;;) {
    int64_t offset = 0;
    T weight = 1;
    bool inside = true;
    for (int k = 0; k < s.d; ++k) {
      const int64_t i = all[k].at[at[k]];
      inside &= i >= 0;
      offset += i * s.stride[k];
      weight *= all[k].weight[at[k]];
    }
    if (inside) f(offset, weight, at);
    int k = s.d;
    while (k-- > 0) {
      if (++at[k] < all[k].count) break;
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

// Taps of all axes for the point whose d grid values (x first) start at g.
template <class C, class T>
void point_taps(const Sizes& s, const Spec& spec, const T* g, Taps<C>* all) {
  for (int k = 0; k < s.d; ++k) all[k] = taps(static_cast<C>(g[s.d - 1 - k]), s.in[k], spec);
}

Kernel kernel(const KernelQuery& q) {
  return {0, [s = sizes(q.in[0].dims, q.in[1].dims), spec = spec_of(q.attrs), dtype = q.in[0].dtype,
              threads = q.threads](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              parallel_for(threads, s.batch * s.points, 256, [&](int64_t begin, int64_t end) {
                Taps<C> all[kMaxSpatial];
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t n = i / s.points, p = i % s.points;
                  point_taps<C>(s, spec, a.x<T>(1) + i * s.d, all);
                  for (int64_t c = 0; c < s.channels; ++c) {
                    const T* x = a.x<T>(0) + (n * s.channels + c) * s.plane;
                    C sum = 0;
                    combinations(s, all, [&](int64_t offset, C w, const int*) {
                      sum += w * static_cast<C>(x[offset]);
                    });
                    a.y<T>(0)[(n * s.channels + c) * s.points + p] = static_cast<T>(sum);
                  }
                }
              });
            });
          }};
}

// --- ortrain.GridSampleGrad(dy, x, grid) -> dx, dgrid
void infer_grad(InferCtx& c) {
  c.out(0, c.dtype(1), c.shape(1));
  c.out(1, c.dtype(2), c.shape(2));
}

Kernel grad_kernel(const KernelQuery& q) {
  return {0, [s = sizes(q.in[1].dims, q.in[2].dims), spec = spec_of(q.attrs), dtype = q.in[0].dtype,
              threads = q.threads](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              parallel_for(threads, s.batch, 1, [&](int64_t begin, int64_t end) {
                Taps<C> all[kMaxSpatial];
                for (int64_t n = begin; n < end; ++n) {
                  const int64_t image = n * s.channels * s.plane;
                  T* dx = a.out[0] ? a.y<T>(0) + image : nullptr;
                  if (dx) std::fill_n(dx, s.channels * s.plane, T(0));
                  for (int64_t p = 0; p < s.points; ++p) {
                    const int64_t i = n * s.points + p;
                    point_taps<C>(s, spec, a.x<T>(2) + i * s.d, all);
                    C dgrid[kMaxSpatial] = {};
                    for (int64_t c = 0; c < s.channels; ++c) {
                      const C dy = static_cast<C>(a.x<T>(0)[(n * s.channels + c) * s.points + p]);
                      const T* x = a.x<T>(1) + image + c * s.plane;
                      combinations(s, all, [&](int64_t offset, C w, const int* at) {
                        if (dx) {
                          T& to = dx[c * s.plane + offset];
                          to = static_cast<T>(static_cast<C>(to) + w * dy);
                        }
                        for (int k = 0; k < s.d; ++k) {
                          C slope = all[k].slope[at[k]];
                          for (int j = 0; j < s.d; ++j)
                            if (j != k) slope *= all[j].weight[at[j]];
                          dgrid[k] += slope * dy * static_cast<C>(x[offset]);
                        }
                      });
                    }
                    if (a.out[1])
                      for (int k = 0; k < s.d; ++k)
                        a.y<T>(1)[i * s.d + s.d - 1 - k] = static_cast<T>(dgrid[k]);
                  }
                }
              });
            });
          }};
}

// --- f32, a block of points at a time: positions and weights once, then vectors over the points
// for every channel
// ----------------------------------------------------------------------------
constexpr int64_t kPoints = 64;
constexpr int kMaxReads = 64;

struct Block {
  int reads = 0;                       // positions that a point reads
  int64_t count = 0;                   // points
  int32_t offset[kMaxReads][kPoints];  // in the plane; -1: reads zero
  float weight[kMaxReads][kPoints];
  int8_t digit[kMaxReads][kMaxSpatial];  // which tap of each axis
  Taps<float> taps[kPoints][kMaxSpatial];

  void fill(const Sizes& s, const Spec& spec, const float* grid, int64_t points) {
    count = points;
    for (int64_t p = 0; p < points; ++p) point_taps(s, spec, grid + p * s.d, taps[p]);
    reads = 1;
    for (int k = 0; k < s.d; ++k) reads *= taps[0][k].count;
    for (int r = 0; r < reads; ++r) {
      int rest = r;
      for (int k = s.d; k-- > 0;) {
        digit[r][k] = static_cast<int8_t>(rest % taps[0][k].count);
        rest /= taps[0][k].count;
      }
      for (int64_t p = 0; p < points; ++p) {
        int64_t at = 0;
        float w = 1;
        bool inside = true;
        for (int k = 0; k < s.d; ++k) {
          const Taps<float>& t = taps[p][k];
          inside &= t.at[digit[r][k]] >= 0;
          at += t.at[digit[r][k]] * s.stride[k];
          w *= t.weight[digit[r][k]];
        }
        offset[r][p] = inside ? static_cast<int32_t>(at) : -1;
        weight[r][p] = w;
      }
    }
  }
};

ORTRAIN_SIMD void read_points(const Block& b, const float* x, float* y) {
  for (int64_t p = 0; p < b.count; ++p) y[p] = 0;
  for (int r = 0; r < b.reads; ++r) {
    const int32_t* at = b.offset[r];
    const float* w = b.weight[r];
#pragma omp simd
    for (int64_t p = 0; p < b.count; ++p) {
      const float v = w[p] * x[at[p] < 0 ? 0 : at[p]];
      y[p] += at[p] < 0 ? 0.f : v;
    }
  }
}
// dot[r][p] += dy[p] * x at read r of point p.
ORTRAIN_SIMD void dot_points(const Block& b, const float* x, const float* dy,
                             float (*dot)[kPoints]) {
  for (int r = 0; r < b.reads; ++r) {
    const int32_t* at = b.offset[r];
    float* sum = dot[r];
#pragma omp simd
    for (int64_t p = 0; p < b.count; ++p) {
      const float v = dy[p] * x[at[p] < 0 ? 0 : at[p]];
      sum[p] += at[p] < 0 ? 0.f : v;
    }
  }
}
void add_points(const Block& b, const float* dy, float* dx) {
  for (int r = 0; r < b.reads; ++r)
    for (int64_t p = 0; p < b.count; ++p)
      if (const int32_t at = b.offset[r][p]; at >= 0) dx[at] += b.weight[r][p] * dy[p];
}
void grid_gradient(const Sizes& s, const Block& b, const float (*dot)[kPoints], float* dgrid) {
  for (int64_t p = 0; p < b.count; ++p)
    for (int k = 0; k < s.d; ++k) {
      float sum = 0;
      for (int r = 0; r < b.reads; ++r) {
        float slope = b.taps[p][k].slope[b.digit[r][k]];
        for (int j = 0; j < s.d; ++j)
          if (j != k) slope *= b.taps[p][j].weight[b.digit[r][j]];
        sum += slope * dot[r][p];
      }
      dgrid[p * s.d + s.d - 1 - k] = sum;
    }
}

std::string reject_blocks(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  const bool grad = q.op == "ortrain.GridSampleGrad";
  const Sizes s = sizes(q.in[grad].dims, q.in[1 + grad].dims);
  const Mode mode = spec_of(q.attrs).mode;
  if (s.d > (mode == Mode::kCubic ? 3 : kMaxSpatial)) return "reads too many positions";
  return s.plane > INT32_MAX || s.plane == 0 ? "plane of a size that it does not take" : "";
}

Kernel block_kernel(const KernelQuery& q) {
  return {0, [s = sizes(q.in[0].dims, q.in[1].dims), spec = spec_of(q.attrs),
              threads = q.threads](const KernelArgs& a) {
            const int64_t blocks = (s.points + kPoints - 1) / kPoints;
            parallel_for(threads, s.batch * blocks, 1, [&](int64_t begin, int64_t end) {
              Block b;
              for (int64_t i = begin; i < end; ++i) {
                const int64_t n = i / blocks, first = i % blocks * kPoints;
                b.fill(s, spec, a.x<float>(1) + (n * s.points + first) * s.d,
                       std::min(kPoints, s.points - first));
                for (int64_t c = n * s.channels; c < (n + 1) * s.channels; ++c)
                  read_points(b, a.x<float>(0) + c * s.plane, a.y<float>(0) + c * s.points + first);
              }
            });
          }};
}

// Threads share the images; where there are too few, the points for dgrid and the channels for dx.
Kernel block_grad_kernel(const KernelQuery& q) {
  return {0, [s = sizes(q.in[1].dims, q.in[2].dims), spec = spec_of(q.attrs),
              threads = q.threads](const KernelArgs& a) {
            const int64_t blocks = (s.points + kPoints - 1) / kPoints;
            const auto part = [&](Block& b, int64_t n, int64_t block, int64_t left, int64_t right,
                                  float* dx, float* dgrid) {
              const int64_t first = block * kPoints, at = n * s.points + first;
              b.fill(s, spec, a.x<float>(2) + at * s.d, std::min(kPoints, s.points - first));
              float dot[kMaxReads][kPoints] = {};
              for (int64_t c = n * s.channels + left; c < n * s.channels + right; ++c) {
                const float* dy = a.x<float>(0) + c * s.points + first;
                if (dx) add_points(b, dy, dx + c * s.plane);
                if (dgrid) dot_points(b, a.x<float>(1) + c * s.plane, dy, dot);
              }
              if (dgrid) grid_gradient(s, b, dot, dgrid + at * s.d);
            };
            float *dx = a.y<float>(0), *dgrid = a.y<float>(1);
            if (dx)
              fill_zero(dx, static_cast<size_t>(s.batch * s.channels * s.plane) * sizeof(float),
                        threads);
            if (s.batch >= threads || !dx) {
              const int64_t each = dx ? blocks : 1;  // dx: an image stays with its thread
              return parallel_for(threads, s.batch * blocks / each, 1, [&](int64_t f, int64_t l) {
                Block b;
                for (int64_t i = f * each; i < l * each; ++i)
                  part(b, i / blocks, i % blocks, 0, s.channels, dx, dgrid);
              });
            }
            if (dgrid)
              parallel_for(threads, s.batch * blocks, 1, [&](int64_t begin, int64_t end) {
                Block b;
                for (int64_t i = begin; i < end; ++i)
                  part(b, i / blocks, i % blocks, 0, s.channels, nullptr, dgrid);
              });
            parallel_for(threads, s.channels, 1, [&](int64_t left, int64_t right) {
              Block b;
              for (int64_t i = 0; i < s.batch * blocks; ++i)
                part(b, i / blocks, i % blocks, left, right, dx, nullptr);
            });
          }};
}

Expr gradient(Grad& g, size_t output) {
  return g.b.ops("ortrain.GridSampleGrad", {g.dy(), g.x(0), g.x(1)}, Attrs(g.attrs()), 2)[output];
}

// Opset 16 says bilinear and bicubic.
void adapt(RawNode& r) {
  const std::string mode = r.attrs.s("mode", "linear");
  if (mode == "bilinear") r.attrs.set("mode", "linear");
  if (mode == "bicubic") r.attrs.set("mode", "cubic");
}

}  // namespace

void register_grid_sample(OpTable& table) {
  OpDef op{
      .name = "GridSample",
      .inputs = {"X", "grid"},
      .outputs = {"Y"},
      .since = 16,
      .infer = infer,
      .grad = {grad("X", [](Grad& g) { return gradient(g, 0); }),
               grad("grid", [](Grad& g) { return gradient(g, 1); })},
      .adapt = adapt,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "blocks", reject_blocks, block_kernel}, {"cpu", "ref", nullptr, kernel}},
      .note = "positions where a coordinate is clipped get no gradient (PyTorch)",
  };
  for (const char* mode : {"linear", "nearest", "cubic"})
    for (const char* padding : {"zeros", "border", "reflection"})
      op.examples.push_back({.in = {f({2, 3, 4, 5}), f({2, 3, 2, 2}, -1.3, 1.3)},
                             .attrs = {{"mode", mode},
                                       {"padding_mode", padding},
                                       {"align_corners", int64_t{padding[0] == 'b'}}}});
  op.examples.push_back({.in = {f({1, 2, 3, 4, 2}), f({1, 2, 1, 3, 3}, -1.2, 1.2)}});
  op.examples.push_back({.in = {f({1, 3, 9, 8}), f({1, 10, 13, 2}, -1.2, 1.2)},
                         .check_grad = false,
                         .note = "among many points some are next to a kink"});
  for (const char* padding : {"zeros", "border", "reflection"})
    op.examples.push_back({.in = {f({1, 2, 3, 4, 2}), f({1, 2, 1, 3, 3}, -1.2, 1.2)},
                           .attrs = {{"mode", "cubic"}, {"padding_mode", padding}}});
  op.examples.push_back({.in = {f({1, 1, 3, 3}), f({1, 0, 2, 2})}});
  table.add(std::move(op));
  table.add({
      .name = "ortrain.GridSampleGrad",
      .inputs = {"dy", "x", "grid"},
      .outputs = {"dx", "dgrid"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "blocks", reject_blocks, block_grad_kernel},
                  {"cpu", "ref", nullptr, grad_kernel}},
      .examples = {{.in = {f({2, 3, 3, 2}), f({2, 3, 4, 5}), f({2, 3, 2, 2}, -1.3, 1.3)},
                    .outputs = 2},
                   {.in = {f({1, 3, 10, 13}), f({1, 3, 9, 8}), f({1, 10, 13, 2}, -1.2, 1.2)},
                    .outputs = 2}},
  });
}

}  // namespace ortrain::ops
