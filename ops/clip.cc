// Clip: y = min(max(x, low), high). The bounds are scalar inputs, or attributes min and max of the
// opsets before 11; an absent bound does not bind.
//
// Gradients as torch.clamp: to x, dy where low <= x <= high (bounds included), else 0; to low, dy
// where x < low and low < high; to high, dy where x > high or high < low.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

// The bound as an expression of x's type; empty when there is none.
template <class Context>
Expr bound(Context& c, int input, const char* attr) {
  if (c.has_x(input)) return c.x(input);
  if (c.attrs().has(attr)) return c.b.scalar(c.x(0).dtype(), c.attrs().f(attr, 0));
  return {};
}

Expr x_grad(Grad& g) {
  const Expr low = bound(g, 1, "min"), high = bound(g, 2, "max");
  Expr inside;
  if (low) inside = g.b.op("GreaterOrEqual", {g.x(0), low});
  if (high) {
    const Expr below = g.b.op("LessOrEqual", {g.x(0), high});
    inside = inside ? g.b.op("And", {inside, below}) : below;
  }
  return inside ? g.b.where(inside, g.dy(), g.b.scalar(g.x(0).dtype(), 0)) : g.dy();
}
Expr low_grad(Grad& g) {
  const Expr low = g.x(1), high = bound(g, 2, "max");
  Expr taken = g.b.op("Less", {g.x(0), low});
  if (high) taken = g.b.op("And", {taken, g.b.op("Less", {low, high})});
  return g.b.where(taken, g.dy(), g.b.scalar(low.dtype(), 0));
}
Expr high_grad(Grad& g) {
  const Expr low = bound(g, 1, "min"), high = g.x(2);
  Expr taken = g.b.op("Greater", {g.x(0), high});
  if (low) taken = g.b.op("Or", {taken, g.b.op("Less", {high, low})});
  return g.b.where(taken, g.dy(), g.b.scalar(high.dtype(), 0));
}

std::vector<Expr> clip_parts(Decompose& d) {
  Expr y = d.x(0);
  if (const Expr low = bound(d, 1, "min")) y = d.b.op("Max", {y, low});
  if (const Expr high = bound(d, 2, "max")) y = d.b.op("Min", {y, high});
  return {y};
}

}  // namespace

OpDef clip_op() {
  const auto at = [](double v) { return floats({}, {v}); };
  const ExampleInput x = floats({2, 4}, {-3, -0.7, 0.1, 2, 0.9, 5, -1.2, 0});
  return {
      .name = "Clip",
      .inputs = {"x", "min?", "max?"},
      .outputs = {"y"},
      .since = 6,
      .infer = infer_same_as_first,
      .grad = {grad("x", x_grad), grad("min", low_grad), grad("max", high_grad)},
      .decompose = clip_parts,
      .channels_last = ew_channels_last,
      .inplace = {{0, 0}},
      .kernels = ew_kernels(),
      .examples = {{.in = {x, at(-1), at(1)}},
                   {.in = {x, at(-1)}},
                   {.in = {x, absent(), at(1)}},
                   {.in = {x, at(0.5), at(-0.5)}},
                   {.in = {x}},
                   {.in = {x}, .attrs = {{"min", -1.0}, {"max", 1.0}}},
                   {.in = {x}, .attrs = {{"max", 0.5}}},
                   {.in = {f({0, 3}), at(0), at(6)}}},
      .note = "the gradient passes at the bounds themselves",
  };
}

void register_clip(OpTable& table) { table.add(clip_op()); }

}  // namespace ortrain::ops
