// Swish: y = x sigmoid(alpha x). Mish: y = x tanh(softplus(x)). Softsign: y = x / (1 + |x|).
// Shrink: x + bias below -lambd, x - bias above lambd, else 0.
//
// Smooth gates and shrinkage in terms of simpler operators; gradients in closed form, as PyTorch.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

const std::vector<Example> kPlain = {
    {.in = {f({2, 3})}}, {.in = {f({1}, -9, 9)}}, {.in = {f({3, 70})}}, {.in = {f({0, 4})}}};

Expr scaled(Builder& b, Expr x, double alpha) {
  return alpha == 1 ? b.unary("Sigmoid", x) : b.unary("Sigmoid", alpha * x);
}

OpDef swish_op() {
  std::vector<Example> examples = kPlain;
  examples.push_back({.in = {f({2, 3})}, .attrs = {{"alpha", 1.7}}});
  return {.name = "Swish",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 24,
          .infer = infer_same_as_first,
          .grad = {grad("x",
                        [](Grad& g) {
                          const double alpha = g.attrs().f("alpha", 1.0);
                          const Expr s = scaled(g.b, g.x(0), alpha);
                          const Expr ax = alpha == 1 ? g.x(0) : alpha * g.x(0);
                          return g.dy() * (s * (1 + ax * (1 - s)));
                        })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            return {d.x(0) * scaled(d.b, d.x(0), d.attrs().f("alpha", 1.0))};
          },
          .channels_last = ew_channels_last,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = examples};
}

OpDef mish_op() {
  return {.name = "Mish",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 18,
          .infer = infer_same_as_first,
          .grad = {grad("x",
                        [](Grad& g) {
                          const Expr x = g.x(0);
                          const Expr t = g.b.unary("Tanh", g.b.unary("Softplus", x));
                          return g.dy() * (t + x * (g.b.unary("Sigmoid", x) * (1 - t * t)));
                        })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            return {d.x(0) * d.b.unary("Tanh", d.b.unary("Softplus", d.x(0)))};
          },
          .channels_last = ew_channels_last,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = kPlain};
}

OpDef softsign_op() {
  return {.name = "Softsign",
          .inputs = {"x"},
          .outputs = {"y"},
          .infer = infer_same_as_first,
          .grad = {grad("x",
                        [](Grad& g) {
                          const Expr d = 1 + g.b.unary("Abs", g.x(0));
                          return g.dy() / (d * d);
                        })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            return {d.x(0) / (1 + d.b.unary("Abs", d.x(0)))};
          },
          .channels_last = ew_channels_last,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {floats({2, 3}, {-3, -0.5, 0.25, 1, 7, -0.1})}},
                       {.in = {f({3, 70}, 0.1, 2)}},
                       {.in = {f({0})}}}};
}

// The conditions x < -lambd and x > lambd.
template <class Context>
std::pair<Expr, Expr> outside(Context& c) {
  const double lambd = c.attrs().f("lambd", 0.5);
  const Expr x = c.x(0);
  return {c.b.op("Less", {x, c.b.scalar(x.dtype(), -lambd)}),
          c.b.op("Greater", {x, c.b.scalar(x.dtype(), lambd)})};
}

OpDef shrink_op() {
  const ExampleInput x = floats({2, 3}, {-3, -0.4, 0.25, 1, 7, -0.7});
  return {
      .name = "Shrink",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 9,
      .infer = infer_same_as_first,
      .grad = {grad(
          "x",
          [](Grad& g) {
            const auto [low, high] = outside(g);
            return g.b.where(g.b.op("Or", {low, high}), g.dy(), g.b.scalar(g.x(0).dtype(), 0));
          })},
      .decompose = [](Decompose& d) -> std::vector<Expr> {
        const auto [low, high] = outside(d);
        const double bias = d.attrs().f("bias", 0.0);
        const Expr x = d.x(0), zero = d.b.scalar(x.dtype(), 0);
        return {d.b.where(low, x + bias, d.b.where(high, x - bias, zero))};
      },
      .channels_last = ew_channels_last,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {
          {.in = {x}}, {.in = {x}, .attrs = {{"lambd", 1.5}, {"bias", 1.5}}}, {.in = {f({0})}}}};
}

}  // namespace

void register_swish(OpTable& table) {
  table.add(swish_op());
  table.add(mish_op());
  table.add(softsign_op());
  table.add(shrink_op());
}

}  // namespace ortrain::ops
