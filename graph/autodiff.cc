// Reverse walk from the loss: each node's own formulas (OpDef::grad), broadcasting undone with
// SumTo, dtypes joined with Cast, contributions accumulated with Add in a fixed order.
//
// Promises: a gradient has its value's shape and dtype (I4); what is saved for backward is what the
// formulas use; nodes off the path from a wanted value to the loss are not touched. Refuses: nodes
// without a rule, all listed at once.
#include "graph/autodiff.h"

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/passes/window.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

bool maybe_float(const Value& x) { return !x.typed || is_float(x.dtype); }

std::string input_name(const Node& n, int i) {
  const auto& names = n.op->inputs;
  if (names.empty()) return std::to_string(i);
  std::string name = names[std::min(static_cast<size_t>(i), names.size() - 1)];
  while (!name.empty() && (name.back() == '?' || name.back() == '*')) name.pop_back();
  return name;
}

}  // namespace

Flow gradient_flow(const Node& n, int input) {
  if (n.op->grad.empty()) return n.op->decompose ? Flow::kDecompose : Flow::kMissing;
  const GradRule* rule = n.op->grad_rule(input);
  if (!rule) return Flow::kMissing;
  switch (rule->kind) {
    case GradRule::Kind::kFormula: return Flow::kFormula;
    case GradRule::Kind::kZero: return Flow::kStops;
    default: return Flow::kRefused;
  }
}

PerValue<bool> reaches(const Graph& g, const std::vector<ValueId>& roots) {
  PerValue<bool> out(g, false);
  for (ValueId v : roots) out[v] = maybe_float(g.value(v));
  const std::vector<NodeId> order = g.topo();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& n = g.node(*it);
    bool reached = false;
    for (ValueId v : n.outputs) reached |= v != kNone && out[v];
    if (!reached) continue;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const ValueId v = n.inputs[i];
      if (v != kNone && maybe_float(g.value(v)) &&
          gradient_flow(n, static_cast<int>(i)) != Flow::kStops)
        out[v] = true;
    }
  }
  return out;
}

PerValue<bool> depends(const Graph& g, const std::vector<ValueId>& sources) {
  PerValue<bool> out(g, false);
  for (ValueId v : sources) out[v] = true;
  for (NodeId id : g.topo()) {
    const Node& n = g.node(id);
    bool any = false;
    for (size_t i = 0; i < n.inputs.size(); ++i)
      any |= n.inputs[i] != kNone && out[n.inputs[i]] &&
             gradient_flow(n, static_cast<int>(i)) != Flow::kStops;
    if (!any) continue;
    for (ValueId v : n.outputs)
      if (v != kNone && maybe_float(g.value(v))) out[v] = true;
  }
  return out;
}

std::vector<std::string> gradient_problems(const Graph& g, ValueId loss,
                                           const std::vector<ValueId>& wanted) {
  std::vector<std::string> problems;
  PerValue<bool> to_loss = reaches(g, {loss}), from_wanted = depends(g, wanted);
  for (NodeId id : g.topo()) {
    const Node& n = g.node(id);
    bool on_path = false;
    for (ValueId v : n.outputs) on_path |= v != kNone && to_loss[v] && from_wanted[v];
    if (!on_path) continue;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (n.inputs[i] == kNone || !from_wanted[n.inputs[i]]) continue;
      const Flow flow = gradient_flow(n, static_cast<int>(i));
      const std::string where =
          cat(g.describe(id), ": input '", input_name(n, static_cast<int>(i)), "'");
      if (flow == Flow::kRefused)
        problems.push_back(cat(where, ": ", n.op->grad_rule(static_cast<int>(i))->why));
      else if (flow == Flow::kMissing)
        problems.push_back(cat(where, ": operator ", n.op->name, " has no gradient rule for it"));
    }
  }
  return problems;
}

