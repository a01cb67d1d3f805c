// Add, Sub, Mul, Div, Sum, Mean: elementwise arithmetic with ONNX broadcasting, all numeric types.
//
// Integers: Div truncates, x / 0 = 0, overflow wraps. On tensors that carry shapes the contents are
// computed too. Gradients: the usual ones; the sum over broadcast axes is autodiff's.
#include "graph/pad_axes.h"
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {

using MaybeDim = std::optional<Dim>;

MaybeDim add_dims(Dim a, Dim b) { return a + b; }
MaybeDim sub_dims(Dim a, Dim b) { return a - b; }
MaybeDim mul_dims(Dim a, Dim b) { return a * b; }
// Extents are not negative, so truncation is floordiv; known negative numbers truncate as in C++.
MaybeDim div_dims(Dim a, Dim b) {
  if (b == Dim(0)) return std::nullopt;
  if (a.is_const() && b.is_const()) return Dim(a.value() / b.value());
  return floordiv(a, b);
}

const std::vector<Example> kBroadcasts = {
    {.in = {f({2, 3}), f({2, 3})}},    {.in = {f({2, 3}), f({3})}},
    {.in = {f({2, 3}), f({2, 1})}},    {.in = {f({}), f({2, 3})}},
    {.in = {f({2, 1, 4}), f({3, 1})}}, {.in = {f({2, 5, 3, 3}), f({5, 1, 1})}},
    {.in = {f({3, 300}), f({300})}},   {.in = {f({3, 300}), f({3, 1})}},
    {.in = {f({0, 3}), f({3})}},       {.in = {f({1}), f({1})}},
};

// The same shapes with a second input away from 0.
std::vector<Example> divisor_examples() {
  std::vector<Example> out = kBroadcasts;
  for (Example& e : out) e.in[1].low = 0.5, e.in[1].high = 2;
  out.push_back({.in = {ints({2, 3}, -9, 9), ints({3}, 1, 5)}});
  return out;
}
std::vector<Example> plain_examples() {
  std::vector<Example> out = kBroadcasts;
  out.push_back({.in = {ints({2, 3}, -9, 9), ints({3}, -5, 5)}});
  return out;
}
const std::vector<Example> kVariadic = {
    {.in = {f({2, 3})}},
    {.in = {f({2, 3}), f({3})}},
    {.in = {f({2, 3}), f({2, 1}), f({3}), f({})}},
    {.in = {f({0}), f({1}), f({0})}},
};

Expr dy(Grad& g) { return g.dy(); }

OpDef add_op() {
  return {.name = "Add",
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = 7,
          .infer = infer_arithmetic<add_dims>,
          .grad = {grad("a", dy), grad("b", dy)},
          .ew = Ew::kAdd,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = plain_examples()};
}

OpDef sub_op() {
  return {.name = "Sub",
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = 7,
          .infer = infer_arithmetic<sub_dims>,
          .grad = {grad("a", dy), grad("b", [](Grad& g) { return -g.dy(); })},
          .ew = Ew::kSub,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = plain_examples()};
}

OpDef mul_op() {
  return {.name = "Mul",
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = 7,
          .infer = infer_arithmetic<mul_dims>,
          .grad = {grad("a", [](Grad& g) { return g.dy() * g.x(1); }),
                   grad("b", [](Grad& g) { return g.dy() * g.x(0); })},
          .ew = Ew::kMul,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = plain_examples()};
}

OpDef div_op() {
  return {.name = "Div",
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = 7,
          .infer = infer_arithmetic<div_dims>,
          .grad = {grad("a", [](Grad& g) { return g.dy() / g.x(1); }),
                   grad("b", [](Grad& g) { return -(g.dy() * (g.x(0) / g.x(1) / g.x(1))); })},
          .ew = Ew::kDiv,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = divisor_examples()};
}

OpDef sum_op() {
  return {.name = "Sum",
          .inputs = {"xs*"},
          .outputs = {"y"},
          .infer = infer_arithmetic<add_dims>,
          .grad = {grad("xs", dy)},
          .ew = Ew::kAdd,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = kVariadic};
}

OpDef mean_op() {
  return {.name = "Mean",
          .inputs = {"xs*"},
          .outputs = {"y"},
          .infer = infer_broadcast,
          .grad = {grad(
              "xs", [](Grad& g) { return g.dy() / static_cast<double>(g.node().inputs.size()); })},
          .decompose = [](Decompose& d) -> std::vector<Expr> {
            const int n = static_cast<int>(d.node().inputs.size());
            std::vector<Expr> xs;
            for (int i = 0; i < n; ++i) xs.push_back(d.x(i));
            return {d.b.op("Sum", xs) / static_cast<double>(n)};
          },
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = kVariadic};
}

}  // namespace

void register_arithmetic(OpTable& table) {
  add_pad_rule("Mul", {pad_axes_any_zero});
  table.add(add_op());
  table.add(sub_op());
  table.add(mul_op());
  table.add(div_op());
  table.add(sum_op());
  table.add(mean_op());
}

}  // namespace ortrain::ops
