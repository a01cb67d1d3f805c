// From a compiled graph to steps: choose kernels, decide homes, plan the arena, turn homes into
// places.
#include "runtime/plan.h"

#include <algorithm>
#include <cstdio>

#include "graph/error.h"
#include "runtime/lower.h"
#include "runtime/memplan.h"
#include "runtime/storage.h"

namespace ortrain {
namespace {

class Planner {
 public:
  Planner(Graph& g, ParamStore& store, const SelectOptions& options)
      : g_(g), store_(store), options_(options) {}

  Plan run(const ParamStore::Copied& copied) {
    decompose_missing(g_, options_);
    order_ = g_.order.empty() ? g_.topo() : g_.order;
    store_.add(g_, copied);
    pack_constants();
    storage_ = assign_storage(g_, order_);
    select_kernels();
    plan_arena();
    describe_arena();
    resolve();
    return std::move(plan_);
  }

 private:
  bool is_read(ValueId v) const {
    const auto& outputs = g_.outputs();
    return !g_.value(v).uses.empty() ||
           std::find(outputs.begin(), outputs.end(), v) != outputs.end() ||
           std::any_of(g_.updates().begin(), g_.updates().end(),
                       [v](const StateUpdate& u) { return u.next == v; });
  }

  void pack_constants() {
    std::vector<const HostTensor*> tensors;
    std::vector<ValueId> ids;
    for (ValueId v : g_.sources(Source::kConst)) {
      if (!is_read(v)) continue;
      ORTRAIN_CHECK(g_.tensor(v) != nullptr, "constant without contents");
      tensors.push_back(g_.tensor(v));
      ids.push_back(v);
    }
    const auto where = store_.add_constants(tensors);
    constants_.resize(static_cast<size_t>(g_.value_count()), nullptr);
    for (size_t i = 0; i < ids.size(); ++i)
      constants_[static_cast<size_t>(ids[i])] = static_cast<const std::byte*>(where[i]);
  }

  void select_kernels() {
    for (size_t i = 0; i < order_.size(); ++i) {
      steps_before_.push_back(static_cast<int>(plan_.steps.size()));
      const NodeId n = order_[i];
      const Node& node = g_.node(n);
      if (node.op->view) {
        ++plan_.views;
        continue;
      }
      Selection s = select_kernel(g_, n, options_);
      plan_.kernels.push_back(explain(g_.describe(n), s));
      PlanStep step;
      step.node = g_.describe(n);
      step.op = node.op->name;
      step.again = node.origin.find("|recompute") != std::string::npos;
      step.chosen = s.name;
      step.flops = node.op->flops ? node.op->flops(g_, node) : 0;
      plan_.flops += step.flops;
      step.kernel = std::move(s.kernel);
      if (step.kernel.workspace > 0) {
        const int now = static_cast<int>(i);
        workspaces_.emplace_back(plan_.steps.size(), storage_.intervals.size());
        storage_.intervals.push_back({step.kernel.workspace, now, now, -1});
        plan_.workspace_bytes = std::max(plan_.workspace_bytes, step.kernel.workspace);
      }
      nodes_.push_back(n);
      plan_.steps.push_back(std::move(step));
    }
  }

  void plan_arena() {
    const MemPlan m = plan_memory(storage_.intervals);
    offsets_ = m.offsets;
    plan_.arena_bytes = m.peak;
    plan_.arena_lower_bound = m.lower_bound;
    plan_.arena_order = m.order;
    plan_.in_place = storage_.in_place;
    plan_.direct_updates = storage_.direct_updates;
    plan_.params = store_.param_bytes();
    plan_.states = store_.state_bytes();
    plan_.constants = store_.constant_bytes();
  }

  // The arena's contents over the steps, in order of their beginning.
  void describe_arena() {
    std::vector<std::string> names(storage_.intervals.size());
    for (size_t v = storage_.home.size(); v-- > 0;) {
      const Home& h = storage_.home[v];
      if (h.kind != Home::Kind::kArena) continue;
      const Value& x = g_.value(static_cast<ValueId>(v));
      std::string& name = names[static_cast<size_t>(h.index)];
      if (name.empty() || !x.name.empty()) name = x.name.empty() ? cat("%", v) : x.name;
    }
    std::vector<bool> scratch(names.size(), false);
    for (const auto& [step, interval] : workspaces_) {
      names[interval] = plan_.steps[step].node;
      scratch[interval] = true;
    }
    const int end = static_cast<int>(plan_.steps.size()) - 1;
    const auto step_of = [&](int time) {
      return time < static_cast<int>(steps_before_.size())
                 ? steps_before_[static_cast<size_t>(time)]
                 : end + 1;
    };
    for (size_t i = 0; i < names.size(); ++i) {
      const Interval& x = storage_.intervals[i];
      const int first = std::min(step_of(x.first), end);
      plan_.blocks.push_back({names[i], offsets_[i], x.bytes, first,
                              std::max(first, step_of(x.last + 1) - 1), scratch[i]});
    }
    std::stable_sort(plan_.blocks.begin(), plan_.blocks.end(),
                     [](const PlanBlock& a, const PlanBlock& b) { return a.first < b.first; });
  }

