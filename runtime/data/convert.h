// Lossless conversion of array elements from a data set's dtype to the one a graph input has.
//
// Allowed: the same; bool and narrower integers to wider ones; any integer to i32/i64 (each value
// checked); narrower to wider floats; f64 to f32 (rounded; the caller says so once). Everything
// else is refused: a u8 image is not a float image until somebody has chosen its scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "graph/dtype.h"

namespace ortrain::data {

enum class Conversion : uint8_t {
  kNone,     // same dtype
  kExact,    // every value fits
  kChecked,  // values that do not fit are found while converting
  kRounded,  // f64 to f32
  kRefused,
};

Conversion conversion(DType from, DType to);

// Converts `count` elements; neither pointer needs to be aligned. Returns the position of the first
// element whose value does not fit (kChecked only), else nothing. Not for kNone and kRefused.
std::optional<int64_t> convert(DType from, const std::byte* in, DType to, std::byte* out,
                               int64_t count);

// One integer or bool element of an unaligned array, as int64 (u64 above 2^63-1 saturates).
int64_t integer_at(DType dtype, const std::byte* data, int64_t index);

}  // namespace ortrain::data
