// See optimizer_rules.h.
#include "graph/passes/optimizer_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {
namespace {

void check_name(const char* what, const std::string& name, std::vector<std::string> known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string all;
  for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
  fail(ErrorCode::kUsage, what, " '", name, "' is unknown; there are ", all);
}

Dims dims_of(const Graph& g, ValueId v) { return g.value(v).shape.values(); }

// Position in memory of an axis of the file, counted from the last (1).
int axis_from_back(const Graph& g, ValueId param, int back) {
  const int rank = g.value(param).shape.rank(), axis = rank - back;
  const auto info = g.params.find(param);
  if (info == g.params.end() || info->second.perm.empty()) return axis;
  const std::vector<int64_t>& perm = info->second.perm;
  return static_cast<int>(std::find(perm.begin(), perm.end(), axis) - perm.begin());
}

// What a matrix is used for, directly or moved about: as a factor (the record counts operations),
// or as a table that a node with integers picks from.
struct Use {
  bool product = false, looked_up = false;
};
Use use_of(const Graph& g, ValueId v, int depth = 0) {
  Use use;
  for (NodeId n : g.value(v).uses) {
    const Node& x = g.node(n);
    if (x.op->flops) {
      use.product = true;
      continue;
    }
    bool moved = depth < 8 && x.inputs[0] == v && x.outputs.size() == 1;
    for (size_t i = 1; i < x.inputs.size(); ++i) {
      if (x.inputs[i] == kNone) continue;
      const Value& in = g.value(x.inputs[i]);
      moved = moved && in.source == Source::kConst;
      use.looked_up |= x.inputs[0] == v && is_integer(in.dtype) && in.source != Source::kConst;
    }
    if (!moved) continue;
    const Use later = use_of(g, x.outputs[0], depth + 1);
    use.product |= later.product, use.looked_up |= later.looked_up;
  }
  return use;
}
constexpr int kDeepest = std::numeric_limits<int>::max();

Expr at_least(Expr x, double least) {
  return x.builder().op("Max", {x, x.builder().scalar(x.dtype(), least)});
}
Expr at_most(Expr x, double most) {
  return x.builder().op("Min", {x, x.builder().scalar(x.dtype(), most)});
}

}  // namespace

OptimizerRules::OptimizerRules(Graph& g, PassContext& ctx)
    : g_(g), ctx_(ctx), spec_(ctx.spec.optimizer), groups_(g, spec_) {
  check_name("optimizer", spec_.name,
             {"sgd", "adam", "adamw", "adagrad", "rmsprop", "lamb", "lion", "adafactor", "muon"});
  check_name("schedule", spec_.schedule,
             {"constant", "linear", "cosine", "polynomial", "step", "inverse_sqrt", "one_cycle"});
  if (spec_.schedule == "step" && spec_.step_size < 1)
    fail(ErrorCode::kUsage, "schedule 'step' needs --schedule-args step_size=STEPS");
  if (spec_.schedule == "one_cycle" && (spec_.warmup_steps > 0 || spec_.min_lr > 0))
    fail(ErrorCode::kUsage,
         "schedule 'one_cycle' warms up and ends by itself (--schedule-args pct_start, div_factor, "
         "final_div_factor); leave --warmup and --min-lr out");
  for (const std::string& line : groups_.text()) ctx.messages.push_back(line);
  if (spec_.name == "muon") choose_muon();
}

Expr OptimizerRules::learning_rate(Expr step) const {
  Attrs attrs{{"schedule", spec_.schedule},
              {"lr", spec_.lr},
              {"min_lr", spec_.min_lr},
              {"warmup_steps", spec_.warmup_steps},
              {"total_steps", spec_.total_steps}};
  if (spec_.schedule == "polynomial") attrs.set("power", spec_.power);
  if (spec_.schedule == "step") {
    attrs.set("step_size", spec_.step_size);
    attrs.set("gamma", spec_.gamma);
  }
  if (spec_.schedule == "one_cycle") {
    attrs.set("pct_start", spec_.pct_start);
    attrs.set("div_factor", spec_.div_factor);
    attrs.set("final_div_factor", spec_.final_div_factor);
  }
  return step.builder().op("ortrain.LearningRate", {step}, attrs);
}

