// Vector building blocks of reductions over f32 memory, chosen for the CPU at run time.
//
// Sums are exact to a few ulp of the sum of magnitudes: at most 64 elements are added in f32 per
// lane before the partial sums go on in double. NaN wins in max and min.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ortrain::ops {

struct ReduceSimd {
  double (*sum)(const float* x, int64_t n);
  double (*sum_squares)(const float* x, int64_t n);
  float (*max)(const float* x, int64_t n);  // n >= 1
  float (*min)(const float* x, int64_t n);
  bool (*all_finite)(const float* x, int64_t n);
  // acc[j] += sum over `rows` rows (pitch in elements) of x[j], j < n.
  void (*sum_rows)(const float* x, int64_t rows, int64_t pitch, int64_t n, double* acc);
  // acc[j] = max or min of acc[j] and the rows' x[j].
  void (*max_rows)(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc);
  void (*min_rows)(const float* x, int64_t rows, int64_t pitch, int64_t n, float* acc);
};
const ReduceSimd& reduce_simd();

// Sum of squares in double, of float and double memory alike.
template <class T>
double sum_squares(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) return reduce_simd().sum_squares(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace ortrain::ops
