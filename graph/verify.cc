// verify(): checks a graph against the invariants of its stage (DESIGN section 14: I1, I2, I5, I12,
// I13) and returns the problems, one per line. Runs after every pass; only faults of our own can
// make it report.
#include <algorithm>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/op_def.h"
#include "graph/verify_scale.h"

namespace ortrain {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& g) : g_(g) {}

  std::string run() {
    check_nodes();
    check_uses();
    check_results();
    if (problems_.empty()) check_order();  // topo() relies on sound links
    if (problems_.empty()) check_updates();
    if (problems_.empty() && g_.stage >= Stage::kInferred) problems_ = loss_scale_problems(g_);
    return problems_;
  }

 private:
  template <class... Parts>
  void problem(const Parts&... parts) {
    problems_ += cat(parts..., "\n");
  }
  bool exists(ValueId v) const { return v >= 0 && v < g_.value_count(); }
  bool alive(ValueId v) const {
    return exists(v) && (g_.value(v).source != Source::kNode || g_.value(v).producer != kNone);
  }

  void check_nodes() {
    const bool typed = g_.stage >= Stage::kInferred;
    for (NodeId n = 0; n < g_.node_count(); ++n) {
      const Node& x = g_.node(n);
      if (!x.op) continue;
      if (x.origin.empty()) problem("I12: node ", n, " (", x.op->name, ") has no origin");
      for (size_t i = 0; i < x.outputs.size(); ++i) {
        const ValueId v = x.outputs[i];
        if (v == kNone) continue;
        if (!exists(v) || g_.value(v).producer != n || g_.value(v).source != Source::kNode ||
            g_.value(v).output_index != static_cast<int>(i))
          problem("I1: output ", i, " of ", g_.describe(n), " (%", v, ") has another producer");
        else if (typed && (!g_.value(v).typed || g_.value(v).dtype == DType::kUndefined))
          problem("I2: output ", i, " of ", g_.describe(n), " (%", v, ") has no type");
      }
      for (ValueId v : x.inputs)
        if (v != kNone && !alive(v)) problem("I1: ", g_.describe(n), " reads dead value %", v);
    }
    for (ValueId v = 0; v < g_.value_count(); ++v) {
      const Value& x = g_.value(v);
      if (x.source == Source::kNode && x.producer != kNone &&
          (x.producer >= g_.node_count() || !g_.node(x.producer).op))
        problem("I1: value %", v, " is produced by an erased node");
      if (x.source != Source::kNode && x.producer != kNone)
        problem("I1: source %", v, " has a producer");
      if (x.source != Source::kNode && x.source != Source::kInput && !g_.tensor(v))
        problem("I1: source ", g_.describe_value(v), " has no contents");
    }
  }

  void check_uses() {
    std::vector<std::vector<NodeId>> uses(static_cast<size_t>(g_.value_count()));
    for (NodeId n = 0; n < g_.node_count(); ++n)
      for (ValueId v : g_.node(n).inputs)
        if (exists(v)) uses[static_cast<size_t>(v)].push_back(n);
    for (ValueId v = 0; v < g_.value_count(); ++v) {
      std::vector<NodeId> listed = g_.value(v).uses;
      std::sort(listed.begin(), listed.end());
      if (listed != uses[static_cast<size_t>(v)]) problem("I1: use list of %", v, " is wrong");
    }
  }

  void check_results() {
    if (g_.outputs().size() != g_.output_names().size())
      problem("I1: outputs and output names differ in number");
    for (ValueId v : g_.outputs()) {
      if (!alive(v)) problem("I1: graph output %", v, " is dead");
      if (alive(v) && g_.stage >= Stage::kInferred && !g_.value(v).typed)
        problem("I2: graph output %", v, " has no type");
    }
    for (const auto& [v, info] : g_.params) {
      if (!alive(v) || g_.value(v).producer != kNone)
        problem("I1: parameter record of %", v, ", which is no source");
      else if (info.trainable && g_.value(v).source != Source::kParam)
        problem("I1: trainable ", g_.describe_value(v), " is not a parameter");
    }
  }

  void check_order() {
    std::vector<NodeId> topo;
    try {
      topo = g_.topo();
    } catch (const Error& e) {
      return problem("I1: ", e.what());
    }
    order_ = g_.order.empty() ? topo : g_.order;
    position_.assign(static_cast<size_t>(g_.node_count()), -1);
    for (size_t i = 0; i < order_.size(); ++i) {
      const NodeId n = order_[i];
      if (n < 0 || n >= g_.node_count() || !g_.node(n).op || position_[static_cast<size_t>(n)] >= 0)
        return problem("order: entry ", i, " is no live node, or listed twice");
      position_[static_cast<size_t>(n)] = static_cast<int64_t>(i);
      for (ValueId v : g_.node(n).inputs)
        if (v != kNone && g_.value(v).producer != kNone &&
            position_[static_cast<size_t>(g_.value(v).producer)] < 0)
          return problem("order: ", g_.describe(n), " runs before its input %", v);
    }
    if (order_.size() != topo.size())
      problem("order: lists ", order_.size(), " of ", topo.size(), " nodes");
    if (g_.stage == Stage::kScheduled && g_.order.empty() && !topo.empty())
      problem("order: missing in a scheduled graph");
  }

  void check_updates() {
    std::vector<ValueId> written;
    for (const StateUpdate& u : g_.updates()) {
      if (!alive(u.state) || !alive(u.next)) {
        problem("I5: update of a dead value");
        continue;
      }
      const Value &state = g_.value(u.state), &next = g_.value(u.next);
      const std::string name = g_.describe_value(u.state);
      if (state.source != Source::kParam && state.source != Source::kState)
        problem("I5: update of ", name, ", which is neither parameter nor state");
      // A constant or another state's old contents are copied at the end of the step.
      if (next.producer == kNone && next.source != Source::kConst && next.source != Source::kState)
        problem("I5: ", name, " takes a value that no node makes");
      if (std::count(written.begin(), written.end(), u.state))
        problem("I5: ", name, " has two writers");
      written.push_back(u.state);
      if (g_.stage >= Stage::kInferred &&
          (state.dtype != next.dtype || !(state.shape == next.shape)))
        problem("I5: ", name, " is ", name_of(state.dtype), state.shape.str(), " but takes ",
                name_of(next.dtype), next.shape.str());
      if (g_.stage < Stage::kScheduled || next.producer == kNone) continue;
      for (NodeId reader : state.uses)
        if (position_[static_cast<size_t>(reader)] > position_[static_cast<size_t>(next.producer)])
          problem("I5: ", g_.describe(reader), " reads ", name, " after its new value is made");
    }
  }

  const Graph& g_;
  std::string problems_;
  std::vector<NodeId> order_;
  std::vector<int64_t> position_;  // by node, -1 = not in the order
};

}  // namespace

std::string verify(const Graph& g) { return Verifier(g).run(); }

}  // namespace ortrain