// Matrices that inputs are multiplied by, as is the usual practice, but for tables that are (also)
// looked up by index and the last layer.
void OptimizerRules::choose_muon() {
  const std::map<ValueId, int> depths = param_depths(g_);
  std::string left_out;
  const auto leave_out = [&](ValueId v, const char* why) {
    left_out += cat(left_out.empty() ? "" : ", ", g_.describe_value(v), " (", why, ")");
  };
  int deepest = -1, at_deepest = 0;
  size_t all = 0;
  for (const auto& [v, info] : g_.params) {
    all += info.trainable;
    if (!info.trainable || g_.value(v).shape.rank() != 2) continue;
    const Use use = use_of(g_, v);
    if (!use.product) {
      leave_out(v, use.looked_up ? "looked up by index" : "in no plain product");
      continue;
    }
    // A table that is the head too is the last layer.
    const int depth = use.looked_up ? kDeepest : depths.at(v);
    at_deepest = depth > deepest ? 1 : at_deepest + (depth == deepest);
    deepest = std::max(deepest, depth);
    if (use.looked_up)
      leave_out(v, "looked up by index");
    else
      muon_.push_back(v);
  }
  if (at_deepest == 1 && muon_.size() > 1)
    std::erase_if(muon_, [&](ValueId v) {
      if (depths.at(v) != deepest) return false;
      leave_out(v, "the last layer");
      return true;
    });
  std::sort(muon_.begin(), muon_.end());
  ctx_.messages.push_back(cat("muon updates ", muon_.size(), " matrices, adamw the other ",
                              all - muon_.size(), " tensors",
                              left_out.empty() ? "" : "; of the matrices ", left_out));
}

bool OptimizerRules::same_bucket(ValueId a, ValueId b) const {
  const auto by_muon = [&](ValueId v) { return std::binary_search(muon_.begin(), muon_.end(), v); };
  return g_.value(a).dtype == g_.value(b).dtype && by_muon(a) == by_muon(b);
}

bool OptimizerRules::takes_rows(ValueId param) const {
  if (spec_.name == "adafactor") return false;
  return !std::binary_search(muon_.begin(), muon_.end(), param) &&
         bucket_rule(spec_.name == "muon").rows;
}

ValueId OptimizerRules::state(ValueId param, const char* suffix, const Dims& dims, double fill) {
  const Value& p = g_.value(param);
  const std::string name = p.name + "/" + suffix;
  HostTensor t(p.dtype, dims);
  if (fill != 0)
    for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, fill);
  return g_.add_state(std::move(t), name);
}

void OptimizerRules::update(const UpdateInputs& in, const std::vector<GradSlot>& bucket) {
  const size_t first_update = g_.updates().size();
  if (spec_.name == "adafactor") {
    for (const GradSlot& s : bucket) update_adafactor(in, s);
  } else if (std::binary_search(muon_.begin(), muon_.end(), bucket[0].param)) {
    for (const GradSlot& s : bucket) update_muon(in, s);
  } else {
    update_bucket(in, bucket, spec_.name == "muon");
  }
  if (spec_.ema > 0) average(in, bucket, first_update);
}

OptimizerRules::BucketRule OptimizerRules::bucket_rule(bool by_adamw) const {
  const std::string& name = spec_.name;
  if (name == "sgd") {
    const Attrs attrs{{"momentum", spec_.momentum},
                      {"dampening", spec_.dampening},
                      {"nesterov", int64_t{spec_.nesterov}}};
    if (spec_.momentum == 0) return {"ortrain.SGD", {}, attrs};
    return {"ortrain.SGDMomentum", {"momentum"}, attrs};
  }
  if (name == "adagrad")
    return {"ortrain.Adagrad", {"sum"}, {{"lr_decay", spec_.lr_decay}, {"eps", spec_.eps}}};
  if (name == "rmsprop") {
    const bool momentum = spec_.momentum != 0;
    BucketRule r{
        cat("ortrain.RMSprop", spec_.centered ? "Centered" : "", momentum ? "Momentum" : ""),
        {"square_avg"},
        {{"alpha", spec_.alpha}, {"eps", spec_.eps}}};
    if (momentum) {
      r.states.push_back("momentum_buffer");
      r.attrs.set("momentum", spec_.momentum);
    }
    if (spec_.centered) {
      r.states.push_back("grad_avg");
      r.attrs.set("centered", int64_t{1});
    }
    return r;
  }
  const Attrs betas{{"beta1", spec_.beta1}, {"beta2", spec_.beta2}};
  if (name == "lion") return {"ortrain.Lion", {"exp_avg"}, betas};
  BucketRule r{"ortrain.AdamW", {"exp_avg", "exp_avg_sq"}, betas};
  r.attrs.set("eps", spec_.eps);
  if (name == "lamb") {
    r.op = "ortrain.Lamb";
    r.rows = false;
    return r;
  }
  r.attrs.set("decoupled", int64_t{name == "adamw" || by_adamw});
  if (spec_.amsgrad && !by_adamw) {
    r.op = "ortrain.AdamWMax";
    r.states.push_back("max_exp_avg_sq");
  }
  return r;
}

