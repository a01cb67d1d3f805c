// Softmax and LogSoftmax along one axis, and their gradients.
//
// y = exp(x - max) / sum exp(x - max). A row that is -inf throughout gives NaN, as ONNX and PyTorch
// do. Before opset 13 the axis split the tensor into two dims (default axis 1): attribute `flatten`
// keeps that meaning. Gradients: dx = y (dy - sum(dy y)) and dx = dy - exp(y) sum(dy). Accumulation
// in double (ref) or f32 (simd: lanes along the axis; columns: along what lies inside of it).
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/ref.h"
#include "ops/common/softmax_lines.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

ORTRAIN_SIMD void softmax_rows(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const float scale = 1.f / row_exp(x, y, width, row_top(x, width));
    for (int64_t i = 0; i < width; ++i) y[i] *= scale;
  }
}

ORTRAIN_SIMD void softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows,
                                    int64_t width) {
  for (int64_t r = 0; r < rows; ++r, y += width, dy += width, dx += width) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += y[i] * dy[i];
    for (int64_t i = 0; i < width; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
}

ORTRAIN_SIMD void log_softmax_rows(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const float top = row_top(x, width);
    const float rest = std::log(
        row_sum_exp(x, width, top));  // taken off last: x may be so large that it would vanish
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] - top - rest;
  }
}

ORTRAIN_SIMD void log_softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows,
                                        int64_t width) {
  for (int64_t r = 0; r < rows; ++r, y += width, dy += width, dx += width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += dy[i];
    for (int64_t i = 0; i < width; ++i) dx[i] = dy[i] - exp_down_f32(y[i]) * sum;
  }
}

// Columns [0, n) of [width, inner]: the axis strides, vectors run along what lies inside of it.
constexpr int64_t kColumns = 256;

ORTRAIN_SIMD void softmax_columns(const float* x, float* y, int64_t width, int64_t inner,
                                  int64_t n) {
  float top[kColumns], sum[kColumns];
  column_tops(x, width, inner, n, top);
  for (int64_t j = 0; j < n; ++j) sum[j] = 0;
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float e = exp_down_f32(x[i * inner + j] - top[j]);
      y[i * inner + j] = e;
      sum[j] += e;
    }
  for (int64_t j = 0; j < n; ++j) sum[j] = 1.f / sum[j];
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[i * inner + j] *= sum[j];
}

ORTRAIN_SIMD void log_softmax_columns(const float* x, float* y, int64_t width, int64_t inner,
                                      int64_t n) {
  float top[kColumns], sum[kColumns];
  column_tops(x, width, inner, n, top);
  column_sums_exp(x, width, inner, n, top, sum);
  for (int64_t j = 0; j < n; ++j) sum[j] = std::log(sum[j]);
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[i * inner + j] = x[i * inner + j] - top[j] - sum[j];
}

ORTRAIN_SIMD void softmax_grad_columns(const float* y, const float* dy, float* dx, int64_t width,
                                       int64_t inner, int64_t n) {
  float dot[kColumns];
  for (int64_t j = 0; j < n; ++j) dot[j] = 0;
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) dot[j] += y[i * inner + j] * dy[i * inner + j];
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j)
      dx[i * inner + j] = y[i * inner + j] * (dy[i * inner + j] - dot[j]);
}

ORTRAIN_SIMD void log_softmax_grad_columns(const float* y, const float* dy, float* dx,
                                           int64_t width, int64_t inner, int64_t n) {
  float sum[kColumns];
  for (int64_t j = 0; j < n; ++j) sum[j] = 0;
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) sum[j] += dy[i * inner + j];
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j)
      dx[i * inner + j] = dy[i * inner + j] - exp_down_f32(y[i * inner + j]) * sum[j];
}

std::string only_f32_columns(const KernelQuery& q) {
  return q.in[0].dtype == DType::kF32 ? "" : "only f32";
}

