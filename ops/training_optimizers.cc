// ai.onnx.preview.training: Adagrad, Adam and Momentum (standard and Nesterov), one update of any
// number of tensors, by their meaning in simpler operators.
//
// Inputs R (rate), T (count of updates), then all tensors, all gradients, all first moments (all
// second ones); outputs in the same order. They compute; they do not train: ortrain's own updates
// are ortrain.AdamW and friends. Gradients come by the decomposition.
#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {
namespace {

// `groups`: tensor, gradient and states; outputs leave the gradient out.
void infer_update(InferCtx& c, int groups) {
  const int n = (c.input_count() - 2) / groups;
  if (n < 1 || c.input_count() != 2 + n * groups)
    c.fail(cat("takes R, T and ", groups, " inputs per tensor, got ", c.input_count(), " in all"));
  for (int i = 0; i < 2; ++i)
    if (!(c.shape(i).count() == Dim(1))) c.fail("R and T are scalars");
  for (int i = 0; i < n; ++i) {
    const int first = 2 + i;
    if (!is_float(c.dtype(first))) c.fail("tensors must be floats");
    for (int k = 1; k < groups; ++k) {
      const int at = 2 + k * n + i;
      if (prove_equal(c.shape(first), c.shape(at)) == Tri::kNo || c.dtype(first) != c.dtype(at))
        c.fail(cat("input ", at, " is ", c.shape(at).str(), ", its tensor ", c.shape(first).str()));
    }
    for (int k = 0; k + 1 < groups; ++k) c.out(k * n + i, c.dtype(first), c.shape(first));
  }
}
void infer3(InferCtx& c) { infer_update(c, 3); }
void infer4(InferCtx& c) { infer_update(c, 4); }

struct Update {
  Decompose& d;
  Attrs a;
  int groups, n;
  std::vector<Expr> out;
  Update(Decompose& decompose, int per_tensor)
      : d(decompose), a(decompose.attrs()), groups(per_tensor) {  // attributes by copy
    n = (static_cast<int>(d.node().inputs.size()) - 2) / groups;
    out.resize(static_cast<size_t>((groups - 1) * n));
  }
  Expr in(int group, int i) { return d.x(2 + group * n + i); }
  Expr& y(int group, int i) { return out[static_cast<size_t>(group * n + i)]; }
  Expr scalar(int i, DType dtype) { return d.b.cast(d.b.reshape(d.x(i), {}), dtype); }
  // G + norm_coefficient X
  Expr regularized(int i) {
    const double norm = a.f("norm_coefficient", 0);
    return norm == 0 ? in(1, i) : norm * in(0, i) + in(1, i);
  }
  // T > 0 ? yes : no
  Expr after_first(Expr t, Expr yes, Expr no) {
    return d.b.where(d.b.op("Greater", {t, d.b.scalar(t.dtype(), 0)}), yes, no);
  }
};

std::vector<Expr> adagrad(Decompose& d) {
  Update u(d, 3);
  for (int i = 0; i < u.n; ++i) {
    const Expr x = u.in(0, i), g = u.regularized(i);
    const Expr r = u.scalar(0, x.dtype()) / (1 + u.scalar(1, x.dtype()) * u.a.f("decay_factor", 0));
    u.y(1, i) = u.in(2, i) + g * g;
    u.y(0, i) = x - r * g / (d.b.sqrt(u.y(1, i)) + u.a.f("epsilon", 1e-6));
  }
  return u.out;
}

std::vector<Expr> adam(Decompose& d) {
  Update u(d, 4);
  const double alpha = u.a.f("alpha", 0.9), beta = u.a.f("beta", 0.999);
  for (int i = 0; i < u.n; ++i) {
    const Expr x = u.in(0, i), g = u.regularized(i);
    const DType dtype = x.dtype();
    const Expr r = u.scalar(0, dtype), t = u.scalar(1, dtype);
    const Expr one = d.b.scalar(dtype, 1), power = u.after_first(t, t, one);
    const auto left = [&](double base) {  // 1 - base^T, without T = 0 where it is not used
      return 1 - d.b.op("Pow", {d.b.scalar(dtype, base), power});
    };
    const Expr rate = r * u.after_first(t, d.b.sqrt(left(beta)) / left(alpha), one);
    u.y(1, i) = alpha * u.in(2, i) + (1 - alpha) * g;
    u.y(2, i) = beta * u.in(3, i) + (1 - beta) * (g * g);
    const Expr next = x - rate * (u.y(1, i) / (d.b.sqrt(u.y(2, i)) + u.a.f("epsilon", 1e-6)));
    const double post = u.a.f("norm_coefficient_post", 0);
    u.y(0, i) = post == 0 ? next : (1 - post) * next;
  }
  return u.out;
}

std::vector<Expr> momentum(Decompose& d) {
  Update u(d, 3);
  const double alpha = u.a.f("alpha", 0), beta = u.a.f("beta", 1);
  const std::string mode = u.a.s("mode", "standard");
  if (mode != "standard" && mode != "nesterov")
    fail(ErrorCode::kModel, "Momentum: mode must be standard or nesterov, not '", mode, "'");
  for (int i = 0; i < u.n; ++i) {
    const Expr x = u.in(0, i), g = u.regularized(i);
    const DType dtype = x.dtype();
    const Expr scale =
        u.after_first(u.scalar(1, dtype), d.b.scalar(dtype, beta), d.b.scalar(dtype, 1));
    const Expr v = u.y(1, i) = alpha * u.in(2, i) + scale * g;
    u.y(0, i) = x - u.scalar(0, dtype) * (mode == "nesterov" ? g + alpha * v : v);
  }
  return u.out;
}

OpDef update(const char* name, InferFn infer, DecomposeFn parts, std::vector<Example> examples) {
  return {.name = std::string("ai.onnx.preview.training.") + name,
          .inputs = {"R", "T", "inputs*"},
          .outputs = {"outputs*"},
          .infer = infer,
          .decompose = parts,
          .precision = Precision::kNever16,
          .examples = std::move(examples),
          .note = "one update as values; nothing is trained by it"};
}

}  // namespace