  Place place(const Home& h) const {
    switch (h.kind) {
      case Home::Kind::kNowhere: break;
      case Home::Kind::kArena:
        return {Place::Kind::kArena, offsets_[static_cast<size_t>(h.index)], nullptr};
      case Home::Kind::kStored: return {Place::Kind::kFixed, 0, store_.bind(g_, h.index)};
      case Home::Kind::kConst:
        return {Place::Kind::kFixed, 0, constants_[static_cast<size_t>(h.index)]};
      case Home::Kind::kInput: return {Place::Kind::kInput, static_cast<size_t>(h.index), nullptr};
    }
    return {};
  }

  PlanTensor tensor(ValueId v, const Home& h) const {
    const Value& x = g_.value(v);
    return {x.name, x.dtype, x.shape.is_const() ? x.shape.values() : Dims{}, place(h)};
  }

  void resolve() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      PlanStep& step = plan_.steps[i];
      const Node& node = g_.node(nodes_[i]);
      for (ValueId v : node.inputs) {
        step.in.push_back(v == kNone ? Place{} : place(storage_.home[static_cast<size_t>(v)]));
        if (v != kNone)
          step.bytes +=
              static_cast<size_t>(g_.value(v).shape.count().value()) * size_of(g_.value(v).dtype);
      }
      for (ValueId v : node.outputs) {
        step.out.push_back(v == kNone ? PlanTensor{}
                                      : tensor(v, storage_.home[static_cast<size_t>(v)]));
        if (v != kNone) step.bytes += step.out.back().bytes();
      }
      step.in.resize(std::max(step.in.size(), node.op->inputs.size()));  // kernel.h: never shorter
      step.out.resize(std::max(step.out.size(), node.op->outputs.size()));
    }
    for (const auto& [step, interval] : workspaces_)
      plan_.steps[step].workspace = offsets_[interval];
    for (const CopyAtEnd& c : storage_.copies)
      plan_.copies.push_back({place(c.from), place(c.to), c.bytes});
    for (size_t i = 0; i < g_.inputs().size(); ++i) {
      const ValueId v = g_.inputs()[i];
      plan_.inputs.push_back(
          tensor(v, is_read(v) ? Home{Home::Kind::kInput, static_cast<int>(i)} : Home{}));
    }
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      plan_.outputs.push_back(tensor(g_.outputs()[i], storage_.output_home[i]));
      plan_.outputs.back().name = g_.output_names()[i];
    }
  }

  Graph& g_;
  ParamStore& store_;
  const SelectOptions& options_;
  Plan plan_;
  std::vector<NodeId> order_;
  Storage storage_;
  std::vector<size_t> offsets_;
  std::vector<const std::byte*> constants_;            // per value
  std::vector<NodeId> nodes_;                          // per step
  std::vector<int> steps_before_;                      // per node of the order
  std::vector<std::pair<size_t, size_t>> workspaces_;  // (step, interval)
};

}  // namespace

Plan make_plan(Graph& g, ParamStore& store, const SelectOptions& options,
               const ParamStore::Copied& copied) {
  return Planner(g, store, options).run(copied);
}

int Plan::output(std::string_view wanted) const {
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].name == wanted) return static_cast<int>(i);
  return -1;
}

std::string bytes_text(size_t bytes) {
  char text[32];
  if (bytes < 10 * 1024)
    std::snprintf(text, sizeof text, "%zu B", bytes);
  else if (bytes < (size_t{10} << 20))
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024);
  else if (bytes < (size_t{10} << 30))
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  else
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string memory_text(const Plan& p) {
  return cat(bytes_text(p.params), " parameters + ", bytes_text(p.states), " states + ",
             bytes_text(p.constants), " constants + ", bytes_text(p.arena_bytes),
             " activations, gradients and scratch = ", bytes_text(p.peak_bytes()), " (",
             p.peak_bytes(), " bytes); arena planned by ", p.arena_order, ", at least ",
             bytes_text(p.arena_lower_bound), " needed; ", p.steps.size(), " steps, ", p.views,
             " views, ", p.in_place, " in place, ", p.direct_updates, " states updated in place, ",
             p.copies.size(), " copies");
}

void Arena::allocate() {
  if (buffer_.bytes() >= want_) return;
  buffer_ = Buffer(want_);
  buffer_.prefault();
}

}  // namespace ortrain
