// Kernels of ortrain.Linear and its gradients (ops/linear.cc), for operators that run them on part
// of the rows.
#pragma once

#include "runtime/kernel.h"

namespace ortrain::ops {

Kernel ref_linear(const KernelQuery& q);
Kernel ref_grad_input(const KernelQuery& q);
Kernel ref_grad_weight(const KernelQuery& q);
Kernel onednn_linear(const KernelQuery& q);
Kernel onednn_grad_input(const KernelQuery& q);
Kernel onednn_grad_weight(const KernelQuery& q);
// 16-bit floats (half_product.h).
Kernel half_linear(const KernelQuery& q);
Kernel half_grad_input(const KernelQuery& q);
Kernel half_grad_weight(const KernelQuery& q);

}  // namespace ortrain::ops
