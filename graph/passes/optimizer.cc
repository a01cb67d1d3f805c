// optimizer: gradient sums of a window of micro-batches, loss scale, learning rate, global-norm
// clip, all-finite test, skip and the parameter updates, all as nodes; the host decides nothing.
//
// Takes the outputs "grad/NAME" that autodiff left and replaces them by "loss", "lr" (f64),
// "finite" and, where there are such, "grad_norm" (of the mean loss, before clipping), "weight" (0:
// no target counted) and "loss_scale". Before the last micro-batch of a window only sums change.
// Parameters are updated in buckets of about 4 MB (less under a memory budget), in the order in
// which their gradients become ready, by the rules of optimizer_rules.h. A step that is not finite,
// or has no target, changes no state at all (I14): the update kernels read `apply`, and running
// statistics pass through a select. The scale and the number of targets meet the gradients in one
// scalar factor that the update kernels take (I13).
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/optimizer_rules.h"
#include "graph/passes/passes.h"
#include "graph/passes/row_gradients.h"
#include "graph/passes/window.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

constexpr size_t kBucketBytes = size_t{4} << 20, kLeastBucketBytes = size_t{64} << 10;

class OptimizerBuilder {
 public:
  OptimizerBuilder(Graph& g, PassContext& ctx)
      : g_(g),
        ctx_(ctx),
        spec_(ctx.spec.optimizer),
        window_(ctx.spec.window),
        rules_(g, ctx),
        b_(g, "optimizer") {}

  void build() {
    take_gradients();
    states_ = g_.updates().size();
    if (window_.phase == WindowSpec::Phase::kOnly)
      take_rows();
    else
      add_to_window();
    if (window_.phase == WindowSpec::Phase::kFirst || window_.phase == WindowSpec::Phase::kMiddle) {
      g_.clear_outputs();
      g_.add_output(loss_.id(), "loss");
      g_.erase_dead();
      ctx_.did = cat(slots_.size(), " gradients ",
                     window_.phase == WindowSpec::Phase::kFirst ? "kept for" : "added to",
                     " the window's sums");
      return;
    }
    step_ = b_.wrap(step_state(g_));
    lr_ = rules_.learning_rate(step_);
    fill_buckets();
    scale_gradients();
    decide();
    guard_states();
    update_parameters();
    g_.add_update(step_.id(), (step_ + b_.cast(apply_, DType::kI64)).id());
    adapt_loss_scale();
    add_outputs();
    ctx_.did = cat(spec_.name, ": ", slots_.size(), " parameters in ", buckets_.size(), " buckets",
                   spec_.clip_norm > 0 ? ", clipped by global norm" : "",
                   by_rows_ > 0 ? cat(", ", by_rows_, " by touched rows") : "");
    g_.erase_dead();
  }

 private:
  void take_gradients() {
    std::vector<size_t> position(static_cast<size_t>(g_.node_count()), 0);
    const std::vector<NodeId> order = g_.topo();
    for (size_t i = 0; i < order.size(); ++i) position[static_cast<size_t>(order[i])] = i + 1;
    size_t output = 0;  // the losses come first
    for (; output < g_.outputs().size() && !g_.output_names()[output].starts_with("grad/");
         ++output)
      if (g_.output_names()[output] != kLossWeight)
        parts_.emplace_back(g_.output_names()[output], g_.outputs()[output]);
    loss_ = b_.wrap(parts_.at(0).second);
    const Expr targets = window_targets(b_);
    shares_ = static_cast<bool>(targets);
    may_be_empty_ = may_be_empty(g_) || shares_;
    if (shares_)
      weight_ = targets / static_cast<double>(ctx_.spec.losses().size());
    else if (may_be_empty_ || window_.phase != WindowSpec::Phase::kOnly)
      weight_ = loss_weight(b_, window_);
    for (const auto& [v, info] : g_.params) {
      if (!info.trainable) continue;
      while (output < g_.outputs().size() && !g_.output_names()[output].starts_with("grad/"))
        ++output;
      ORTRAIN_CHECK(
          output < g_.outputs().size() && g_.output_names()[output] == "grad/" + g_.value(v).name,
          "autodiff left no gradient of " + g_.describe_value(v));
      const ValueId whole = g_.outputs()[output++], grad = merge_row_gradients(g_, whole);
      const NodeId n = g_.value(whole).producer;
      slots_.push_back({v, grad, n == kNone ? 0 : position[static_cast<size_t>(n)]});
    }
    std::stable_sort(slots_.begin(), slots_.end(),
                     [](const GradSlot& a, const GradSlot& b) { return a.ready < b.ready; });
  }

  // Gradients of lookups alone go by touched rows where the update takes them.
  void take_rows() {
    for (GradSlot& s : slots_) {
      if (!rules_.takes_rows(s.param)) continue;
      if (const auto by_rows = row_gradient(g_, s.grad)) {
        s.grad = by_rows->rows;
        s.slots = by_rows->slots;
        ++by_rows_;
      }
    }
  }

