// Min, Max of any number of inputs with broadcasting; NaN wins. All numeric types.
//
// Gradient: dy to the winner; inputs that tie share it equally (two of them: half each, as
// torch.maximum and torch.minimum).
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {

std::optional<Dim> min_dims(Dim a, Dim b) { return min(a, b); }
std::optional<Dim> max_dims(Dim a, Dim b) { return max(a, b); }

Expr extreme_grad(Grad& g) {
  const int n = static_cast<int>(g.node().inputs.size());
  if (n == 1) return g.dy();
  const bool largest = g.node().op->name == "Max";
  const Expr x = g.x(), zero = g.b.scalar(x.dtype(), 0);
  if (n == 2) {
    const Expr other = g.x(1 - g.index);
    const Expr lost = g.b.op(largest ? "Less" : "Greater", {x, other});
    const Expr tie = g.b.op("Equal", {x, other});
    return g.b.where(lost, zero, g.b.where(tie, 0.5 * g.dy(), g.dy()));
  }
  Expr ties;  // how many inputs equal the result
  for (int i = 0; i < n; ++i) {
    const Expr same = g.b.cast(g.b.op("Equal", {g.x(i), g.y()}), x.dtype());
    ties = ties ? ties + same : same;
  }
  return g.b.where(g.b.op("Equal", {x, g.y()}), g.dy() / ties, zero);
}

OpDef extreme(const char* name, Ew code, InferFn infer) {
  return {.name = name,
          .inputs = {"xs*"},
          .outputs = {"y"},
          .infer = infer,
          .grad = {grad("xs", extreme_grad)},
          .ew = code,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = {{.in = {f({2, 3}), f({2, 3})}},
                       {.in = {f({2, 3}), f({3}), f({2, 1})}},
                       {.in = {f({2, 3})}},
                       {.in = {f({2, 70}), f({})}},
                       {.in = {floats({3}, {1, 2, 5}), floats({3}, {1, 3, 4})},
                        .check_grad = false,
                        .note = "has a tie; tests/ops/torch_edges_test.cc"},
                       {.in = {ints({2, 3}, -9, 9), ints({3}, -9, 9)}},
                       {.in = {f({0}), f({1})}}},
          .note = "ties share the gradient equally"};
}

}  // namespace

void register_min_max(OpTable& table) {
  table.add(extreme("Min", Ew::kMin, infer_arithmetic<min_dims>));
  table.add(extreme("Max", Ew::kMax, infer_arithmetic<max_dims>));
}

}  // namespace ortrain::ops
