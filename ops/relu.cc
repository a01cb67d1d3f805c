// Relu: y = max(x, 0); NaN stays NaN. Gradient dy where y > 0, else 0 (0 at 0, as PyTorch).
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef relu_op() {
  return {
      .name = "Relu",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x",
                    [](Grad& g) {
                      return g.b.op("ortrain.ReluGrad", {g.dy(), g.y()});
                    })},
      .ew = Ew::kRelu,
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

void register_relu(OpTable& table) { table.add(relu_op()); }

}  // namespace ortrain::ops
