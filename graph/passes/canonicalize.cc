// canonicalize: one form for the passes after it. Drops Identity (a parameter behind it is used
// itself, so tied weights are one), applies the training-mode policy that operators state for
// themselves (OpDef::training_policy), folds what that made constant.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

bool identity(const Node& n) { return n.op && n.op->ew == Ew::kIdentity; }

// Exporters merge equal initializers and reach the others through Identity. Scales and biases that
// start all-equal are then one tensor although the model had several.
void tell_merged(const Graph& g, PassContext& ctx) {
  int merged = 0;
  std::string groups;
  for (ValueId v : g.sources(Source::kParam)) {
    if (g.value(v).shape.rank() != 1 || g.tensor(v)->count() < 2 || !uniform_contents(*g.tensor(v)))
      continue;
    std::vector<NodeId> users;
    std::string names = g.describe_value(v);
    int aliases = 0;
    for (NodeId n : g.value(v).uses) {
      if (!identity(g.node(n))) {
        users.push_back(n);
        continue;
      }
      const Value& alias = g.value(g.node(n).outputs[0]);
      users.insert(users.end(), alias.uses.begin(), alias.uses.end());
      names += " = " + g.describe_value(g.node(n).outputs[0]);
      ++aliases;
    }
    std::sort(users.begin(), users.end());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    if (aliases == 0 || users.size() < 2) continue;
    merged += aliases + 1;
    if (groups.size() < 400) groups += (groups.empty() ? "" : "; ") + names;
  }
  if (merged > 0)
    ctx.messages.push_back(
        cat(merged, " tensors look merged by the exporter; trained as one: ", groups));
}

int drop_identities(Graph& g) {
  int dropped = 0;
  for (NodeId n : g.topo()) {
    if (!identity(g.node(n))) continue;
    const ValueId from = g.node(n).outputs[0], to = g.node(n).inputs[0];
    if (g.value(to).name.empty()) g.value(to).name = g.value(from).name;
    g.replace_uses(from, to);
    dropped += g.erase_if_dead(n);
  }
  return dropped;
}

int apply_policy(Graph& g, const StepSpec& spec) {
  TrainingPolicy policy;
  policy.training = spec.mode == Mode::kTrain || spec.mode == Mode::kGrads;
  policy.update_states = spec.mode == Mode::kTrain;
  policy.batch_norm_frozen = spec.batch_norm == "frozen";
  policy.as_written = spec.file_modes;
  policy.seed = spec.seed;
  int applied = 0;
  for (NodeId n : g.topo()) {
    if (!g.node(n).op || !g.node(n).op->training_policy) continue;
    if (policy.training && policy.step == kNone) policy.step = step_state(g);
    const std::string who = g.describe(n);
    g.node(n).op->training_policy(g, n, policy);
    ++applied;
    for (size_t i = 0; i < g.updates().size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (g.updates()[i].state == g.updates()[j].state)
          fail(ErrorCode::kUnsupported, who, " shares its running state ",
               g.describe_value(g.updates()[i].state),
               " with another node; --batch-norm frozen trains such a model");
  }
  return applied;
}

}  // namespace

void pass_canonicalize(Graph& g, PassContext& ctx) {
  const bool training = ctx.spec.mode == Mode::kTrain || ctx.spec.mode == Mode::kGrads;
  if (training) tell_merged(g, ctx);
  const int dropped = drop_identities(g);
  const int applied = apply_policy(g, ctx.spec);
  g.erase_dead();
  int folded = 0;
  for (NodeId n : g.topo()) folded += try_fold(g, n, ctx.evaluate);
  g.erase_dead();
  ctx.did = cat(dropped, " identities dropped, ", applied, " nodes set to ",
                training ? "training" : "inference", " mode, ", folded, " folded");
}

}  // namespace ortrain
