// Rules of fuse_forward for products: Gemm by its meaning, transposes of operands into attributes,
// and MatMul with a matrix on the right (a weight, mostly) plus a bias into ortrain.Linear.
//
// Linear runs as one library call forward, one for the input gradient and one for weight and bias
// gradient together; a transposed weight costs nothing. Batched products stay MatMul.
#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// v's source if v is Transpose of its last two axes, else kNone.
ValueId under_swap(const Graph& g, ValueId v) {
  const Node* t = producer(g, v, "Transpose");
  if (!t) return kNone;
  const int rank = g.value(v).shape.rank();
  std::vector<int64_t> perm = t->attrs.ints("perm");
  if (rank < 2 || (perm.empty() && rank != 2)) return kNone;
  for (int i = 0; i < static_cast<int>(perm.size()); ++i) {
    const int from = i == rank - 1 ? rank - 2 : i == rank - 2 ? rank - 1 : i;
    if (perm[static_cast<size_t>(i)] != from) return kNone;
  }
  return t->inputs[0];
}

int swallow_transposes(Graph& g, NodeId n) {
  int changed = 0;
  for (const int side : {0, 1}) {
    const ValueId source = under_swap(g, g.node(n).inputs[static_cast<size_t>(side)]);
    if (source == kNone) continue;
    const char* name = side == 0 ? "trans_a" : "trans_b";
    Attrs& attrs = g.node(n).attrs;
    if (attrs.i(name, 0))
      attrs.erase(name);
    else
      attrs.set(name, int64_t{1});
    g.set_input(n, side, source);
    ++changed;
  }
  if (changed > 0) g.infer(n);
  return changed;
}

// The other operand of an Add that is the only user of v and adds a bias of extent n along the last
// axis; sets `add`.
ValueId bias_after(const Graph& g, ValueId v, const Dim& n, NodeId& add) {
  if (!single_use(g, v) || is_graph_result(g, v)) return kNone;
  add = g.value(v).uses[0];
  const Node& a = g.node(add);
  if (a.op->ew != Ew::kAdd) return kNone;
  const ValueId other = a.inputs[0] == v ? a.inputs[1] : a.inputs[0];
  const Shape& s = g.value(other).shape;
  if (other == v || s.rank() < 1 || s.rank() > g.value(v).shape.rank()) return kNone;
  for (int i = 0; i + 1 < s.rank(); ++i)
    if (!(s[i] == Dim(1))) return kNone;
  return s[s.rank() - 1] == n && g.value(a.outputs[0]).shape == g.value(v).shape ? other : kNone;
}

bool make_linear(Graph& g, NodeId n) {
  const Node& x = g.node(n);
  const Shape &a = g.value(x.inputs[0]).shape, &b = g.value(x.inputs[1]).shape;
  if (b.rank() != 2 || a.rank() < 2 || x.attrs.i("trans_a", 0) || !b.is_const()) return false;
  if (!is_float(g.value(x.inputs[0]).dtype)) return false;
  const int64_t trans_b = x.attrs.i("trans_b", 0);
  NodeId add = kNone;
  ValueId y = x.outputs[0];
  const Dim out = b[trans_b ? 0 : 1];
  const ValueId bias = bias_after(g, y, out, add);
  Builder builder(g, x.origin + "|linear");
  Expr bias_1d = builder.wrap(bias);
  if (bias != kNone) {
    y = g.node(add).outputs[0];
    bias_1d = builder.reshape(bias_1d, {out.value()});
  }
  const std::vector<ValueId> in = g.node(n).inputs;
  const Expr linear =
      builder.op("ortrain.Linear", {builder.wrap(in[0]), builder.wrap(in[1]), bias_1d},
                 {{"trans_b", trans_b}});
  g.replace_uses(y, linear.id());
  return true;
}

}  // namespace

int fuse_linear(Graph& g, PassContext&) {
  int changed = 0;
  for (NodeId n : g.topo())
    if (g.node(n).op->name == "Gemm") {
      decompose_node(g, n, "linear");
      ++changed;
    }
  for (NodeId n : g.topo()) {
    if (g.node(n).op->name != "MatMul") continue;
    changed += swallow_transposes(g, n);
    changed += make_linear(g, n);
  }
  return changed;
}

}  // namespace ortrain
