// Formulas of the losses that need no operator of their own; see losses.h. Means and definitions
// are PyTorch's and torchvision's where they have one; each is written next to its code.
#include "graph/passes/losses.h"

#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

std::vector<int64_t> axes_from(Expr x, int first) {
  std::vector<int64_t> axes;
  for (int a = first; a < x.rank(); ++a) axes.push_back(a);
  return axes;
}
Expr mean(Builder& b, Expr x) { return b.mean(x, axes_from(x, 0), /*keepdims=*/false); }

// x^gamma of x >= 0; products where they do, so that the gradient at 0 is clean.
Expr power(Builder& b, Expr x, double gamma) {
  if (gamma == 0) return b.ones_like(x);
  if (gamma == 1) return x;
  if (gamma == 2) return x * x;
  return b.op("Pow", {x, b.scalar(x.dtype(), gamma)});
}

// 0.5 d^2 / (delta if scaled) where |d| < delta, else linear: HuberLoss for scale = delta,
// SmoothL1Loss(beta = delta) for scale = 1.
Expr huber(Builder& b, Expr d, double delta, double scale) {
  const Expr a = b.unary("Abs", d);
  if (delta <= 0) return mean(b, a * scale);
  const Expr square = d * d * (0.5 * scale / delta), line = (a - 0.5 * delta) * scale;
  const Expr near = b.op("Less", {a, b.scalar(a.dtype(), delta)});
  return mean(b, b.where(near, square, line));
}

// Per element: max(x,0) - x y + log(1 + exp(-|x|)), as softplus(x) = max(x,0) + log1p(e^-|x|).
// With the weight w of positives (torch's pos_weight): (1-y) x + (1 + (w-1) y) softplus(-x).
Expr bce_of_logits(Builder& b, Expr x, Expr y, Expr w = {}) {
  if (!w) return b.unary("Softplus", x) - x * y;
  return (1 - y) * x + (1 + (w - 1) * y) * b.unary("Softplus", -x);
}

// Log terms are kept above -100, as in torch.nn.BCELoss.
Expr bce(Builder& b, Expr p, Expr y, Expr w) {
  const Expr floor = b.scalar(p.dtype(), -100);
  const Expr log_p = b.op("Max", {b.log(p), floor});
  const Expr log_q = b.op("Max", {b.log(1 - p), floor});
  const Expr positive = w ? w * y : y;
  return -mean(b, positive * log_p + (1 - y) * log_q);
}

// torch.nn.KLDivLoss, reduction mean: mean(y (log y - x)) over all elements, 0 where y is 0.
Expr kl_div(Builder& b, Expr x, Expr y) {
  const Expr positive = b.op("Greater", {y, b.scalar(y.dtype(), 0)});
  const Expr safe = b.where(positive, y, b.scalar(y.dtype(), 1));
  return mean(b, y * (b.log(safe) - x));
}

// Per sample 1 - (2 sum(p y) + 1) / (sum(p) + sum(y) + 1), then the mean over samples.
Expr dice(Builder& b, Expr p, Expr y) {
  const std::vector<int64_t> axes = axes_from(p, 1);
  const auto sum = [&](Expr e) { return axes.empty() ? e : b.sum(e, axes, /*keepdims=*/false); };
  return mean(b, 1 - (sum(p * y) * 2 + 1) / (sum(p) + sum(y) + 1));
}

// torchvision.ops.sigmoid_focal_loss(alpha = -1, reduction mean): (1 - p_t)^gamma times the binary
// cross entropy, where 1 - p_t = p + y - 2 p y.
Expr focal(Builder& b, Expr x, Expr y, double gamma) {
  const Expr p = b.unary("Sigmoid", x);
  return mean(b, power(b, p + y - p * y * 2, gamma) * bce_of_logits(b, x, y));
}

}  // namespace

