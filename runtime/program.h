// Program: one compiled, planned and runnable graph; and how a data set meets a graph's inputs.
//
// Several programs share a ParamStore and an Arena: make all of them, then arena.allocate(), then
// start() each. The compiled graph is gone once the program exists.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/executor.h"
#include "runtime/metrics.h"
#include "runtime/nan_search.h"

namespace ortrain {

class Program {
 public:
  // Compiles `source` (which must outlive this constructor only), plans it and reserves its part
  // of the arena. `options.evaluate` is supplied here.
  Program(const Graph& source, const StepSpec& spec, ParamStore& store, Arena& arena,
          const SelectOptions& select, CompileOptions options = {},
          const ParamStore::Copied& copied = {});
  void start(const Arena& arena);
  Executor& executor() { return *executor_; }
  const Plan& plan() const { return plan_; }
  const std::vector<PassNote>& notes() const { return notes_; }
  const std::vector<std::string>& messages() const { return messages_; }
  const RecomputeReport& recompute() const { return recompute_; }
  // What a loader must deliver: the inputs that the plan reads, in the plan's order.
  std::vector<data::ArraySpec> arrays() const;
  // Runs on one array per entry of arrays().
  void run(const std::vector<const void*>& arrays);
  std::optional<BadNode> find_bad_node(const ParamStore& store,
                                       const std::vector<const void*>& arrays, bool scaled_loss);
  bool run(const std::vector<const void*>& arrays, StepHook& hook);

 private:
  const std::vector<const void*>& place(const std::vector<const void*>& arrays);
  std::vector<PassNote> notes_;
  std::vector<std::string> messages_;
  RecomputeReport recompute_;
  Plan plan_;
  std::vector<size_t> read_;           // numbers of the inputs that are read
  std::vector<const void*> pointers_;  // per plan input
  std::optional<Executor> executor_;
};

// The batch's arrays as Program::run() takes them.
std::vector<const void*> pointers(const data::Batch& batch);

// Axis 0 of the inputs: a symbol, or the fixed batch size of the first input; nothing where no
// input has axes.
std::optional<Dim> batch_axis(const Graph& source);

// What the model's inputs ask of a data set; inputs that nothing reads ask nothing.
std::vector<data::ArraySpec> input_specs(const Graph& source);

// Marks the arrays of inputs that have no batch axis (fixed extents where others have the batch,
// or no axes at all) as shared by all batches.
void share_inputs(const Graph& source, data::Dataset& data);

// The spec with input shapes and labels taken from a data set, for batches of `batch` samples.
// A label array is looked for where a loss needs one and none is named: for the only loss the only
// array that is no model input, or the one called label(s), target(s) or y; for a loss that names
// its output OUT the one called OUT_label(s), OUT_target(s), OUT_y, label(s)_OUT, target(s)_OUT or
// y_OUT. Integer labels become i64.
StepSpec spec_for_data(const Graph& source, const data::Dataset& data, StepSpec spec,
                       int64_t batch);

// What an evaluation measures of one loss, and the model output it looks at.
struct Target {
  MetricSpec metric;
  std::string name;    // of the loss, where there are several; "" for the only one
  std::string output;  // name of the model output
  std::string label;   // name of the label array, "" when there is none
  DType label_dtype = DType::kUndefined;
  std::string kind;  // of the loss, "auto" decided
  double factor = 1;
  int64_t classes = 0;  // > 0: labels are class indices below it
};
// One per loss, in the order of StepSpec::losses(). `spec` as spec_for_data() gives it.
std::vector<Target> find_targets(const Graph& source, const StepSpec& spec);

}  // namespace ortrain
