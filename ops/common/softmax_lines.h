// What Softmax, LogSoftmax, Hardmax and cross entropy share: the axis they look along, and the
// maximum and the sum of exponentials of f32 lines.
//
// Lines are either one row of contiguous elements, or n neighbouring columns of [width, inner] at
// once, where vectors run along the columns. The loops are always inlined, so that they have the
// instruction set of the ORTRAIN_SIMD function that calls them.
#pragma once

#include <limits>

#include "graph/error.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

// x as [outer, width, inner], a line along width.
struct Split {
  int64_t outer = 1, width = 1, inner = 1;
};
// Attribute `axis` (default -1); with `flatten` the axes behind it belong to the line too.
inline Split split_of(const Attrs& attrs, const Dims& dims) {
  const int rank = static_cast<int>(dims.size());
  Split s;
  if (rank == 0) return s;
  const int axis = normalize_axis(attrs.i("axis", -1), rank);
  const bool flatten = attrs.i("flatten", 0) != 0;
  for (int i = 0; i < rank; ++i) {
    int64_t& slot = i < axis ? s.outer : (i == axis || flatten) ? s.width : s.inner;
    slot *= dims[static_cast<size_t>(i)];
  }
  return s;
}

// Before opset 13 the axis (default 1) split the tensor into two dims.
inline void adapt_flatten(RawNode& n) {
  if (n.opset >= 13) return;
  if (!n.attrs.has("axis")) n.attrs.set("axis", int64_t{1});
  n.attrs.set("flatten", int64_t{1});
}

[[gnu::always_inline]] inline float row_top(const float* x, int64_t n) {
  float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}
// y_i = e^(x_i - top); their sum. y may be x.
[[gnu::always_inline]] inline float row_exp(const float* x, float* y, int64_t n, float top) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float e = exp_down_f32(x[i] - top);
    y[i] = e;
    sum += e;
  }
  return sum;
}
// sum_i e^(x_i - top)
[[gnu::always_inline]] inline float row_sum_exp(const float* x, int64_t n, float top) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += exp_down_f32(x[i] - top);
  return sum;
}

[[gnu::always_inline]] inline void column_tops(const float* x, int64_t width, int64_t inner,
                                               int64_t n, float* top) {
  for (int64_t j = 0; j < n; ++j) top[j] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) top[j] = x[i * inner + j] > top[j] ? x[i * inner + j] : top[j];
}
[[gnu::always_inline]] inline void column_sums_exp(const float* x, int64_t width, int64_t inner,
                                                   int64_t n, const float* top, float* sum) {
  for (int64_t j = 0; j < n; ++j) sum[j] = 0;
  for (int64_t i = 0; i < width; ++i)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) sum[j] += exp_down_f32(x[i * inner + j] - top[j]);
}

}  // namespace ortrain::ops
