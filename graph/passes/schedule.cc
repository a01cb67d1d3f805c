// schedule: one total order of the live nodes (Graph::order), each node right before what needs it.
//
// Depth first from the step's results: running statistics first, then parameter updates in the
// order in which their gradients become ready, then outputs. So forward values that only backward
// needs are made there, and an update runs, and frees its gradients, as soon as it can. I5: what
// reads the old contents of a state goes before the node that makes the new ones.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"

namespace ortrain {
namespace {

class Scheduler {
 public:
  explicit Scheduler(Graph& g) : g_(g), mark_(static_cast<size_t>(g.node_count()), kNew) {
    for (const StateUpdate& u : g.updates()) {
      const NodeId writer = g.value(u.next).producer;
      for (NodeId reader : g.value(u.state).uses)
        if (reader != writer) before_[writer].push_back(reader);
    }
    for (auto& [writer, readers] : before_) {
      std::sort(readers.begin(), readers.end());
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    }
  }

  void from(ValueId root) {
    if (g_.value(root).producer == kNone) return;
    push(g_.value(root).producer);
    while (!stack_.empty()) {
      Frame& top = stack_.back();
      if (top.next == top.needs.size()) {
        mark_[static_cast<size_t>(top.node)] = kDone;
        g_.order.push_back(top.node);
        stack_.pop_back();
      } else {
        push(top.needs[top.next++]);
      }
    }
  }

 private:
  enum Mark : uint8_t { kNew, kOpen, kDone };
  struct Frame {
    NodeId node;
    std::vector<NodeId> needs;
    size_t next = 0;
  };

  void push(NodeId n) {
    Mark& mark = mark_[static_cast<size_t>(n)];
    if (mark == kDone) return;
    ORTRAIN_CHECK(mark == kNew, "I5: " + g_.describe(n) + " needs a state before and after it");
    mark = kOpen;
    Frame frame{n, {}};
    for (ValueId v : g_.node(n).inputs)
      if (v != kNone && g_.value(v).producer != kNone) frame.needs.push_back(g_.value(v).producer);
    if (const auto it = before_.find(n); it != before_.end())
      frame.needs.insert(frame.needs.end(), it->second.begin(), it->second.end());
    stack_.push_back(std::move(frame));
  }

  Graph& g_;
  std::vector<Mark> mark_;
  std::vector<Frame> stack_;
  std::map<NodeId, std::vector<NodeId>> before_;
};

}  // namespace

void pass_schedule(Graph& g, PassContext& ctx) {
  g.erase_dead();
  g.order.clear();
  Scheduler s(g);
  for (const StateUpdate& u : g.updates()) s.from(u.next);
  for (ValueId v : g.outputs()) s.from(v);
  g.stage = Stage::kScheduled;
  ctx.did = cat(g.order.size(), " nodes in order");
}

}  // namespace ortrain
