// Sqrt: y = sqrt(x); NaN below 0. Gradient dy / (2 y): infinite at 0, as PyTorch.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef sqrt_op() {
  return {
      .name = "Sqrt",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() / (2 * g.y()); })},
      .ew = Ew::kSqrt,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 4)}},
                   {.in = {f({1}, 0.1, 4)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70}, 0.1, 4)}}},
      .note = "gradient at 0 is infinite, as in PyTorch",
  };
}

void register_sqrt(OpTable& table) { table.add(sqrt_op()); }

}  // namespace ortrain::ops
