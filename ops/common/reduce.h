// Reductions over any set of axes: the shared kernels, axis handling and gradients' helpers.
#pragma once

#include <vector>

#include "graph/op_def.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

enum class Reduce : uint8_t { kSum, kMean, kMax, kMin, kProd };

// The axes a node reduces, sorted; from input 1 (constant) and the attribute
// noop_with_empty_axes. Empty means that nothing is reduced.
std::vector<int> reduced_axes(const std::vector<int64_t>& axes, bool noop_with_empty_axes,
                              int rank);

// "simd" (f32) and "ref" (every type). The reduced axes are the dims where in[0] and out[0] differ
// together with the attribute and input of the node.
template <Reduce op>
std::vector<KernelEntry> reduce_kernels();

// Sum over axes of x (kF32 or kF64 handled as above) for other kernels: prepares a reduction.
Kernel prepare_reduce(Reduce op, const TensorDesc& x, const std::vector<int>& axes, DType dtype,
                      int threads, bool simd);

}  // namespace ortrain::ops
