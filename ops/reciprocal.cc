// Reciprocal: y = 1 / x, elementwise. Gradient -dy y^2.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef reciprocal_op() {
  return {
      .name = "Reciprocal",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return -(g.dy() * (g.y() * g.y())); })},
      .ew = Ew::kReciprocal,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 2)}},
                   {.in = {f({3, 70}, -2, -0.1)}},
                   {.in = {floats({5}, {-3, -0.5, 0.25, 1, 7})}},
                   {.in = {f({0, 4})}}},
  };
}

void register_reciprocal(OpTable& table) { table.add(reciprocal_op()); }

}  // namespace ortrain::ops
