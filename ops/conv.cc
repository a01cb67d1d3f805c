// Conv (1 to 3 spatial axes, groups, dilations, auto_pad, asymmetric pads) and its two gradients,
// ortrain.ConvGradInput and ortrain.ConvGradWeight (weight and bias gradient in one pass over dy).
//
// Attributes are ONNX's, passed on unchanged to the gradient ops, plus in_shape or w_shape (dims of
// what is computed) and channels_last=1 (set by the layout pass; the weight keeps the file's
// layout). ConvTranspose is ortrain.ConvGradInput seen from the other side, so that has gradients.
#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/checks.h"
#include "ops/common/conv_kernels.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/onednn.h"
#include "ops/common/share_node.h"

namespace ortrain::ops {
namespace {

void infer_conv(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  c.out(0, c.dtype(0), conv_shape(c, 0, 1));
}
void infer_grad_input(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("in_shape"))); }
void infer_grad_weight(InferCtx& c) {
  const Dims w = c.attrs().ints("w_shape");
  c.out(0, c.dtype(0), Shape(w));
  c.out(1, c.dtype(0), Shape{Dim(w[0])});
}

Attrs with(const Attrs& a, const char* name, const Shape& s) {
  Attrs out = a;
  out.set(name, s.values());
  return out;
}
Attrs plain(Attrs a) {
  a.erase("in_shape");
  return a;
}

// Conv: x, w, b.
Expr conv_dx(Grad& g) {
  return g.b.op("ortrain.ConvGradInput", {g.dy(), g.x(1)},
                with(g.attrs(), "in_shape", g.x(0).shape()));
}
Expr conv_dw(Grad& g, int output) {
  return share_node(g.b, "ortrain.ConvGradWeight", {g.x(0), g.dy()},
                    with(g.attrs(), "w_shape", g.x(1).shape()), output);
}
// ConvGradInput: dy, w -> dx. It is linear in both.
Expr transposed_ddy(Grad& g) { return g.b.op("Conv", {g.dy(), g.x(1)}, plain(g.attrs())); }
Expr transposed_dw(Grad& g) {
  return share_node(g.b, "ortrain.ConvGradWeight", {g.dy(), g.x(0)},
                    with(plain(g.attrs()), "w_shape", g.x(1).shape()), 0);
}

std::optional<LayoutChange> conv_channels_last(Graph& g, NodeId n) {
  g.node(n).attrs.set("channels_last", int64_t{1});
  return LayoutChange{{0}, {0}};
}
std::optional<LayoutChange> grad_input_channels_last(Graph& g, NodeId n) {
  Attrs& a = g.node(n).attrs;
  Dims in = a.ints("in_shape");
  in.push_back(in[1]);
  in.erase(in.begin() + 1);
  a.set("in_shape", in);
  a.set("channels_last", int64_t{1});
  return LayoutChange{{0}, {0}};
}

// 2 per multiply-add: y elements times the taps of one output.
double flops_of(const Graph& g, ValueId y, const Dims& w) {
  return 2.0 * static_cast<double>(g.value(y).shape.count().value()) *
         static_cast<double>(element_count(w)) / static_cast<double>(w[0]);
}
double conv_flops(const Graph& g, const Node& n) {
  return flops_of(g, n.outputs[0], g.value(n.inputs[1]).shape.values());
}
double grad_input_flops(const Graph& g, const Node& n) {
  return flops_of(g, n.inputs[0], g.value(n.inputs[1]).shape.values());
}
double grad_weight_flops(const Graph& g, const Node& n) {
  return flops_of(g, n.inputs[1], n.attrs.ints("w_shape"));
}

// Channels of a plain convolution, and of one with a filter per channel (its group follows). The
// fast path's attributes of layout are set later.
bool per_channel(const Graph& g, const Node& n) {
  const Dims w = g.value(n.inputs[1]).shape.values();
  const int64_t group = n.attrs.i("group", 1);
  return group > 1 && w[0] == group && w[1] == 1;
}
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  if (n.attrs.i("channels_last", 0) || !g.value(n.inputs[1]).shape.is_const()) return std::nullopt;
  const bool each = per_channel(g, n);
  if (!each && n.attrs.i("group", 1) != 1) return std::nullopt;
  const std::string space(static_cast<size_t>(g.value(n.inputs[0]).shape.rank() - 2), '.');
  return each ? PadAxes{{".c" + space, "c." + space, "c"}, {".c" + space}}
              : PadAxes{{".C" + space, "MC" + space, "M"}, {".M" + space}};
}
void pad_widen(Graph& g, NodeId n, const Dims& widened) {
  if (per_channel(g, g.node(n))) g.node(n).attrs.set("group", widened[1]);
}

