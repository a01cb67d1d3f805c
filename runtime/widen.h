// A kernel for f32 used on 16-bit floats: inputs are converted into scratch memory, the kernel
// runs, results are rounded back.
//
// Every 16-bit value is really rounded and every sum is an f32 one. Offered for each kernel of a
// list but the reference one, after the kernels that take the types themselves. Refuses nodes
// without 16-bit floats; what the f32 kernel refuses stays refused.
#pragma once

#include "runtime/kernel.h"

namespace ortrain {

bool has_half(const KernelQuery& q);  // some input or output is f16 or bf16
// "" when `entry` takes the query with f32 in the place of 16-bit floats, else its reason.
std::string reject_widened(const KernelEntry& entry, const KernelQuery& q);
Kernel prepare_widened(const KernelEntry& entry, const KernelQuery& q);

}  // namespace ortrain
