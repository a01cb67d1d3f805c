// Parts of autodiff and optimizer: how the micro-batches of a window add up to one exact step, and
// where the loss scale enters.
//
// A micro-batch's loss is the mean over its own targets. Its gradients start from
// weight * loss scale, weight = its valid targets / targets of a full micro-batch; they and the
// weights add up in states under kWindowPrefix. The last micro-batch multiplies the sums by
// 1 / (sum of weights * loss scale): the mean over all valid targets of the window, whatever its
// micro-batches hold.
// Several losses whose targets vary have a divisor each, and one sum of gradients: there each loss
// is multiplied by its share of the window, weight / sum of its weights (a state that is set before
// the window starts), and sums are means at once.
#pragma once

#include <string>

#include "graph/builder.h"
#include "graph/pipeline.h"

namespace ortrain {

// Output of a training graph from attach_loss to optimizer: the weight above, a scalar float. Left
// out where all targets count: then it is samples / nominal samples.
inline constexpr const char* kLossWeight = "step/weight";

inline constexpr double kNoWeight = 1e-30;  // below the weight of any target

// What the gradients of a training step start from; empty = 1.
Expr gradient_seed(Builder& b, const StepSpec& spec);

// The weight of this micro-batch in f64, and whether it can be 0 (no valid target).
Expr loss_weight(Builder& b, const WindowSpec& window);
bool may_be_empty(const Graph& g);

// A loss's share of its window. `weight`: of this micro-batch; empty: its share of samples.
Expr window_share(Builder& b, const WindowSpec& window, Expr weight, const std::string& loss);
// The targets that the losses have in the window, in f64; empty where window_share() is not used.
Expr window_targets(Builder& b);

// The loss scale of this step in f64: a state or a constant; empty when off.
ValueId loss_scale_state(Graph& g, const LossScaleSpec& spec);
Expr loss_scale(Builder& b, const LossScaleSpec& spec);

// The sum of x over the window so far: x itself in the first micro-batch. It is kept for the next.
Expr window_sum(Builder& b, const WindowSpec& window, Expr x, const std::string& name);

// Updates that other passes made (running statistics) go on from micro-batch to micro-batch in
// states of the window; the last one's update is that of the state itself.
void carry_states(Graph& g, const WindowSpec& window);

// Random numbers of the later micro-batches of a step differ from those of the first: operators
// with an input "before" (samples of the step before this micro-batch; attribute "per_sample":
// numbers per sample) go on counting, so that they draw what one large batch draws; the others get
// a step number of their own. Returns how many nodes there are.
int key_randomness(Graph& g, Builder& b, const WindowSpec& window);

}  // namespace ortrain
