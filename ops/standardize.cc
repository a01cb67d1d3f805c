// ortrain.Standardize: every row brought to mean 0 and variance 1, without scale and bias; what
// instance, group and RMS normalisation are made of, and its gradient.
//
// A row is the axes from `axis` to the last. h = (x - mean) * invstd, invstd = 1/sqrt(var +
// epsilon), biased variance; `centre` 0 leaves the mean in (root mean square). invstd has the shape
// of x with the row axes 1. Gradient (g = dh): dx = invstd (g - mean(g) - h mean(g h)), without
// mean(g) when not centred. Accumulation in double (ref) or f32 lanes (simd).
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

struct Rows {
  int64_t rows = 1, width = 1, grain = 1;
  double epsilon = 0;
  bool centre = true;
  int threads = 1;
};
Rows rows_of(const KernelQuery& q) {
  Rows r;
  const Dims& dims = q.in[0].dims;
  const int axis = normalize_axis(q.attrs.i("axis", -1), static_cast<int>(dims.size()));
  for (size_t i = 0; i < dims.size(); ++i)
    (i < static_cast<size_t>(axis) ? r.rows : r.width) *= dims[i];
  r.grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, r.width));
  r.epsilon = q.attrs.f("epsilon", 1e-5);
  r.centre = q.attrs.i("centre", 1) != 0;
  r.threads = q.threads;
  return r;
}

void infer(InferCtx& c) {
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  Shape stats = c.shape(0);
  for (int i = axis; i < stats.rank(); ++i) stats[i] = 1;
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, c.dtype(0), stats);
}

ORTRAIN_SIMD void forward_rows(const float* x, float* h, float* inv_out, int64_t rows,
                               int64_t width, double epsilon, bool centre) {
  for (int64_t r = 0; r < rows; ++r, x += width, h += width) {
    float sum = 0, square = 0;
    if (centre) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += x[i];
    }
    const float mean = sum / static_cast<float>(width);
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
    const float inv = static_cast<float>(
        1.0 / std::sqrt(static_cast<double>(square) / static_cast<double>(width) + epsilon));
    for (int64_t i = 0; i < width; ++i) h[i] = (x[i] - mean) * inv;
    if (inv_out) inv_out[r] = inv;
  }
}

ORTRAIN_SIMD void backward_rows(const float* dh, const float* h, const float* inv, float* dx,
                                int64_t rows, int64_t width, bool centre) {
  const float over = 1.f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r, h += width, dh += width, dx += width) {
    float sg = 0, sgh = 0;
#pragma omp simd reduction(+ : sg, sgh)
    for (int64_t i = 0; i < width; ++i) {
      sg += dh[i];
      sgh += dh[i] * h[i];
    }
    const float mean = centre ? sg * over : 0.f, slope = sgh * over, v = inv[r];
    for (int64_t i = 0; i < width; ++i) dx[i] = v * (dh[i] - mean - h[i] * slope);
  }
}

std::string only_f32(const KernelQuery& q) {
  return q.in[0].dtype == DType::kF32 ? "" : "only f32";
}

Kernel prepare_simd(const KernelQuery& q) {
  const Rows r = rows_of(q);
  return {0, [r](const KernelArgs& a) {
            parallel_for(r.threads, r.rows, r.grain, [&](int64_t b, int64_t e) {
              forward_rows(a.x<float>(0) + b * r.width, a.y<float>(0) + b * r.width,
                           a.y<float>(1) ? a.y<float>(1) + b : nullptr, e - b, r.width, r.epsilon,
                           r.centre);
            });
          }};
}
Kernel prepare_simd_grad(const KernelQuery& q) {
  const Rows r = rows_of(q);
  return {0, [r](const KernelArgs& a) {
            parallel_for(r.threads, r.rows, r.grain, [&](int64_t b, int64_t e) {
              const int64_t at = b * r.width;
              backward_rows(a.x<float>(0) + at, a.x<float>(1) + at, a.x<float>(2) + b,
                            a.y<float>(0) + at, e - b, r.width, r.centre);
            });
          }};
}

template <class T>
void forward_ref(const Rows& r, const KernelArgs& a) {
  const double n = static_cast<double>(r.width);
  for (int64_t k = 0; k < r.rows; ++k) {
    const T* x = a.x<T>(0) + k * r.width;
    double mean = 0, var = 0;
    for (int64_t i = 0; r.centre && i < r.width; ++i) mean += load(x[i]) / n;
    for (int64_t i = 0; i < r.width; ++i) var += (load(x[i]) - mean) * (load(x[i]) - mean) / n;
    const double inv = 1 / std::sqrt(var + r.epsilon);
    for (int64_t i = 0; i < r.width; ++i)
      a.y<T>(0)[k * r.width + i] = store<T>((load(x[i]) - mean) * inv);
    if (a.y<T>(1)) a.y<T>(1)[k] = store<T>(inv);
  }
}
template <class T>
void backward_ref(const Rows& r, const KernelArgs& a) {
  const double n = static_cast<double>(r.width);
  for (int64_t k = 0; k < r.rows; ++k) {
    const T *dh = a.x<T>(0) + k * r.width, *h = a.x<T>(1) + k * r.width;
    double mean = 0, slope = 0;
    for (int64_t i = 0; i < r.width; ++i) {
      if (r.centre) mean += load(dh[i]) / n;
      slope += load(dh[i]) * load(h[i]) / n;
    }
    for (int64_t i = 0; i < r.width; ++i)
      a.y<T>(0)[k * r.width + i] =
          store<T>(load(a.x<T>(2)[k]) * (load(dh[i]) - mean - load(h[i]) * slope));
  }
}
template <bool kForward>
Kernel prepare_ref(const KernelQuery& q) {
  const Rows r = rows_of(q);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0,
            [r](const KernelArgs& a) { kForward ? forward_ref<T>(r, a) : backward_ref<T>(r, a); }};
  });
}

Expr gradient(Grad& g) {
  const Expr h = g.y(0), inv = g.y(1);
  return g.b.op("ortrain.StandardizeGrad", {g.dy(0), h, inv}, g.attrs());
}

}  // namespace

void register_standardize(OpTable& table) {
  const Attrs rms{{"centre", int64_t{0}}, {"epsilon", 1e-3}};
  table.add({
      .name = "ortrain.Standardize",
      .inputs = {"x"},
      .outputs = {"h", "invstd?"},
      .infer = infer,
      .grad = {grad("x", gradient)},
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", only_f32, prepare_simd},
                  {"cpu", "ref", nullptr, prepare_ref<true>}},
      .examples = {{.in = {f({4, 6})}},
                   {.in = {f({2, 3, 17})}, .attrs = {{"axis", int64_t{1}}}},
                   {.in = {f({5, 33})}, .attrs = rms},
                   {.in = {f({0, 6})}}},
  });
  table.add({
      .name = "ortrain.StandardizeGrad",
      .inputs = {"dh", "h", "invstd"},
      .outputs = {"dx"},
      .infer = infer_same_as_first,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}, {0, 1}},
      .kernels = {{"cpu", "simd", only_f32, prepare_simd_grad},
                  {"cpu", "ref", nullptr, prepare_ref<false>}},
      .examples = {{.in = {f({4, 6}), f({4, 6}), f({4, 1}, 0.5, 2)}},
                   {.in = {f({4, 21}), f({4, 21}), f({4, 1}, 0.5, 2)}, .attrs = rms}},
  });
}

}  // namespace ortrain::ops
