// Kernels shared by every operator whose record carries an elementwise code (OpDef::ew).
//
// ew_kernels(): "simd" (tiles in cache, vector instructions chosen at run time) then "ref" (plain
// loops, all dtypes). Both broadcast like ONNX. The meaning of each code, including its edge
// values, is written in elementwise.cc once.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace ortrain::ops {

std::vector<KernelEntry> ew_kernels();

}  // namespace ortrain::ops
