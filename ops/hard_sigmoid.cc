// HardSigmoid: y = max(0, min(1, alpha x + beta)). HardSwish: y = x HardSigmoid(x; 1/6, 1/2).
//
// Gradients as PyTorch: HardSigmoid alpha dy strictly inside the ramp, else 0; HardSwish 0 for
// x <= -3, dy for x >= 3, else dy (x / 3 + 1/2).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

const ExampleInput kInsideAndOut = floats({2, 4}, {-4, -2.4, -0.5, 0.25, 1, 2.4, 5, -0.1});

OpDef hard_sigmoid_op() {
  return {.name = "HardSigmoid",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 6,
          .infer = infer_same_as_first,
          .grad = {grad(
              "x",
              [](Grad& g) {
                const DType t = g.x(0).dtype();
                const double alpha = g.attrs().f("alpha", 0.2);
                const Expr above = g.b.op("Greater", {g.y(), g.b.scalar(t, 0)});
                const Expr below = g.b.op("Less", {g.y(), g.b.scalar(t, 1)});
                return g.b.where(g.b.op("And", {above, below}), alpha * g.dy(), g.b.scalar(t, 0));
              })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            const DType t = d.x(0).dtype();
            const Expr ramp = d.attrs().f("alpha", 0.2) * d.x(0) + d.attrs().f("beta", 0.5);
            const Expr capped = d.b.op("Min", {ramp, d.b.scalar(t, 1)});
            return {d.b.op("Max", {capped, d.b.scalar(t, 0)})};
          },
          .channels_last = ew_channels_last,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {kInsideAndOut}},
                       {.in = {kInsideAndOut}, .attrs = {{"alpha", 0.5}, {"beta", 0.6}}},
                       {.in = {f({0})}}}};
}

OpDef hard_swish_op() {
  return {.name = "HardSwish",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 14,
          .infer = infer_same_as_first,
          .grad = {grad("x",
                        [](Grad& g) {
                          const DType t = g.x(0).dtype();
                          const Expr x = g.x(0), zero = g.b.scalar(t, 0);
                          const Expr off = g.b.op("LessOrEqual", {x, g.b.scalar(t, -3)});
                          const Expr on = g.b.op("GreaterOrEqual", {x, g.b.scalar(t, 3)});
                          const Expr slope = x * (1.0 / 3) + 0.5;
                          return g.b.where(off, zero, g.b.where(on, g.dy(), g.dy() * slope));
                        })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            const DType t = d.x(0).dtype();
            const Expr ramp = d.x(0) * (1.0 / 6) + 0.5;
            const Expr capped = d.b.op("Min", {ramp, d.b.scalar(t, 1)});
            return {d.x(0) * d.b.op("Max", {capped, d.b.scalar(t, 0)})};
          },
          .channels_last = ew_channels_last,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {kInsideAndOut}}, {.in = {f({3, 70})}}, {.in = {f({0})}}}};
}

}  // namespace

void register_hard_sigmoid(OpTable& table) {
  table.add(hard_sigmoid_op());
  table.add(hard_swish_op());
}

}  // namespace ortrain::ops