  // From here on loss, weight and gradients are those of the window so far; the loss is a sum.
  void add_to_window() {
    if (states_ > 0) {
      carry_states(g_, window_);
      if (window_.phase == WindowSpec::Phase::kLast)
        ctx_.messages.push_back(
            "batch normalization takes its statistics from each micro-batch, not from the "
            "effective batch");
    }
    key_randomness(g_, b_, window_);
    const bool last = window_.phase == WindowSpec::Phase::kLast;
    const Expr own_loss = loss_, own_weight = shares_ ? Expr() : weight_;
    const auto counted = [&](Expr x) {
      x = b_.cast(x, DType::kF64);
      return own_weight ? x * own_weight : x;
    };
    loss_ = window_sum(b_, window_, counted(loss_), "loss");
    if (!shares_) weight_ = window_sum(b_, window_, weight_, "weight");
    for (size_t i = 1; i < parts_.size(); ++i) {
      auto& [name, value] = parts_[i];
      const Expr sum = window_sum(b_, window_, counted(b_.wrap(value)), name);
      if (last) value = mean(sum).id();
    }
    for (GradSlot& s : slots_) {
      Builder b(g_, g_.value(s.param).name + "|optimizer");
      s.grad = window_sum(b, window_, b.wrap(s.grad), "grad/" + g_.value(s.param).name).id();
    }
    loss_ = last ? mean(loss_) : own_loss;
  }
  Expr mean(Expr sum) { return shares_ ? sum : sum / no_less(weight_, kNoWeight); }
  static Expr no_less(Expr x, double least) {
    Builder& b = x.builder();
    return b.op("Max", {x, b.scalar(x.dtype(), least)});
  }

  // What turns the gradients into those of the mean loss, and the clipping: as
  // torch.nn.utils.clip_grad_norm_, every gradient times min(1, max_norm / (norm + 1e-6)), of the
  // gradients without loss scale (I13).
  void scale_gradients() {
    const bool sums = window_.phase == WindowSpec::Phase::kLast && !shares_;
    scale_ = loss_scale(b_, ctx_.spec.loss_scale);
    Expr factor;
    if (sums) factor = 1 / no_less(weight_, kNoWeight);
    if (scale_) factor = factor ? factor / scale_ : 1 / scale_;
    if (spec_.clip_norm > 0 || scale_ || window_.accumulate > 1) {
      std::vector<Expr> grads;
      for (const GradSlot& s : slots_) {
        grads.push_back(b_.wrap(s.grad));
        if (s.slots != kNone) grads.push_back(b_.wrap(s.slots));
      }
      norm_ = b_.op("ortrain.GlobalNorm", grads);
      tested_.push_back(norm_);
      if (factor) {
        factor = b_.cast(factor, norm_.dtype());
        norm_ = norm_ * factor;
      }
    }
    unscale_ = factor;
    if (spec_.clip_norm > 0) {
      const Expr ratio = spec_.clip_norm / (norm_ + 1e-6);
      const Expr clip = b_.op("Min", {ratio, b_.scalar(ratio.dtype(), 1)});
      factor = factor ? factor * clip : clip;
    }
    clip_scale_ = factor;
  }

  // Whether the step counts: loss and gradients are finite, and there is a target.
  void decide() {
    tested_.insert(tested_.begin(), loss_);
    if (ctx_.spec.skip_nonfinite) test_finite();
    apply_ = finite_;
    if (may_be_empty_) {
      const Expr counted = b_.op("Greater", {weight_, b_.scalar(weight_.dtype(), 0)});
      apply_ = apply_ ? b_.op("And", {apply_, counted}) : counted;
      for (Expr& x : own_) x = b_.op("And", {x, counted});
    }
    if (!apply_) apply_ = b_.constant(HostTensor::scalar(true));
  }

  // A norm is finite where the gradients are. Without one they are tested themselves, each bucket
  // as soon as it is made, while the caches hold it; the first update waits for the last of them,
  // unless a step that is not finite ends the run and memory is short: then gradients need not all
  // be there at one time, and each update waits for its own and the loss.
  void test_finite() {
    if (norm_ || buckets_.empty()) {
      finite_ = b_.op("ortrain.AllFinite", tested_);
      return;
    }
    for (const std::vector<GradSlot>& bucket : buckets_) {
      Builder b(g_,
                cat(g_.value(bucket[0].param).name, bucket.size() > 1 ? "..." : "", "|optimizer"));
      std::vector<Expr> all;
      if (!finite_)
        for (const Expr& x : tested_) all.push_back(b.wrap(x.id()));
      for (const GradSlot& s : bucket) all.push_back(b.wrap(s.grad));
      const Expr ok = b_.wrap(b.op("ortrain.AllFinite", all).id());
      finite_ = finite_ ? b_.op("And", {finite_, ok}) : ok;  // in this order: earliest first
      if (ctx_.spec.stop_at_nonfinite && ctx_.spec.recompute.budgeted())
        own_.push_back(own_.empty() ? ok : b_.op("And", {own_.front(), ok}));
    }
  }