using L = std::vector<int64_t>;

OpDef conv_op() {
  return {
      .name = "Conv",
      .inputs = {"X", "W", "B?"},
      .outputs = {"Y"},
      .infer = infer_conv,
      .grad = {grad("X", conv_dx), grad("W", [](Grad& g) { return conv_dw(g, 0); }),
               grad("B", [](Grad& g) { return conv_dw(g, 1); })},
      .channels_last = conv_channels_last,
      .wants_channels_last = true,
      .precision = Precision::kAlways16,
      .flops = conv_flops,
      .kernels = {{"cpu", "gemm", conv_gemm_reject, conv_gemm},
                  {"cpu", "winograd", conv_winograd_reject, conv_winograd},
                  {"cpu", "few_channels", conv_few_reject, conv_few},
                  {"cpu", "onednn", conv_reject, conv_onednn},
                  {"cpu", "ref", nullptr, conv_ref}},
      .examples =
          {
              {.in = {f({1, 28, 27, 32}), f({33, 32, 3, 3}, -.1, .1), f({33})},
               .attrs = {{"pads", L{1, 1, 1, 1}}, {"channels_last", int64_t{1}}},
               .check_grad = false,
               .note = "the size that the Winograd kernel wants makes a slow gradient check"},
              {.in = {f({2, 3, 7, 5}), f({4, 3, 3, 3}), f({4})},
               .attrs = {{"pads", L{1, 1, 1, 1}}}},
              {.in = {f({2, 3, 7, 5}), f({4, 3, 3, 2})}},
              {.in = {f({2, 17, 9, 9}), f({19, 17, 3, 3}), f({19})},
               .attrs = {{"strides", L{2, 2}}, {"pads", L{1, 1, 1, 1}}}},
              {.in = {f({2, 17, 8, 8}), f({5, 17, 1, 1})}, .attrs = {{"strides", L{2, 2}}}},
              {.in = {f({2, 6, 6, 7}), f({4, 3, 3, 3}), f({4})}, .attrs = {{"group", int64_t{2}}}},
              {.in = {f({2, 20, 8, 7}), f({20, 1, 3, 3}), f({20})},
               .attrs = {{"group", int64_t{20}}, {"pads", L{1, 1, 1, 1}}, {"strides", L{2, 1}}}},
              {.in = {f({1, 4, 9, 9}), f({8, 1, 3, 3})}, .attrs = {{"group", int64_t{4}}}},
              {.in = {f({2, 5, 9, 1}), f({4, 5, 3, 1}), f({4})},
               .attrs = {{"strides", L{2, 3}}, {"pads", L{2, 0, 1, 0}}},
               .note = "the last axis is empty: the library gets the first one as the last"},
              {.in = {f({2, 1, 7, 1, 6}), f({4, 3, 1, 2, 1}), f({4})},
               .attrs = {{"dilations", L{1, 2, 1}},
                         {"group", int64_t{2}},
                         {"channels_last", int64_t{1}}}},
              {.in = {f({1, 3, 11, 10}), f({4, 3, 3, 3})},
               .attrs = {{"dilations", L{2, 3}}, {"pads", L{2, 1, 0, 3}}}},
              {.in = {f({1, 2, 11, 10}), f({3, 2, 2, 3})},
               .attrs = {{"strides", L{4, 5}}, {"kernel_shape", L{2, 3}}}},
              {.in = {f({2, 3, 7, 6}), f({4, 3, 3, 3})},
               .attrs = {{"auto_pad", std::string("SAME_UPPER")}, {"strides", L{2, 2}}}},
              {.in = {f({2, 3, 7, 6}), f({4, 3, 2, 2})},
               .attrs = {{"auto_pad", std::string("SAME_LOWER")}}},
              {.in = {f({2, 3, 7, 6}), f({4, 3, 2, 2})},
               .attrs = {{"auto_pad", std::string("VALID")}}},
              {.in = {f({2, 3, 11}), f({4, 3, 3}), f({4})},
               .attrs = {{"pads", L{2, 1}}, {"strides", L{2}}}},
              {.in = {f({2, 3, 4, 5, 6}), f({4, 3, 2, 3, 3}), f({4})},
               .attrs = {{"pads", L{0, 1, 1, 1, 1, 1}}, {"strides", L{1, 2, 1}}}},
              {.in = {f({2, 7, 5, 3}), f({4, 3, 3, 3}), f({4})},
               .attrs = {{"pads", L{1, 1, 1, 1}}, {"channels_last", int64_t{1}}}},
              {.in = {f({2, 8, 7, 20}), f({20, 1, 3, 3})},
               .attrs = {{"group", int64_t{20}}, {"channels_last", int64_t{1}}}},
              {.in = {f({2, 11, 3}), f({4, 3, 3})}, .attrs = {{"channels_last", int64_t{1}}}},
              {.in = {f({2, 3, 3, 3}), f({4, 3, 3, 3}), f({4})},
               .attrs = {{"pads", L{-1, 0, 1, 0}}, {"kernel_shape", L{3, 3}}}},
              {.in = {f({0, 3, 7, 5}), f({4, 3, 3, 3}), f({4})}},
              {.in = {f({2, 5, 4, 7}), f({6, 7, 1, 1}), f({6})},
               .attrs = {{"channels_last", int64_t{1}}}},
              {.in = {f({2, 5, 4, 176}, -1, 1), f({168, 176, 3, 3}, -.1, .1), f({168})},
               .attrs = {{"channels_last", int64_t{1}},
                         {"pads", L{1, 0, 1, 2}},
                         {"strides", L{2, 1}}},
               .check_grad = false,
               .note = "the weight that the product kernel wants makes a slow gradient check"},
          },
  };
}

