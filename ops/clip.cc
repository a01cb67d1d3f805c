// Clip: y = min(max(x, low), high). The bounds are scalar inputs, or attributes min and max of the
// opsets before 11; an absent bound does not bind.
//
// Gradients as torch.clamp of PyTorch 2.15. Fixed bounds are numbers to it: dx is dy strictly
// between them, else 0. Bounds that are computed or trained are tensors to it, as min(max(x, low),
// high): at a tie each side gets half.
#include "graph/pad_axes.h"
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

// A bound that nothing changes while training: a number, for torch.clamp.
bool fixed(Grad& g, int i) {
  if (!g.has_x(i)) return true;
  const Graph& graph = g.b.graph();
  const ValueId v = g.node().inputs[static_cast<size_t>(i)];
  if (graph.value(v).source == Source::kConst) return true;
  const auto it = graph.params.find(v);
  return graph.value(v).source == Source::kParam && it != graph.params.end() &&
         !it->second.trainable;
}

// dy where `taken`, half of it where `tied`, else 0.
Expr share(Builder& b, Expr dy, Expr taken, Expr tied) {
  const Expr zero = b.scalar(dy.dtype(), 0);
  return b.where(taken, dy, b.where(tied, 0.5 * dy, zero));
}
Expr both(Builder& b, Expr p, Expr q) { return p && q ? b.op("And", {p, q}) : p ? p : q; }

// low and high, where present: low < high.
Expr ordered(Grad& g, Expr low, Expr high) {
  return low && high ? g.b.op("Less", {low, high}) : Expr();
}

Expr x_grad(Grad& g) {
  Builder& b = g.b;
  const Expr x = g.x(0), low = bound(g, 1, "min"), high = bound(g, 2, "max");
  if (!low && !high) return g.dy();
  Expr inside, tied;
  if (low) inside = b.op("Greater", {x, low});
  if (high) inside = both(b, inside, b.op("Less", {x, high}));
  if (fixed(g, 1) && fixed(g, 2)) return b.where(inside, g.dy(), b.scalar(x.dtype(), 0));
  if (low) tied = b.op("Equal", {x, low});
  if (high) {
    const Expr at_high = b.op("Equal", {x, high});
    if (low) inside = b.op("Or", {inside, b.op("And", {tied, at_high})});
    tied = low ? b.op("Or", {tied, at_high}) : at_high;
  }
  return share(b, g.dy(), inside, both(b, tied, ordered(g, low, high)));
}
Expr low_grad(Grad& g) {
  Builder& b = g.b;
  const Expr x = g.x(0), low = g.x(1), high = bound(g, 2, "max");
  const Expr valid = high ? b.op("LessOrEqual", {low, high}) : Expr();
  return share(b, g.dy(), both(b, b.op("Less", {x, low}), valid),
               both(b, b.op("Equal", {x, low}), ordered(g, low, high)));
}
Expr high_grad(Grad& g) {
  Builder& b = g.b;
  const Expr x = g.x(0), low = bound(g, 1, "min"), high = g.x(2);
  Expr taken = b.op("Greater", {x, high});
  if (low) taken = b.op("Or", {taken, b.op("Less", {high, low})});
  return share(b, g.dy(), taken, both(b, b.op("Equal", {x, high}), ordered(g, low, high)));
}

std::vector<Expr> clip_parts(Decompose& d) {
  Expr y = d.x(0);
  if (const Expr low = bound(d, 1, "min")) y = d.b.op("Max", {y, low});
  if (const Expr high = bound(d, 2, "max")) y = d.b.op("Min", {y, high});
  return {y};
}

// Zeros stay where 0 lies between the bounds, which must be numbers known now.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  for (size_t i = 1; i < n.inputs.size(); ++i) {
    if (n.inputs[i] == kNone) continue;
    const HostTensor* t =
        g.value(n.inputs[i]).source == Source::kConst ? g.tensor(n.inputs[i]) : nullptr;
    if (!t || t->count() != 1 || !(i == 1 ? t->as_double(0) <= 0 : t->as_double(0) >= 0))
      return std::nullopt;
  }
  std::string x;
  for (int a = 0; a < g.value(n.inputs[0]).shape.rank(); ++a) x += static_cast<char>('a' + a);
  return PadAxes{{x}, {x}};
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
      .note =
          "at a bound: no gradient to x when bounds are fixed, half to each side when they are not "
          "(PyTorch)",
  };
}

void register_clip(OpTable& table) {
  add_pad_rule("Clip", {pad_axes});
  table.add(clip_op());
}

}  // namespace ortrain::ops
