// Convolution by Winograd's F(2x2, 3x3): see conv_kernels.h and winograd.h.
//
// Taken where it was measured faster than the direct convolution (docs/performance.md): enough
// tiles to pay for the transformed weight, enough channels to fill the products.
#include "ops/common/conv_kernels.h"
#include "ops/common/winograd.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kTiles = 192;             // of 2x2 outputs, at least
constexpr int64_t kChannels = 32;           // on either side, at least
constexpr size_t kSums = size_t{64} << 20;  // bytes of the weight gradient's workspace

Winograd of(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  const Window w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  return {w.n, w.in[1], w.in[2], w.cx, w.out[1], w.out[2], w.cy, w.begin[1], w.begin[2], q.threads};
}
// dx seen as the convolution of dy.
Winograd back_of(const KernelQuery& q) {
  const Winograd s = of(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
  return {s.n, s.oh, s.ow, s.cout, s.h, s.w, s.cin, 2 - s.top, 2 - s.left, s.threads};
}
Winograd weight_of(const KernelQuery& q) {
  return of(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
}

std::string reject(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  if (std::string why = conv_own_reject(q); !why.empty()) return why;
  const Window w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  const std::array<int64_t, 3> kernel{1, 3, 3}, ones{1, 1, 1};
  if (w.nd != 2 || w.kernel != kernel || w.stride != ones || w.dilation != ones)
    return "takes 3x3 windows of stride 1";
  if (std::min(w.cx, w.cy) < kChannels) return "few channels: the direct convolution is faster";
  return of(q, x, weight, y).tiles() < std::max<int64_t>(kTiles, q.threads)
             ? "few windows: the direct convolution is faster"
             : "";
}

}  // namespace

std::string conv_winograd_reject(const KernelQuery& q) {
  return reject(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
}
std::string conv_grad_input_winograd_reject(const KernelQuery& q) {
  return reject(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
}
std::string conv_grad_weight_winograd_reject(const KernelQuery& q) {
  if (!q.has_out(0)) return "only the bias gradient is wanted";
  if (std::string why = reject(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
      !why.empty())
    return why;
  return winograd_weight_workspace(weight_of(q)) > kSums
             ? "sums of every thread take too much memory"
             : "";
}

Kernel conv_winograd(const KernelQuery& q) {
  const Winograd s = of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  const bool bias = q.has_in(2);
  return {winograd_workspace(s), [s, bias](const KernelArgs& a) {
            winograd(s, a.x<float>(0), a.x<float>(1), false, bias ? a.x<float>(2) : nullptr,
                     a.y<float>(0), a.workspace);
          }};
}

Kernel conv_grad_input_winograd(const KernelQuery& q) {
  const Winograd s = back_of(q);
  return {winograd_workspace(s), [s](const KernelArgs& a) {
            winograd(s, a.x<float>(0), a.x<float>(1), true, nullptr, a.y<float>(0), a.workspace);
          }};
}

Kernel conv_grad_weight_winograd(const KernelQuery& q) {
  const Winograd s = weight_of(q);
  const bool bias = q.has_out(1);
  return {winograd_weight_workspace(s), [s, bias](const KernelArgs& a) {
            winograd_weight(s, a.x<float>(0), a.x<float>(1), a.y<float>(0),
                            bias ? a.y<float>(1) : nullptr, a.workspace);
          }};
}

}  // namespace ortrain::ops
