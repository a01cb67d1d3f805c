// Convolution with few channels: see conv_kernels.h and few_channels.h.
//
// Taken where it was measured faster than the direct convolution (docs/performance.md, "Kernels").
#include "ops/common/conv_kernels.h"
#include "ops/common/few_channels.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kChannels = 16;             // on either side, at most
constexpr int64_t kImage = int64_t{1} << 16;  // floats of a sample on either side, at most

FewChannels of(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  const Window w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  return {w.n,           w.in[1],     w.in[2],     w.cx,        w.out[1],    w.out[2],
          w.cy,          w.kernel[1], w.kernel[2], w.stride[1], w.stride[2], w.dilation[1],
          w.dilation[2], w.begin[1],  w.begin[2],  q.threads};
}
// dx seen as the convolution of dy (stride 1).
FewChannels back_of(const KernelQuery& q) {
  FewChannels s = of(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
  std::swap(s.h, s.oh), std::swap(s.w, s.ow), std::swap(s.cin, s.cout);
  s.top = (s.kh - 1) * s.dh - s.top, s.left = (s.kw - 1) * s.dw - s.left;
  return s;
}
FewChannels weight_of(const KernelQuery& q) {
  return of(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
}

std::string reject(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  if (std::string why = conv_own_reject(q); !why.empty()) return why;
  if (x.size() > 4) return "takes one or two spatial axes";
  if (std::string why = reject_negative_padding(q); !why.empty()) return why;
  const FewChannels s = of(q, x, weight, y);
  if (s.n * s.oh * s.ow * s.h * s.w == 0 || std::min(s.cin, s.cout) == 0) return "nothing to do";
  if (std::max(s.cin, s.cout) > kChannels) return "many channels: the direct convolution is faster";
  if (s.n < s.threads) return "fewer samples than threads";
  return std::max(s.h * s.w * s.cin, s.oh * s.ow * s.cout) > kImage ? "samples do not fit the cache"
                                                                    : "";
}

}  // namespace

std::string conv_few_reject(const KernelQuery& q) {
  if (std::string why = reject(q, q.in[0].dims, q.in[1].dims, q.out[0].dims); !why.empty())
    return why;
  const FewChannels s = of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  if (s.n == 1) return "one sample: the direct convolution is faster";
  return s.cin < 4 && s.ow % 14 != 0
             ? "few input channels and rows that do not fill the tiles: the "
               "direct convolution is faster"
             : "";
}
std::string conv_grad_input_few_reject(const KernelQuery& q) {
  if (std::string why = reject(q, q.out[0].dims, q.in[1].dims, q.in[0].dims); !why.empty())
    return why;
  const FewChannels s = back_of(q);
  if (s.sh != 1 || s.sw != 1) return "strides";
  if (s.cout > 8) return "more than 8 input channels: the direct convolution is as fast";
  if (s.cin < 4) return "fewer than 4 output channels: the direct convolution is faster";
  return s.top < 0 || s.left < 0 ? "padding wider than the windows" : "";
}
std::string conv_grad_weight_few_reject(const KernelQuery& q) {
  if (!q.has_out(0)) return "only the bias gradient is wanted";
  if (std::string why = reject(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
      !why.empty())
    return why;
  const FewChannels s = weight_of(q);
  return std::min(s.cin, s.cout) > 8 ? "more than 8 channels on both sides: the direct convolution "
                                       "is as fast"
                                     : "";
}

Kernel conv_few(const KernelQuery& q) {
  const FewChannels s = of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  const bool bias = q.has_in(2);
  return {few_channels_workspace(s), [s, bias](const KernelArgs& a) {
            few_channels(s, a.x<float>(0), a.x<float>(1), false, bias ? a.x<float>(2) : nullptr,
                         a.y<float>(0), a.workspace);
          }};
}

Kernel conv_grad_input_few(const KernelQuery& q) {
  const FewChannels s = back_of(q);
  return {few_channels_workspace(s), [s](const KernelArgs& a) {
            few_channels(s, a.x<float>(0), a.x<float>(1), true, nullptr, a.y<float>(0),
                         a.workspace);
          }};
}

Kernel conv_grad_weight_few(const KernelQuery& q) {
  const FewChannels s = weight_of(q);
  const bool bias = q.has_out(1);
  return {few_channels_weight_workspace(s), [s, bias](const KernelArgs& a) {
            few_channels_weight(s, a.x<float>(0), a.x<float>(1), a.y<float>(0),
                                bias ? a.y<float>(1) : nullptr, a.workspace);
          }};
}

}  // namespace ortrain::ops
