// fuse_norm: layer normalisation spelled out in basic operators (mean, difference, mean square,
// epsilon, root, scale, bias) becomes LayerNormalization; the same without the mean becomes
// RMSNormalization.
//
// Taken: squares as Pow or x * x; division by the root, or a product with its reciprocal; the last
// axes, reduced with keepdims. Without a scale behind it, ones are used. Refuses inner values that
// something else reads.
#include <algorithm>

#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

bool is_ew(const Node* n, Ew code) { return n && n->op->ew == code; }

// x of mean(x) over the axes from `axis` to the last, kept as 1.
ValueId mean_of(const Graph& g, ValueId v, int& axis) {
  const Node* n = producer(g, v, "ReduceMean");
  if (!n || n->attrs.i("keepdims", 1) == 0) return kNone;
  const HostTensor* axes = constant(g, input(*n, 1));
  const int rank = g.value(n->inputs[0]).shape.rank();
  if (!axes || axes->count() == 0) return kNone;
  const std::vector<int> list = normalize_axes(axes->as_ints(), rank);
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i] != rank - static_cast<int>(list.size() - i)) return kNone;
  axis = list.front();
  return n->inputs[0];
}

ValueId square_of(const Graph& g, ValueId v) {
  const Node* n = producer(g, v);
  if (is_ew(n, Ew::kPow) && number(g, n->inputs[1]) == 2.0) return n->inputs[0];
  if (is_ew(n, Ew::kMul) && n->inputs.size() == 2 && n->inputs[0] == n->inputs[1])
    return n->inputs[0];
  return kNone;
}

struct Norm {
  ValueId x = kNone;        // normalised value
  ValueId centred = kNone;  // what is divided by the root: x, or x - mean
  int axis = 0;
  double epsilon = 0;
};

// v = sqrt(mean(centred^2) + epsilon), given what is under the root.
bool root_of(const Graph& g, ValueId under, Norm& out) {
  const Node* add = producer(g, under);
  if (!is_ew(add, Ew::kAdd) || add->inputs.size() != 2 || !single_use(g, under)) return false;
  for (const size_t side : {0u, 1u}) {
    const auto epsilon = number(g, add->inputs[side]);
    if (!epsilon) continue;
    const ValueId variance = add->inputs[1 - side];
    const ValueId square = single_use(g, variance) ? mean_of(g, variance, out.axis) : kNone;
    if (square == kNone || !single_use(g, square)) return false;
    out.centred = square_of(g, square);
    out.epsilon = *epsilon;
    return out.centred != kNone;
  }
  return false;
}

// The three spellings of centred / root.
std::optional<Norm> quotient(const Graph& g, const Node& n) {
  Norm out;
  const auto root = [&](ValueId v, ValueId numerator) {
    const Node* r = producer(g, v);
    return is_ew(r, Ew::kSqrt) && single_use(g, v) && root_of(g, r->inputs[0], out) &&
           out.centred == numerator;
  };
  if (n.inputs.size() != 2) return std::nullopt;
  if (n.op->ew == Ew::kDiv && root(n.inputs[1], n.inputs[0])) return out;
  if (n.op->ew != Ew::kMul) return std::nullopt;
  for (const size_t side : {0u, 1u}) {
    const ValueId inverse = n.inputs[side], numerator = n.inputs[1 - side];
    const Node* r = producer(g, inverse);
    if (!r || !single_use(g, inverse)) continue;
    if (is_ew(r, Ew::kRsqrt) && root_of(g, r->inputs[0], out) && out.centred == numerator)
      return out;
    if (is_ew(r, Ew::kReciprocal) && root(r->inputs[0], numerator)) return out;
    if (is_ew(r, Ew::kDiv) && number(g, r->inputs[0]) == 1.0 && root(r->inputs[1], numerator))
      return out;
  }
  return std::nullopt;
}

// The other operand of the only user of v, when that is `code` and the operand has the normalised
// shape (leading ones allowed); `next` becomes the user's output.
ValueId affine(const Graph& g, ValueId v, Ew code, int axis, ValueId& next) {
  if (!single_use(g, v)) return kNone;
  const Node& n = g.node(g.value(v).uses[0]);
  if (n.op->ew != code || n.inputs.size() != 2 || n.inputs[0] == n.inputs[1]) return kNone;
  const ValueId other = n.inputs[0] == v ? n.inputs[1] : n.inputs[0];
  const Shape &s = g.value(other).shape, &x = g.value(v).shape;
  if (s.rank() > x.rank() || s.rank() < x.rank() - axis) return kNone;
  for (int i = 0; i < s.rank(); ++i) {
    const int at = x.rank() - s.rank() + i;
    if (!(at < axis ? s[i] == Dim(1) : s[i] == x[at])) return kNone;
  }
  if (g.value(other).dtype != g.value(v).dtype) return kNone;
  next = n.outputs[0];
  return other;
}

bool fuse(Graph& g, NodeId id) {
  auto norm = quotient(g, g.node(id));
  if (!norm) return false;
  // Layer normalisation when what is divided is itself x - mean(x).
  bool layer = false;
  const Node* minus = producer(g, norm->centred);
  norm->x = norm->centred;
  if (is_ew(minus, Ew::kSub) && g.value(norm->centred).uses.size() <= 3) {
    int axis = 0;
    const ValueId x = mean_of(g, minus->inputs[1], axis);
    layer = x != kNone && x == minus->inputs[0] && axis == norm->axis;
    if (layer) norm->x = x;
  }
  if (!layer && !g.ops().find("RMSNormalization")) return false;
  const Shape& shape = g.value(norm->x).shape;
  if (!shape.is_const()) return false;
  Dims tail = shape.values();
  tail.erase(tail.begin(), tail.begin() + norm->axis);
  const DType dtype = g.value(norm->x).dtype;

  ValueId y = g.node(id).outputs[0], scaled = kNone, shifted = kNone;
  if (!(g.value(y).shape == shape)) return false;
  const ValueId scale = affine(g, y, Ew::kMul, norm->axis, scaled);
  if (scale != kNone) y = scaled;
  const ValueId bias = layer ? affine(g, y, Ew::kAdd, norm->axis, shifted) : kNone;
  if (bias != kNone) y = shifted;

  Builder b(g, g.node(id).origin + "|norm");
  Expr by;
  if (scale != kNone) {
    by = b.reshape(b.wrap(scale), tail);
  } else {
    HostTensor ones(dtype, tail);
    for (int64_t i = 0; i < ones.count(); ++i) ones.set_double(i, 1);
    by = b.constant(std::move(ones));
  }
  std::vector<Expr> in{b.wrap(norm->x), by};
  if (bias != kNone) in.push_back(b.reshape(b.wrap(bias), tail));
  const Expr out = b.op(layer ? "LayerNormalization" : "RMSNormalization", in,
                        {{"axis", int64_t{norm->axis}}, {"epsilon", norm->epsilon}});
  g.replace_uses(y, out.id());
  return true;
}

}  // namespace

int fuse_norm(Graph& g, PassContext&) {
  int places = 0;
  for (NodeId n : g.topo())
    if (g.node(n).op && (g.node(n).op->ew == Ew::kDiv || g.node(n).op->ew == Ew::kMul))
      places += fuse(g, n);
  return places;
}

}  // namespace ortrain
