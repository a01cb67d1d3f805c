// Mod: the remainder, with broadcasting; fmod = 0 (integers) has the sign of the divisor, fmod = 1
// that of the dividend. x mod 0 is 0 for integers.
//
// Gradients as torch.fmod and torch.remainder: dy to the dividend, -dy q to the divisor, where q is
// the quotient truncated (fmod = 1) or floored.
#include "ops/common/elementwise.h"
#include "ops/common/shape_arith.h"

namespace ortrain::ops {

namespace {

std::optional<Dim> mod_dims(Dim a, Dim b) {
  if (!a.is_const() || !b.is_const() || b.value() == 0) return std::nullopt;
  return mod(a, b);
}
void infer_mod(InferCtx& c) {
  infer_broadcast(c);
  if (is_integer(c.dtype(0)) && c.attrs().i("fmod", 0) == 0) carry_ints(c, mod_dims);
}
const char* code_of(const Attrs& attrs) {
  return attrs.i("fmod", 0) != 0 ? "ortrain.Fmod" : "ortrain.FloorMod";
}
OpDef remainder(const char* name, Ew code) {
  return {.name = name,
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .infer = infer_broadcast,
          .grad = {not_differentiable("a", "Mod has the gradient"),
                   not_differentiable("b", "Mod has the gradient")},
          .ew = code,
          .kernels = ew_kernels(),
          .examples = {{.in = {f({2, 3}), f({3}, 0.5, 1)}},
                       {.in = {ints({2, 3}, -9, 9), ints({3}, -4, 5)}}}};
}

}  // namespace

OpDef mod_op() {
  const Attrs c_style{{"fmod", int64_t{1}}};
  return {
      .name = "Mod",
      .inputs = {"a", "b"},
      .outputs = {"c"},
      .since = 10,
      .infer = infer_mod,
      .grad = {grad("a", [](Grad& g) { return g.dy(); }),
               grad("b",
                    [](Grad& g) {
                      const Expr q = g.x(0) / g.x(1);
                      const bool trunc = g.attrs().i("fmod", 0) != 0;
                      return -(g.dy() * g.b.unary(trunc ? "ortrain.Trunc" : "Floor", q));
                    })},
      .decompose = [](Decompose& d) -> std::vector<Expr> {
        return {d.b.op(code_of(d.attrs()), {d.x(0), d.x(1)})};
      },
      .kernels = ew_kernels(),
      .examples = {{.in = {floats({6}, {5.3, -5.3, 5.3, -5.3, 0.25, 7.9}),
                           floats({6}, {2, 2, -2, -2, 3, 2.5})},
                    .attrs = c_style},
                   {.in = {ints({4, 3}, -9, 9), ints({3}, -4, 5)}},
                   {.in = {ints({4, 3}, -9, 9), ints({3}, -4, 5)}, .attrs = c_style}},
  };
}

void register_mod(OpTable& table) {
  table.add(mod_op());
  table.add(remainder("ortrain.Fmod", Ew::kFmod));
  table.add(remainder("ortrain.FloorMod", Ew::kMod));
}

}  // namespace ortrain::ops
