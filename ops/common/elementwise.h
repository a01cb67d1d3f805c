// Kernels shared by every operator whose record carries an elementwise code (OpDef::ew).
//
// ew_kernels(): "simd" (tiles in cache, vector instructions chosen at run time) then "ref" (plain
// loops, all dtypes). Both broadcast like ONNX. The meaning of each code, including its edge
// values, is written in ew_scalar.h once.
#pragma once

#include <optional>
#include <vector>

#include "graph/op_def.h"

namespace ortrain::ops {

std::vector<KernelEntry> ew_kernels();

// Layout hook of composite operators whose data is input 0 and whose other inputs are scalars.
std::optional<LayoutChange> ew_channels_last(Graph& g, NodeId n);

}  // namespace ortrain::ops
