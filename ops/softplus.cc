// Softplus: y = log(1 + e^x), stable for large |x|. Gradient dy sigmoid(x).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef softplus_op() {
  return {
      .name = "Softplus",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() * g.b.unary("Sigmoid", g.x()); })},
      .ew = Ew::kSoftplus,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_softplus(OpTable& table) { table.add(softplus_op()); }

}  // namespace ortrain::ops
