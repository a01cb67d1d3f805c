// See lower.h.
#include "runtime/lower.h"

#include <algorithm>

#include "graph/builder.h"
#include "graph/error.h"

namespace ortrain {
namespace {

// Every use of the node's outputs becomes a use of the decomposition's; the node is erased.
void replace(Graph& g, NodeId n) {
  Decompose d{Builder(g, g.node(n).origin + "|decompose"), n};
  const std::string who = g.describe(n);
  std::vector<Expr> outputs;
  try {
    outputs = g.node(n).op->decompose(d);
  } catch (const Error& e) {
    throw e.within(who);
  }
  const std::vector<ValueId> old = g.node(n).outputs;
  for (size_t i = 0; i < old.size(); ++i) {
    if (old[i] == kNone) continue;
    ORTRAIN_CHECK(i < outputs.size() && outputs[i],
                  cat("the decomposition of ", who, " lacks output ", i));
    const Value& was = g.value(old[i]);
    Value& now = g.value(outputs[i].id());
    ORTRAIN_CHECK(was.dtype == now.dtype && was.shape == now.shape,
                  cat("the decomposition of ", who, " gives output ", i, " as ", name_of(now.dtype),
                      now.shape.str(), " instead of ", name_of(was.dtype), was.shape.str()));
    if (now.name.empty()) now.name = was.name;
    g.replace_uses(old[i], outputs[i].id());
  }
  g.erase_if_dead(n);
}

}  // namespace

int decompose_missing(Graph& g, const SelectOptions& options) {
  const bool ordered = !g.order.empty();
  std::string missing;
  int replaced = 0;
  std::vector<NodeId> work = ordered ? g.order : g.topo();
  std::vector<NodeId> done;
  // A stack of nodes still to look at, next one last; new nodes are looked at in their turn.
  std::reverse(work.begin(), work.end());
  while (!work.empty()) {
    const NodeId n = work.back();
    work.pop_back();
    if (!g.node(n).op) continue;
    if (has_kernel(g, n, options)) {
      done.push_back(n);
      continue;
    }
    if (!g.node(n).op->decompose) {
      missing += cat("\n  ", g.describe(n));
      continue;
    }
    const NodeId first = g.node_count();
    replace(g, n);
    ++replaced;
    for (NodeId added = g.node_count(); added-- > first;) work.push_back(added);
  }
  if (!missing.empty())
    fail(ErrorCode::kUnsupported, "no kernel for device ", options.device, " for:", missing);
  if (replaced == 0) return 0;
  g.erase_dead();
  if (ordered) {
    std::erase_if(done, [&](NodeId n) { return !g.node(n).op; });
    g.order = std::move(done);
  }
  return replaced;
}

}  // namespace ortrain
