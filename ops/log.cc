// Log: y = ln x; -inf at 0, NaN below. Gradient dy / x.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

OpDef log_op() {
  return {
      .name = "Log",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x", [](Grad& g) { return g.dy() / g.x(); })},
      .ew = Ew::kLog,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.1, 5)}},
                   {.in = {f({1}, 0.1, 5)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70}, 0.1, 5)}}},
  };
}

void register_log(OpTable& table) { table.add(log_op()); }

}  // namespace ortrain::ops
