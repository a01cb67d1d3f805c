// The update rules of the optimizers: learning rate, which op updates a parameter, what states it
// keeps, its attributes and parameter groups. The protocol around them (loss, gradients, clipping,
// skipping, buckets) is optimizer.cc.
//
// Refuses unknown optimizers and schedules, with the names that there are.
#pragma once

#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/passes/passes.h"

namespace ortrain {

// A parameter and its gradient; `ready` orders buckets: the position of the gradient's producer.
struct GradSlot {
  ValueId param, grad;
  size_t ready = 0;
};

// What every update reads besides its tensors.
struct UpdateInputs {
  Expr lr;     // scalar
  Expr step;   // i64: updates applied before this one
  Expr apply;  // bool: false changes nothing
  Expr scale;  // scalar that multiplies every gradient; empty: 1
};

class OptimizerRules {
 public:
  OptimizerRules(Graph& g, PassContext& ctx);
  Expr learning_rate(Expr step) const;
  // Whether one update may hold both.
  bool same_bucket(ValueId a, ValueId b) const;
  // Adds the update nodes and state updates of a bucket.
  void update(const UpdateInputs& in, const std::vector<GradSlot>& bucket);

 private:
  double weight_decay(ValueId param) const;
  ValueId state_like(ValueId param, const char* suffix);

  Graph& g_;
  const OptimizerSpec& spec_;
};

}  // namespace ortrain
