// Run-time conditions of unroll.h: If, choosing with Where, and gates that keep what the inactive
// side would give out of the gradients.
#include <algorithm>
#include <unordered_set>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/passes/unroll.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

std::string type_text(const Value& v) { return cat(name_of(v.dtype), v.shape.str()); }

}  // namespace

ValueId Unroll::scalar(NodeId n, ValueId condition) {
  const Value& c = g_.value(condition);
  if (c.dtype != DType::kBool || !c.shape.is_const() || element_count(c.shape.values()) != 1)
    fail(ErrorCode::kModel, g_.describe(n), ": its condition is ", type_text(c),
         ", expected one bool");
  Builder b(g_, g_.node(n).origin);
  return b.reshape(b.wrap(condition), {}).id();
}

ValueId Unroll::gate(ValueId v, ValueId active, const std::string& origin) {
  const NodeId n = g_.add_node(g_.ops().get(kGateOp), {v, active}, {}, 1, origin + "|gate");
  return g_.node(n).outputs[0];
}

void Unroll::gate_node(NodeId n) {
  const ValueId x = input(n, 0);
  if (list(x) || g_.value(x).source == Source::kConst || !is_float(g_.value(x).dtype)) {
    replace(g_.node(n).outputs[0], x);
    return erase(n);
  }
  g_.infer(n);
}

// Running statistics would take in batches that the inactive side never saw.
void Unroll::refuse_states(NodeId n, NodeId inner) const {
  if (g_.node(inner).op->state_inputs.empty() || ctx_.spec.mode != Mode::kTrain ||
      ctx_.spec.batch_norm == "frozen")
    return;
  refuse(n, cat("its condition is only known while training, and ", g_.describe(inner),
                " inside would update its running statistics all the same; --batch-norm frozen "
                "trains such a model"));
}

// Gates where values enter what only inputs [begin, end) of the If need: its branch, and what
// outside serves nothing else.
void Unroll::gate_branch(NodeId n, int begin, int end, ValueId active) {
  std::unordered_map<NodeId, size_t> inside_uses;
  std::unordered_set<NodeId> region;
  std::vector<NodeId> stack;
  const auto count_use = [&](ValueId v) {
    const NodeId up = v == kNone ? kNone : g_.value(v).producer;
    if (up == kNone || region.count(up)) return;
    size_t all = 0;
    for (ValueId out : g_.node(up).outputs) {
      if (out == kNone) continue;
      all += g_.value(out).uses.size();
      if (is_graph_result(g_, out)) return;
    }
    if (++inside_uses[up] == all && region.insert(up).second) stack.push_back(up);
  };
  for (int i = begin; i < end; ++i) count_use(input(n, i));
  while (!stack.empty()) {
    const NodeId at = stack.back();
    stack.pop_back();
    for (ValueId v : g_.node(at).inputs) count_use(v);
  }
  for (NodeId at : region) refuse_states(n, at);
  std::unordered_map<ValueId, ValueId> gates;
  std::vector<NodeId> ordered(region.begin(), region.end());
  std::sort(ordered.begin(), ordered.end());
  for (NodeId at : ordered) {
    const int inputs = static_cast<int>(g_.node(at).inputs.size());
    for (int i = 0; i < inputs; ++i) {
      const ValueId v = input(at, i);
      if (v == kNone || g_.value(v).source == Source::kConst || !is_float(g_.value(v).dtype))
        continue;
      if (const NodeId up = g_.value(v).producer; up != kNone && region.count(up)) continue;
      auto it = gates.find(v);
      if (it == gates.end()) {
        it = gates.emplace(v, gate(v, active, g_.node(n).origin)).first;
        need(g_.value(it->second).producer);
      }
      g_.set_input(at, i, it->second);
    }
  }
}

ValueId Unroll::select(NodeId n, ValueId condition, ValueId a, ValueId b, const std::string& what) {
  if (a == b) return a;
  const auto differ = [&](const std::string& one, const std::string& other) {
    refuse(n, cat(what, " is ", one, " or ", other, " by a condition that is only known while ",
                  "training (", cause(condition), "); both must have one type and shape"));
  };
  const List *p = list(a), *q = list(b);
  if (p || q) {
    if (!p || !q || p->optional != q->optional || p->split != kNone || q->split != kNone ||
        p->items.size() != q->items.size())
      differ("one list", "another");
    List out{.optional = p->optional};
    const std::vector<ValueId> left = p->items, right = q->items;
    for (size_t i = 0; i < left.size(); ++i)
      out.items.push_back(select(n, condition, left[i], right[i], what));
    return new_list(std::move(out), g_.node(n).origin);
  }
  const Value &x = g_.value(a), &y = g_.value(b);
  if (x.dtype != y.dtype || !(x.shape == y.shape)) differ(type_text(x), type_text(y));
  Builder build(g_, g_.node(n).origin);
  return build.where(build.wrap(condition), build.wrap(a), build.wrap(b)).id();
}

void Unroll::branch(NodeId n) {
  const int values = (static_cast<int>(g_.node(n).inputs.size()) - 1) / 2;
  if (const HostTensor* t = known(n, 0)) {
    if (t->count() != 1 || t->dtype() != DType::kBool)
      fail(ErrorCode::kModel, g_.describe(n), ": its condition has ", t->count(),
           " elements of type ", name_of(t->dtype()), ", expected one bool");
    const int begin = 1 + (t->as_int(0) ? 0 : values);
    const std::vector<ValueId> outputs = g_.node(n).outputs;
    for (size_t o = 0; o < outputs.size(); ++o)
      replace(outputs[o], input(n, begin + static_cast<int>(o)));
    return erase(n);
  }
  const ValueId condition = scalar(n, input(n, 0));
  if (training_) {
    Builder b(g_, g_.node(n).origin);
    gate_branch(n, 1, 1 + values, condition);
    gate_branch(n, 1 + values, 1 + 2 * values, b.op("Not", {b.wrap(condition)}).id());
  }
  const std::vector<ValueId> outputs = g_.node(n).outputs;
  for (int o = 0; o < static_cast<int>(outputs.size()); ++o)
    if (wanted(n, o))
      replace(outputs[static_cast<size_t>(o)],
              select(n, condition, input(n, 1 + o), input(n, 1 + values + o), cat("output ", o)));
  erase(n);
}

}  // namespace ortrain
