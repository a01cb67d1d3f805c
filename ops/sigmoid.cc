// Sigmoid: y = 1 / (1 + e^-x), elementwise. Gradient dy y (1 - y).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef sigmoid_op() {
  return {
      .name = "Sigmoid",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() * (g.y() * (1 - g.y())); })},
      .ew = Ew::kSigmoid,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_sigmoid(OpTable& table) { table.add(sigmoid_op()); }

}  // namespace ortrain::ops
