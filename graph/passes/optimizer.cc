// optimizer: learning rate, global-norm clip, all-finite test and the parameter updates, all as
// nodes; the host decides nothing inside a step.
//
// Takes the outputs "grad/NAME" that autodiff left and replaces them by "loss", "lr" (f64) and,
// when clipping, "grad_norm". Parameters are updated in buckets of about 4 MB, in the order in
// which their gradients become ready, by the rules of optimizer_rules.h. A step that is not finite
// changes no state at all (I14): the update kernels read `apply`, and running statistics pass
// through a select.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/optimizer_rules.h"
#include "graph/passes/passes.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

constexpr size_t kBucketBytes = size_t{4} << 20;

class OptimizerBuilder {
 public:
  OptimizerBuilder(Graph& g, PassContext& ctx)
      : g_(g), ctx_(ctx), spec_(ctx.spec.optimizer), rules_(g, ctx), b_(g, "optimizer") {}

  void build() {
    take_gradients();
    loss_ = b_.wrap(g_.outputs()[0]);
    step_ = b_.wrap(step_state(g_));
    lr_ = rules_.learning_rate(step_);
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
    for (size_t i = 1; i < parts_.size(); ++i) g_.add_output(parts_[i].second, parts_[i].first);
    if (norm_) g_.add_output(norm_.id(), "grad_norm");
    ctx_.did = cat(spec_.name, ": ", slots_.size(), " parameters in ", buckets_, " buckets",
                   norm_ ? ", clipped by global norm" : "");
  }

 private:
  void take_gradients() {
    std::vector<size_t> position(static_cast<size_t>(g_.node_count()), 0);
    const std::vector<NodeId> order = g_.topo();
    for (size_t i = 0; i < order.size(); ++i) position[static_cast<size_t>(order[i])] = i + 1;
    size_t output = 0;  // the losses come first
    while (output < g_.outputs().size() && !g_.output_names()[output].starts_with("grad/"))
      parts_.emplace_back(g_.output_names()[output], g_.outputs()[output]), ++output;
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
                     [](const GradSlot& a, const GradSlot& b) { return a.ready < b.ready; });
  }

  // As torch.nn.utils.clip_grad_norm_: every gradient times min(1, max_norm / (norm + 1e-6)).
  void clip() {
    if (spec_.clip_norm <= 0) return;
    std::vector<Expr> grads;
    for (const GradSlot& s : slots_) grads.push_back(b_.wrap(s.grad));
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

  void update_parameters() {
    std::vector<GradSlot> bucket;
    size_t bytes = 0;
    for (const GradSlot& s : slots_) {
      const size_t size = g_.tensor(s.param)->bytes();
      if (!bucket.empty() &&
          (bytes + size > kBucketBytes || !rules_.same_bucket(s.param, bucket[0].param))) {
        update(bucket);
        bucket.clear();
        bytes = 0;
      }
      bucket.push_back(s);
      bytes += size;
    }
    if (!bucket.empty()) update(bucket);
  }

  void update(const std::vector<GradSlot>& bucket) {
    rules_.update({lr_, step_, apply_, clip_scale_}, bucket);
    ++buckets_;
  }

  Graph& g_;
  PassContext& ctx_;
  const OptimizerSpec& spec_;
  OptimizerRules rules_;
  Builder b_;
  std::vector<GradSlot> slots_;
  std::vector<std::pair<std::string, ValueId>> parts_;  // "loss", then each of several
  Expr loss_, step_, lr_, norm_, clip_scale_, apply_;
  int buckets_ = 0;
};

}  // namespace

void pass_optimizer(Graph& g, PassContext& ctx) { OptimizerBuilder(g, ctx).build(); }

}  // namespace ortrain
