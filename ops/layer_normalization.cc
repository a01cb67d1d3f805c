// LayerNormalization over the axes from `axis` to the last, and its gradient.
//
// y = (x - mean) * invstd * scale + bias, invstd = 1/sqrt(var + epsilon), biased variance, computed
// in two passes over a row that is in cache. Outputs 1 and 2 (mean, invstd, shaped like the input
// with the normalised axes 1) are kept for the gradient, whether the file asks for them or not.
// Gradient (per row of D, h = x-hat, g = dy * scale):
//   dx = invstd * (g - mean(g) - h mean(g h)),  dscale = sum dy h,  dbias = sum dy,
// and what flows into the statistics where a file uses them.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

struct Rows {
  int64_t rows = 1, width = 1;
};
Rows rows_of(const Attrs& attrs, const Dims& dims) {
  const int rank = static_cast<int>(dims.size());
  const int axis = normalize_axis(attrs.i("axis", -1), rank);
  Rows r;
  for (int i = 0; i < rank; ++i) (i < axis ? r.rows : r.width) *= dims[static_cast<size_t>(i)];
  return r;
}

void infer(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  Shape stats, normal;
  for (int i = 0; i < c.rank(0); ++i) {
    stats.push_back(i < axis ? c.shape(0)[i] : Dim(1));
    if (i >= axis) normal.push_back(c.shape(0)[i]);
  }
  for (int i = 1; i <= 2; ++i)
    if (c.has(i) && prove_equal(c.shape(i).count(), normal.count()) == Tri::kNo)
      c.fail(cat(i == 1 ? "scale" : "bias", " has shape ", c.shape(i).str(),
                 ", the normalised axes are ", normal.str()));
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, c.dtype(0), stats);
  c.out(2, c.dtype(0), stats);
}

void infer_grad(InferCtx& c) {  // dy, x, scale, mean, invstd
  c.out(0, c.dtype(1), c.shape(1));
  c.out(1, c.dtype(2), c.shape(2));
  c.out(2, c.dtype(2), c.shape(2));
}

// --- f32
// --------------------------------------------------------------------------------------------------
ORTRAIN_SIMD void forward_rows(const float* x, const float* scale, const float* bias, float* y,
                               float* mean_out, float* inv_out, int64_t rows, int64_t width,
                               double epsilon) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(width);
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
    const float inv = static_cast<float>(
        1.0 / std::sqrt(static_cast<double>(square) / static_cast<double>(width) + epsilon));
    if (bias)
      for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * inv * scale[i] + bias[i];
    else
      for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * inv * scale[i];
    if (mean_out) mean_out[r] = mean;
    if (inv_out) inv_out[r] = inv;
  }
}

ORTRAIN_SIMD void backward_rows(const float* dy, const float* x, const float* scale,
                                const float* mean, const float* inv, float* dx, float* dscale,
                                float* dbias, int64_t rows, int64_t width) {
  const float over = 1.f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    const float m = mean[r], v = inv[r];
    float sg = 0, sgh = 0;
#pragma omp simd reduction(+ : sg, sgh)
    for (int64_t i = 0; i < width; ++i) {
      const float h = (x[i] - m) * v, g = dy[i] * scale[i];
      sg += g;
      sgh += g * h;
    }
    sg *= over;
    sgh *= over;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {  // dx may be dy
      const float d = dy[i], h = (x[i] - m) * v;
      dscale[i] += d * h;
      dbias[i] += d;
      dx[i] = v * (d * scale[i] - sg - h * sgh);
    }
  }
}

std::string only_f32(const KernelQuery& q) {
  for (const TensorDesc& d : q.in)
    if (d.present() && d.dtype != DType::kF32) return "only f32";
  return q.in[0].rank() == 0 ? "scalar input" : "";
}

Kernel prepare_simd(const KernelQuery& q) {
  const Rows r = rows_of(q.attrs, q.in[0].dims);
  const double epsilon = q.attrs.f("epsilon", 1e-5);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, r.width));
  return {0, [=, threads = q.threads](const KernelArgs& a) {
            parallel_for(threads, r.rows, grain, [&](int64_t b, int64_t e) {
              forward_rows(a.x<float>(0) + b * r.width, a.x<float>(1), a.x<float>(2),
                           a.y<float>(0) + b * r.width, a.y<float>(1) ? a.y<float>(1) + b : nullptr,
                           a.y<float>(2) ? a.y<float>(2) + b : nullptr, e - b, r.width, epsilon);
            });
          }};
}

