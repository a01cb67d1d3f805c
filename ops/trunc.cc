// ortrain.Trunc: rounds towards zero; for the gradient of Mod. Gradient 0.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef trunc_op() {
  return {
      .name = "ortrain.Trunc",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {no_grad("x")},
      .ew = Ew::kTrunc,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_trunc(OpTable& table) { table.add(trunc_op()); }

}  // namespace ortrain::ops
