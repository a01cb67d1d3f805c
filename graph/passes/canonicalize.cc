// canonicalize: one form for the passes after it. Drops Identity (a parameter behind it is used
// itself, so tied weights are one), applies the training-mode policy that operators state for
// themselves (OpDef::training_policy), folds what that made constant.
#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

bool identity(const Node& n) { return n.op && n.op->ew == Ew::kIdentity; }

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
