// ortrain.Log1p: y = log(1 + x) without cancellation near 0. Gradient dy / (1 + x).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef log1p_op() {
  return {
      .name = "ortrain.Log1p",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() / (1 + g.x()); })},
      .ew = Ew::kLog1p,
      .precision = Precision::kNever16,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, -0.8, 3)}},
                   {.in = {f({1}, -0.8, 3)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70}, -0.8, 3)}}},
  };
}

void register_log1p(OpTable& table) { table.add(log1p_op()); }

}  // namespace ortrain::ops
