// ReduceSum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSum, LogSumExp: reductions over `axes`.
//
// Axes are input 1 (a constant; older opsets' attribute is moved there); absent or empty means all
// axes, or none with noop_with_empty_axes: then only the rest of a composite one is done (the log
// of LogSum). Gradients are the same in every form. Ties of Max and Min share the gradient equally
// (torch.amax). Prod is right with zeros. L2 has gradient 0 at norm 0; LogSumExp is computed from
// the maximum, so it does not overflow.
#include "ops/common/reduce.h"

#include <algorithm>
#include <limits>

#include "graph/pad_axes.h"

namespace ortrain::ops {

namespace {

std::vector<int> axes_of(const Graph& g, const Node& node) {
  std::vector<int64_t> axes;
  if (node.inputs.size() > 1 && node.inputs[1] != kNone)
    if (const HostTensor* t = g.tensor(node.inputs[1])) axes = t->as_ints();
  return reduced_axes(axes, node.attrs.i("noop_with_empty_axes", 0) != 0,
                      g.value(node.inputs[0]).shape.rank());
}

void infer_reduce(InferCtx& c) {
  std::vector<int64_t> axes;
  if (c.has(1))
    for (const Dim& d : c.need_ints(1, "the list of reduced axes")) axes.push_back(d.value());
  const auto reduced = reduced_axes(axes, c.attrs().i("noop_with_empty_axes", 0) != 0, c.rank(0));
  const bool keep = c.attrs().i("keepdims", 1) != 0;
  Shape out;
  for (int d = 0; d < c.rank(0); ++d) {
    const bool gone = std::find(reduced.begin(), reduced.end(), d) != reduced.end();
    if (!gone)
      out.push_back(c.shape(0)[d]);
    else if (keep)
      out.push_back(Dim(1));
  }
  c.out(0, c.dtype(0), std::move(out));
  // The contents of a reduced shape: the number of elements, the largest extent.
  const auto x = c.ints(0);
  if (!x || c.rank(0) != 1 || reduced.empty() || x->empty()) return;
  const std::string& op = c.node().op->name;
  Dim d = (*x)[0];
  for (size_t i = 1; i < x->size(); ++i) {
    if (op == "ReduceSum")
      d = d + (*x)[i];
    else if (op == "ReduceProd")
      d = d * (*x)[i];
    else if (op == "ReduceMax")
      d = max(d, (*x)[i]);
    else if (op == "ReduceMin")
      d = min(d, (*x)[i]);
    else
      return;
  }
  if (op == "ReduceSum" || op == "ReduceProd" || op == "ReduceMax" || op == "ReduceMin")
    c.out_ints(0, {d});
}

// What the formulas share: the reduced axes and values brought back to rank of x.
struct Back {
  Grad& g;
  std::vector<int> axes;
  Dims kept;  // x's dims with 1 in place of the reduced ones
  double count = 1;
  explicit Back(Grad& grad) : g(grad), axes(axes_of(g.b.graph(), g.node())) {
    kept = g.x(0).shape().values();
    for (int a : axes) {
      count *= static_cast<double>(kept[static_cast<size_t>(a)]);
      kept[static_cast<size_t>(a)] = 1;
    }
  }
  bool nothing() const { return axes.empty(); }
  Expr x() { return g.x(0); }
  Expr y() { return g.b.reshape(g.y(), kept); }
  Expr dy() { return g.b.reshape(g.dy(), kept); }
  Expr sum(Expr e) { return nothing() ? e : g.b.sum(e, {axes.begin(), axes.end()}); }
  Expr expand(Expr e) { return g.b.expand_like(e, x()); }
};

Expr sum_grad(Grad& g) {
  Back k(g);
  return k.expand(k.dy());
}
Expr mean_grad(Grad& g) {
  Back k(g);
  return k.nothing() ? g.dy() : k.expand(k.dy() / k.count);
}
// Max and Min: the elements equal to the result share dy.
Expr extreme_grad(Grad& g) {
  Back k(g);
  if (k.nothing()) return g.dy();
  const Expr mask = g.b.cast(g.b.op("Equal", {k.x(), k.y()}), k.x().dtype());
  return mask * (k.dy() / k.sum(mask));
}
// dy y / x; where x is the only zero, dy times the product of the others; 0 with more zeros.
Expr prod_grad(Grad& g) {
  Back k(g);
  if (k.nothing()) return g.dy();
  const DType t = k.x().dtype();
  const Expr zero = g.b.scalar(t, 0), one = g.b.scalar(t, 1);
  const Expr is_zero = g.b.op("Equal", {k.x(), zero});
  const Expr zeros = k.sum(g.b.cast(is_zero, t));
  const Expr safe = g.b.where(is_zero, one, k.x());
  const Expr others =
      g.b.reduce("ReduceProd", safe, {k.axes.begin(), k.axes.end()}, /*keepdims=*/true);
  const Expr at_zero = g.b.where(g.b.op("Equal", {zeros, one}), others, zero);
  return k.dy() * g.b.where(is_zero, at_zero,
                            g.b.where(g.b.op("Equal", {zeros, zero}), others / safe, zero));
}
Expr l1_grad(Grad& g) {
  Back k(g);
  return k.dy() * g.b.unary("Sign", k.x());
}
Expr l2_grad(Grad& g) {
  Back k(g);
  const Expr zero = g.b.scalar(k.x().dtype(), 0);
  const Expr scale = g.b.where(g.b.op("Equal", {k.y(), zero}), zero, k.dy() / k.y());
  return k.x() * scale;
}
Expr sum_square_grad(Grad& g) {
  Back k(g);
  return 2 * (k.dy() * k.x());
}
Expr log_sum_grad(Grad& g) {
  Back k(g);
  return k.expand(k.dy() / k.sum(k.x()));
}
Expr log_sum_exp_grad(Grad& g) {
  Back k(g);
  if (k.nothing()) return g.dy();
  const DType t = k.x().dtype();
  const Expr low = g.b.scalar(t, -std::numeric_limits<double>::infinity());
  const Expr p = g.b.exp(k.x() - k.y());
  return k.dy() * g.b.where(g.b.op("Equal", {k.y(), low}), g.b.scalar(t, 0), p);
}

// --- the composite ones -------------------------------------------------------------------------
struct Parts {
  Decompose& d;
  bool nothing;
  explicit Parts(Decompose& dec) : d(dec), nothing(axes_of(d.b.graph(), d.node()).empty()) {}
  Expr x() {  // integers are computed in f32
    return is_float(d.x(0).dtype()) ? d.x(0) : d.b.cast(d.x(0), DType::kF32);
  }
  Expr same_type(Expr e) { return d.b.cast(e, d.x(0).dtype()); }
  Expr sum(Expr e) { return d.b.op("ReduceSum", {e, d.has_x(1) ? d.x(1) : Expr()}, d.attrs()); }
};

std::vector<Expr> l1_parts(Decompose& d) {
  Parts p(d);
  return {p.sum(d.b.unary("Abs", d.x(0)))};
}
std::vector<Expr> l2_parts(Decompose& d) {
  Parts p(d);
  return {p.same_type(d.b.sqrt(p.sum(p.x() * p.x())))};
}
std::vector<Expr> sum_square_parts(Decompose& d) {
  Parts p(d);
  return {p.sum(d.x(0) * d.x(0))};
}
std::vector<Expr> log_sum_parts(Decompose& d) {
  Parts p(d);
  return {p.same_type(d.b.log(p.sum(p.x())))};
}
std::vector<Expr> log_sum_exp_parts(Decompose& d) {
  Parts p(d);
  if (p.nothing) return {d.x(0)};
  const Expr x = p.x();
  const std::vector<int> reduced = axes_of(d.b.graph(), d.node());
  const std::vector<int64_t> axes(reduced.begin(), reduced.end());
  const Expr zero = d.b.scalar(x.dtype(), 0);
  Expr m = d.b.reduce("ReduceMax", x, axes, /*keepdims=*/true);
  m = d.b.where(d.b.unary("IsInf", m), zero, m);  // all -inf, or +inf: nothing to shift by
  const Expr s = p.sum(d.b.exp(x - m));
  const Expr y = d.b.log(s) + d.b.reshape(m, s.shape().values());
  return {p.same_type(y)};
}

// [N, C, spatial...] -> [N, spatial..., C]: axis 1 becomes the last. Without keepdims the result
// keeps its order only when the kept axes do.
std::optional<LayoutChange> channels_last(Graph& g, NodeId n) {
  const std::vector<int> axes = axes_of(g, g.node(n));
  const int rank = g.value(g.node(n).inputs[0]).shape.rank();
  const bool keep = g.node(n).attrs.i("keepdims", 1) != 0;
  if (axes.empty()) return std::nullopt;
  std::vector<int64_t> moved;
  bool channel = false;
  int spatial = 0;
  for (int a : axes) {
    moved.push_back(a == 0 ? 0 : a == 1 ? rank - 1 : a - 1);
    channel |= a == 1;
    spatial += a >= 2;
  }
  if (!keep && !channel && spatial < rank - 2) return std::nullopt;
  g.set_input(n, 1, g.add_const(HostTensor::ints(moved)));
  return keep ? LayoutChange{{0}, {0}} : LayoutChange{{0}, {}};
}

// Axes that are not reduced; for sums and means of something.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  const Shape& x = g.value(n.inputs[0]).shape;
  if (!x.is_const() || x.count() == Dim(0)) return std::nullopt;
  const std::vector<int> axes = axes_of(g, n);
  std::string in, out;
  for (int a = 0; a < x.rank(); ++a) {
    const bool gone = std::find(axes.begin(), axes.end(), a) != axes.end();
    const char letter = gone ? '.' : static_cast<char>('a' + a);
    in += letter;
    if (!gone || n.attrs.i("keepdims", 1) != 0) out += letter;
  }
  return PadAxes{{in}, {out}};
}

Example example(ExampleInput x, std::vector<int64_t> axes, int64_t keepdims) {
  return {.in = {std::move(x), ivals(std::move(axes))}, .attrs = {{"keepdims", keepdims}}};
}
std::vector<Example> reduce_examples(double low, double high) {
  return {
      example(f({3, 4}, low, high), {1}, 1),
      example(f({3, 4}, low, high), {0}, 0),
      example(f({2, 3, 4}, low, high), {1}, 0),
      example(f({2, 3, 4}, low, high), {0, 2}, 1),
      example(f({2, 3, 2, 2}, low, high), {0, 2, 3}, 0),
      example(f({2, 3, 4}, low, high), {-1}, 1),
      example(f({2, 1, 4}, low, high), {1}, 0),
      example(f({5, 90}, low, high), {0}, 0),
      example(f({5, 90}, low, high), {1}, 0),
      example(f({40, 7}, low, high), {0}, 1),
      {.in = {f({2, 3}, low, high)}},
      {.in = {f({2, 3}, low, high)}, .attrs = {{"keepdims", int64_t{0}}}},
      {.in = {f({2, 3}, low, high)}, .attrs = {{"noop_with_empty_axes", int64_t{1}}}},
      {.in = {f({1}, low, high)}},
      {.in = {f({}, low, high)}},
      example(f({0, 3}), {1}, 1),
  };
}

OpDef reduction(const char* name, GradFn gradient, double low, double high) {
  return {.name = name,
          .inputs = {"data", "axes?"},
          .outputs = {"reduced"},
          .infer = infer_reduce,
          .grad = {grad("data", gradient), no_grad("axes")},
          .adapt = [](RawNode& r) { r.ints_to_input("axes", 1); },
          .channels_last = channels_last,
          .precision = Precision::kNever16,
          .examples = reduce_examples(low, high)};
}

OpDef composite(const char* name, GradFn gradient, DecomposeFn parts, double low, double high) {
  OpDef op = reduction(name, gradient, low, high);
  op.decompose = parts;
  return op;
}

}  // namespace

