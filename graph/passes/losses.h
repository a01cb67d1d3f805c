// Parts of attach_loss: the losses that are formulas of an output and labels of its shape, and what
// stands before an output's Softmax or Sigmoid.
#pragma once

#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/pipeline.h"

namespace ortrain {

// What LossSpec::kind may be, "auto" first.
const std::vector<const char*>& loss_kinds();

// mse, l1, huber, smooth_l1, bce, bce_with_logits, kl_div, dice and (binary) focal of output x and
// labels y, same shape and dtype. An empty Expr for any other kind. `positive` (bce kinds only, may
// be empty) is the weight of positives, broadcast to x.
Expr formula_loss(Builder& b, const LossSpec& spec, const std::string& kind, Expr x, Expr y,
                  Expr positive = {});

// Mean over the entries of log_p [rows...] that count, weighted down where they are sure:
// -mean((1 - p)^gamma log p). `valid` is 1 or 0 per entry.
struct Mean {
  Expr mean, divisor;
};
Mean focal_of_log(Builder& b, Expr log_p, Expr valid, double gamma);
// Sum of x * weight over the sum of the weights; 0 when that is 0.
Mean weighted_mean(Builder& b, Expr x, Expr weight);

// What a Softmax or LogSoftmax along `axis` reads that makes v, kNone if there is none. A softmax
// may be spelled out: u in exp(u) / sum(exp(u)), whatever was subtracted to get u. `op` names it.
ValueId logits_before_softmax(const Graph& g, ValueId v, int axis, std::string& op);
// What the Sigmoid reads that makes v, also when views (Reshape, Squeeze, ...) follow it; in the
// shape of v. Empty if there is none.
Expr logits_before_sigmoid(Builder& b, ValueId v);

}  // namespace ortrain