void OptimizerRules::update_bucket(const UpdateInputs& in, const std::vector<GradSlot>& bucket,
                                   bool by_adamw) {
  BucketRule rule = bucket_rule(by_adamw);
  Builder b(g_, cat(g_.value(bucket[0].param).name, bucket.size() > 1 ? "..." : "", "|optimizer"));
  std::vector<Expr> inputs{in.lr, in.step, in.apply, in.scale};
  std::vector<double> decay, factor;
  std::vector<int64_t> touched;  // groups by touched rows, and their slots
  std::vector<Expr> slots;
  std::vector<ValueId> targets;  // what each output replaces
  for (const GradSlot& s : bucket) {
    inputs.push_back(b.wrap(s.param));
    inputs.push_back(b.wrap(s.grad));
    targets.push_back(s.param);
    for (const char* suffix : rule.states) {
      const double fill = spec_.name == "adagrad" ? spec_.initial_accumulator_value : 0;
      targets.push_back(state(s.param, suffix, dims_of(g_, s.param), fill));
      inputs.push_back(b.wrap(targets.back()));
    }
    if (s.slots != kNone) {
      touched.push_back(static_cast<int64_t>(decay.size()));
      slots.push_back(b.wrap(s.slots));
    }
    decay.push_back(groups_.of(s.param).weight_decay);
    factor.push_back(groups_.of(s.param).lr_factor);
  }
  inputs.insert(inputs.end(), slots.begin(), slots.end());
  if (!touched.empty()) rule.attrs.set("touched", touched);
  rule.attrs.set("weight_decay", decay);
  if (groups_.own_rates()) rule.attrs.set("lr_factor", factor);
  if (spec_.clip_value > 0) rule.attrs.set("clip_value", spec_.clip_value);
  const std::vector<Expr> next =
      b.ops(rule.op, inputs, rule.attrs, static_cast<int>(targets.size()));
  for (size_t i = 0; i < targets.size(); ++i) g_.add_update(targets[i], next[i].id());
}

Expr OptimizerRules::gradient(Builder& b, const UpdateInputs& in, ValueId grad) const {
  Expr x = b.wrap(grad);
  if (in.scale) x = x * b.cast(b.wrap(in.scale.id()), x.dtype());
  return spec_.clip_value > 0 ? at_least(at_most(x, spec_.clip_value), -spec_.clip_value) : x;
}

void OptimizerRules::keep_or(const UpdateInputs& in, Expr state, Expr next) {
  Builder& b = next.builder();
  g_.add_update(state.id(), b.where(b.wrap(in.apply.id()), next, state).id());
}

// torch.optim.Adafactor (single-tensor form): the second moment as a product of a row and a column
// over the file's last two axes. The last operation is an SGD step of size alpha / denom on the
// normalised gradient.
void OptimizerRules::update_adafactor(const UpdateInputs& in, const GradSlot& slot) {
  Builder b(g_, g_.value(slot.param).name + "|optimizer");
  const ParamGroups::Setting& own = groups_.of(slot.param);
  const Expr p = b.wrap(slot.param), g = gradient(b, in, slot.grad);
  const DType dtype = p.dtype();
  const Dims dims = dims_of(g_, slot.param);
  const double root = std::sqrt(static_cast<double>(std::max<int64_t>(element_count(dims), 1)));
  const double eps1 = spec_.eps1 > 0 ? spec_.eps1
                      : dtype == DType::kF64
                          ? std::numeric_limits<double>::epsilon()
                          : static_cast<double>(std::numeric_limits<float>::epsilon());
  const Expr t = b.cast(b.wrap(in.step.id()), DType::kF64) + 1;
  const Expr lr = b.wrap(in.lr.id()) * own.lr_factor;
  const Expr fresh = b.cast(b.op("Pow", {t, b.scalar(DType::kF64, spec_.beta2_decay)}), dtype);
  const Expr rho = b.op("Min", {lr, 1 / b.sqrt(t)});
  const Expr alpha =
      at_least(b.cast(b.op("ortrain.GlobalNorm", {p}), DType::kF64) / root, spec_.eps2) * rho;

  const Expr square = g * g;
  const auto moved = [&](const char* suffix, Expr mean) {
    const Expr old = b.wrap(state(slot.param, suffix, mean.shape().values()));
    const Expr next = old + fresh * (mean - old);
    keep_or(in, old, next);
    return next;
  };
  Expr variance;
  if (dims.size() >= 2) {
    const int64_t last = axis_from_back(g_, slot.param, 1),
                  second = axis_from_back(g_, slot.param, 2);
    const Expr row = moved("row_var", b.mean(square, {last}));
    const Expr column = moved("col_var", b.mean(square, {second}));
    variance = row / at_least(b.mean(row, {second}), eps1) * column;
  } else {
    variance = moved("variance", square);
  }
  Expr update = g / b.sqrt(at_least(variance, eps1 * eps1));
  const Expr denom =
      at_least(b.cast(b.op("ortrain.GlobalNorm", {update}), DType::kF64) / (root * spec_.d), 1);
  const Expr rate = alpha / denom;
  if (own.weight_decay != 0)
    update = update + p * b.cast(lr * own.weight_decay / at_least(rate, 1e-300), dtype);
  const Expr next =
      b.op("ortrain.SGD", {rate, b.wrap(in.step.id()), b.wrap(in.apply.id()), Expr(), p, update},
           {{"weight_decay", std::vector<double>{0}}});
  g_.add_update(slot.param, next.id());
}

