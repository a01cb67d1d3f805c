// See optimizer_rules.h.
#include "graph/passes/optimizer_rules.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/trainable.h"

namespace ortrain {

OptimizerRules::OptimizerRules(Graph& g, PassContext& ctx) : g_(g), spec_(ctx.spec.optimizer) {
  if (spec_.name != "sgd" && spec_.name != "adam" && spec_.name != "adamw")
    fail(ErrorCode::kUsage, "optimizer '", spec_.name, "' is unknown; there are sgd, adam, adamw");
  if (spec_.schedule != "constant" && spec_.schedule != "linear" && spec_.schedule != "cosine")
    fail(ErrorCode::kUsage, "schedule '", spec_.schedule,
         "' is unknown; there are constant, linear, cosine");
}

Expr OptimizerRules::learning_rate(Expr step) const {
  return step.builder().op("ortrain.LearningRate", {step},
                           {{"schedule", spec_.schedule},
                            {"lr", spec_.lr},
                            {"min_lr", spec_.min_lr},
                            {"warmup_steps", spec_.warmup_steps},
                            {"total_steps", spec_.total_steps}});
}

bool OptimizerRules::same_bucket(ValueId a, ValueId b) const {
  return g_.value(a).dtype == g_.value(b).dtype;
}

double OptimizerRules::weight_decay(ValueId param) const {
  const bool norm_bias = std::count(spec_.no_decay.begin(), spec_.no_decay.end(), "norm_bias") > 0;
  if (norm_bias && g_.value(param).shape.rank() <= 1) return 0;
  std::vector<std::string> regexes = spec_.no_decay;
  std::erase(regexes, "norm_bias");
  return matches_any(regexes, g_.value(param).name) ? 0 : spec_.weight_decay;
}

ValueId OptimizerRules::state_like(ValueId param, const char* suffix) {
  const Value& p = g_.value(param);
  const std::string name = p.name + "/" + suffix;
  return g_.add_state(HostTensor(p.dtype, p.shape.values()), name);
}

void OptimizerRules::update(const UpdateInputs& in, const std::vector<GradSlot>& bucket) {
  const bool sgd = spec_.name == "sgd";
  Builder b(g_, cat(g_.value(bucket[0].param).name, bucket.size() > 1 ? "..." : "", "|optimizer"));
  std::vector<Expr> inputs{in.lr, in.step, in.apply, in.scale};
  std::vector<double> decay;
  std::vector<ValueId> targets;  // what each output replaces
  for (const GradSlot& s : bucket) {
    std::vector<ValueId> states;
    if (!sgd) states = {state_like(s.param, "exp_avg"), state_like(s.param, "exp_avg_sq")};
    if (sgd && spec_.momentum != 0) states = {state_like(s.param, "momentum")};
    inputs.push_back(b.wrap(s.param));
    inputs.push_back(b.wrap(s.grad));
    targets.push_back(s.param);
    for (ValueId v : states) {
      inputs.push_back(b.wrap(v));
      targets.push_back(v);
    }
    decay.push_back(weight_decay(s.param));
  }
  Attrs attrs{{"weight_decay", decay}};
  if (sgd) {
    attrs.set("momentum", spec_.momentum);
    attrs.set("dampening", spec_.dampening);
    attrs.set("nesterov", int64_t{spec_.nesterov});
  } else {
    attrs.set("beta1", spec_.beta1);
    attrs.set("beta2", spec_.beta2);
    attrs.set("eps", spec_.eps);
    attrs.set("decoupled", int64_t{spec_.name == "adamw"});
  }
  const char* op = !sgd                  ? "ortrain.AdamW"
                   : spec_.momentum != 0 ? "ortrain.SGDMomentum"
                                         : "ortrain.SGD";
  const std::vector<Expr> next = b.ops(op, inputs, attrs, static_cast<int>(targets.size()));
  for (size_t i = 0; i < targets.size(); ++i) g_.add_update(targets[i], next[i].id());
}

}  // namespace ortrain
