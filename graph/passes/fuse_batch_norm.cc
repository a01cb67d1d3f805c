// Rules of fuse_forward for BatchNormalization: the residual Add and the Relu (or Clip from 0) that
// follow it become its own input z and attributes, so that normalising, adding and clipping are one
// pass over memory, and so are their gradients.
#include <cmath>
#include <limits>

#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// The only user of v, if v is used exactly once and is no result; else kNone.
NodeId only_user(const Graph& g, ValueId v) {
  return single_use(g, v) && !is_graph_result(g, v) ? g.value(v).uses[0] : kNone;
}

// The upper bound of a relu-like node: infinity for Relu; nullopt for other nodes.
std::optional<double> relu_bound(const Graph& g, const Node& n) {
  if (n.op->ew == Ew::kRelu) return std::numeric_limits<double>::infinity();
  if (n.op->name != "Clip" || input(n, 1) == kNone || uniform(g, input(n, 1)) != 0.0)
    return std::nullopt;
  if (input(n, 2) == kNone) return std::numeric_limits<double>::infinity();
  const std::optional<double> high = uniform(g, input(n, 2));
  return high && *high > 0 ? high : std::nullopt;
}

bool same_type(const Graph& g, ValueId a, ValueId b) {
  return g.value(a).shape == g.value(b).shape && g.value(a).dtype == g.value(b).dtype;
}

int absorb(Graph& g, NodeId n) {
  int changed = 0;
  ValueId y = g.node(n).outputs[0];
  NodeId next = only_user(g, y);
  if (next == kNone || g.value(y).shape.rank() < 3) return 0;
  if (const Node& add = g.node(next);
      add.op->ew == Ew::kAdd && g.node(n).inputs.size() == 5 && add.inputs[0] != add.inputs[1]) {
    const ValueId z = add.inputs[0] == y ? add.inputs[1] : add.inputs[0];
    if (!same_type(g, y, z)) return 0;
    const ValueId sum = add.outputs[0];
    g.set_input(n, 5, z);
    g.replace_uses(sum, y);
    g.erase_if_dead(next);
    next = only_user(g, y);
    ++changed;
  }
  if (next == kNone) return changed;
  const std::optional<double> bound = relu_bound(g, g.node(next));
  if (!bound) return changed;
  Attrs& attrs = g.node(n).attrs;
  attrs.set("relu", int64_t{1});
  if (std::isfinite(*bound)) attrs.set("relu_max", *bound);
  g.replace_uses(g.node(next).outputs[0], y);
  g.erase_if_dead(next);
  return changed + 1;
}

}  // namespace

int fuse_batch_norm(Graph& g, PassContext&) {
  int changed = 0;
  for (NodeId n : g.topo())
    if (g.node(n).op && g.node(n).op->name == "BatchNormalization" && !g.node(n).attrs.has("relu"))
      changed += absorb(g, n);
  return changed;
}

}  // namespace ortrain
