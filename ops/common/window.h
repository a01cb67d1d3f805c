// Sliding windows of convolutions and pools over 1 to 3 spatial axes, from the ONNX attributes
// kernel_shape, strides, dilations, pads, auto_pad and ceil_mode.
//
// A tensor is [N, C, spatial...], or [N, spatial..., C] with our own attribute channels_last=1 (the
// layout pass sets it). Ceil mode ignores windows that start in the end padding, as PyTorch and the
// ONNX text say (onnx 1.22's own shape inference does not).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/kernel.h"

namespace ortrain::ops {

inline bool channels_last(const Attrs& a) { return a.i("channels_last", 0) != 0; }
// Index of the channel axis and of the first spatial axis.
inline int channel_axis(const Attrs& a, int rank) { return channels_last(a) ? rank - 1 : 1; }
inline int spatial_axis(const Attrs& a) { return channels_last(a) ? 1 : 2; }

// Output extents while inferring. `kernel` per spatial axis. Fails on windows that do not fit and
// on attribute lists of the wrong length.
std::vector<Dim> window_output(InferCtx& c, const std::vector<Dim>& in, const Dims& kernel,
                               bool ceil_mode);
std::vector<Dim> spatial_dims(const Shape& x, const Attrs& a);
// [N, C, spatial...] in the layout of the attributes.
Shape assemble(const Attrs& a, Dim n, Dim channels, const std::vector<Dim>& spatial);

// Everything about the windows of one node, lifted to three spatial axes (leading ones of extent
// 1). x is the side the windows slide over, y has one element per window.
struct Window {
  int nd = 0;  // spatial axes before lifting
  int64_t n = 0, cx = 0, cy = 0;
  std::array<int64_t, 3> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1},
      dilation{1, 1, 1}, begin{0, 0, 0}, end{0, 0, 0};
  // Element (n, c, i0, i1, i2) of x lies at the dot product with these; y likewise.
  struct Strides {
    int64_t n, c;
    std::array<int64_t, 3> s;
  } x{}, y{};
  bool channels_last = false;
  int64_t in_count() const { return in[0] * in[1] * in[2]; }
  int64_t out_count() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Tap range [first, last) along axis a of the window `o` that lies inside the tensor.
  void valid(int a, int64_t o, int64_t& first, int64_t& last) const;
  // Calls f(o, tap) for every window along axis a that covers position i of x.
  template <class F>
  void covering(int a, int64_t i, F&& f) const {
    const auto j = static_cast<size_t>(a);
    const int64_t at = i + begin[j], back = at - (kernel[j] - 1) * dilation[j];
    const int64_t first = back > 0 ? (back + stride[j] - 1) / stride[j] : 0;
    const int64_t last = std::min(out[j] - 1, at / stride[j]);
    for (int64_t o = first; o <= last; ++o)
      if (const int64_t r = at - o * stride[j]; r % dilation[j] == 0) f(o, r / dilation[j]);
  }
};
// `x` and `y` are whole dims in the layout of the attributes.
Window window_of(const Attrs& a, const Dims& x, const Dims& y, const Dims& kernel);

}  // namespace ortrain::ops