// dscale and dbias are summed per block of rows, then the blocks in order: the same for any number
// of threads.
Kernel prepare_simd_grad(const KernelQuery& q) {
  const Rows r = rows_of(q.attrs, q.in[1].dims);
  const int64_t blocks = std::clamp<int64_t>(r.rows / 16, 1, 32);
  const bool small = r.rows * r.width < 16384;
  return {static_cast<size_t>(blocks * 2 * r.width) * sizeof(float),
          [=, threads = q.threads](const KernelArgs& a) {
            auto* partial = static_cast<float*>(a.workspace);
            const float *dy = a.x<float>(0), *x = a.x<float>(1);
            parallel_for(small ? 1 : threads, blocks, 1, [&](int64_t first, int64_t last) {
              for (int64_t k = first; k < last; ++k) {
                float* sums = partial + k * 2 * r.width;
                std::fill_n(sums, 2 * r.width, 0.f);
                const int64_t b = r.rows * k / blocks, e = r.rows * (k + 1) / blocks;
                backward_rows(dy + b * r.width, x + b * r.width, a.x<float>(2), a.x<float>(3) + b,
                              a.x<float>(4) + b, a.y<float>(0) + b * r.width, sums, sums + r.width,
                              e - b, r.width);
              }
            });
            for (size_t o = 1; o <= 2; ++o) {
              float* out = a.y<float>(o);
              if (!out) continue;
              const float* sums = partial + (o == 2 ? r.width : 0);
              std::copy_n(sums, r.width, out);
              for (int64_t k = 1; k < blocks; ++k)
                for (int64_t i = 0; i < r.width; ++i) out[i] += sums[k * 2 * r.width + i];
            }
          }};
}

// --- reference
// --------------------------------------------------------------------------------------------
template <class T>
void forward_ref(const Rows& r, double epsilon, const KernelArgs& a) {
  const T *x = a.x<T>(0), *scale = a.x<T>(1), *bias = a.x<T>(2);
  for (int64_t k = 0; k < r.rows; ++k) {
    const T* row = x + k * r.width;
    double mean = 0, var = 0;
    for (int64_t i = 0; i < r.width; ++i) mean += load(row[i]);
    mean /= static_cast<double>(r.width);
    for (int64_t i = 0; i < r.width; ++i) var += (load(row[i]) - mean) * (load(row[i]) - mean);
    const double inv = 1 / std::sqrt(var / static_cast<double>(r.width) + epsilon);
    for (int64_t i = 0; i < r.width; ++i)
      a.y<T>(0)[k * r.width + i] =
          store<T>((load(row[i]) - mean) * inv * load(scale[i]) + (bias ? load(bias[i]) : 0.0));
    if (a.y<T>(1)) a.y<T>(1)[k] = store<T>(mean);
    if (a.y<T>(2)) a.y<T>(2)[k] = store<T>(inv);
  }
}

template <class T>
void backward_ref(const Rows& r, const KernelArgs& a) {
  const T *dy = a.x<T>(0), *x = a.x<T>(1), *scale = a.x<T>(2), *mean = a.x<T>(3), *inv = a.x<T>(4);
  std::vector<double> dscale(static_cast<size_t>(r.width)), dbias(static_cast<size_t>(r.width));
  for (int64_t k = 0; k < r.rows; ++k) {
    const double m = load(mean[k]), v = load(inv[k]);
    double sg = 0, sgh = 0;
    for (int64_t i = 0; i < r.width; ++i) {
      const double d = load(dy[k * r.width + i]), h = (load(x[k * r.width + i]) - m) * v;
      sg += d * load(scale[i]);
      sgh += d * load(scale[i]) * h;
      dscale[static_cast<size_t>(i)] += d * h;
      dbias[static_cast<size_t>(i)] += d;
    }
    for (int64_t i = 0; i < r.width; ++i) {
      const double g = load(dy[k * r.width + i]) * load(scale[i]),
                   h = (load(x[k * r.width + i]) - m) * v;
      a.y<T>(0)[k * r.width + i] = store<T>(
          v * (g - sg / static_cast<double>(r.width) - h * sgh / static_cast<double>(r.width)));
    }
  }
  for (int64_t i = 0; i < r.width; ++i) {
    if (a.y<T>(1)) a.y<T>(1)[i] = store<T>(dscale[static_cast<size_t>(i)]);
    if (a.y<T>(2)) a.y<T>(2)[i] = store<T>(dbias[static_cast<size_t>(i)]);
  }
}

