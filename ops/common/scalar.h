// Reading and writing elements of any numeric type as double: what reference kernels are written
// with.
#pragma once

#include <type_traits>

#include "graph/dtype.h"

namespace ortrain::ops {

template <class T>
double load(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<double>(static_cast<float>(v));
  else
    return static_cast<double>(v);
}

template <class T>
T store(double v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return T(static_cast<float>(v));
  else if constexpr (std::is_same_v<T, bool>)
    return v != 0;
  else
    return static_cast<T>(v);
}

// Calls f.template operator()<T>() for a float dtype; others fail the plan with the op's origin.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f.template operator()<double>();
    case DType::kF16: return f.template operator()<f16>();
    case DType::kBF16: return f.template operator()<bf16>();
    default: return f.template operator()<float>();
  }
}

}  // namespace ortrain::ops
