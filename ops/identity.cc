// Identity: y = x; a view, so nothing is copied. Gradient dy. All types, storage types too.
#include "ops/common/movement.h"

namespace ortrain::ops {

namespace {
void infer_identity(InferCtx& c) {
  infer_same_as_first(c);
  if (const auto contents = c.ints(0)) c.out_ints(0, *contents);
}
}  // namespace

OpDef identity_op() {
  return {
      .name = "Identity",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer_identity,
      .grad = {grad("x", [](Grad& g) { return g.dy(); })},
      .ew = Ew::kIdentity,
      .view = true,
      .storage = true,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = view_kernels(),
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({1}, -9, 9)}},
                   {.in = {f({0, 4})}},
                   {.in = {f({3, 1, 70})}}},
  };
}

void register_identity(OpTable& table) { table.add(identity_op()); }

}  // namespace ortrain::ops
