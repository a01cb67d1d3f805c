// --memory-budget: reading it, making programs that keep within it, and what to change when none
// can.
//
// A budget covers all that a run works in: parameters, optimizer states, constants, the arena
// (activations, gradients, scratch) and batch buffers. Promises: after fit_budget() said `fits`,
// the bytes that will be allocated are at most the budget. Every change that advise() names was
// planned to the byte before.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "runtime/executor.h"
#include "runtime/step_memory.h"

namespace ortrain {

struct MemoryBudget {
  size_t bytes = 0;
  double share = 0;  // > 0: of what the step takes without recomputation
  bool given() const { return bytes > 0 || share > 0; }
  size_t of(size_t unconstrained) const;
};
// "4GiB", "500MB", "123456789", "80%"; "" = none. Throws Error(kUsage).
MemoryBudget parse_budget(const std::string& text);

struct Footprint {
  size_t arena = 0, fixed = 0;  // fixed: store and batch buffers
  // No order and no recomputation gets the arena below what this node needs; 0 = not known.
  size_t bound = 0;
  std::string bound_node = {};
  size_t total() const { return arena + fixed; }
};
struct BudgetFit {
  bool fits = true;
  size_t budget = 0;         // bytes; 0 = none
  size_t unconstrained = 0;  // of the step without recomputation
  Footprint used;            // of the programs made last
};
// Makes the programs with `make`, once as `mode` says without a budget and, where that does not
// fit, once more with what is left for the arena. `limit`: of the machine, 0 = unknown; the budget
// of mode auto when none is given.
BudgetFit fit_budget(const std::string& mode, const MemoryBudget& budget, size_t limit,
                     const std::function<Footprint(const RecomputeSpec&)>& make);

// "recompute: 12 nodes run again, arena 5.0 MiB instead of 9.0 MiB, +3 % time predicted"
std::string recompute_text(const RecomputeReport& report);
// After profiled runs: what the copies took of them.
std::string measured_text(const RecomputeReport& report, const Executor& executor);

// What changes would make the step fit, one line each with its flags and bytes; "" = none found.
struct AdviceQuestion {
  const Graph& source;
  StepSpec spec;      // as asked for
  int64_t batch = 1;  // samples per micro-batch
  int64_t accumulate = 1;
  bool batch_may_change = true;
  size_t budget = 0;
  const SelectOptions& select;
  // Specs of the programs that share the arena when a step is `parts` micro-batches of `batch`.
  std::function<std::vector<StepSpec>(const StepSpec&, int64_t batch, int64_t parts)> programs;
  std::function<size_t(int64_t batch)> buffers;  // bytes of batch buffers
};
std::string advise(const AdviceQuestion& question);

// "--memory-budget 1.0 MiB (1048576 bytes) is too small: ... at least ..." and the advice.
[[noreturn]] void refuse_budget(const BudgetFit& fit, bool asked, const std::string& advice);

}  // namespace ortrain