std::vector<std::string> integers_between(const Graph& g, const std::vector<ValueId>& roots,
                                          std::vector<ValueId>& params) {
  PerValue<bool> reached(g, false);
  for (ValueId v : roots) reached[v] = maybe_float(g.value(v));
  const std::vector<NodeId> order = g.topo();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& n = g.node(*it);
    bool any = false, floats = false;
    for (ValueId v : n.outputs)
      if (v != kNone && reached[v]) any = true, floats |= maybe_float(g.value(v));
    for (size_t i = 0; any && i < n.inputs.size(); ++i) {
      const ValueId v = n.inputs[i];
      const Flow flow = gradient_flow(n, static_cast<int>(i));
      if (v == kNone || flow == Flow::kStops) continue;
      if (flow == Flow::kRefused || floats == maybe_float(g.value(v))) reached[v] = true;
    }
  }
  PerValue<bool> path = reaches(g, roots);
  std::erase_if(params, [&](ValueId v) { return path[v] || !reached[v]; });
  std::vector<std::string> nodes;
  PerValue<bool> behind = depends(g, params);
  for (NodeId id : order) {
    const Node& n = g.node(id);
    if (n.outputs.empty() || n.outputs[0] == kNone || maybe_float(g.value(n.outputs[0]))) continue;
    for (size_t i = 0; reached[n.outputs[0]] && i < n.inputs.size(); ++i)
      if (n.inputs[i] != kNone && behind[n.inputs[i]] &&
          gradient_flow(n, static_cast<int>(i)) == Flow::kRefused)
        nodes.push_back(cat(g.describe(id), ": ", n.op->grad_rule(static_cast<int>(i))->why));
  }
  return nodes;
}

namespace {

class Differentiator {
 public:
  Differentiator(Graph& g, ValueId loss, const std::vector<ValueId>& wanted, ValueId seed)
      : g_(g), loss_(loss), seed_(seed), wanted_(wanted), needs_(g, false), dy_(g, kNone) {}

  std::vector<ValueId> run() {
    decompose_path();
    if (const auto problems = gradient_problems(g_, loss_, wanted_); !problems.empty()) {
      std::string text = "cannot differentiate:";
      for (const std::string& p : problems) text += "\n  " + p;
      throw Error(ErrorCode::kUnsupported, text);
    }
    needs_ = depends(g_, wanted_);
    const std::vector<NodeId> order = g_.topo();
    Builder b(g_, "loss|autodiff");
    dy_[loss_] = seed_ != kNone ? seed_ : b.ones_like(b.wrap(loss_)).id();
    for (auto it = order.rbegin(); it != order.rend(); ++it) visit(*it);
    std::vector<ValueId> out;
    for (ValueId v : wanted_) out.push_back(dy_[v]);
    return out;
  }

 private:
  // Replaces the nodes on the path that have no formulas of their own, until none is left.
  void decompose_path() {
    for (bool again = true; again;) {
      again = false;
      PerValue<bool> to_loss = reaches(g_, {loss_}), from_wanted = depends(g_, wanted_);
      for (NodeId id : g_.topo()) {
        const Node& n = g_.node(id);
        if (!n.op->grad.empty() || !n.op->decompose) continue;
        bool on_path = false;
        for (ValueId v : n.outputs) on_path |= v != kNone && to_loss[v] && from_wanted[v];
        if (!on_path) continue;
        const int output = g_.value(loss_).producer == id ? g_.value(loss_).output_index : kNone;
        const size_t position = output == kNone ? 0 : loss_position();
        decompose_node(g_, id, "decompose");
        if (output != kNone) loss_ = g_.outputs()[position];
        again = true;
      }
    }
  }

  // The loss is followed through its place among the graph's outputs.
  size_t loss_position() const {
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      if (g_.outputs()[i] == loss_) return i;
    check_failed(__FILE__, __LINE__, "loss is an output", "a decomposed loss must be an output");
  }

