// attach_loss: finds or builds the scalar loss, then decides the trainable set.
//
// Meanings and reductions are PyTorch's (mean over valid targets, or over all elements). An output
// that ends in Softmax, LogSoftmax or Sigmoid is trained through its logits where the loss allows
// (losses.h has the formulas).
// Several losses (StepSpec::more_losses) add up, each with its factor and its own mean; an output
// without one is left out. After it the outputs are "loss" (kTrain, kGrads), "loss" and the model's
// own (kEval with labels), or the model's own; several losses and their divisors follow "loss"
// (pipeline.h), in kTrain the weight of a single one (window.h). Refuses labels whose shape does
// not fit, and a missing label array.
#include <algorithm>
#include <set>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/losses.h"
#include "graph/passes/passes.h"
#include "graph/passes/window.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

class LossBuilder {
 public:
  // `name`: of one loss among several; "" for the only one.
  LossBuilder(Graph& g, PassContext& ctx, const LossSpec& spec, const std::string& name)
      : g_(g),
        ctx_(ctx),
        spec_(spec),
        b_(g, cat("loss", name.empty() ? "" : "/", name, "|attach_loss")),
        counts_apart_(!name.empty() && ctx.spec.window.phase != WindowSpec::Phase::kOnly) {}

  // What the mean was divided by; empty where that is a fixed share of the samples.
  Expr divisor() const { return divisor_; }

  // The loss, or empty when there is nothing to compute it from and it is not needed.
  Expr build(bool needed) {
    pick_output();
    std::string kind = spec_.kind;
    const bool labelled =
        spec_.label_dtype != DType::kUndefined || input_named(spec_.label) != kNone;
    if (kind == "auto") {
      if (output_.rank() == 0)
        kind = "graph";
      else if (labelled)
        kind = is_float(label_dtype()) ? "mse" : "cross_entropy";
    }
    if (!spec_.class_weights.empty() && kind != "auto" && kind != "cross_entropy" &&
        kind != "nll" && kind != "bce" && kind != "bce_with_logits")
      fail(ErrorCode::kUsage, "--class-weights: loss ", kind, " on output '", output_name_,
           "' has no classes to weight; cross_entropy, nll, bce and bce_with_logits have");
    if (kind == "graph") {
      did(cat("loss is output '", output_name_, "'"));
      return graph_loss();
    }
    if (!labelled) {
      if (!needed) return {};
      fail(ErrorCode::kData, "no labels: ", kind == "auto" ? "a loss" : "loss " + kind,
           " on output '", output_name_, "' ", output_.shape().str(), " needs an array",
           spec_.label.empty() ? "" : " '" + spec_.label + "'",
           " in the data (--label NAME); a model whose first output is its loss needs none");
    }
    take_label();
    did(cat(kind, " of output '", output_name_, "' against '", spec_.label, "'",
            spec_.class_weights.empty() ? "" : ", weighted by class"));
    return of_kind(kind);
  }

  // The number of targets that count (what the mean is over) as a share of those of a full
  // micro-batch. Empty where every target always counts.
  Expr weight(const WindowSpec& window) {
    if (!count_ || !label_.shape().is_const()) return count_;
    double full = static_cast<double>(label_.shape().count().value());
    if (window.samples > 0)
      full *= static_cast<double>(window.nominal) / static_cast<double>(window.samples);
    return count_ / full;
  }

 private:
  void did(const std::string& what) {
    ctx_.did +=
        cat(ctx_.did.empty() ? "" : "; ", spec_.factor == 1 ? "" : cat(spec_.factor, " x "), what);
  }

  ValueId input_named(const std::string& name) const {
    for (ValueId v : g_.inputs())
      if (g_.value(v).name == name && !name.empty()) return v;
    return kNone;
  }
  DType label_dtype() const {
    const ValueId v = input_named(spec_.label);
    return v != kNone ? g_.value(v).dtype : spec_.label_dtype;
  }