  // Updates that other passes put here (running statistics) keep the old value on a skipped step.
  void guard_states() {
    if (!ctx_.spec.skip_nonfinite) return;
    const Expr ok = own_.empty() ? apply_ : own_.front();
    for (size_t i = 0; i < states_; ++i) {
      const StateUpdate u = g_.updates()[i];
      Builder b(g_, g_.value(u.state).name + "|optimizer");
      const Expr kept = b.where(b.wrap(ok.id()), b.wrap(u.next), b.wrap(u.state));
      g_.set_update(static_cast<int>(i), kept.id());
    }
  }

  void adapt_loss_scale() {
    const LossScaleSpec& s = ctx_.spec.loss_scale;
    if (s.kind != LossScaleSpec::Kind::kDynamic) return;
    ORTRAIN_CHECK(finite_, "dynamic loss scaling without the test for finite gradients");
    const std::vector<ValueId> states = {
        loss_scale_state(g_, s), g_.add_state(HostTensor::scalar<int64_t>(0), kGoodStepsName),
        g_.add_state(HostTensor::scalar<int64_t>(0), kSkippedName)};
    const std::vector<Expr> next =
        b_.ops("ortrain.LossScale",
               {b_.wrap(states[0]), b_.wrap(states[1]), b_.wrap(states[2]), finite_, apply_},
               {{"growth", s.growth}, {"interval", s.interval}, {"min", s.min}, {"max", s.max}}, 3);
    for (size_t i = 0; i < 3; ++i) g_.add_update(states[i], next[i].id());
  }

  void add_outputs() {
    g_.clear_outputs();
    g_.add_output(loss_.id(), "loss");
    g_.add_output(lr_.id(), "lr");
    for (size_t i = 1; i < parts_.size(); ++i) g_.add_output(parts_[i].second, parts_[i].first);
    if (norm_) g_.add_output(norm_.id(), "grad_norm");
    if (weight_) g_.add_output(weight_.id(), "weight");
    if (scale_) g_.add_output(scale_.id(), "loss_scale");
    if (finite_) g_.add_output(finite_.id(), "finite");
    if (!ctx_.spec.watch) return;
    if (unscale_) g_.add_output(unscale_.id(), "watch/unscale");
    for (const GradSlot& s : slots_) g_.add_output(s.grad, "grad/" + g_.value(s.param).name);
  }

  // Gradients wait for their bucket: under a memory budget it is small.
  size_t bucket_bytes() const {
    if (!ctx_.spec.recompute.budgeted()) return kBucketBytes;
    return std::clamp(ctx_.spec.recompute.arena_bytes / 64, kLeastBucketBytes, kBucketBytes);
  }

  void fill_buckets() {
    size_t bytes = 0;
    const size_t most = bucket_bytes();
    for (const GradSlot& s : slots_) {
      const size_t size = g_.tensor(s.param)->bytes();
      if (buckets_.empty() || bytes + size > most ||
          !rules_.same_bucket(s.param, buckets_.back()[0].param)) {
        buckets_.emplace_back();
        bytes = 0;
      }
      buckets_.back().push_back(s);
      bytes += size;
    }
  }

  void update_parameters() {
    for (size_t i = 0; i < buckets_.size(); ++i)
      rules_.update({lr_, step_, own_.empty() ? apply_ : own_[i], clip_scale_}, buckets_[i]);
  }

  Graph& g_;
  PassContext& ctx_;
  const OptimizerSpec& spec_;
  const WindowSpec& window_;
  OptimizerRules rules_;
  Builder b_;
  std::vector<GradSlot> slots_;
  std::vector<std::pair<std::string, ValueId>> parts_;  // "loss", then each of several
  std::vector<Expr> tested_;                            // all finite, or the step is skipped
  Expr loss_, step_, lr_, norm_, clip_scale_, finite_, apply_;
  Expr unscale_;         // makes the gradients those of the mean loss; empty: 1
  Expr weight_, scale_;  // of the loss; empty: 1 and always counted, no loss scale
  bool may_be_empty_ = false;
  bool shares_ = false;  // each loss counts by its share of the window; sums are means
  size_t states_ = 0;    // updates that other passes made
  std::vector<std::vector<GradSlot>> buckets_;
  int by_rows_ = 0;
  std::vector<Expr>
      own_;  // per bucket, where updates do not wait for all: it and the loss are finite
};

}  // namespace

void pass_optimizer(Graph& g, PassContext& ctx) { OptimizerBuilder(g, ctx).build(); }

}  // namespace ortrain
