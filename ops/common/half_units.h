// Whether products of a 16-bit float type run on the CPU's own units for it (AMX), as
// half_product.h and the note at the start of a 16-bit run want to know. Asks the CPU once.
#pragma once

#include "graph/dtype.h"

namespace ortrain::ops {

// $ORTRAIN_HALF = native or widen decides instead of the CPU (tests).
bool native_half(DType dtype);

}  // namespace ortrain::ops