  void pick_output() {
    std::string all;
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      const std::string& name = g_.output_names()[i];
      all += (all.empty() ? "" : ", ") + name;
      const bool match =
          spec_.output.empty() ? is_float(g_.value(g_.outputs()[i]).dtype) : name == spec_.output;
      if (match && !output_) {
        output_ = b_.wrap(g_.outputs()[i]);
        output_name_ = name;
      }
    }
    if (!output_)
      fail(ErrorCode::kUsage,
           spec_.output.empty() ? "no float output to train on"
                                : "no output is named '" + spec_.output + "'",
           "; the model's outputs are ", all);
    if (!is_float(output_.dtype()))
      fail(ErrorCode::kUnsupported, "output '", output_name_, "' is ", name_of(output_.dtype()),
           "; a loss needs a float output");
  }

  Expr graph_loss() {
    if (prove_equal(output_.shape().count(), Dim(1)) == Tri::kNo)
      fail(ErrorCode::kShape, "loss 'graph' needs a scalar output; '", output_name_, "' has shape ",
           output_.shape().str());
    if (output_.rank() == 0) return output_;
    return b_.reshape(output_, {});
  }

  void take_label() {
    const ValueId existing = input_named(spec_.label);
    label_ = b_.wrap(existing != kNone
                         ? existing
                         : g_.add_input(spec_.label, spec_.label_dtype, Shape(spec_.label_dims)));
    if (is_float(label_.dtype())) label_ = b_.cast(label_, output_.dtype());
  }

  Expr of_kind(const std::string& kind) {
    if (kind == "cross_entropy") return cross_entropy();
    if (kind == "nll") return nll();
    if (kind == "ctc") return ctc();
    if (kind == "focal" && !is_float(label_.dtype())) return focal_of_classes();
    match_shapes(kind);
    label_ = b_.cast(label_, output_.dtype());
    std::string used = kind;
    if (kind == "bce" || kind == "focal") {
      if (const Expr logits = logits_before_sigmoid(b_, output_.id())) {
        through("Sigmoid", logits);
        if (kind == "bce") used = "bce_with_logits";
      }
    }
    const Expr positive = spec_.class_weights.empty() ? Expr() : positive_weight();
    if (const Expr loss = formula_loss(b_, spec_, used, output_, label_, positive)) return loss;
    std::string all;
    for (const char* k : loss_kinds()) all += cat(all.empty() ? "" : ", ", k);
    fail(ErrorCode::kUsage, "loss '", kind, "' is unknown; there are ", all);
  }

  // Labels in the output's shape. Extents of 1 may be missing or extra: [B] for an output [B,1].
  void match_shapes(const std::string& kind) {
    const Shape &x = output_.shape(), &y = label_.shape();
    if (prove_equal(x, y) != Tri::kNo) return;
    const auto core = [](const Shape& s) {
      std::vector<Dim> out;
      for (const Dim& d : s)
        if (!(d == Dim(1))) out.push_back(d);
      return out;
    };
    if (core(x) != core(y) || !x.is_const())
      fail(ErrorCode::kShape, "loss ", kind, ": output '", output_name_, "' has shape ", x.str(),
           ", labels '", spec_.label, "' have ", y.str(), "; they must be equal");
    ctx_.messages.push_back(cat("labels '", spec_.label, "' ", y.str(), " are read as ", x.str()));
    label_ = b_.reshape_like(label_, output_);
  }

  // From here on the loss is one of the logits before the output.
  void through(const std::string& op, Expr logits) {
    ctx_.messages.push_back(cat("output '", output_name_, "' ends in ", op,
                                ": trained through its logits, which is the same and stable"));
    output_ = logits;
  }
  bool through_softmax(int axis) {
    std::string op;
    const ValueId logits = logits_before_softmax(g_, output_.id(), axis, op);
    if (logits == kNone) return false;
    through(op, b_.wrap(logits));
    return true;
  }

  // Class indices: axis 1 if the other axes fit the labels, else the last. Probabilities: axis 1,
  // or the last of sequence logits [B,T,V].
  int class_axis() {
    const Shape &x = output_.shape(), &y = label_.shape();
    const auto fits = [&](int axis) {
      Shape rest;
      for (int i = 0; i < x.rank(); ++i)
        if (i != axis) rest.push_back(x[i]);
      return prove_equal(rest, y) != Tri::kNo;
    };
    if (is_float(label_.dtype())) {
      if (prove_equal(x, y) == Tri::kNo) bad_labels();
      return x.rank() == 3 ? 2 : 1;
    }
    if (x.rank() < 2) bad_labels();
    const int last = x.rank() - 1;
    const bool second = fits(1), final = last != 1 && fits(last);
    if (second && final) {
      const int axis = x.rank() == 3 ? 2 : 1;
      ctx_.messages.push_back(cat("classes could lie on axis 1 or ", last, " of output '",
                                  output_name_, "' ", x.str(), "; axis ", axis, " is taken"));
      return axis;
    }
    if (!second && !final) bad_labels();
    return second ? 1 : last;
  }
  [[noreturn]] void bad_labels() const {
    fail(ErrorCode::kShape, "labels '", spec_.label, "' (", name_of(label_.dtype()),
         label_.shape().str(), ") do not fit output '", output_name_, "' ", output_.shape().str(),
         ": expected class indices of its shape without the class axis (axis 1 or the last), or "
         "probabilities of its shape");
  }

  Expr integer_labels() { return is_float(label_.dtype()) ? label_ : b_.cast(label_, DType::kI64); }

  Expr weights_constant(const Dims& dims) {
    HostTensor t(output_.dtype(), dims);
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_double(i, spec_.class_weights[static_cast<size_t>(i)]);
    return b_.constant(std::move(t));
  }

  // One weight per class, [classes]; empty when none are given.
  Expr class_weights(int axis) {
    if (spec_.class_weights.empty()) return {};
    const auto given = static_cast<int64_t>(spec_.class_weights.size());
    const Dim& classes = output_.shape()[axis];
    if (classes.is_const() && classes.value() != given)
      fail(ErrorCode::kUsage, "--class-weights gives ", given, " numbers, output '", output_name_,
           "' ", output_.shape().str(), " has ", classes.value(), " classes on axis ", axis);
    return weights_constant({given});
  }

  // What a positive counts, broadcast to the scores: one number, one per score of the last axis, or
  // one per channel (axis 1).
  Expr positive_weight() {
    const Shape& x = output_.shape();
    const auto given = static_cast<int64_t>(spec_.class_weights.size());
    const auto fits = [&](int axis) {
      return axis < x.rank() && x[axis].is_const() && x[axis].value() == given;
    };
    if (given == 1 || fits(x.rank() - 1)) return weights_constant({given});
    if (!fits(1))
      fail(ErrorCode::kUsage, "--class-weights gives ", given, " numbers, output '", output_name_,
           "' has shape ", x.str(),
           "; expected the weight of positives: one number, or one per score of its last axis");
    Dims dims(static_cast<size_t>(x.rank() - 1), 1);
    dims[0] = given;
    return weights_constant(dims);
  }

  Expr mean(const Mean& m) {
    divisor_ = m.divisor;
    return m.mean;
  }

  Expr cross_entropy() {
    const int axis = class_axis();
    if (counts_apart_ && !is_float(label_.dtype())) {
      count_ = sum_of(targets(output_.dtype(), axis).valid);
      if (only_counts()) return count_;
    }
    through_softmax(axis);
    const std::vector<Expr> y =
        b_.ops("ortrain.CrossEntropy", {output_, integer_labels(), class_weights(axis)},
               {{"axis", int64_t{axis}},
                {"ignore_index", spec_.ignore_index},
                {"label_smoothing", spec_.label_smoothing}},
               ctx_.spec.mode == Mode::kGrads ? 1 : 3);
    if (y.size() == 3) divisor_ = y[2];
    if (!is_float(label_.dtype()) && !count_) count_ = divisor_;
    return y[0];
  }

  // The classes that the labels name (0 where ignored), and how much each counts: the weight of its
  // class, 0 where it is ignored.
  struct Targets {
    Expr index, valid;
  };
  Targets targets(DType dtype, int axis) {
    const Expr t = integer_labels();
    const Expr ignored = b_.op("Equal", {t, b_.scalar(DType::kI64, double(spec_.ignore_index))});
    const Expr index = b_.where(ignored, b_.scalar(DType::kI64, 0), t);
    Expr valid = 1 - b_.cast(ignored, dtype);
    if (const Expr weights = class_weights(axis))
      valid = valid * b_.op("Gather", {weights, index}, {{"axis", int64_t{0}}});
    return {index, valid};
  }
  Expr sum_of(Expr x) {
    std::vector<int64_t> axes;
    for (int a = 0; a < x.rank(); ++a) axes.push_back(a);
    return b_.sum(x, axes, /*keepdims=*/false);
  }
  bool only_counts() const { return ctx_.spec.window.phase == WindowSpec::Phase::kCount; }

  // The entries of x (classes on `axis`) that the labels name, and how much each counts.
  std::pair<Expr, Expr> labelled(Expr x, int axis) {
    const auto [index, valid] = targets(x.dtype(), axis);
    const Expr picked = b_.squeeze(
        b_.op("GatherElements", {x, b_.unsqueeze(index, {axis})}, {{"axis", int64_t{axis}}}),
        {axis});
    count_ = sum_of(valid);
    return {picked, valid};
  }

  // Negative log likelihood of log-probabilities: -mean of the labelled entries.
  Expr nll() {
    if (is_float(label_.dtype()))
      fail(ErrorCode::kShape, "loss nll needs class indices, labels '", spec_.label, "' are ",
           name_of(label_.dtype()));
    const int axis = class_axis();
    std::string op;
    if (logits_before_softmax(g_, output_.id(), axis, op) != kNone) return cross_entropy();
    const auto [picked, counts] = labelled(output_, axis);
    return mean(weighted_mean(b_, -picked, counts));
  }

  // -mean((1 - p)^gamma log p) of the labelled classes, p by softmax.
  Expr focal_of_classes() {
    const int axis = class_axis();
    through_softmax(axis);
    const Expr log_p = b_.op("LogSoftmax", {output_}, {{"axis", int64_t{axis}}});
    const auto [picked, valid] = labelled(log_p, axis);
    return mean(focal_of_log(b_, picked, valid, spec_.focal_gamma));
  }

  // Scores [B,T,C] or [T,B,C], labels [B,S].
  Expr ctc() {
    const Shape &x = output_.shape(), &y = label_.shape();
    const bool first = x.rank() == 3 && y.rank() == 2 && x[0] == y[0];
    const bool second = x.rank() == 3 && y.rank() == 2 && x[1] == y[0];
    if (is_float(label_.dtype()) || (!first && !second))
      fail(ErrorCode::kShape, "loss ctc needs scores [B,T,C] or [T,B,C] and integer labels [B,S]; ",
           "output '", output_name_, "' has shape ", x.str(), ", labels '", spec_.label, "' are ",
           name_of(label_.dtype()), y.str());
    if (first && second)
      ctx_.messages.push_back(cat("time could lie on axis 0 or 1 of output '", output_name_, "' ",
                                  x.str(), "; axis 1 is taken"));
    through_softmax(2);
    if (!first) output_ = b_.transpose(output_, {1, 0, 2});
    return b_.op("ortrain.CtcLoss", {output_, integer_labels()},
                 {{"blank", spec_.blank}, {"ignore_index", spec_.ignore_index}});
  }

  Graph& g_;
  PassContext& ctx_;
  const LossSpec& spec_;
  Builder b_;
  Expr output_, label_, divisor_, count_;
  std::string output_name_;
  bool counts_apart_;  // targets are counted from the labels alone, for a window's share
};

