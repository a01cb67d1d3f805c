// ortrain.Rsqrt: y = 1 / sqrt(x), elementwise; written by passes and decompositions.
// Gradient dx = -dy y^3 / 2.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef rsqrt_op() {
  return {
      .name = "ortrain.Rsqrt",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return -0.5 * (g.dy() * (g.y() * g.y() * g.y())); })},
      .ew = Ew::kRsqrt,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 4)}},
                   {.in = {f({1}, 0.1, 4)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70}, 0.1, 4)}}},
  };
}

void register_rsqrt(OpTable& table) { table.add(rsqrt_op()); }

}  // namespace ortrain::ops
