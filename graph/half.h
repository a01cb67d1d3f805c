// Conversions of whole arrays between the 16-bit floats and f32, with the CPU's instructions where
// it has them.
//
// The same results as f16 and bf16 in dtype.h: round to nearest even, denormals kept, overflow to
// infinity, NaN stays NaN. n may be 0; the arrays must not overlap.
#pragma once

#include "graph/dtype.h"

namespace ortrain {

constexpr bool is_half(DType d) { return d == DType::kF16 || d == DType::kBF16; }

// `dtype` is the 16-bit type.
void half_to_float(DType dtype, const void* from, float* to, int64_t n);
void float_to_half(DType dtype, const float* from, void* to, int64_t n);
// to = from rounded to the 16-bit type, kept as f32; in place too.
void round_to_half(DType dtype, const float* from, float* to, int64_t n);
// Rounded to tf32: 8 bits of exponent, 10 of mantissa, to nearest even; in place too.
void round_to_tf32(const float* from, float* to, int64_t n);

}  // namespace ortrain
