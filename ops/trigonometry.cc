// Sin Cos Tan, Asin Acos Atan, Sinh Cosh, Asinh Acosh Atanh: elementwise, float types; NaN outside
// the domain. Gradients are the derivatives; infinite at the ends of a domain, as PyTorch.
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

OpDef function(const char* name, Ew code, int since, GradFn gradient, double low, double high,
               Pad pad = Pad::kZeroToZero) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .since = since,
          .infer = infer_same_as_first,
          .grad = {grad("x", gradient)},
          .ew = code,
          .precision = Precision::kNever16,
          .pad = pad,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {f({2, 3}, low, high)}},
                       {.in = {f({3, 70}, low, high)}},
                       {.in = {f({1}, low, high)}},
                       {.in = {f({0, 4})}}}};
}

Expr square(Expr x) { return x * x; }

}  // namespace

void register_trigonometry(OpTable& table) {
  table.add(function(
      "Sin", Ew::kSin, 7, [](Grad& g) { return g.dy() * g.b.unary("Cos", g.x()); }, -9, 9));
  table.add(function(
      "Cos", Ew::kCos, 7, [](Grad& g) { return -(g.dy() * g.b.unary("Sin", g.x())); }, -9, 9,
      Pad::kNo));
  table.add(function(
      "Tan", Ew::kTan, 7, [](Grad& g) { return g.dy() * (1 + square(g.y())); }, -1.2, 1.2));
  table.add(function(
      "Asin", Ew::kAsin, 7, [](Grad& g) { return g.dy() / g.b.sqrt(1 - square(g.x())); }, -0.9,
      0.9));
  table.add(function(
      "Acos", Ew::kAcos, 7, [](Grad& g) { return -(g.dy() / g.b.sqrt(1 - square(g.x()))); }, -0.9,
      0.9, Pad::kNo));
  table.add(function(
      "Atan", Ew::kAtan, 7, [](Grad& g) { return g.dy() / (1 + square(g.x())); }, -5, 5));
  table.add(function(
      "Sinh", Ew::kSinh, 9, [](Grad& g) { return g.dy() * g.b.unary("Cosh", g.x()); }, -3, 3));
  table.add(function(
      "Cosh", Ew::kCosh, 9, [](Grad& g) { return g.dy() * g.b.unary("Sinh", g.x()); }, -3, 3,
      Pad::kNo));
  table.add(function(
      "Asinh", Ew::kAsinh, 9, [](Grad& g) { return g.dy() / g.b.sqrt(1 + square(g.x())); }, -5, 5));
  table.add(function(
      "Acosh", Ew::kAcosh, 9, [](Grad& g) { return g.dy() / g.b.sqrt(square(g.x()) - 1); }, 1.2, 5,
      Pad::kNo));
  table.add(function(
      "Atanh", Ew::kAtanh, 9, [](Grad& g) { return g.dy() / (1 - square(g.x())); }, -0.9, 0.9));
}

}  // namespace ortrain::ops
