// attach_loss: finds or builds the scalar loss, then decides the trainable set.
//
// Meanings and reductions are PyTorch's (mean over valid targets, or over all elements). An output
// that ends in Softmax, LogSoftmax or Sigmoid is trained through its logits where the loss allows
// (losses.h has the formulas).
// After it the outputs are "loss" (kTrain, kGrads), "loss" and the model's own (kEval with labels),
// or the model's own. Refuses labels whose shape does not fit, and a missing label array.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/losses.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

class LossBuilder {
 public:
  LossBuilder(Graph& g, PassContext& ctx)
      : g_(g), ctx_(ctx), spec_(ctx.spec.loss), b_(g, "loss|attach_loss") {}

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
    if (kind == "graph") {
      ctx_.did = cat("loss is output '", output_name_, "'");
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
    ctx_.did = cat(kind, " of output '", output_name_, "' against '", spec_.label, "'");
    return of_kind(kind);
  }

 private:
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
    if (const Expr loss = formula_loss(b_, spec_, used, output_, label_)) return loss;
    fail(ErrorCode::kUsage, "loss '", kind,
         "' is unknown; there are graph, cross_entropy, mse, l1, huber, smooth_l1, bce, "
         "bce_with_logits, nll, kl_div, focal, dice, ctc");
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

  Expr cross_entropy() {
    const int axis = class_axis();
    through_softmax(axis);
    return b_.op("ortrain.CrossEntropy", {output_, integer_labels()},
                 {{"axis", int64_t{axis}},
                  {"ignore_index", spec_.ignore_index},
                  {"label_smoothing", spec_.label_smoothing}});
  }

  // The entries of x (classes on `axis`) that the labels name, and which of them count (1 or 0).
  std::pair<Expr, Expr> labelled(Expr x, int axis) {
    const Expr t = integer_labels();
    const Expr ignored = b_.op("Equal", {t, b_.scalar(DType::kI64, double(spec_.ignore_index))});
    const Expr index = b_.where(ignored, b_.scalar(DType::kI64, 0), t);
    const Expr picked = b_.squeeze(
        b_.op("GatherElements", {x, b_.unsqueeze(index, {axis})}, {{"axis", int64_t{axis}}}),
        {axis});
    return {picked, 1 - b_.cast(ignored, x.dtype())};
  }

  // Negative log likelihood of log-probabilities: -mean of the labelled entries.
  Expr nll() {
    if (is_float(label_.dtype()))
      fail(ErrorCode::kShape, "loss nll needs class indices, labels '", spec_.label, "' are ",
           name_of(label_.dtype()));
    const int axis = class_axis();
    std::string op;
    if (logits_before_softmax(g_, output_.id(), axis, op) != kNone) return cross_entropy();
    const auto [picked, valid] = labelled(output_, axis);
    return -mean_of_valid(b_, picked, valid);
  }

  // -mean((1 - p)^gamma log p) of the labelled classes, p by softmax.
  Expr focal_of_classes() {
    const int axis = class_axis();
    through_softmax(axis);
    const Expr log_p = b_.op("LogSoftmax", {output_}, {{"axis", int64_t{axis}}});
    const auto [picked, valid] = labelled(log_p, axis);
    return focal_of_log(b_, picked, valid, spec_.focal_gamma);
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
  Expr output_, label_;
  std::string output_name_;
};

}  // namespace

void pass_attach_loss(Graph& g, PassContext& ctx) {
  const Mode mode = ctx.spec.mode;
  const bool gradients = mode == Mode::kTrain || mode == Mode::kGrads;
  Expr loss;
  LossBuilder builder(g, ctx);
  if (gradients || mode == Mode::kEval) loss = builder.build(gradients);
  decide_trainable(g, gradients ? std::vector<ValueId>{loss.id()} : g.outputs(), ctx);
  if (loss) {
    const std::vector<ValueId> outputs = g.outputs();
    const std::vector<std::string> names = g.output_names();
    g.clear_outputs();
    g.add_output(loss.id(), "loss");
    for (size_t i = 0; i < outputs.size() && !gradients; ++i)
      if (names[i] != "loss") g.add_output(outputs[i], names[i]);
  }
  g.erase_dead();
  int64_t trainable = 0, elements = 0;
  for (const auto& [v, info] : g.params)
    if (info.trainable) ++trainable, elements += g.tensor(v)->count();
  ctx.did +=
      cat(ctx.did.empty() ? "" : "; ", trainable, " parameters (", elements, " numbers) train");
  if (gradients && trainable == 0)
    fail(ErrorCode::kUnsupported,
         "nothing to train: no parameter reaches the loss; `ortrain "
         "inspect` lists each tensor with the reason");
}

}  // namespace ortrain
