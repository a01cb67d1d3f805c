// ortrain.Expm1: y = e^x - 1 without cancellation near 0; the ELU family is built on it.
// Gradient dy (y + 1).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef expm1_op() {
  return {
      .name = "ortrain.Expm1",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() * (g.y() + 1); })},
      .ew = Ew::kExpm1,
      .precision = Precision::kNever16,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_expm1(OpTable& table) { table.add(expm1_op()); }

}  // namespace ortrain::ops