Kernel prepare_ref(const KernelQuery& q) {
  const Rows r = rows_of(q.attrs, q.in[0].dims);
  const double epsilon = q.attrs.f("epsilon", 1e-5);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=](const KernelArgs& a) { forward_ref<T>(r, epsilon, a); }};
  });
}
Kernel prepare_ref_grad(const KernelQuery& q) {
  const Rows r = rows_of(q.attrs, q.in[1].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=](const KernelArgs& a) { backward_ref<T>(r, a); }};
  });
}

// One backward node per input asked for; simplify merges them into one.
std::vector<Expr> backward(Grad& g) {
  return g.b.ops("ortrain.LayerNormalizationGrad", {g.dy(0), g.x(0), g.x(1), g.y(1), g.y(2)},
                 g.attrs(), 3);
}

// What flows into the statistics, which a file may use: dmean / D, and through the variance
// -dinvstd invstd^3 (x - mean) / D.
Expr x_grad(Grad& g) {
  Expr dx;
  if (g.has_dy(0) || (!g.has_dy(1) && !g.has_dy(2))) dx = backward(g)[0];
  const auto width = static_cast<double>(rows_of(g.attrs(), g.x(0).shape().values()).width);
  const auto add = [&](Expr part) { dx = dx ? dx + part : part; };
  if (g.has_dy(1)) add(g.b.expand_like(g.dy(1) / width, g.x(0)));
  if (g.has_dy(2)) {
    const Expr inv = g.y(2);
    add(g.dy(2) * inv * inv * inv * (g.y(1) - g.x(0)) / width);
  }
  return dx;
}

double flops(const Graph& g, const Node& n) {
  const Shape& s = g.value(n.inputs[0]).shape;
  return s.is_const() ? 8.0 * static_cast<double>(element_count(s.values())) : 0;
}

}  // namespace

void register_layer_normalization(OpTable& table) {
  table.add({
      .name = "LayerNormalization",
      .inputs = {"X", "Scale", "B?"},
      .outputs = {"Y", "Mean?", "InvStdDev?"},
      .since = 17,
      .infer = infer,
      .grad = {grad("X", x_grad), grad("Scale", [](Grad& g) { return backward(g)[1]; }),
               grad("B", [](Grad& g) { return g.b.reshape_like(backward(g)[2], g.x(2)); })},
      .precision = Precision::kNever16,
      .flops = flops,
      .kernels = {{"cpu", "simd", only_f32, prepare_simd}, {"cpu", "ref", nullptr, prepare_ref}},
      .examples = {{.in = {f({4, 6}), f({6}), f({6})}},
                   {.in = {f({2, 3, 5}), f({5})}},
                   {.in = {f({2, 3, 4}), f({3, 4}), f({3, 4})},
                    .attrs = {{"axis", int64_t{1}}, {"epsilon", 1e-3}}},
                   {.in = {f({70, 33}), f({33}), f({33})}},
                   {.in = {f({3, 5}), f({5}), f({5})}, .outputs = 3},
                   {.in = {f({0, 6}), f({6}), f({6})}}},
      .note = "stash_type is ignored: statistics are at least f32",
  });
  table.add({
      .name = "ortrain.LayerNormalizationGrad",
      .inputs = {"dY", "X", "Scale", "Mean", "InvStdDev"},
      .outputs = {"dX", "dScale?", "dB?"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", only_f32, prepare_simd_grad},
                  {"cpu", "ref", nullptr, prepare_ref_grad}},
      .examples = {{.in = {f({40, 6}), f({40, 6}), f({6}), f({40, 1}), f({40, 1}, 0.5, 2)},
                    .outputs = 3},
                   {.in = {f({3, 5}), f({3, 5}), f({5}), f({3, 1}), f({3, 1}, 0.5, 2)}}},
  });
}

}  // namespace ortrain::ops
