// Elu, Selu, Celu: scaled exponential units, y = x for x > 0, else scale (e^(x / width) - 1).
//
// Elu: alpha (e^x - 1). Selu: gamma x and gamma alpha (e^x - 1). Celu: alpha (e^(x / alpha) - 1).
// Gradients as PyTorch: at 0 the left one, dy scale / width.
#include <algorithm>

#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

struct Unit {
  double gain, scale, width;  // y = gain (x > 0 ? x : scale expm1(x / width))
};

Unit unit_of(const std::string& op, const Attrs& a) {
  if (op == "Selu")
    return {a.f("gamma", 1.05070102214813232421875), a.f("alpha", 1.67326319217681884765625), 1};
  const double alpha = a.f("alpha", 1.0);
  return {1, alpha, op == "Celu" ? alpha : 1};
}

std::vector<Expr> parts(Decompose& d) {
  const Unit u = unit_of(d.node().op->name, d.attrs());
  const Expr x = d.x(0), zero = d.b.scalar(x.dtype(), 0);
  const Expr scaled = u.width == 1 ? x : x / u.width;
  Expr low = d.b.unary("ortrain.Expm1", scaled);
  if (u.scale != 1) low = u.scale * low;
  const Expr y = d.b.where(d.b.op("Greater", {x, zero}), x, low);
  return {u.gain == 1 ? y : u.gain * y};
}

Expr unit_grad(Grad& g) {
  const Unit u = unit_of(g.node().op->name, g.attrs());
  const Expr x = g.x(0), zero = g.b.scalar(x.dtype(), 0);
  const Expr low = (u.gain * u.scale / u.width) * g.b.exp(u.width == 1 ? x : x / u.width);
  const Expr slope = g.b.where(g.b.op("Greater", {x, zero}), g.b.scalar(x.dtype(), u.gain), low);
  return g.dy() * slope;
}

OpDef unit(const char* name, int since) {
  const ExampleInput x = floats({2, 3}, {-3, -0.5, 0.25, 1, 7, -0.1});
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .since = since,
          .infer = infer_same_as_first,
          .grad = {grad("x", unit_grad)},
          .decompose = parts,
          .channels_last = ew_channels_last,
          .pad = Pad::kZeroToZero,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {x}},
                       {.in = {x}, .attrs = {{"alpha", 1.7}}},
                       {.in = {f({3, 70}, 0.1, 90)}},
                       {.in = {f({0, 4})}}},
          .note = "gradient at 0 is the left one"};
}

}  // namespace

void register_elu(OpTable& table) {
  table.add(unit("Elu", 6));
  table.add(unit("Selu", 6));
  table.add(unit("Celu", 12));
}

}  // namespace ortrain::ops