// Outputs without a loss are left out of training; said where parameters are left out with them.
void tell_unused_outputs(const Graph& g, ValueId loss, PassContext& ctx) {
  PerValue<bool> used = reaches(g, {loss});
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    PerValue<bool> path = reaches(g, {g.outputs()[i]});
    int64_t count = 0;
    std::string names;
    for (ValueId v : g.sources(Source::kParam)) {
      if (!path[v] || used[v]) continue;
      if (++count <= 4) names += cat(count > 1 ? ", " : "", g.describe_value(v));
    }
    if (count > 0)
      ctx.messages.push_back(cat("output '", g.output_names()[i], "' has no loss: ", count,
                                 count == 1 ? " parameter that no loss uses stays as it is ("
                                            : " parameters that no loss uses stay as they are (",
                                 names, count > 4 ? ", ..." : "", ")"));
  }
}

// A graph of nothing but the numbers of targets; of nothing at all where they do not vary.
// Parameters are constants here: another program owns them.
template <class Outputs>
void count_targets(Graph& g, PassContext& ctx, bool vary, Outputs&& outputs) {
  g.clear_outputs();
  Builder b(g, "loss|attach_loss");
  if (vary) outputs(b);
  g.erase_dead();
  for (ValueId v : g.sources(Source::kParam)) g.value(v).source = Source::kConst;
  g.params.clear();
  ctx.did = "targets of each loss";
}

}  // namespace