OpDef conv_grad_input_op() {
  return {
      .name = "ortrain.ConvGradInput",
      .inputs = {"dy", "w"},
      .outputs = {"dx"},
      .infer = infer_grad_input,
      .grad = {grad("dy", transposed_ddy), grad("w", transposed_dw)},
      .channels_last = grad_input_channels_last,
      .wants_channels_last = true,
      .precision = Precision::kAlways16,
      .flops = grad_input_flops,
      .kernels = {{"cpu", "gemm", conv_grad_input_gemm_reject, conv_grad_input_gemm},
                  {"cpu", "winograd", conv_grad_input_winograd_reject, conv_grad_input_winograd},
                  {"cpu", "few_channels", conv_grad_input_few_reject, conv_grad_input_few},
                  {"cpu", "onednn", conv_grad_input_reject, conv_grad_input_onednn},
                  {"cpu", "ref", nullptr, conv_grad_input_ref}},
      .examples =
          {
              {.in = {f({1, 28, 27, 33}), f({33, 32, 3, 3}, -.1, .1)},
               .attrs = {{"in_shape", L{1, 28, 29, 32}},
                         {"pads", L{1, 0, 1, 0}},
                         {"channels_last", int64_t{1}}},
               .check_grad = false,
               .note = "the size that the Winograd kernel wants makes a slow gradient check"},
              {.in = {f({2, 4, 5, 3}), f({4, 3, 3, 3})}, .attrs = {{"in_shape", L{2, 3, 7, 5}}}},
              {.in = {f({2, 4, 5, 1}), f({4, 5, 3, 1})},
               .attrs = {{"in_shape", L{2, 5, 9, 1}},
                         {"strides", L{2, 3}},
                         {"pads", L{2, 0, 1, 0}}}},
              {.in = {f({2, 19, 4, 4}), f({19, 17, 3, 3})},
               .attrs = {{"in_shape", L{2, 17, 8, 7}},
                         {"strides", L{2, 2}},
                         {"pads", L{1, 1, 1, 1}}}},
              {.in = {f({2, 20, 8, 7}), f({20, 1, 3, 3})},
               .attrs = {{"in_shape", L{2, 20, 8, 7}},
                         {"group", int64_t{20}},
                         {"pads", L{1, 1, 1, 1}}}},
              {.in = {f({2, 4, 5}), f({4, 3, 3})}, .attrs = {{"in_shape", L{2, 3, 7}}}},
              {.in = {f({2, 5, 3, 4}), f({4, 3, 3, 3})},
               .attrs = {{"in_shape", L{2, 7, 5, 3}}, {"channels_last", int64_t{1}}}},
              {.in = {f({2, 5, 4, 6}), f({6, 7, 1, 1})},
               .attrs = {{"in_shape", L{2, 5, 4, 7}}, {"channels_last", int64_t{1}}}},
              {.in = {f({2, 3, 4, 168}, -1, 1), f({168, 176, 3, 3}, -.1, .1)},
               .attrs = {{"in_shape", L{2, 5, 4, 176}},
                         {"channels_last", int64_t{1}},
                         {"pads", L{1, 0, 1, 2}},
                         {"strides", L{2, 1}}},
               .check_grad = false,
               .note = "the weight that the product kernel wants makes a slow gradient check"},
          },
  };
}

