// Neg: y = -x, elementwise. All signed types.
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {
std::optional<Dim> neg_dim(Dim x, Dim) { return Dim(0) - x; }
}  // namespace

OpDef neg_op() {
  return {
      .name = "Neg",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_unary_arithmetic<neg_dim>,
      .grad = {grad("x", [](Grad& g) { return -g.dy(); })},
      .ew = Ew::kNeg,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_neg(OpTable& table) { table.add(neg_op()); }

}  // namespace ortrain::ops
