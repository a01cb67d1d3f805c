// Exp: y = e^x, elementwise. Gradient dy y.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef exp_op() {
  return {
      .name = "Exp",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() * g.y(); })},
      .ew = Ew::kExp,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_exp(OpTable& table) { table.add(exp_op()); }

}  // namespace ortrain::ops
