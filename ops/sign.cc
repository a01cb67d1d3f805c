// Sign: -1, 0 or 1; NaN stays NaN. Gradient 0. All numeric types.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef sign_op() {
  return {
      .name = "Sign",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 9,
      .infer = infer_same_as_first,
      .grad = {no_grad("x")},
      .ew = Ew::kSign,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 2)}},
                   {.in = {f({3, 70}, -2, -0.1)}},
                   {.in = {floats({5}, {-3, -0.5, 0.25, 1, 7})}},
                   {.in = {f({0, 4})}}},
  };
}

void register_sign(OpTable& table) { table.add(sign_op()); }

}  // namespace ortrain::ops
