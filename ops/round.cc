// Round: the nearest integer, halves to even, elementwise. Gradient 0, as PyTorch.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef round_op() {
  return {
      .name = "Round",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 11,
      .infer = infer_same_as_first,
      .grad = {no_grad("x")},
      .ew = Ew::kRound,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in =
                        {
                            floats({6}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}),
                        }},
                   {.in = {f({0, 4})}}},
  };
}

void register_round(OpTable& table) { table.add(round_op()); }

}  // namespace ortrain::ops
