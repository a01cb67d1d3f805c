// Equal, Greater, GreaterOrEqual, Less, LessOrEqual: elementwise comparisons to bool, with
// broadcasting; all types. Comparing with NaN gives false. No gradient flows. On tensors that carry
// shapes the answer is known where the two sides are provably equal or different.
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {

using MaybeDim = std::optional<Dim>;

MaybeDim equal_dims(Dim a, Dim b) {
  const Tri t = prove_equal(a, b);
  return t == Tri::kUnknown ? MaybeDim() : MaybeDim(Dim(t == Tri::kYes));
}
template <class F>
MaybeDim ordered(Dim a, Dim b, F f) {
  const Dim d = a - b;  // known when the difference is a number
  return d.is_const() ? MaybeDim(Dim(f(d.value()))) : MaybeDim();
}
MaybeDim greater_dims(Dim a, Dim b) {
  return ordered(a, b, [](int64_t d) { return d > 0; });
}
MaybeDim greater_equal_dims(Dim a, Dim b) {
  return ordered(a, b, [](int64_t d) { return d >= 0; });
}
MaybeDim less_dims(Dim a, Dim b) {
  return ordered(a, b, [](int64_t d) { return d < 0; });
}
MaybeDim less_equal_dims(Dim a, Dim b) {
  return ordered(a, b, [](int64_t d) { return d <= 0; });
}

OpDef comparison(const char* name, int since, Ew code, InferFn infer) {
  return {.name = name,
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = since,
          .infer = infer,
          .grad = {no_grad("a"), no_grad("b")},
          .ew = code,
          .kernels = ew_kernels(),
          .examples = {{.in = {f({2, 3}), f({2, 3})}},
                       {.in = {floats({4}, {1, 2, 3, 0}), floats({4}, {1, 1, 4, 0})}},
                       {.in = {f({2, 1, 70}), f({3, 1})}},
                       {.in = {ints({2, 3}, -2, 3), ints({}, -2, 3)}},
                       {.in = {f({0, 2}), f({2})}}}};
}

}  // namespace

void register_compare(OpTable& table) {
  OpDef equal = comparison("Equal", 7, Ew::kEqual, infer_comparison<equal_dims>);
  equal.examples.push_back({.in = {bools({2, 3}), bools({3})}});
  table.add(std::move(equal));
  table.add(comparison("Greater", 7, Ew::kGreater, infer_comparison<greater_dims>));
  table.add(
      comparison("GreaterOrEqual", 12, Ew::kGreaterEqual, infer_comparison<greater_equal_dims>));
  table.add(comparison("Less", 7, Ew::kLess, infer_comparison<less_dims>));
  table.add(comparison("LessOrEqual", 12, Ew::kLessEqual, infer_comparison<less_equal_dims>));
}

}  // namespace ortrain::ops
