// And, Or, Xor, Not on bool, with broadcasting. No gradient flows.
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {

using MaybeDim = std::optional<Dim>;

template <DimFn f>
void infer_logical(InferCtx& c) {
  for (int i = 0; i < c.input_count(); ++i)
    if (c.dtype(i) != DType::kBool) c.fail("inputs must be bool");
  infer_broadcast(c);
  carry_ints(c, f);
}
template <class F>
MaybeDim known(Dim a, Dim b, F f) {
  if (!a.is_const() || !b.is_const()) return std::nullopt;
  return Dim(f(a.value() != 0, b.value() != 0));
}
MaybeDim and_dims(Dim a, Dim b) {
  return known(a, b, [](bool x, bool y) { return x && y; });
}
MaybeDim or_dims(Dim a, Dim b) {
  return known(a, b, [](bool x, bool y) { return x || y; });
}
MaybeDim xor_dims(Dim a, Dim b) {
  return known(a, b, [](bool x, bool y) { return x != y; });
}
MaybeDim not_dims(Dim a, Dim b) {
  return known(a, b, [](bool x, bool) { return !x; });
}

OpDef logical(const char* name, Ew code, InferFn infer) {
  return {.name = name,
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = 7,
          .infer = infer,
          .grad = {no_grad("a"), no_grad("b")},
          .ew = code,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = {{.in = {bools({2, 3}), bools({2, 3})}},
                       {.in = {bools({2, 1, 70}), bools({3, 1})}},
                       {.in = {bools({0}), bools({})}}}};
}

OpDef not_op() {
  return {.name = "Not",
          .inputs = {"x"},
          .outputs = {"y"},
          .infer = infer_logical<not_dims>,
          .grad = {no_grad("x")},
          .ew = Ew::kNot,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {bools({2, 3})}}, {.in = {bools({131})}}, {.in = {bools({0})}}}};
}

}  // namespace

void register_logical(OpTable& table) {
  table.add(logical("And", Ew::kAnd, infer_logical<and_dims>));
  table.add(logical("Or", Ew::kOr, infer_logical<or_dims>));
  table.add(logical("Xor", Ew::kXor, infer_logical<xor_dims>));
  table.add(not_op());
}

}  // namespace ortrain::ops
