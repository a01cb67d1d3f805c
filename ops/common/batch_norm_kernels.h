// Kernels of BatchNormalization and its gradient. The records and their meaning are in
// ops/batch_normalization.cc.
//
// "nhwc": f32 or a 16-bit float with the channel as the last axis ([N,C] included): statistics in
// one pass over x, normalise + residual + relu in a second; backward likewise two passes. "ref":
// any float type and layout. Both compute in double; the variance sums are of values shifted by the
// first row, so its accuracy does not depend on the mean.
#pragma once

#include "runtime/kernel.h"

namespace ortrain::ops {

Kernel batch_norm_ref(const KernelQuery& q);
Kernel batch_norm_grad_ref(const KernelQuery& q);
Kernel batch_norm_nhwc(const KernelQuery& q);
Kernel batch_norm_grad_nhwc(const KernelQuery& q);
std::string batch_norm_reject(const KernelQuery& q);

}  // namespace ortrain::ops
