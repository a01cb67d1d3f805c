// Tanh: y = tanh(x), elementwise. Gradient dx = dy (1 - y^2). All float types.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef tanh_op() {
  return {
      .name = "Tanh",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer_same_as_first,
      .grad = {grad("input", [](Grad& g) { return g.dy() * (1 - g.y() * g.y()); })},
      .ew = Ew::kTanh,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}}, {.in = {f({1}, -9, 9)}}, {.in = {f({0, 4})}}},
  };
}

void register_tanh(OpTable& table) { table.add(tanh_op()); }

}  // namespace ortrain::ops