void register_training_optimizers(OpTable& table) {
  const ExampleInput r = f({}, 0.01, 0.1), x = f({2, 3}), y = f({4}), h = f({2, 3}, 0.5, 1),
                     k = f({4}, 0.5, 1);
  const ExampleInput first = iconst({}, {0}), later = iconst({}, {3});
  const Attrs nesterov{
      {"mode", "nesterov"}, {"alpha", 0.9}, {"beta", 0.5}, {"norm_coefficient", 0.01}};
  const Attrs standard{
      {"mode", "standard"}, {"alpha", 0.9}, {"beta", 0.5}, {"norm_coefficient", 0.0}};
  table.add(update(
      "Adagrad", infer3, adagrad,
      {{.in = {r, later, x, x, h}, .attrs = {{"decay_factor", 0.1}}, .outputs = 2},
       {.in = {r, first, x, y, x, y, h, k}, .attrs = {{"norm_coefficient", 0.01}}, .outputs = 4}}));
  table.add(update("Adam", infer4, adam,
                   {{.in = {r, later, x, x, x, h}, .outputs = 3},
                    {.in = {r, first, x, y, x, y, x, y, h, k},
                     .attrs = {{"norm_coefficient", 0.01}, {"norm_coefficient_post", 0.1}},
                     .outputs = 6}}));
  table.add(update("Momentum", infer3, momentum,
                   {{.in = {r, later, x, x, x}, .attrs = nesterov, .outputs = 2},
                    {.in = {r, first, x, y, x, y, x, y}, .attrs = standard, .outputs = 4}}));
}

}  // namespace ortrain::ops
