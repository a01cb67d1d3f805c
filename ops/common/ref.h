// Helpers of the reference kernels: exact accumulation types, dispatch over floats, and a plain
// strided matrix product. f32 and 16-bit floats accumulate in double, integers in 64 bits.
#pragma once

#include <type_traits>

#include "graph/error.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

template <class T>
using Acc = std::conditional_t<std::is_integral_v<T>,
                               std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>, double>;

template <class T>
inline Acc<T> load(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<double>(static_cast<float>(v));
  else
    return static_cast<Acc<T>>(v);
}
template <class T>
inline T store(Acc<T> v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return T(static_cast<float>(v));
  else
    return static_cast<T>(v);
}

// dispatch() for float types only: fewer instances of large templates. Any other type is a model
// that asks for too much: Error(kUnsupported).
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f.template operator()<double>();
    case DType::kF16: return f.template operator()<f16>();
    case DType::kBF16: return f.template operator()<bf16>();
    default:
      if (dtype != DType::kF32)
        fail(ErrorCode::kUnsupported, "computes on floats only, not on ", name_of(dtype));
      return f.template operator()<float>();
  }
}

// A matrix in memory: element (i, j) at p[i * row + j * col].
template <class T>
struct Matrix {
  T* p;
  int64_t row, col;
  T& operator()(int64_t i, int64_t j) const { return p[i * row + j * col]; }
};
// rows x cols stored row-major, or its transpose seen as rows x cols.
template <class T>
Matrix<T> matrix(T* p, int64_t rows, int64_t cols, bool trans) {
  return trans ? Matrix<T>{p, 1, rows} : Matrix<T>{p, cols, 1};
}

// c[m, n] = finish(sum_k a(m, k) b(k, n), m, n).
template <class T, class Finish>
void ref_gemm(int threads, int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b,
              Matrix<T> c, Finish&& finish) {
  const int64_t grain = 1 + 20000 / (1 + n * k);
  parallel_for(threads, m, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j) {
        Acc<T> sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += load(a(i, l)) * load(b(l, j));
        c(i, j) = store<T>(finish(sum, i, j));
      }
  });
}
template <class T>
void ref_gemm(int threads, int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b,
              Matrix<T> c) {
  ref_gemm(threads, m, n, k, a, b, c, [](Acc<T> sum, int64_t, int64_t) { return sum; });
}

}  // namespace ortrain::ops
