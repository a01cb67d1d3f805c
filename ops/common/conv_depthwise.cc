// Weight gradient of depthwise convolutions: see conv_kernels.h and depthwise.h.
#include "ops/common/conv_kernels.h"
#include "ops/common/depthwise.h"

namespace ortrain::ops {
namespace {

Depthwise of(const KernelQuery& q) {
  const Dims& weight = q.attrs.ints("w_shape");
  const Window w =
      window_of(q.attrs, q.in[0].dims, q.in[1].dims, Dims(weight.begin() + 2, weight.end()));
  return {w.n,           w.in[1],       w.in[2],     w.cx,        w.out[1],
          w.out[2],      w.kernel[1],   w.kernel[2], w.stride[1], w.stride[2],
          w.dilation[1], w.dilation[2], w.begin[1],  w.begin[2],  q.threads};
}

}  // namespace

std::string conv_grad_weight_depthwise_reject(const KernelQuery& q) {
  if (!q.has_out(0)) return "only the bias gradient is wanted";
  if (std::string why = conv_own_data_reject(q); !why.empty()) return why;
  if (q.in[0].dims.size() > 4) return "takes one or two spatial axes";
  if (std::string why = reject_negative_padding(q); !why.empty()) return why;
  const int64_t group = q.attrs.i("group", 1);
  if (group == 1 || group != q.in[0].dims.back() || group != q.in[1].dims.back())
    return "takes one channel in and out per group";
  const Depthwise s = of(q);
  if (s.n * s.h * s.w * s.oh * s.ow == 0) return "nothing to do";
  return depthwise_takes(s.kw) ? "" : "takes 5 or 7 taps a kernel row";
}

Kernel conv_grad_weight_depthwise(const KernelQuery& q) {
  const Depthwise s = of(q);
  return {depthwise_weight_workspace(s), [s, bias = q.has_out(1)](const KernelArgs& a) {
            depthwise_weight(s, a.x<float>(0), a.x<float>(1), a.y<float>(0),
                             bias ? a.y<float>(1) : nullptr, a.workspace);
          }};
}

}  // namespace ortrain::ops
