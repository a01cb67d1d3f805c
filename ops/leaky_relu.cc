// LeakyRelu, PRelu, ThresholdedRelu: y = x where x > 0 (x > alpha), else slope x (0).
//
// LeakyRelu's slope is the attribute alpha; PRelu's is a tensor that broadcasts to x. Gradients as
// PyTorch: at 0 the slope's side is taken for x; PRelu's slope gets dy x where x <= 0.
#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

const ExampleInput kAwayFromZero = floats({2, 3}, {-3, -0.5, 0.25, 1, 7, -0.1});

Expr positive(Grad& g) { return g.b.op("Greater", {g.x(0), g.b.scalar(g.x(0).dtype(), 0)}); }

OpDef leaky_relu_op() {
  return {
      .name = "LeakyRelu",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 6,
      .infer = infer_same_as_first,
      .grad = {grad("x",
                    [](Grad& g) {
                      const double alpha = g.attrs().f("alpha", 0.01);
                      return g.b.where(positive(g), g.dy(), alpha * g.dy());
                    })},
      .decompose = [](Decompose& d) -> std::vector<Expr> {
        return {d.b.op("PRelu", {d.x(0), d.b.scalar(d.x(0).dtype(), d.attrs().f("alpha", 0.01))})};
      },
      .channels_last = ew_channels_last,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {kAwayFromZero}},
                   {.in = {kAwayFromZero}, .attrs = {{"alpha", 0.2}}},
                   {.in = {f({3, 70}, 0.1, 2)}},
                   {.in = {f({0})}}},
      .note = "gradient at 0 is alpha"};
}

// The slope is of x's type and broadcasts to x.
void infer_prelu(InferCtx& c) {
  infer_broadcast(c);
  if (broadcast(c.shape(0), c.shape(1)).rank() != c.rank(0) ||
      prove_equal(broadcast(c.shape(0), c.shape(1)), c.shape(0)) == Tri::kNo)
    c.fail(cat("slope ", c.shape(1).str(), " does not broadcast to x ", c.shape(0).str()));
  c.out(0, c.dtype(0), c.shape(0));
}

OpDef prelu_op() {
  return {
      .name = "PRelu",
      .inputs = {"x", "slope"},
      .outputs = {"y"},
      .since = 7,
      .infer = infer_prelu,
      .grad = {grad("x", [](Grad& g) { return g.b.where(positive(g), g.dy(), g.x(1) * g.dy()); }),
               grad("slope",
                    [](Grad& g) {
                      const Expr zero = g.b.scalar(g.x(0).dtype(), 0);
                      return g.b.where(positive(g), zero, g.x(0) * g.dy());
                    })},
      .ew = Ew::kLeakyRelu,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {kAwayFromZero, f({2, 3})}},
                   {.in = {kAwayFromZero, f({1})}},
                   {.in = {kAwayFromZero, f({3})}},
                   {.in = {f({2, 3, 5, 5}, -2, -0.1), f({3, 1, 1})}},
                   {.in = {f({0, 3}), f({3})}}},
      .note = "gradient at 0 is the slope"};
}

OpDef thresholded_relu_op() {
  return {.name = "ThresholdedRelu",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 10,
          .infer = infer_same_as_first,
          .grad = {grad(
              "x",
              [](Grad& g) {
                const DType t = g.x(0).dtype();
                const Expr alpha = g.b.scalar(t, g.attrs().f("alpha", 1.0));
                return g.b.where(g.b.op("Greater", {g.x(0), alpha}), g.dy(), g.b.scalar(t, 0));
              })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            const DType t = d.x(0).dtype();
            const Expr alpha = d.b.scalar(t, d.attrs().f("alpha", 1.0));
            return {d.b.where(d.b.op("Greater", {d.x(0), alpha}), d.x(0), d.b.scalar(t, 0))};
          },
          .channels_last = ew_channels_last,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {kAwayFromZero}, .attrs = {{"alpha", 0.5}}},
                       {.in = {f({3, 70}, 1.1, 2)}},
                       {.in = {f({0})}}}};
}

}  // namespace

void register_leaky_relu(OpTable& table) {
  add_pad_rule("PRelu", {pad_axes_any_zero});
  table.add(leaky_relu_op());
  table.add(prelu_op());
  table.add(thresholded_relu_op());
}

}  // namespace ortrain::ops
