// Pow: y = x^exponent with broadcasting; the result has the type of x, the exponent any numeric
// type. Integers wrap; a negative integer exponent gives 0 except for |x| = 1.
//
// Gradients as torch.pow: to x, exponent x^(exponent-1), exactly 0 where the exponent is 0; to the
// exponent, y ln x, exactly 0 where x = 0 and the exponent is >= 0; NaN for a negative base.
#include "graph/error.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

void infer_pow(InferCtx& c) { c.out(0, c.dtype(0), broadcast(c.shape(0), c.shape(1))); }

// The exponent in the type of x.
Expr exponent(Grad& g) { return g.b.cast(g.x(1), g.x(0).dtype()); }

Expr base_grad(Grad& g) {
  const Expr x = g.x(0), dy = g.dy();
  const HostTensor* known = g.b.graph().tensor(g.x(1).id());
  if (g.b.graph().value(g.x(1).id()).source == Source::kConst && known && known->count() == 1) {
    const double e = known->as_double(0);
    if (e == 0) return g.b.zeros_like(dy);
    if (e == 1) return dy;
    if (e == 2) return dy * (2 * x);
    if (e == 3) return dy * (3 * (x * x));
    return dy * (e * g.b.op("Pow", {x, g.b.scalar(x.dtype(), e - 1)}));
  }
  const Expr e = exponent(g), zero = g.b.scalar(x.dtype(), 0);
  const Expr slope = e * g.b.op("Pow", {x, e - 1});
  return g.b.where(g.b.op("Equal", {e, zero}), zero, dy * slope);
}

Expr exponent_grad(Grad& g) {
  const Expr x = g.x(0), e = exponent(g), zero = g.b.scalar(x.dtype(), 0);
  const Expr flat =
      g.b.op("And", {g.b.op("Equal", {x, zero}), g.b.op("GreaterOrEqual", {e, zero})});
  return g.dy() * g.b.where(flat, zero, g.y() * g.b.log(x));
}

}  // namespace

OpDef pow_op() {
  const auto to = [](double e) { return floats({}, {e}); };
  return {
      .name = "Pow",
      .inputs = {"x", "exponent"},
      .outputs = {"y"},
      .since = 7,
      .infer = infer_pow,
      .grad = {grad("x", base_grad), grad("exponent", exponent_grad)},
      .ew = Ew::kPow,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}, 0.2, 2), f({2, 3})}},
                   {.in = {f({2, 3}, 0.2, 2), f({3})}},
                   {.in = {f({2, 3}, 0.2, 2), to(0.5)}},
                   {.in = {f({2, 70}), iconst({}, {2})}},
                   {.in = {f({2, 70}), iconst({1}, {3})}},
                   {.in = {f({2, 3}, 0.5, 2), iconst({}, {-1})}},
                   {.in = {f({2, 3}), ivals({0, 1, 2})}},
                   {.in = {ints({2, 3}, -4, 5), ints({2, 3}, 0, 4)}},
                   {.in = {f({0, 3}), f({3})}}},
      .note = "x^0 has gradient 0 everywhere; at x = 0 the exponent's gradient is 0",
  };
}

void register_pow(OpTable& table) { table.add(pow_op()); }

}  // namespace ortrain::ops