void pass_attach_loss(Graph& g, PassContext& ctx) {
  const Mode mode = ctx.spec.mode;
  const bool gradients = mode == Mode::kTrain || mode == Mode::kGrads;
  const std::vector<LossSpec> losses = ctx.spec.losses();
  struct Part {
    std::string name;  // "" for the only one
    double factor;
    Expr loss, weight, divisor;
  };
  std::vector<Part> parts;
  Expr total, weight;                                    // weight: window.h
  std::vector<std::pair<std::string, ValueId>> results;  // what is measured besides the total
  Builder sum(g, "loss|attach_loss");
  const bool counts = ctx.spec.window.phase == WindowSpec::Phase::kCount;
  bool complete = true, shares = false;
  for (const LossSpec& spec : losses) {
    if (mode == Mode::kPredict) break;
    const std::string name = losses.size() > 1 ? spec.output : "";
    LossBuilder builder(g, ctx, spec, name);
    Part p{name, spec.factor, sum.wrap(builder.build(gradients).id()), {}, {}};
    if (!p.loss) {
      complete = false;
      continue;
    }
    if (mode == Mode::kTrain || counts) p.weight = sum.wrap(builder.weight(ctx.spec.window).id());
    p.divisor = sum.wrap(builder.divisor().id());
    shares |= p.weight && !name.empty() && ctx.spec.window.phase != WindowSpec::Phase::kOnly;
    parts.push_back(p);
  }
  if (counts)
    return count_targets(g, ctx, shares, [&](Builder& b) {
      for (const Part& p : parts)
        g.add_output(window_share(b, ctx.spec.window, p.weight, p.name).id(), "targets/" + p.name);
    });
  for (Part& p : parts) {
    weight = p.weight;
    if (shares)
      p.loss =
          p.loss * sum.cast(window_share(sum, ctx.spec.window, p.weight, p.name), p.loss.dtype());
    const Expr part = p.factor == 1 ? p.loss : p.loss * p.factor;
    total = total ? total + sum.cast(part, total.dtype()) : part;
    if (!p.name.empty()) results.emplace_back("loss/" + p.name, p.loss.id());
    if (mode == Mode::kEval && p.divisor)
      results.emplace_back(cat("loss/", p.name, p.name.empty() ? "" : "/", "divisor"),
                           p.divisor.id());
  }
  if (complete && total) results.emplace(results.begin(), "loss", total.id());
  if (gradients) tell_unused_outputs(g, total.id(), ctx);
  decide_trainable(g, gradients ? std::vector<ValueId>{total.id()} : g.outputs(), ctx);
  if (!results.empty()) {
    const std::vector<ValueId> outputs = g.outputs();
    const std::vector<std::string> names = g.output_names();
    g.clear_outputs();
    std::set<std::string> taken;
    for (const auto& [name, v] : results)
      if (taken.insert(name).second) g.add_output(v, name);
    for (size_t i = 0; i < outputs.size() && !gradients; ++i)
      if (!taken.contains(names[i])) g.add_output(outputs[i], names[i]);
    if (weight && losses.size() == 1) g.add_output(weight.id(), kLossWeight);
  }
  g.erase_dead();
  int64_t trainable = 0, elements = 0;
  for (const auto& [v, info] : g.params)
    if (info.trainable) ++trainable, elements += g.tensor(v)->count();
  ctx.did +=
      cat(ctx.did.empty() ? "" : "; ", trainable, " parameters (", elements, " numbers) train");
  if (gradients && trainable == 0)
    fail(ErrorCode::kUnsupported,
         "nothing to train: every parameter is frozen or does not reach the loss; `ortrain "
         "inspect` lists each tensor with the reason");
}

}  // namespace ortrain