void register_reduce(OpTable& table) {
  add_pad_rule("ReduceSum", {pad_axes});
  add_pad_rule("ReduceMean", {pad_axes});
  OpDef sum = reduction("ReduceSum", sum_grad, -2, 2);
  sum.kernels = reduce_kernels<Reduce::kSum>();
  sum.examples.push_back(example(f({0, 3}), {0}, 0));
  sum.examples.push_back(example(f({3000, 33}), {0}, 0));
  sum.examples.push_back(example(f({3, 40000}), {1}, 0));
  sum.examples.push_back({.in = {ints({3, 4}, -9, 9), ivals({0})}});
  table.add(std::move(sum));

  OpDef mean = reduction("ReduceMean", mean_grad, -2, 2);
  mean.kernels = reduce_kernels<Reduce::kMean>();
  table.add(std::move(mean));

  OpDef largest = reduction("ReduceMax", extreme_grad, -2, 2);
  largest.precision = Precision::kFollow;
  largest.kernels = reduce_kernels<Reduce::kMax>();
  largest.examples.push_back({.in = {ints({3, 4}, -9, 9), ivals({0})}});
  largest.examples.push_back({.in = {bools({3, 4}), ivals({0})}});
  largest.note = "ties share the gradient equally, as torch.amax";
  table.add(std::move(largest));

  OpDef smallest = reduction("ReduceMin", extreme_grad, -2, 2);
  smallest.precision = Precision::kFollow;
  smallest.kernels = reduce_kernels<Reduce::kMin>();
  smallest.note = "ties share the gradient equally, as torch.amin";
  table.add(std::move(smallest));

  OpDef product = reduction("ReduceProd", prod_grad, 0.5, 1.5);
  product.kernels = reduce_kernels<Reduce::kProd>();
  product.examples.push_back({.in = {floats({2, 3}, {2, 0, 3, 1, -2, 4}), ivals({1})}});
  product.examples.push_back({.in = {floats({2, 3}, {0, 0, 3, 1, -2, 0}), ivals({1})}});
  table.add(std::move(product));

  table.add(composite("ReduceL1", l1_grad, l1_parts, 0.2, 2));
  table.add(composite("ReduceL2", l2_grad, l2_parts, 0.2, 2));
  table.add(composite("ReduceSumSquare", sum_square_grad, sum_square_parts, -2, 2));
  table.add(composite("ReduceLogSum", log_sum_grad, log_sum_parts, 0.2, 2));
  table.add(composite("ReduceLogSumExp", log_sum_exp_grad, log_sum_exp_parts, -2, 2));
}

}  // namespace ortrain::ops
