// ConvTranspose: the input gradient of a convolution used forwards, with bias. 1 to 3 spatial axes.
//
// Means ortrain.ConvGradInput (same weight, explicit pads) plus the bias; fuse_forward or lowering
// replaces it, its gradients are those of Conv. Output extent: stride (in - 1) + output_padding +
// dilated kernel - pads, or output_shape, which fixes the pads (auto_pad SAME_*: in times stride).
// Refuses output_padding >= stride, as PyTorch does unless the dilation is larger.
#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

struct Sizes {
  std::vector<Dim> out;
  std::vector<Dim> begin, end;  // pads; symbolic only while the input is
};

Dims list(const Attrs& a, const char* name, size_t n, int64_t missing) {
  Dims v = a.ints(name);
  if (v.empty()) v.assign(n, missing);
  if (v.size() != n) fail(ErrorCode::kShape, name, " has ", v.size(), " entries, expected ", n);
  return v;
}

Sizes sizes(const Attrs& a, const Shape& x, const Shape& w) {
  Sizes s;
  const size_t nd = static_cast<size_t>(x.rank() - 2);
  const Dims stride = list(a, "strides", nd, 1), dilation = list(a, "dilations", nd, 1);
  const Dims extra = list(a, "output_padding", nd, 0), pads = list(a, "pads", 2 * nd, 0);
  Dims wanted = a.ints("output_shape");
  if (wanted.size() == nd + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  const std::string mode = a.s("auto_pad", "NOTSET");
  for (size_t i = 0; i < nd; ++i) {
    const int axis = static_cast<int>(i) + 2;
    if (!w[axis].is_const()) fail(ErrorCode::kShape, "the kernel extents must be known");
    if (extra[i] >= stride[i] && extra[i] > 0)
      fail(ErrorCode::kUnsupported, "output_padding ", extra[i], " with stride ", stride[i]);
    const Dim natural =
        (x[axis] - 1) * Dim(stride[i]) + Dim(extra[i] + (w[axis].value() - 1) * dilation[i] + 1);
    const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
    if (wanted.empty() && !same) {
      s.begin.push_back(mode == "VALID" ? 0 : pads[i]);
      s.end.push_back(mode == "VALID" ? 0 : pads[nd + i]);
      s.out.push_back(natural - s.begin.back() - s.end.back());
      continue;
    }
    s.out.push_back(wanted.empty() ? x[axis] * Dim(stride[i]) : Dim(wanted[i]));
    const Dim total = natural - s.out.back();
    const Dim half = floordiv(total, 2);
    s.begin.push_back(mode == "SAME_UPPER" ? half : total - half);
    s.end.push_back(total - s.begin.back());
  }
  return s;
}

void infer_conv_transpose(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const Shape &x = c.shape(0), &w = c.shape(1);
  if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank())
    c.fail(cat("input ", x.str(), " and weight ", w.str(), " must have equal rank 3 to 5"));
  if (prove_equal(x[1], w[0]) == Tri::kNo)
    c.fail(cat("input ", x.str(), " does not fit weight ", w.str()));
  Shape y{x[0], w[1] * Dim(c.attrs().i("group", 1))};
  for (const Dim& d : sizes(c.attrs(), x, w).out) {
    if (d.is_const() && d.value() < 1) c.fail(cat("output extent ", d.value()));
    y.push_back(d);
  }
  c.out(0, c.dtype(0), std::move(y));
}

std::vector<Expr> decompose(Decompose& d) {
  const Shape &x = d.x(0).shape(), &w = d.x(1).shape();
  const Sizes s = sizes(d.attrs(), x, w);
  Attrs a;
  for (const char* name : {"strides", "dilations", "group"})
    if (const AttrValue* v = d.attrs().find(name)) a.set(name, *v);
  Dims pads;
  for (const auto* side : {&s.begin, &s.end})
    for (const Dim& p : *side) pads.push_back(p.value());
  a.set("pads", pads);
  Dims out = {x[0].value(), w[1].value() * d.attrs().i("group", 1)};
  for (const Dim& e : s.out) out.push_back(e.value());
  a.set("in_shape", out);
  Expr y = d.b.op("ortrain.ConvGradInput", {d.x(0), d.x(1)}, a);
  if (d.has_x(2)) {
    Dims bias(out.size() - 1, 1);
    bias[0] = out[1];
    y = y + d.b.reshape(d.x(2), bias);
  }
  return {y};
}

using L = std::vector<int64_t>;

OpDef conv_transpose_op() {
  return {
      .name = "ConvTranspose",
      .inputs = {"X", "W", "B?"},
      .outputs = {"Y"},
      .infer = infer_conv_transpose,
      .decompose = decompose,
      .precision = Precision::kAlways16,
      .examples =
          {
              {.in = {f({2, 3, 4, 5}), f({3, 4, 3, 3}), f({4})}},
              {.in = {f({2, 3, 4, 5}), f({3, 4, 3, 3}), f({4})},
               .attrs = {{"strides", L{2, 2}},
                         {"pads", L{1, 1, 1, 1}},
                         {"output_padding", L{1, 1}}}},
              {.in = {f({2, 4, 4, 5}), f({4, 3, 3, 2})},
               .attrs = {{"group", int64_t{2}}, {"dilations", L{2, 2}}}},
              {.in = {f({1, 3, 4, 4}), f({3, 2, 3, 3})},
               .attrs = {{"strides", L{3, 2}}, {"output_shape", L{10, 8}}}},
              {.in = {f({1, 3, 4, 4}), f({3, 2, 3, 3})},
               .attrs = {{"strides", L{2, 2}}, {"auto_pad", std::string("SAME_UPPER")}}},
              {.in = {f({1, 3, 4, 4}), f({3, 2, 4, 3})},
               .attrs = {{"strides", L{3, 2}}, {"auto_pad", std::string("SAME_LOWER")}}},
              {.in = {f({1, 3, 5}), f({3, 2, 3}), f({2})}, .attrs = {{"strides", L{2}}}},
              {.in = {f({1, 2, 3, 4, 3}), f({2, 2, 2, 3, 2}), f({2})},
               .attrs = {{"strides", L{1, 2, 2}}}},
          },
  };
}

}  // namespace

void register_conv_transpose(OpTable& table) { table.add(conv_transpose_op()); }

}  // namespace ortrain::ops
