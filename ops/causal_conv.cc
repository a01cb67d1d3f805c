// CausalConvWithState (ONNX, opset 27): a depthwise convolution that sees the past only, by its
// meaning.
//
// input [B,C,L], weight [C,1,k], bias [C]?, past_state [B,C,k-1]? (zeros when absent): a Conv with
// group = C over past and input, then x sigmoid(x) for activation silu (swish is the same word).
// present_state: the last k-1 positions of past and input.
#include "ops/common/checks.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  same_floats(c, {0, 1, 2, 3});
  const Shape &x = c.shape(0), &w = c.shape(1);
  if (x.rank() != 3 || w.rank() != 3)
    c.fail(cat("input ", x.str(), " and weight ", w.str(), " must have rank 3"));
  if (prove_equal(w[0], x[1]) == Tri::kNo || prove_equal(w[1], Dim(1)) == Tri::kNo)
    c.fail(cat("weight is ", w.str(), ", expected [", x[1].str(), ",1,k]"));
  if (w[2].is_const() && w[2].value() < 1) c.fail("the kernel is empty");
  const Shape state{x[0], x[1], w[2] - Dim(1)};
  if (c.has(2) && (c.rank(2) != 1 || prove_equal(c.shape(2)[0], x[1]) == Tri::kNo))
    c.fail(cat("bias is ", c.shape(2).str(), ", expected [", x[1].str(), "]"));
  if (c.has(3) && prove_equal(c.shape(3), state) == Tri::kNo)
    c.fail(cat("past_state is ", c.shape(3).str(), ", expected ", state.str()));
  const std::string activation = c.attrs().s("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish")
    c.fail("activation '" + activation + "'");
  c.out(0, c.dtype(0), x);
  c.out(1, c.dtype(0), state);
}

std::vector<Expr> decompose(Decompose& d) {
  Builder& b = d.b;
  const bool gate = d.attrs().s("activation", "none") != "none";
  const bool wants_state = d.wants(1), has_past = d.has_x(3);
  const Dims s = d.x(0).shape().values();
  const int64_t kept = d.x(1).shape()[2].value() - 1;
  Expr seen = d.x(0), present;  // past and input, where that is needed
  if (kept > 0 && has_past) seen = b.concat({d.x(3), seen}, 2);
  Attrs conv{{"group", s[1]}};
  if (!has_past) conv.set("pads", std::vector<int64_t>{kept, 0});
  Expr y = b.op("Conv", {seen, d.x(1), d.has_x(2) ? d.x(2) : Expr()}, conv);
  if (gate) y = b.op("Swish", {y});
  if (wants_state) {
    if (kept > 0 && !has_past)
      seen = b.concat({b.constant(HostTensor(seen.dtype(), {s[0], s[1], kept})), seen}, 2);
    const int64_t length = seen.shape()[2].value();
    present = b.slice(seen, 2, length - kept, length);
  }
  return {y, present};
}

}  // namespace

void register_causal_conv(OpTable& table) {
  const Attrs silu{{"activation", "silu"}};
  table.add({
      .name = "CausalConvWithState",
      .inputs = {"input", "weight", "bias?", "past_state?"},
      .outputs = {"output", "present_state?"},
      .since = 27,
      .infer = infer,
      .decompose = decompose,
      .examples = {{.in = {f({2, 3, 5}), f({3, 1, 3})}, .outputs = 2},
                   {.in = {f({2, 3, 4}), f({3, 1, 3}), f({3}), f({2, 3, 2})},
                    .attrs = silu,
                    .outputs = 2},
                   {.in = {f({1, 2, 1}), f({2, 1, 4}), absent(), f({1, 2, 3})}, .outputs = 2},
                   {.in = {f({1, 2, 3}), f({2, 1, 1}), f({2})}, .attrs = silu, .outputs = 2},
                   {.in = {f({1, 1, 1}), f({1, 1, 4})}, .outputs = 2}},
  });
}

}  // namespace ortrain::ops
