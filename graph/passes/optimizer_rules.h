// The update rules of the optimizers: learning rate, which op updates a parameter, what states it
// keeps, its attributes, its group, averages of the parameters. The protocol around them (loss,
// gradients, clipping by norm, skipping, buckets) is optimizer.cc.
//
// Elementwise rules and LAMB are one op per bucket. Adafactor and Muon (for matrices; AdamW for the
// others) are written in graph ops per tensor, so that their products run on the math library.
// Refuses unknown optimizers and schedules, with the names that there are.
#pragma once

#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/passes/param_groups.h"
#include "graph/passes/passes.h"

namespace ortrain {

// A parameter and its gradient; `ready` orders buckets: the position of the gradient's producer.
struct GradSlot {
  ValueId param, grad;
  size_t ready = 0;
  ValueId slots = kNone;  // else `grad` holds touched rows (row_gradients.h)
};

// What every update reads besides its tensors.
struct UpdateInputs {
  Expr lr;     // f64 scalar
  Expr step;   // i64: updates applied before this one
  Expr apply;  // bool: false changes nothing
  Expr scale;  // scalar that multiplies every gradient; empty: 1
};

class OptimizerRules {
 public:
  OptimizerRules(Graph& g, PassContext& ctx);
  Expr learning_rate(Expr step) const;
  // Whether the parameter's update reads a gradient by touched rows.
  bool takes_rows(ValueId param) const;
  // Whether one update may hold both.
  bool same_bucket(ValueId a, ValueId b) const;
  // Adds the update nodes and state updates of a bucket.
  void update(const UpdateInputs& in, const std::vector<GradSlot>& bucket);

 private:
  // One op for a whole bucket, its states and attributes.
  struct BucketRule {
    std::string op;
    std::vector<const char*> states;
    Attrs attrs;
    bool rows = true;  // takes gradients by touched rows
  };
  BucketRule bucket_rule(bool by_adamw) const;
  void update_bucket(const UpdateInputs& in, const std::vector<GradSlot>& bucket, bool by_adamw);
  void update_adafactor(const UpdateInputs& in, const GradSlot& slot);
  void update_muon(const UpdateInputs& in, const GradSlot& slot);
  void average(const UpdateInputs& in, const std::vector<GradSlot>& bucket, size_t first_update);
  void choose_muon();
  // The gradient as the update kernels see it.
  Expr gradient(Builder& b, const UpdateInputs& in, ValueId grad) const;
  // `state` takes `next` unless the step is skipped.
  void keep_or(const UpdateInputs& in, Expr state, Expr next);
  ValueId state(ValueId param, const char* suffix, const Dims& dims, double fill = 0);

  Graph& g_;
  PassContext& ctx_;
  const OptimizerSpec& spec_;
  ParamGroups groups_;
  std::vector<ValueId> muon_;  // sorted
};

}  // namespace ortrain
