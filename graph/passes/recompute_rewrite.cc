// See recompute_rewrite.h.
#include "graph/passes/recompute_rewrite.h"

#include <map>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {
namespace {

class Rewriter {
 public:
  Rewriter(Graph& g, const RecomputeModel& model)
      : g_(g), model_(model), base_(g.order), now_(static_cast<size_t>(g.value_count())) {
    for (ValueId v = 0; v < g.value_count(); ++v) now_[static_cast<size_t>(v)] = v;
    made_again_.assign(model.values().size(), 0);
    fresh_.assign(now_.size(), 0);
  }

  void apply(const RecomputeModel::Sequence& sequence) {
    g_.order.clear();
    std::vector<char> done(static_cast<size_t>(g_.node_count()), 0);
    for (const auto& item : sequence) {
      const NodeId n = base_[static_cast<size_t>(item.node)];
      if (item.copy) {
        copy(n, item, done);
        continue;
      }
      const std::vector<ValueId> inputs = g_.node(n).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const ValueId is = inputs[i] == kNone ? kNone : here(inputs[i], done);
        if (is == inputs[i]) continue;
        before_.try_emplace(n, inputs);
        g_.set_input(n, static_cast<int>(i), is);
      }
      g_.order.push_back(n);
      done[static_cast<size_t>(n)] = 1;
    }
    for (ValueId v : g_.outputs()) place_views(v, done);
    for (const StateUpdate& u : g_.updates()) place_views(u.next, done);
    g_.erase_dead();
    std::erase_if(g_.order, [&](NodeId n) { return !g_.node(n).op; });
  }

 private:
  // What a read of v means at this place: v itself, its newest copy, or a view of that.
  ValueId here(ValueId v, std::vector<char>& done) {
    const int value = model_.value_of(v);
    const int version = value < 0 ? 0 : made_again_[static_cast<size_t>(value)];
    if (version == 0) {
      place_views(v, done);
      return v;
    }
    const size_t at = static_cast<size_t>(v);
    const NodeId n = g_.value(v).producer;
    ORTRAIN_CHECK(n != kNone, "a source is made again");
    if (!g_.node(n).op->view || fresh_[at] == version) return now_[at];
    std::vector<ValueId> inputs = g_.node(n).inputs;
    inputs[0] = here(inputs[0], done);
    fresh_[at] = version;
    return now_[at] = add(n, std::move(inputs), {true})[0];
  }

  std::vector<ValueId> add(NodeId n, std::vector<ValueId> inputs, const std::vector<bool>& wanted) {
    const Attrs attrs = g_.node(n).attrs;
    const NodeId made =
        g_.add_node(*g_.node(n).op, std::move(inputs), attrs, 0, g_.node(n).origin + "|recompute");
    const size_t outputs = g_.node(n).outputs.size();
    g_.node(made).outputs.assign(outputs, kNone);
    std::vector<ValueId> out(outputs, kNone);
    for (size_t i = 0; i < outputs; ++i)
      if (i < wanted.size() && wanted[i]) out[i] = g_.add_output(made, static_cast<int>(i));
    g_.infer(made);
    for (size_t i = 0; i < outputs; ++i) {
      if (out[i] == kNone) continue;
      const Value& was = g_.value(g_.node(n).outputs[i]);
      Value& now = g_.value(out[i]);
      now.dtype = was.dtype;
      now.shape = was.shape;
      now.name = was.name;
      now.has_ints = was.has_ints;
      now.ints = was.ints;
    }
    g_.order.push_back(made);
    return out;
  }

  void copy(NodeId n, const RecomputeModel::Item& item, std::vector<char>& done) {
    const auto changed = before_.find(n);
    std::vector<ValueId> inputs = changed == before_.end() ? g_.node(n).inputs : changed->second;
    for (ValueId& v : inputs)
      if (v != kNone) v = here(v, done);
    std::vector<bool> wanted;
    for (size_t i = 0; i < g_.node(n).outputs.size(); ++i)
      wanted.push_back(model_.written(item, i));
    const std::vector<ValueId> out = add(n, std::move(inputs), wanted);
    for (size_t i = 0; i < out.size(); ++i) {
      const ValueId v = g_.node(n).outputs[i];
      if (v == kNone || out[i] == kNone || !(item.makes & RecomputeModel::bit(i))) continue;
      now_[static_cast<size_t>(v)] = out[i];
      ++made_again_[static_cast<size_t>(model_.value_of(v))];
    }
  }

  // Views are placed where they are first read.
  void place_views(ValueId v, std::vector<char>& done) {
    std::vector<NodeId> chain;
    for (NodeId n = g_.value(v).producer;
         n != kNone && g_.node(n).op->view && !done[static_cast<size_t>(n)];
         n = g_.value(g_.node(n).inputs[0]).producer) {
      chain.push_back(n);
      done[static_cast<size_t>(n)] = 1;
    }
    g_.order.insert(g_.order.end(), chain.rbegin(), chain.rend());
  }

  Graph& g_;
  const RecomputeModel& model_;
  const std::vector<NodeId> base_;
  std::map<NodeId, std::vector<ValueId>> before_;  // inputs of nodes that got others
  std::vector<ValueId> now_;                       // per value of the graph: its newest copy
  std::vector<int> made_again_;                    // per value of the model: how often
  std::vector<int> fresh_;  // per view: the version of its memory that now_ is a view of
};

}  // namespace

void apply_recompute(Graph& g, const RecomputeModel& model,
                     const RecomputeModel::Sequence& sequence) {
  Rewriter(g, model).apply(sequence);
}

}  // namespace ortrain