const std::vector<const char*>& loss_kinds() {
  static const std::vector<const char*> kinds = {
      "auto", "graph",           "cross_entropy", "mse",    "l1",    "huber", "smooth_l1",
      "bce",  "bce_with_logits", "nll",           "kl_div", "focal", "dice",  "ctc"};
  return kinds;
}

Expr formula_loss(Builder& b, const LossSpec& spec, const std::string& kind, Expr x, Expr y,
                  Expr positive) {
  if (kind == "mse") return mean(b, (x - y) * (x - y));
  if (kind == "l1") return mean(b, b.unary("Abs", x - y));
  if (kind == "huber") return huber(b, x - y, spec.huber_delta, spec.huber_delta);
  if (kind == "smooth_l1") return huber(b, x - y, spec.huber_delta, 1);
  if (kind == "bce") return bce(b, x, y, positive);
  if (kind == "bce_with_logits") return mean(b, bce_of_logits(b, x, y, positive));
  if (kind == "kl_div") return kl_div(b, x, y);
  if (kind == "dice") return dice(b, x, y);
  if (kind == "focal") return focal(b, x, y, spec.focal_gamma);
  return {};
}

Mean weighted_mean(Builder& b, Expr x, Expr weight) {
  const std::vector<int64_t> axes = axes_from(x, 0);
  const Expr sum = b.sum(weight, axes, false);
  const Expr none = b.op("Equal", {sum, b.scalar(sum.dtype(), 0)});
  const Expr divisor = b.where(none, b.scalar(sum.dtype(), 1), sum);
  return {b.sum(x * weight, axes, false) / divisor, sum};
}

Mean focal_of_log(Builder& b, Expr log_p, Expr valid, double gamma) {
  const Expr unsure = -b.unary("ortrain.Expm1", log_p);
  return weighted_mean(b, -(power(b, unsure, gamma) * log_p), valid);
}

ValueId logits_before_softmax(const Graph& g, ValueId v, int axis, std::string& op) {
  for (const char* name : {"Softmax", "LogSoftmax"})
    if (const Node* n = producer(g, v, name)) {
      op = name;
      return normalize_axis(n->attrs.i("axis", -1), g.value(v).shape.rank()) == axis ? n->inputs[0]
                                                                                     : kNone;
    }
  const Node* quotient = producer(g, v, "Div");
  const Node* top = quotient ? producer(g, quotient->inputs[0], "Exp") : nullptr;
  if (!top || g.value(quotient->inputs[0]).shape != g.value(v).shape) return kNone;
  // The divisor: the sum along the axis, its extent there 1 (or expanded again), nothing moved.
  const Shape full = g.value(v).shape;
  Shape one = full;
  one[axis] = Dim(1);
  ValueId sum = quotient->inputs[1];
  bool aligned = false;
  while (const Node* n = producer(g, sum)) {
    if (n->op->name != "Expand" && !n->op->view) break;
    const Shape& shape = g.value(sum).shape;
    if (shape != full && shape != one) return kNone;
    aligned = true;
    sum = n->inputs[0];
  }
  const Node* total = producer(g, sum, "ReduceSum");
  const HostTensor* axes = total ? constant(g, input(*total, 1)) : nullptr;
  if (!axes || axes->count() != 1 || total->inputs[0] != quotient->inputs[0] ||
      normalize_axis(axes->as_ints()[0], full.rank()) != axis ||
      (!aligned && g.value(sum).shape != one))
    return kNone;
  op = "a softmax spelled out";
  return top->inputs[0];
}

Expr logits_before_sigmoid(Builder& b, ValueId v) {
  const Graph& g = b.graph();
  const Expr output = b.wrap(v);
  if (!output.shape().is_const()) return {};
  for (const Node* n = producer(g, v); n; n = producer(g, v)) {
    if (n->op->name == "Sigmoid") return b.reshape_like(b.wrap(n->inputs[0]), output);
    if (!n->op->view || n->outputs[0] != v) return {};
    v = n->inputs[0];
  }
  return {};
}

}  // namespace ortrain
