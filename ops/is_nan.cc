// IsNaN, IsInf: elementwise float tests to bool. IsInf's attributes detect_negative and
// detect_positive (both 1 by default) choose the signs. No gradient flows.
#include <cmath>

#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

void infer_test(InferCtx& c) { c.out(0, DType::kBool, c.shape(0)); }

OpDef is_nan_op() {
  return {.name = "IsNaN",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 9,
          .infer = infer_test,
          .grad = {no_grad("x")},
          .ew = Ew::kIsNan,
          .kernels = ew_kernels(),
          .examples = {{.in = {floats({4}, {1, NAN, INFINITY, -0.0})}}, {.in = {f({0})}}}};
}

// Values of infinite size and a wanted sign; the plain form when both are wanted.
std::vector<Expr> is_inf_parts(Decompose& d) {
  const bool negative = d.attrs().i("detect_negative", 1) != 0;
  const bool positive = d.attrs().i("detect_positive", 1) != 0;
  const Expr x = d.x(0), inf = d.b.scalar(x.dtype(), INFINITY);
  const Expr low = d.b.op("Equal", {x, d.b.scalar(x.dtype(), -INFINITY)});
  const Expr high = d.b.op("Equal", {x, inf});
  if (negative && positive) return {d.b.op("Or", {low, high})};
  if (negative) return {low};
  if (positive) return {high};
  return {d.b.op("And", {low, high})};  // never
}

OpDef is_inf_op() {
  return {.name = "IsInf",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 10,
          .infer = infer_test,
          .grad = {no_grad("x")},
          .decompose = is_inf_parts,
          .kernels = ew_kernels(),
          .examples = {{.in = {floats({5}, {1, NAN, INFINITY, -INFINITY, 0})}},
                       {.in = {floats({3}, {1, INFINITY, -INFINITY})},
                        .attrs = {{"detect_negative", int64_t{0}}}},
                       {.in = {floats({3}, {1, INFINITY, -INFINITY})},
                        .attrs = {{"detect_positive", int64_t{0}}}}}};
}

}  // namespace

void register_is_nan(OpTable& table) {
  table.add(is_nan_op());
  table.add(is_inf_op());
}

}  // namespace ortrain::ops
