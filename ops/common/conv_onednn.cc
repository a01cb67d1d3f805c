// Convolution on oneDNN: see conv_kernels.h.
#include <algorithm>

#include "graph/half.h"
#include "ops/common/conv_kernels.h"
#include "ops/common/half_product.h"
#include "ops/common/onednn.h"

namespace ortrain::ops {
namespace {

using onednn::Md;
using onednn::Slot;

// Layouts of one convolution: data channels-last, weights as stored ([O,I/g,k] or grouped).
struct Layouts {
  Md x, y;                // channels-last
  Md x_stored, y_stored;  // as the tensors are
  Md w_stored, b;
  onednn::ConvSpec spec;
};

Md stored(const Dims& dims, bool nhwc, DType dtype) {
  return nhwc ? onednn::channels_last(dims, dtype) : onednn::dense(dims, dtype);
}
// The channels-last layout of a tensor given by its stored dims.
Md data(Dims dims, bool nhwc, DType dtype) {
  if (!nhwc) {
    dims.push_back(dims[1]);
    dims.erase(dims.begin() + 1);
  }
  return onednn::channels_last(dims, dtype);
}

// While the last spatial axis is of extent 1 on both sides (an exporter's [N,C,L,1] for a
// sequence), it becomes the first: the same memory, and the library's tiles run along the last
// axis.
void rotate_empty_axes(Window& w, Dims& x, Dims& weight, Dims& y) {
  const auto first = static_cast<std::ptrdiff_t>(3 - w.nd);
  const auto rotate = [&](auto begin, auto end) { std::rotate(begin, end - 1, end); };
  for (int i = 1; i < w.nd && w.in[2] == 1 && w.out[2] == 1 && w.kernel[2] == 1; ++i) {
    for (auto* a : {&w.in, &w.out, &w.kernel, &w.stride, &w.dilation, &w.begin, &w.end})
      rotate(a->begin() + first, a->end());
    for (Dims* d : {&x, &y}) {
      const auto at = d->begin() + (w.channels_last ? 1 : 2);
      rotate(at, at + w.nd);
    }
    rotate(weight.begin() + 2, weight.end());
  }
}

// One spatial axis becomes two: the library's depthwise kernels know images only.
Layouts layouts(const KernelQuery& q, Dims x, Dims weight, Dims y, bool bias) {
  Layouts l;
  Window w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  rotate_empty_axes(w, x, weight, y);
  const bool lift = w.nd == 1 && q.attrs.i("group", 1) > 1;
  const int nd = w.nd + lift;
  if (lift) {
    for (Dims* d : {&x, &y}) d->insert(d->begin() + (w.channels_last ? 1 : 2), 1);
    weight.insert(weight.begin() + 2, 1);
  }
  const DType dtype = q.in[0].dtype;
  l.x = data(x, w.channels_last, dtype), l.y = data(y, w.channels_last, dtype);
  l.x_stored = stored(x, w.channels_last, dtype), l.y_stored = stored(y, w.channels_last, dtype);
  Dims dims = weight;
  const int64_t group = q.attrs.i("group", 1);
  if (group > 1) {
    dims[0] /= group;
    dims.insert(dims.begin(), group);
  }
  l.w_stored = onednn::dense(dims, dtype);
  l.b = bias ? onednn::dense({weight[0]}, dtype) : Md();
  l.spec = {l.x, onednn::any(dims, dtype), l.b, l.y, {}, {}, {}, {}};
  for (size_t i = static_cast<size_t>(3 - nd); i < 3; ++i) {
    l.spec.strides.push_back(w.stride[i]);
    l.spec.dilations.push_back(w.dilation[i] - 1);
    l.spec.pads_begin.push_back(w.begin[i]);
    l.spec.pads_end.push_back(w.end[i]);
  }
  return l;
}
Layouts forward(const KernelQuery& q) {
  return layouts(q, q.in[0].dims, q.in[1].dims, q.out[0].dims, q.has_in(2));
}
Layouts grad_input(const KernelQuery& q) {
  return layouts(q, q.out[0].dims, q.in[1].dims, q.in[0].dims, false);
}
Layouts grad_weight(const KernelQuery& q) {
  return layouts(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims, q.has_out(1));
}

template <class Make>
std::string reject(const KernelQuery& q, Make&& make) {
  const bool half = is_half(q.in[0].dtype);
  if (half)
    if (std::string why = reject_not_native(q.in[0].dtype); !why.empty()) return why;
  if (std::string why = half ? half_product_reject(q) : onednn::reject_not_f32(q); !why.empty())
    return why;
  if (std::string why = reject_negative_padding(q); !why.empty()) return why;
  std::string impl;
  std::string why = onednn::why_not([&] { impl = make().impl; });
  // Of depthwise windows it takes one product of a single channel after the other: 25 ms where the
  // f32 kernel takes 0.4 (bf16, gradient of the input, 3x3 windows of stride 2).
  if (half && q.attrs.i("group", 1) > 1 && impl.starts_with("brgconv_strided"))
    return "the library has no vectors for these groups";
  return why;
}

}  // namespace

std::string conv_reject(const KernelQuery& q) {
  return reject(q, [&] { return onednn::conv(forward(q).spec, onednn::Make::kProbe); });
}
std::string conv_grad_input_reject(const KernelQuery& q) {
  return reject(q,
                [&] { return onednn::conv_grad_input(grad_input(q).spec, onednn::Make::kProbe); });
}
std::string conv_grad_weight_reject(const KernelQuery& q) {
  if (!q.has_out(0)) return "only the bias gradient is wanted";
  return reject(
      q, [&] { return onednn::conv_grad_weight(grad_weight(q).spec, onednn::Make::kProbe); });
}

Kernel conv_onednn(const KernelQuery& q) {
  const Layouts l = forward(q);
  const onednn::Primitive p = onednn::conv(l.spec);
  onednn::Program program(q);
  const Slot x = program.as(onednn::in(0, l.x_stored), p.src);
  const Slot w = program.as(onednn::in(1, l.w_stored), p.weights);
  const Slot y_stored = onednn::out(0, l.y_stored), y = program.before(y_stored, p.dst);
  std::vector<std::pair<int, Slot>> args = {
      {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (q.has_in(2)) args.push_back({DNNL_ARG_BIAS, onednn::in(2, l.b)});
  program.add(p, args);
  program.put_back(y, y_stored);
  return std::move(program).finish();
}

Kernel conv_grad_input_onednn(const KernelQuery& q) {
  const Layouts l = grad_input(q);
  const onednn::Primitive p = onednn::conv_grad_input(l.spec);
  onednn::Program program(q);
  const Slot dy = program.as(onednn::in(0, l.y_stored), p.dst);
  const Slot w = program.as(onednn::in(1, l.w_stored), p.weights);
  const Slot dx_stored = onednn::out(0, l.x_stored), dx = program.before(dx_stored, p.src);
  program.add(p, {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}});
  program.put_back(dx, dx_stored);
  return std::move(program).finish();
}

Kernel conv_grad_weight_onednn(const KernelQuery& q) {
  const Layouts l = grad_weight(q);
  const onednn::Primitive p = onednn::conv_grad_weight(l.spec);
  onednn::Program program(q);
  const Slot x = program.as(onednn::in(0, l.x_stored), p.src);
  const Slot dy = program.as(onednn::in(1, l.y_stored), p.dst);
  const Slot dw_stored = onednn::out(0, l.w_stored), dw = program.before(dw_stored, p.weights);
  std::vector<std::pair<int, Slot>> args = {
      {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw}};
  if (q.has_out(1)) args.push_back({DNNL_ARG_DIFF_BIAS, onednn::out(1, l.b)});
  program.add(p, args);
  program.put_back(dw, dw_stored);
  return std::move(program).finish();
}

}  // namespace ortrain::ops
