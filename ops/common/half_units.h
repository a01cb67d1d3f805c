// Whether products of a 16-bit float type run on the CPU's own units for it, faster than in f32
// (onednn.h, HalfUnits), as half_product.h and the note at the start of a 16-bit run want to know.
#pragma once

#include <string>

#include "ops/common/onednn.h"

namespace ortrain::ops {

// $ORTRAIN_HALF = native (wherever the library can) or widen decides instead of the CPU (tests).
bool native_half(DType dtype, onednn::HalfUnits least = onednn::HalfUnits::kFast);
// "" or that they do not, for kernels that are worth nothing elsewhere.
inline std::string reject_not_native(DType dtype,
                                     onednn::HalfUnits least = onednn::HalfUnits::kFast) {
  return native_half(dtype, least) ? "" : "16-bit products are slower than f32 here";
}

}  // namespace ortrain::ops
