// Takes the transposes and the split around ortrain.Attention into the op (attention_layout.h).
#include "graph/passes/attention_layout.h"

#include <optional>

#include "graph/rewrite.h"

namespace ortrain {
namespace {

using Perm = std::vector<int64_t>;
const Perm kSwap{0, 2, 1, 3};

// x [B,T,H,D] when v [B,H,T,D] is its transpose.
ValueId tokens_of(const Graph& g, ValueId v) {
  const Node* t = producer(g, v, "Transpose");
  return t && t->attrs.ints("perm") == kSwap ? t->inputs[0] : kNone;
}

// The Split that makes v and which of three equal parts v is.
const Node* third(const Graph& g, ValueId v, int part) {
  const Value& x = g.value(v);
  if (x.producer == kNone || x.output_index != part || !single_use(g, v)) return nullptr;
  const Node& n = g.node(x.producer);
  if (n.op->name != "Split" || n.outputs.size() != 3) return nullptr;
  for (ValueId o : n.outputs)
    if (o == kNone || !(g.value(o).shape == x.shape)) return nullptr;
  return &n;
}

int split_axis(const Graph& g, const Node& split) {
  return normalize_axis(split.attrs.i("axis", 0), g.value(split.inputs[0]).shape.rank());
}

// [B,T,3HD] whose parts, as [B,T,H,D], are the token-major operands.
ValueId packed_columns(const Graph& g, const std::vector<ValueId>& tokens) {
  ValueId source = kNone;
  for (int i = 0; i < 3; ++i) {
    const ValueId x = tokens[static_cast<size_t>(i)];
    const Node* r = x == kNone ? nullptr : producer(g, x, "Reshape");
    const Node* split = r && single_use(g, x) ? third(g, r->inputs[0], i) : nullptr;
    if (!split || split_axis(g, *split) != 2 || g.value(split->inputs[0]).shape.rank() != 3)
      return kNone;
    const Shape &s = g.value(x).shape, &whole = g.value(split->inputs[0]).shape;
    if (s.rank() != 4 || !(s[0] == whole[0]) || !(s[1] == whole[1])) return kNone;
    if (i > 0 && split->inputs[0] != source) return kNone;
    if (i > 0 && !(s == g.value(tokens[0]).shape)) return kNone;
    source = split->inputs[0];
  }
  return source;
}

// [B,T,3,H,D] whose transpose (2,0,3,1,4), cut along its first axis, gives the head-major operands.
ValueId packed_planes(const Graph& g, const std::vector<ValueId>& heads) {
  ValueId source = kNone;
  for (int i = 0; i < 3; ++i) {
    const ValueId v = heads[static_cast<size_t>(i)];
    const Node* cut = producer(g, v);
    if (!cut || !single_use(g, v)) return kNone;
    ValueId whole = kNone;
    if (cut->op->name == "Gather") {
      const HostTensor* at = constant(g, input(*cut, 1));
      if (!at || at->rank() != 0 || cut->attrs.i("axis", 0) != 0) return kNone;
      const int64_t index = at->as_int(0);
      if (index != i && index + 3 != i) return kNone;
      whole = cut->inputs[0];
    } else if (cut->op->name == "Squeeze" || cut->op->name == "Reshape") {
      const Node* split = third(g, cut->inputs[0], i);
      if (!split || split_axis(g, *split) != 0) return kNone;
      whole = split->inputs[0];
      const Shape &s = g.value(v).shape, &from = g.value(whole).shape;
      if (s.rank() != 4 || from.rank() != 5) return kNone;
      for (int a = 0; a < 4; ++a)
        if (!(s[a] == from[a + 1])) return kNone;
    } else {
      return kNone;
    }
    if (!(g.value(whole).shape[0] == Dim(3))) return kNone;
    const Node* t = producer(g, whole, "Transpose");
    if (!t || t->attrs.ints("perm") != Perm{2, 0, 3, 1, 4}) return kNone;
    if (i > 0 && t->inputs[0] != source) return kNone;
    source = t->inputs[0];
  }
  return source;
}

void absorb(Graph& g, NodeId n) {
  const Node x = g.node(n);
  if (x.attrs.i("token_major", 0)) return;
  if (x.outputs.size() > 1 && x.outputs[1] != kNone) return;
  const std::vector<ValueId> heads(x.inputs.begin(), x.inputs.begin() + 3);
  std::vector<ValueId> tokens;
  for (ValueId v : heads) tokens.push_back(tokens_of(g, v));
  Builder b(g, x.origin);
  std::vector<Expr> in;
  if (const ValueId planes = packed_planes(g, heads); planes != kNone) {
    in = {b.wrap(planes), Expr(), Expr()};
  } else if (tokens[0] == kNone || tokens[1] == kNone || tokens[2] == kNone) {
    return;
  } else if (const ValueId whole = packed_columns(g, tokens); whole != kNone) {
    const Dims s = g.value(tokens[0]).shape.values();
    in = {b.reshape(b.wrap(whole), {s[0], s[1], 3, s[2], s[3]}), Expr(), Expr()};
  } else {
    for (ValueId v : tokens) in.push_back(b.wrap(v));
  }
  in.push_back(b.wrap(input(x, 3)));
  Attrs attrs = x.attrs;
  attrs.set("token_major", int64_t{1});
  const Expr y = b.op("ortrain.Attention", in, attrs);
  // Users that swap the axes back take y itself.
  const std::vector<NodeId> uses = g.value(x.outputs[0]).uses;
  for (NodeId u : uses) {
    const Node& t = g.node(u);
    if (t.op->name == "Transpose" && t.attrs.ints("perm") == kSwap)
      g.replace_uses(t.outputs[0], y.id());
  }
  for (NodeId u : uses) g.erase_if_dead(u);
  if (!g.value(x.outputs[0]).uses.empty() || is_graph_result(g, x.outputs[0]))
    g.replace_uses(x.outputs[0], b.transpose(y, kSwap).id());
}

}  // namespace

void absorb_attention_layout(Graph& g) {
  for (NodeId n : g.topo())
    if (g.node(n).op && g.node(n).op->name == "ortrain.Attention") absorb(g, n);
}

}  // namespace ortrain
