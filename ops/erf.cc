// Erf: the error function, elementwise. Gradient dy 2/sqrt(pi) e^(-x^2).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef erf_op() {
  return {
      .name = "Erf",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 9,
      .infer = infer_same_as_first,
      .grad = {grad(
          "x", [](Grad& g) { return g.dy() * (1.1283791670955126 * g.b.exp(-(g.x() * g.x()))); })},
      .ew = Ew::kErf,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_erf(OpTable& table) { table.add(erf_op()); }

}  // namespace ortrain::ops