// body(offset of the first column, columns) for every block of columns.
template <class Body>
void column_blocks(const Split& s, int threads, Body&& body) {
  const int64_t blocks = (s.inner + kColumns - 1) / kColumns;
  const int64_t work = std::max<int64_t>(1, s.width * std::min(s.inner, kColumns));
  parallel_for(threads, s.outer * blocks, std::max<int64_t>(1, 8192 / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t b = begin; b < end; ++b) {
                   const int64_t first = b % blocks * kColumns;
                   body(b / blocks * s.width * s.inner + first,
                        std::min(kColumns, s.inner - first));
                 }
               });
}

template <auto kBlock>
Kernel columns_forward(const KernelQuery& q) {
  return {0, [s = split_of(q.attrs, q.in[0].dims), threads = q.threads](const KernelArgs& a) {
            column_blocks(s, threads, [&](int64_t at, int64_t n) {
              kBlock(a.x<float>(0) + at, a.y<float>(0) + at, s.width, s.inner, n);
            });
          }};
}

template <auto kBlock>
Kernel columns_backward(const KernelQuery& q) {
  return {0, [s = split_of(q.attrs, q.in[0].dims), threads = q.threads](const KernelArgs& a) {
            column_blocks(s, threads, [&](int64_t at, int64_t n) {
              kBlock(a.x<float>(0) + at, a.x<float>(1) + at, a.y<float>(0) + at, s.width, s.inner,
                     n);
            });
          }};
}

std::string only_f32_rows(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "only f32";
  return split_of(q.attrs, q.in[0].dims).inner == 1 ? "" : "the axis is not innermost";
}

template <auto kRows>
Kernel rows_forward(const KernelQuery& q) {
  const Split s = split_of(q.attrs, q.in[0].dims);
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, s.width));
  return {0, [s, grain, threads = q.threads](const KernelArgs& a) {
            parallel_for(threads, s.outer, grain, [&](int64_t b, int64_t e) {
              kRows(a.x<float>(0) + b * s.width, a.y<float>(0) + b * s.width, e - b, s.width);
            });
          }};
}

template <auto kRows>
Kernel rows_backward(const KernelQuery& q) {
  const Split s = split_of(q.attrs, q.in[0].dims);
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, s.width));
  return {0, [s, grain, threads = q.threads](const KernelArgs& a) {
            parallel_for(threads, s.outer, grain, [&](int64_t b, int64_t e) {
              const int64_t at = b * s.width;
              kRows(a.x<float>(0) + at, a.x<float>(1) + at, a.y<float>(0) + at, e - b, s.width);
            });
          }};
}

template <class T>
void ref_forward(const Split& s, bool log, const T* x, T* y) {
  for (int64_t o = 0; o < s.outer; ++o)
    for (int64_t k = 0; k < s.inner; ++k) {
      const int64_t base = o * s.width * s.inner + k;
      double top = -INFINITY, sum = 0;
      for (int64_t i = 0; i < s.width; ++i) top = std::max(top, load(x[base + i * s.inner]));
      for (int64_t i = 0; i < s.width; ++i) sum += std::exp(load(x[base + i * s.inner]) - top);
      for (int64_t i = 0; i < s.width; ++i) {
        const double v = load(x[base + i * s.inner]) - top;
        y[base + i * s.inner] = store<T>(log ? v - std::log(sum) : std::exp(v) / sum);
      }
    }
}

template <class T>
void ref_backward(const Split& s, bool log, const T* y, const T* dy, T* dx) {
  for (int64_t o = 0; o < s.outer; ++o)
    for (int64_t k = 0; k < s.inner; ++k) {
      const int64_t base = o * s.width * s.inner + k;
      double sum = 0;
      for (int64_t i = 0; i < s.width; ++i) {
        const int64_t at = base + i * s.inner;
        sum += load(dy[at]) * (log ? 1.0 : load(y[at]));
      }
      for (int64_t i = 0; i < s.width; ++i) {
        const int64_t at = base + i * s.inner;
        const double v = load(y[at]);
        dx[at] = store<T>(log ? load(dy[at]) - std::exp(v) * sum : v * (load(dy[at]) - sum));
      }
    }
}