OpDef conv_grad_weight_op() {
  return {
      .name = "ortrain.ConvGradWeight",
      .inputs = {"x", "dy"},
      .outputs = {"dw", "db?"},
      .infer = infer_grad_weight,
      .precision = Precision::kAlways16,
      .flops = grad_weight_flops,
      .kernels = {{"cpu", "gemm", conv_grad_weight_gemm_reject, conv_grad_weight_gemm},
                  {"cpu", "winograd", conv_grad_weight_winograd_reject, conv_grad_weight_winograd},
                  {"cpu", "few_channels", conv_grad_weight_few_reject, conv_grad_weight_few},
                  {"cpu", "depthwise", conv_grad_weight_depthwise_reject,
                   conv_grad_weight_depthwise},
                  {"cpu", "onednn", conv_grad_weight_reject, conv_grad_weight_onednn},
                  {"cpu", "ref", nullptr, conv_grad_weight_ref}},
      .examples =
          {
              {.in = {f({1, 28, 27, 32}), f({1, 27, 28, 33}, -.1, .1)},
               .attrs = {{"w_shape", L{33, 32, 3, 3}},
                         {"pads", L{0, 1, 1, 2}},
                         {"channels_last", int64_t{1}}},
               .outputs = 2,
               .check_grad = false,
               .note = "the size that the Winograd kernel wants makes a slow gradient check"},
              {.in = {f({2, 3, 7, 5}), f({2, 4, 5, 3})},
               .attrs = {{"w_shape", L{4, 3, 3, 3}}},
               .outputs = 2},
              {.in = {f({2, 5, 9, 1}), f({2, 4, 5, 1})},
               .attrs = {{"w_shape", L{4, 5, 3, 1}}, {"strides", L{2, 3}}, {"pads", L{2, 0, 1, 0}}},
               .outputs = 2},
              {.in = {f({2, 17, 8, 7}), f({2, 19, 4, 4})},
               .attrs = {{"w_shape", L{19, 17, 3, 3}},
                         {"strides", L{2, 2}},
                         {"pads", L{1, 1, 1, 1}}}},
              {.in = {f({2, 8, 7, 20}), f({2, 8, 7, 20})},
               .attrs = {{"w_shape", L{20, 1, 3, 3}},
                         {"group", int64_t{20}},
                         {"channels_last", int64_t{1}},
                         {"pads", L{1, 1, 1, 1}}},
               .outputs = 2},
              {.in = {f({2, 5, 4, 7}), f({2, 5, 4, 6})},
               .attrs = {{"w_shape", L{6, 7, 1, 1}}, {"channels_last", int64_t{1}}},
               .outputs = 2},
              {.in = {f({2, 5, 4, 176}, -1, 1), f({2, 3, 4, 168}, -1, 1)},
               .attrs = {{"w_shape", L{168, 176, 3, 3}},
                         {"channels_last", int64_t{1}},
                         {"pads", L{1, 0, 1, 2}},
                         {"strides", L{2, 1}}},
               .outputs = 2},
          },
  };
}

}  // namespace

void register_conv(OpTable& table) {
  add_pad_rule("Conv", {pad_axes, pad_widen});
  table.add(conv_op());
  table.add(conv_grad_input_op());
  table.add(conv_grad_weight_op());
}

}  // namespace ortrain::ops