  void visit(NodeId id) {
    std::vector<ValueId> dys;
    bool any = false;
    for (ValueId v : g_.node(id).outputs) {
      dys.push_back(v == kNone ? kNone : dy_[v]);
      any |= dys.back() != kNone;
    }
    if (!any) return;
    for (int i = 0; i < static_cast<int>(g_.node(id).inputs.size()); ++i) {
      const ValueId x = g_.node(id).inputs[static_cast<size_t>(i)];
      if (x == kNone || !needs_[x] || gradient_flow(g_.node(id), i) != Flow::kFormula) continue;
      Grad grad{Builder(g_, g_.node(id).origin + "|autodiff"), id, i, dys};
      const Expr dx = g_.node(id).op->grad_rule(i)->formula(grad);
      if (dx) accumulate(grad.b, x, fit(grad.b, dx, x, id));
    }
  }

  // The gradient in the shape and dtype of x: sums what the op broadcast, spreads what the formula
  // left small.
  Expr fit(Builder& b, Expr dx, ValueId x, NodeId id) {
    const Expr like = b.wrap(x);
    ORTRAIN_CHECK(is_float(dx.dtype()), "gradient of " + g_.describe(id) + " is no float");
    if (dx.rank() >= like.rank() && !(dx.shape() == like.shape()))
      dx = b.sum_to(dx, Shape(like.shape()));
    dx = b.cast(dx, like.dtype());
    dx = b.expand_like(dx, like);
    ORTRAIN_CHECK(dx.shape() == like.shape() && dx.dtype() == like.dtype(),
                  cat("I4: gradient of ", g_.describe(id), " has shape ", dx.shape().str(), " for ",
                      like.shape().str()));
    return dx;
  }

  void accumulate(Builder& b, ValueId x, Expr dx) {
    dy_[x] = dy_[x] == kNone ? dx.id() : (b.wrap(dy_[x]) + dx).id();
  }

  Graph& g_;
  ValueId loss_, seed_;
  const std::vector<ValueId>& wanted_;
  PerValue<bool> needs_;
  PerValue<ValueId> dy_;
};

}  // namespace

std::vector<ValueId> differentiate(Graph& g, ValueId loss, const std::vector<ValueId>& wanted,
                                   ValueId seed) {
  return Differentiator(g, loss, wanted, seed).run();
}

// Output 0 is the loss. Adds the outputs "grad/NAME", in the order of Graph::params; the optimizer
// pass takes them from there.
void pass_autodiff(Graph& g, PassContext& ctx) {
  std::vector<ValueId> wanted;
  for (const auto& [v, info] : g.params)
    if (info.trainable) wanted.push_back(v);
  const int before = g.node_count();
  Builder seeded(g, "loss|autodiff");
  const Expr seed = gradient_seed(seeded, ctx.spec);
  const bool unscale = seed && ctx.spec.mode == Mode::kGrads;  // in training the optimizer does
  const std::vector<ValueId> grads = differentiate(g, g.outputs()[0], wanted, seed.id());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string name = g.value(wanted[i]).name;
    Builder b(g, name + "|autodiff");
    Expr d = b.wrap(grads[i]);
    if (!d) {
      ctx.messages.push_back(cat("parameter '", name, "' gets no gradient; it stays as it is"));
      d = b.zeros_like(b.wrap(wanted[i]));
    }
    if (const auto& perm = g.params[wanted[i]].perm;
        !perm.empty() && ctx.spec.mode == Mode::kGrads) {
      std::vector<int64_t> inverse(perm.size());  // physical axis i is logical axis perm[i]
      for (size_t a = 0; a < perm.size(); ++a)
        inverse[static_cast<size_t>(perm[a])] = static_cast<int64_t>(a);
      d = b.transpose(d, inverse);
    }
    if (unscale) {
      const DType dtype = d.dtype();
      d = b.cast(b.cast(d, DType::kF64) / loss_scale(b, ctx.spec.loss_scale), dtype);
    }
    g.add_output(d.id(), "grad/" + name);
  }
  g.erase_dead();
  g.stage = Stage::kDifferentiated;
  ctx.did = cat(g.node_count() - before, " nodes for ", wanted.size(), " gradients");
}

}  // namespace ortrain