template <bool kLog>
Kernel prepare_ref(const KernelQuery& q) {
  const Split s = split_of(q.attrs, q.in[0].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [s](const KernelArgs& a) { ref_forward<T>(s, kLog, a.x<T>(0), a.y<T>(0)); }};
  });
}
template <bool kLog>
Kernel prepare_ref_grad(const KernelQuery& q) {
  const Split s = split_of(q.attrs, q.in[0].dims);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {
        0, [s](const KernelArgs& a) { ref_backward<T>(s, kLog, a.x<T>(0), a.x<T>(1), a.y<T>(0)); }};
  });
}

void infer(InferCtx& c) {
  if (c.rank(0) > 0) normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  infer_same_as_first(c);
}

std::vector<Example> forward_examples() {
  return {{.in = {f({3, 5})}},
          {.in = {f({2, 3, 4})}, .attrs = {{"axis", int64_t{1}}}},
          {.in = {f({2, 3, 4})}, .attrs = {{"axis", int64_t{1}}, {"flatten", int64_t{1}}}},
          {.in = {f({4, 1})}},
          {.in = {f({0, 3})}},
          {.in = {f({7, 130}, -30, 30)}},
          {.in = {f({2, 7, 300}, -30, 30)}, .attrs = {{"axis", int64_t{1}}}}};
}
std::vector<Example> grad_examples() {
  return {{.in = {f({3, 5}, 0, 1), f({3, 5})}},
          {.in = {f({2, 3, 4}, 0, 1), f({2, 3, 4})}, .attrs = {{"axis", int64_t{0}}}},
          {.in = {f({6, 33}, 0, 1), f({6, 33})}},
          {.in = {f({2, 7, 300}, 0, 1), f({2, 7, 300})}, .attrs = {{"axis", int64_t{1}}}}};
}

Expr softmax_gradient(Grad& g) { return g.b.op("ortrain.SoftmaxGrad", {g.y(), g.dy()}, g.attrs()); }
Expr log_softmax_gradient(Grad& g) {
  return g.b.op("ortrain.LogSoftmaxGrad", {g.y(), g.dy()}, g.attrs());
}

}  // namespace

void register_softmax(OpTable& table) {
  table.add({
      .name = "Softmax",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer,
      .grad = {grad("input", softmax_gradient)},
      .adapt = adapt_flatten,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", only_f32_rows, rows_forward<softmax_rows>},
                  {"cpu", "columns", only_f32_columns, columns_forward<softmax_columns>},
                  {"cpu", "ref", nullptr, prepare_ref<false>}},
      .examples = forward_examples(),
  });
  table.add({
      .name = "LogSoftmax",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer,
      .grad = {grad("input", log_softmax_gradient)},
      .adapt = adapt_flatten,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", only_f32_rows, rows_forward<log_softmax_rows>},
                  {"cpu", "columns", only_f32_columns, columns_forward<log_softmax_columns>},
                  {"cpu", "ref", nullptr, prepare_ref<true>}},
      .examples = forward_examples(),
  });
  table.add({
      .name = "ortrain.SoftmaxGrad",
      .inputs = {"y", "dy"},
      .outputs = {"dx"},
      .infer = infer,
      .precision = Precision::kNever16,
      .inplace = {{0, 1}, {0, 0}},
      .kernels = {{"cpu", "simd", only_f32_rows, rows_backward<softmax_grad_rows>},
                  {"cpu", "columns", only_f32_columns, columns_backward<softmax_grad_columns>},
                  {"cpu", "ref", nullptr, prepare_ref_grad<false>}},
      .examples = grad_examples(),
  });
  table.add({
      .name = "ortrain.LogSoftmaxGrad",
      .inputs = {"y", "dy"},
      .outputs = {"dx"},
      .infer = infer,
      .precision = Precision::kNever16,
      .inplace = {{0, 1}, {0, 0}},
      .kernels = {{"cpu", "simd", only_f32_rows, rows_backward<log_softmax_grad_rows>},
                  {"cpu", "columns", only_f32_columns, columns_backward<log_softmax_grad_columns>},
                  {"cpu", "ref", nullptr, prepare_ref_grad<true>}},
      .examples = grad_examples(),
  });
}

}  // namespace ortrain::ops