// torch.optim.Muon, but with the Newton-Schulz iteration in the parameter's dtype instead of bf16.
// The last operation is an SGD step on the orthogonal matrix.
void OptimizerRules::update_muon(const UpdateInputs& in, const GradSlot& slot) {
  constexpr double a = 3.4445, b3 = -4.7750, c = 2.0315, eps = 1e-7;
  Builder b(g_, g_.value(slot.param).name + "|optimizer");
  const ParamGroups::Setting& own = groups_.of(slot.param);
  const Expr g = gradient(b, in, slot.grad);
  const Dims dims = dims_of(g_, slot.param);
  const Expr old = b.wrap(state(slot.param, "momentum_buffer", dims));
  const Expr buffer = old + (1 - spec_.momentum) * (g - old);
  keep_or(in, old, buffer);
  Expr x = spec_.nesterov ? g + spec_.momentum * (buffer - g) : buffer;
  x = x / at_least(b.op("ortrain.GlobalNorm", {x}), eps);
  const bool tall = dims[0] > dims[1];  // the smaller square: X^T X, multiplied from the right
  for (int64_t i = 0; i < spec_.ns_steps; ++i) {
    const Expr gram = b.op("MatMul", {x, x}, {{tall ? "trans_a" : "trans_b", int64_t{1}}});
    const Expr polynomial = b3 * gram + c * b.matmul(gram, gram);
    x = a * x + (tall ? b.matmul(x, polynomial) : b.matmul(polynomial, x));
  }
  const double rows = static_cast<double>(dims[0]), columns = static_cast<double>(dims[1]);
  const double ratio = spec_.adjust_lr_fn == "original" ? std::sqrt(std::max(1.0, rows / columns))
                       : spec_.adjust_lr_fn == "spectral_unclamped"
                           ? std::sqrt(rows / columns)
                           : 0.2 * std::sqrt(std::max(rows, columns));
  const Expr p = b.wrap(slot.param);
  Attrs attrs{{"weight_decay", std::vector<double>{own.weight_decay}}};
  if (own.lr_factor != 1) attrs.set("lr_factor", std::vector<double>{own.lr_factor});
  const Expr next = b.op("ortrain.SGD",
                         {b.wrap(in.lr.id()), b.wrap(in.step.id()), b.wrap(in.apply.id()),
                          b.scalar(p.dtype(), ratio), p, x},
                         attrs);
  g_.add_update(slot.param, next.id());
}

// Averages of the bucket's parameters; the updates from `first_update` on are the bucket's.
void OptimizerRules::average(const UpdateInputs& in, const std::vector<GradSlot>& bucket,
                             size_t first_update) {
  Builder b(g_, cat(g_.value(bucket[0].param).name, bucket.size() > 1 ? "..." : "", "|optimizer"));
  std::vector<Expr> inputs{in.step, in.apply};
  std::vector<ValueId> means;
  for (const GradSlot& s : bucket) {
    const auto update =
        std::find_if(g_.updates().begin() + static_cast<std::ptrdiff_t>(first_update),
                     g_.updates().end(), [&](const StateUpdate& u) { return u.state == s.param; });
    ORTRAIN_CHECK(update != g_.updates().end(), "no update of " + g_.describe_value(s.param));
    inputs.push_back(b.wrap(update->next));
    means.push_back(g_.add_state(g_.tensor(s.param)->clone(), g_.value(s.param).name + kEmaSuffix));
    inputs.push_back(b.wrap(means.back()));
  }
  const std::vector<Expr> next =
      b.ops("ortrain.Ema", inputs, {{"decay", spec_.ema}}, static_cast<int>(means.size()));
  for (size_t i = 0; i < means.size(); ++i) g_.add_update(means[i], next[i].id());
}

}  // namespace ortrain
