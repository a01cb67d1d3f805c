// See share_node.h.
#include "ops/common/share_node.h"

#include "graph/op_def.h"

namespace ortrain::ops {

Expr share_node(Builder& b, std::string_view op, const std::vector<Expr>& inputs,
                const Attrs& attrs, int index) {
  Graph& g = b.graph();
  std::vector<ValueId> ids;
  for (const Expr& e : inputs) ids.push_back(e.id());
  while (!ids.empty() && ids.back() == kNone) ids.pop_back();
  NodeId found = kNone;
  for (NodeId n : g.value(ids[0]).uses) {
    const Node& x = g.node(n);
    if (x.op->name == op && x.inputs == ids && x.attrs == attrs) found = n;
  }
  if (found == kNone) found = g.add_node(g.ops().get(op), ids, attrs, 0, b.origin());
  const ValueId v = g.add_output(found, index);
  g.infer(found);
  return b.wrap(v);
}

}  // namespace ortrain::ops
