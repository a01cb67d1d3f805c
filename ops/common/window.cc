// See window.h.
#include "ops/common/window.h"

#include <algorithm>

#include "graph/error.h"

namespace ortrain::ops {
namespace {

// A per-axis attribute list of the right length, or the default.
Dims list(const Attrs& a, const char* name, size_t n, int64_t missing) {
  Dims v = a.ints(name);
  if (v.empty()) v.assign(n, missing);
  if (v.size() != n) fail(ErrorCode::kShape, name, " has ", v.size(), " entries, expected ", n);
  return v;
}

}  // namespace

std::vector<Dim> spatial_dims(const Shape& x, const Attrs& a) {
  const int first = spatial_axis(a), last = channels_last(a) ? x.rank() - 1 : x.rank();
  return {x.begin() + first, x.begin() + last};
}

Shape assemble(const Attrs& a, Dim n, Dim channels, const std::vector<Dim>& spatial) {
  Shape s{n};
  if (!channels_last(a)) s.push_back(channels);
  for (const Dim& d : spatial) s.push_back(d);
  if (channels_last(a)) s.push_back(channels);
  return s;
}

std::vector<Dim> window_output(InferCtx& c, const std::vector<Dim>& in, const Dims& kernel,
                               bool ceil_mode) {
  const size_t nd = in.size();
  if (nd < 1 || nd > 3) c.fail(cat("takes 1 to 3 spatial axes, not ", nd));
  if (kernel.size() != nd) c.fail(cat("kernel_shape has ", kernel.size(), " axes, input ", nd));
  const Attrs& a = c.attrs();
  const Dims stride = list(a, "strides", nd, 1), dilation = list(a, "dilations", nd, 1);
  const Dims pads = list(a, "pads", 2 * nd, 0);
  const std::string mode = a.s("auto_pad", "NOTSET");
  std::vector<Dim> out;
  for (size_t i = 0; i < nd; ++i) {
    if (stride[i] < 1 || dilation[i] < 1 || kernel[i] < 1)
      c.fail("strides, dilations and kernel extents must be positive");
    if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      out.push_back(ceildiv(in[i], stride[i]));
      continue;
    }
    const bool valid = mode == "VALID";
    const int64_t begin = valid ? 0 : pads[i], end = valid ? 0 : pads[nd + i];
    const Dim room = in[i] + Dim(begin + end - (kernel[i] - 1) * dilation[i] - 1);
    if (room.is_const() && room.value() < 0)
      c.fail(cat("window of ", (kernel[i] - 1) * dilation[i] + 1,
                 " does not fit into spatial axis ", i, " of extent ", in[i].str(),
                 " with padding ", begin, " and ", end));
    if (ceil_mode)
      out.push_back(
          min(ceildiv(room, stride[i]) + 1, floordiv(in[i] + Dim(begin - 1), stride[i]) + 1));
    else
      out.push_back(floordiv(room, stride[i]) + 1);
  }
  return out;
}

void Window::valid(int a, int64_t o, int64_t& first, int64_t& last) const {
  const auto i = static_cast<size_t>(a);
  const int64_t start = o * stride[i] - begin[i], d = dilation[i];
  first = start < 0 ? (-start + d - 1) / d : 0;
  last = start >= in[i] ? 0 : std::min(kernel[i], (in[i] - start + d - 1) / d);
  first = std::min(first, last);
}

Window window_of(const Attrs& a, const Dims& x, const Dims& y, const Dims& kernel) {
  Window w;
  const size_t nd = x.size() - 2;
  w.nd = static_cast<int>(nd);
  w.channels_last = channels_last(a);
  const size_t channel = w.channels_last ? nd + 1 : 1, first = w.channels_last ? 1 : 2;
  w.n = x[0], w.cx = x[channel], w.cy = y[channel];
  const Dims stride = list(a, "strides", nd, 1), dilation = list(a, "dilations", nd, 1);
  const Dims pads = list(a, "pads", 2 * nd, 0);
  const std::string mode = a.s("auto_pad", "NOTSET");
  for (size_t i = 0; i < nd; ++i) {
    const size_t j = i + 3 - nd;
    w.in[j] = x[first + i], w.out[j] = y[first + i];
    w.kernel[j] = kernel[i], w.stride[j] = stride[i], w.dilation[j] = dilation[i];
    if (mode == "NOTSET") {
      w.begin[j] = pads[i], w.end[j] = pads[nd + i];
    } else if (mode != "VALID") {
      const int64_t total = std::max<int64_t>(
          0, (w.out[j] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - w.in[j]);
      w.begin[j] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.end[j] = total - w.begin[j];
    }
  }
  const auto strides = [&](const std::array<int64_t, 3>& e, int64_t channels) {
    Window::Strides s;
    const int64_t step = w.channels_last ? channels : 1;
    s.s = {e[1] * e[2] * step, e[2] * step, step};
    s.c = w.channels_last ? 1 : e[0] * e[1] * e[2];
    s.n = e[0] * e[1] * e[2] * channels;
    return s;
  };
  w.x = strides(w.in, w.cx);
  w.y = strides(w.out, w.cy);
  return w;
}

}  // namespace ortrain::ops
