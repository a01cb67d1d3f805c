// Executor: runs a plan. The loop calls prepared functions on resolved pointers: no allocation, no
// lookup, nothing to fail but data that breaks a kernel's index range.
//
// Throws Error(kData) naming node, position, value and range when a kernel met an index out of
// range, at once: later steps (the state updates) do not run. Outputs stay valid until the next run
// of any plan on the same arena. Plan, store and arena must outlive the executor.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.h"
#include "runtime/timeline.h"

namespace ortrain {

// Sees a run step by step. Arguments are those of the kernel; outputs may lie on inputs.
class StepHook {
 public:
  virtual ~StepHook() = default;
  virtual bool before(size_t /*step*/, const KernelArgs&) { return true; }  // false: left out
  virtual bool after(size_t /*step*/, const KernelArgs&) { return true; }   // false: the end
  virtual bool finish() { return false; }  // whether states take their new values by copies, too
};

class Executor {
 public:
  Executor(const Plan& plan, const Arena& arena);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // inputs[i] is the memory of plan.inputs[i], dense, aligned for its dtype, valid during the call;
  // null where the plan does not read it.
  void run(std::span<const void* const> inputs);

  // A view of output i as the last run left it.
  HostTensor output(int i) const;
  const Plan& plan() const { return plan_; }

  // --- looking closer ---
  // While on, run() times each step; times add up over runs.
  void set_profile(bool on);
  int profiled_runs() const { return profiled_runs_; }
  const std::vector<double>& step_ms() const { return step_ms_; }  // per plan step, summed
  double run_ms() const { return run_ms_; }                        // of whole runs, summed
  // Runs are written into `timeline` until it is null again.
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  // Runs once under the eyes of `hook`; false where it ended the run.
  bool run(std::span<const void* const> inputs, StepHook& hook);

 private:
  struct Call {
    const Kernel* kernel;
    KernelArgs args;
  };
  struct Patch {
    const void** slot;
    size_t input;
  };
  struct Move {
    const void* from;
    void* to;
    size_t bytes;
  };
  const void* resolve(const Place& p) const;
  void bind(std::span<const void* const> inputs);
  void finish();
  [[noreturn]] void raise(size_t step);

  const Plan& plan_;
  const Arena& arena_;
  std::vector<const void*> in_;  // all input pointers, step after step
  std::vector<void*> out_;
  std::vector<Call> calls_;
  std::vector<Patch> patches_;
  std::vector<Move> moves_;
  std::vector<const void*> outputs_;
  Fault fault_;
  void run_timed();
  bool profile_ = false;
  Timeline* timeline_ = nullptr;
  int profiled_runs_ = 0;
  double run_ms_ = 0;
  std::vector<double> step_ms_;
};

}  // namespace ortrain
