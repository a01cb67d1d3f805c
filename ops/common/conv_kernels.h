// Kernels of convolution and its two gradients, shared by Conv, ConvTranspose and the gradient ops.
// Roles are those of the forward convolution: x [N,C,in...], w [O,C/group,k...], y [N,O,out...].
//
// "onednn": f32, and 16-bit floats where half_units.h has them (sums in f32; bias and db of the
// same type; no operand is widened), channels-last inside (plain channels-first data is reordered
// on the way in and out); w is packed in the workspace per call. "gemm": f32, channels-last, one
// product where the weight is large and the windows few. "winograd": f32, channels-last, 3x3
// windows of stride 1. "few_channels": f32, channels-last, few channels on both sides. "depthwise":
// f32, channels-last, weight gradient of one channel a group, 5 or 7 taps a row. "ref": any
// float type, plain loops.
#pragma once

#include <algorithm>

#include "ops/common/onednn.h"
#include "ops/common/window.h"

namespace ortrain::ops {

Kernel conv_ref(const KernelQuery& q);              // Conv: x, w, b? -> y
Kernel conv_grad_input_ref(const KernelQuery& q);   // dy, w -> dx
Kernel conv_grad_weight_ref(const KernelQuery& q);  // x, dy -> dw, db?
Kernel conv_onednn(const KernelQuery& q);
Kernel conv_grad_input_onednn(const KernelQuery& q);
Kernel conv_grad_weight_onednn(const KernelQuery& q);
std::string conv_reject(const KernelQuery& q);
std::string conv_grad_input_reject(const KernelQuery& q);
std::string conv_grad_weight_reject(const KernelQuery& q);

// "" or why our own f32 kernels do not take the query, groups or not.
inline std::string conv_own_data_reject(const KernelQuery& q) {
  if (std::string why = onednn::reject_not_f32(q); !why.empty()) return why;
  return channels_last(q.attrs) ? "" : "takes channels-last data";
}
// The same for those without groups ("gemm", "winograd", "few_channels").
inline std::string conv_own_reject(const KernelQuery& q) {
  if (std::string why = conv_own_data_reject(q); !why.empty()) return why;
  return q.attrs.i("group", 1) != 1 ? "groups" : "";
}
// "" or that the query crops: what kernels that copy or hand over padding cannot do.
inline std::string reject_negative_padding(const KernelQuery& q) {
  const auto& pads = q.attrs.ints("pads");
  return std::any_of(pads.begin(), pads.end(), [](int64_t p) { return p < 0; }) ? "negative padding"
                                                                                : "";
}

Kernel conv_few(const KernelQuery& q);
Kernel conv_grad_input_few(const KernelQuery& q);
Kernel conv_grad_weight_few(const KernelQuery& q);
std::string conv_few_reject(const KernelQuery& q);
std::string conv_grad_input_few_reject(const KernelQuery& q);
std::string conv_grad_weight_few_reject(const KernelQuery& q);

Kernel conv_gemm(const KernelQuery& q);
Kernel conv_grad_input_gemm(const KernelQuery& q);
Kernel conv_grad_weight_gemm(const KernelQuery& q);
std::string conv_gemm_reject(const KernelQuery& q);
std::string conv_grad_input_gemm_reject(const KernelQuery& q);
std::string conv_grad_weight_gemm_reject(const KernelQuery& q);

Kernel conv_winograd(const KernelQuery& q);
Kernel conv_grad_input_winograd(const KernelQuery& q);
Kernel conv_grad_weight_winograd(const KernelQuery& q);
std::string conv_winograd_reject(const KernelQuery& q);
std::string conv_grad_input_winograd_reject(const KernelQuery& q);
std::string conv_grad_weight_winograd_reject(const KernelQuery& q);

Kernel conv_grad_weight_depthwise(const KernelQuery& q);
std::string conv_grad_weight_depthwise_reject(const KernelQuery& q);

}  // namespace ortrain::ops
