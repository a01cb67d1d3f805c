// optimizer: learning rate, global-norm clip, all-finite test and the parameter updates, all as
// nodes; the host decides nothing inside a step.
//
// Takes the outputs "grad/NAME" that autodiff left and replaces them by "loss", "lr" (f64) and,
// when clipping, "grad_norm". Parameters are updated in buckets of about 4 MB, in the order in
// which their gradients become ready. A step that is not finite changes no state at all (I14): the
// update kernels read `apply`, and running statistics pass through a select.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

constexpr size_t kBucketBytes = size_t{4} << 20;

struct Slot {
  ValueId param, grad;
  size_t ready = 0;  // position of the gradient's producer
};

class OptimizerBuilder {
 public:
  OptimizerBuilder(Graph& g, PassContext& ctx)
      : g_(g), ctx_(ctx), spec_(ctx.spec.optimizer), b_(g, "optimizer") {}

  void build() {
    if (spec_.name != "sgd" && spec_.name != "adam" && spec_.name != "adamw")
      fail(ErrorCode::kUsage, "optimizer '", spec_.name,
           "' is unknown; there are sgd, adam, adamw");
    if (spec_.schedule != "constant" && spec_.schedule != "linear" && spec_.schedule != "cosine")
      fail(ErrorCode::kUsage, "schedule '", spec_.schedule,
           "' is unknown; there are constant, linear, cosine");
    take_gradients();
    loss_ = b_.wrap(g_.outputs()[0]);
    step_ = b_.wrap(step_state(g_));
    lr_ = b_.op("ortrain.LearningRate", {step_},
                {{"schedule", spec_.schedule},
                 {"lr", spec_.lr},
                 {"min_lr", spec_.min_lr},
                 {"warmup_steps", spec_.warmup_steps},
                 {"total_steps", spec_.total_steps}});
    clip();
    std::vector<Expr> tested{loss_};
    if (norm_) tested.push_back(norm_);
    apply_ = ctx_.spec.skip_nonfinite ? b_.op("ortrain.AllFinite", tested)
                                      : b_.constant(HostTensor::scalar(true));
    guard_states();
    update_parameters();
    g_.add_update(step_.id(), (step_ + b_.cast(apply_, DType::kI64)).id());
    g_.clear_outputs();
    g_.add_output(loss_.id(), "loss");
    g_.add_output(lr_.id(), "lr");
    if (norm_) g_.add_output(norm_.id(), "grad_norm");
    ctx_.did = cat(spec_.name, ": ", slots_.size(), " parameters in ", buckets_, " buckets",
                   norm_ ? ", clipped by global norm" : "");
  }

 private:
  void take_gradients() {
    std::vector<size_t> position(static_cast<size_t>(g_.node_count()), 0);
    const std::vector<NodeId> order = g_.topo();
    for (size_t i = 0; i < order.size(); ++i) position[static_cast<size_t>(order[i])] = i + 1;
    size_t output = 1;
    for (const auto& [v, info] : g_.params) {
      if (!info.trainable) continue;
      ORTRAIN_CHECK(
          output < g_.outputs().size() && g_.output_names()[output] == "grad/" + g_.value(v).name,
          "autodiff left no gradient of " + g_.describe_value(v));
      const ValueId grad = g_.outputs()[output++];
      const NodeId n = g_.value(grad).producer;
      slots_.push_back({v, grad, n == kNone ? 0 : position[static_cast<size_t>(n)]});
    }
    std::stable_sort(slots_.begin(), slots_.end(),
                     [](const Slot& a, const Slot& b) { return a.ready < b.ready; });
  }

  // As torch.nn.utils.clip_grad_norm_: every gradient times min(1, max_norm / (norm + 1e-6)).
  void clip() {
    if (spec_.clip_norm <= 0) return;
    std::vector<Expr> grads;
    for (const Slot& s : slots_) grads.push_back(b_.wrap(s.grad));
    norm_ = b_.op("ortrain.GlobalNorm", grads);
    const Expr ratio = spec_.clip_norm / (norm_ + 1e-6);
    clip_scale_ = b_.op("Min", {ratio, b_.scalar(ratio.dtype(), 1)});
  }

  // Updates that other passes put here (running statistics) keep the old value on a skipped step.
  void guard_states() {
    if (!ctx_.spec.skip_nonfinite) return;
    for (size_t i = 0; i < g_.updates().size(); ++i) {
      const StateUpdate u = g_.updates()[i];
      Builder b(g_, g_.value(u.state).name + "|optimizer");
      const Expr kept = b.where(b.wrap(apply_.id()), b.wrap(u.next), b.wrap(u.state));
      g_.set_update(static_cast<int>(i), kept.id());
    }
  }

  double weight_decay(ValueId param) const {
    const bool norm_bias =
        std::count(spec_.no_decay.begin(), spec_.no_decay.end(), "norm_bias") > 0;
    if (norm_bias && g_.value(param).shape.rank() <= 1) return 0;
    std::vector<std::string> regexes = spec_.no_decay;
    std::erase(regexes, "norm_bias");
    return matches_any(regexes, g_.value(param).name) ? 0 : spec_.weight_decay;
  }

  ValueId state_like(ValueId param, const char* suffix) {
    const Value& p = g_.value(param);
    const std::string name = p.name + "/" + suffix;
    return g_.add_state(HostTensor(p.dtype, p.shape.values()), name);
  }

  void update_parameters() {
    std::vector<Slot> bucket;
    size_t bytes = 0;
    for (const Slot& s : slots_) {
      const size_t size = g_.tensor(s.param)->bytes();
      if (!bucket.empty() && (bytes + size > kBucketBytes ||
                              g_.value(s.param).dtype != g_.value(bucket[0].param).dtype)) {
        update(bucket);
        bucket.clear();
        bytes = 0;
      }
      bucket.push_back(s);
      bytes += size;
    }
    if (!bucket.empty()) update(bucket);
  }

  void update(const std::vector<Slot>& bucket) {
    const bool sgd = spec_.name == "sgd";
    std::vector<Expr> inputs{lr_, step_, apply_, clip_scale_};
    std::vector<double> decay;
    std::vector<ValueId> targets;  // what each output replaces
    for (const Slot& s : bucket) {
      std::vector<ValueId> states;
      if (!sgd) states = {state_like(s.param, "exp_avg"), state_like(s.param, "exp_avg_sq")};
      if (sgd && spec_.momentum != 0) states = {state_like(s.param, "momentum")};
      inputs.push_back(b_.wrap(s.param));
      inputs.push_back(b_.wrap(s.grad));
      targets.push_back(s.param);
      for (ValueId v : states) {
        inputs.push_back(b_.wrap(v));
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
    Builder b(g_,
              cat(g_.value(bucket[0].param).name, bucket.size() > 1 ? "..." : "", "|optimizer"));
    const char* op = !sgd                  ? "ortrain.AdamW"
                     : spec_.momentum != 0 ? "ortrain.SGDMomentum"
                                           : "ortrain.SGD";
    const std::vector<Expr> next = b.ops(op, inputs, attrs, static_cast<int>(targets.size()));
    for (size_t i = 0; i < targets.size(); ++i) g_.add_update(targets[i], next[i].id());
    ++buckets_;
  }

  Graph& g_;
  PassContext& ctx_;
  const OptimizerSpec& spec_;
  Builder b_;
  std::vector<Slot> slots_;
  Expr loss_, step_, lr_, norm_, clip_scale_, apply_;
  int buckets_ = 0;
};

}  // namespace

void pass_optimizer(Graph& g, PassContext& ctx) { OptimizerBuilder(g, ctx).build(); }

}  // namespace ortrain
