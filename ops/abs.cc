// Abs: y = |x|, elementwise. Gradient dy sign(x): 0 at 0, as PyTorch. All numeric types.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef abs_op() {
  return {
      .name = "Abs",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() * g.b.unary("Sign", g.x()); })},
      .ew = Ew::kAbs,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 2)}},
                   {.in = {f({3, 70}, -2, -0.1)}},
                   {.in = {floats({5}, {-3, -0.5, 0.25, 1, 7})}},
                   {.in = {f({0, 4})}}},
      .note = "gradient at 0 is 0",
  };
}

void register_abs(OpTable& table) { table.add(abs_op()); }

}  // namespace ortrain::ops
