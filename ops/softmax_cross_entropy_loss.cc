// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss (ONNX), by their meaning.
//
// scores [N,C,d1..dk], labels [N,d1..dk], weights [C]? -> loss: a scalar (reduction mean or sum) or
// [N,d1..dk] (none); positions whose label is ignore_index do not count. mean divides by the sum of
// the weights of the positions that count; when there are none the loss is 0 for the softmax form
// (ortrain.CrossEntropy) and NaN for the other, as ONNX writes it. Gradients flow into the scores
// only; weights are given, not trained.
#include <limits>

#include "graph/error.h"
#include "graph/op_def.h"
#include "ops/common/checks.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();  // no label is ignored

void infer(InferCtx& c) {
  same_floats(c, {0, 2});
  const Shape& x = c.shape(0);
  if (x.rank() < 2) c.fail("scores must be [N,C,...], got " + x.str());
  Shape positions;
  for (int i = 0; i < x.rank(); ++i)
    if (i != 1) positions.push_back(x[i]);
  if (prove_equal(c.shape(1), positions) == Tri::kNo)
    c.fail(cat("labels have shape ", c.shape(1).str(), ", scores ", x.str(),
               " with classes on axis 1: expected class indices of shape ", positions.str()));
  if (c.has(2) && (c.rank(2) != 1 || prove_equal(c.shape(2)[0], x[1]) == Tri::kNo))
    c.fail(cat("weights have shape ", c.shape(2).str(), ", scores ", x.str()));
  const std::string reduction = c.attrs().s("reduction", "mean");
  if (reduction != "none" && reduction != "mean" && reduction != "sum")
    c.fail("unknown reduction '" + reduction + "'");
  c.out(0, c.dtype(0), reduction == "none" ? positions : Shape());
  c.out(1, c.dtype(0), x);
}

// Losses from log probabilities [N,C,...].
Expr reduced(Decompose& d, Expr log_prob) {
  Builder& b = d.b;
  const DType dtype = log_prob.dtype();
  const int64_t ignore = d.attrs().i("ignore_index", kNothing);
  const std::string reduction = d.attrs().s("reduction", "mean");
  Expr label = b.cast(d.x(1), DType::kI64), weight;
  Expr ignored;
  if (ignore != kNothing) {
    ignored = b.op("Equal", {label, b.constant(HostTensor::scalar<int64_t>(ignore))});
    label = b.where(ignored, b.constant(HostTensor::scalar<int64_t>(0)), label);
  }
  const Expr picked =
      b.op("GatherElements", {log_prob, b.unsqueeze(label, {1})}, {{"axis", int64_t{1}}});
  Expr loss = -b.squeeze(picked, {1});
  if (d.has_x(2)) weight = b.op("Gather", {d.x(2), label}, {{"axis", int64_t{0}}});
  if (ignored) {
    const Expr zero = b.scalar(dtype, 0);
    weight = b.where(ignored, zero, weight ? weight : b.ones_like(loss));
  }
  if (weight) loss = loss * weight;
  if (reduction == "none") return loss;
  std::vector<int64_t> all;
  for (int i = 0; i < loss.rank(); ++i) all.push_back(i);
  const Expr sum = b.sum(loss, all, /*keepdims=*/false);
  if (reduction == "sum") return sum;
  if (weight) return sum / b.sum(weight, all, /*keepdims=*/false);
  return sum / static_cast<double>(element_count(loss.shape().values()));
}

std::vector<Expr> negative_log_likelihood(Decompose& d) { return {reduced(d, d.x(0))}; }

std::vector<Expr> softmax_cross_entropy(Decompose& d) {
  Builder& b = d.b;
  const Attrs attrs = d.attrs();  // a copy: nodes move as the graph grows
  const std::string reduction = attrs.s("reduction", "mean");
  Expr log_prob, loss;
  if (d.wants(1) || reduction == "none")
    log_prob = b.op("LogSoftmax", {d.x(0)}, {{"axis", int64_t{1}}});
  if (reduction == "none") {
    loss = reduced(d, log_prob);
  } else {
    const std::vector<Expr> y =
        b.ops("ortrain.CrossEntropy", {d.x(0), d.x(1), d.has_x(2) ? d.x(2) : Expr()},
              {{"axis", int64_t{1}}, {"ignore_index", attrs.i("ignore_index", kNothing)}}, 3);
    loss = reduction == "sum" ? y[0] * y[2] : y[0];
  }
  return {loss, log_prob};
}

std::vector<Example> examples() {
  const Attrs none{{"reduction", std::string("none")}};
  const Attrs sum{{"reduction", std::string("sum")}, {"ignore_index", int64_t{2}}};
  ExampleInput weights = floats({3}, {0.5, 1, 2});
  weights.constant = true;
  return {{.in = {f({4, 3}), ints({4}, 0, 3)}},
          {.in = {f({4, 3}), iconst({4}, {0, 2, 1, 2}), weights}, .attrs = sum},
          {.in = {f({2, 3, 5}), ints({2, 5}, 0, 3), weights}},
          {.in = {f({2, 3, 2}), ints({2, 2}, 0, 3), weights}, .attrs = none},
          {.in = {f({4, 3}), iconst({4}, {0, 2, 1, 2})}, .attrs = {{"ignore_index", int64_t{2}}}}};
}

}  // namespace

void register_softmax_cross_entropy_loss(OpTable& table) {
  std::vector<Example> with_log_prob = examples();
  with_log_prob.push_back({.in = {f({4, 3}), ints({4}, 0, 3)}, .outputs = 2});
  table.add({
      .name = "SoftmaxCrossEntropyLoss",
      .inputs = {"scores", "labels", "weights?"},
      .outputs = {"output", "log_prob?"},
      .since = 12,
      .infer = infer,
      .decompose = softmax_cross_entropy,
      .precision = Precision::kNever16,
      .examples = with_log_prob,
      .note = "every position ignored: loss 0",
  });
  table.add({
      .name = "NegativeLogLikelihoodLoss",
      .inputs = {"input", "target", "weight?"},
      .outputs = {"loss"},
      .since = 12,
      .infer = infer,
      .decompose = negative_log_likelihood,
      .precision = Precision::kNever16,
      .examples = examples(),
  });
}

}  // namespace ortrain::ops
