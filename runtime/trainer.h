// Trainer: the loop over steps. The constructor does everything that can fail (compile, plan, match
// data to inputs, check labels, allocate); run() then only executes, reports and saves.
//
// A step is a window of `accumulate` micro-batches (one without accumulation) and one update, of
// the exact mean over all valid targets of the window. Everything that counts steps counts updates.
//
// Promises: a run that is stopped at any step and resumed from its checkpoint ends with the same
// bits as one that was not. A step whose loss or gradients are not finite, or that has no valid
// target, changes no parameter and no state but the loss scale.
// Refuses: data that does not fit (every misfit at once), labels out of range, a run that needs
// more memory than there is (Error kMemory).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/budget.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/loader.h"
#include "runtime/evaluation.h"
#include "runtime/program.h"
#include "runtime/watch.h"

namespace ortrain {

struct TrainOptions {
  int64_t batch_size = 32;
  int64_t accumulate = 1;  // micro-batches of batch_size samples per step
  int64_t epochs = 1;
  int64_t steps = 0;  // > 0: instead of epochs
  bool shuffle = true;
  data::LastBatch last_batch = data::LastBatch::kKeep;
  int64_t eval_every = 0;         // steps; 0 = after each epoch
  int64_t eval_batch = 0;         // 0 = batch_size
  bool skip_bad_steps = false;    // --on-nan skip: leave such steps out; else stop
  std::string checkpoint_folder;  // "" = no checkpoints
  int64_t checkpoint_every = 0;   // steps; 0 = about every minute. Always at a stop and at the end
  int keep = 3;
  std::map<std::string, std::string> checkpoint_extra;  // goes into each manifest
  int64_t watch_every = 0;  // steps between reports of the numerics watch; 0 = none
  SelectOptions select;
  MemoryBudget budget;  // of the whole run; StepSpec::recompute.mode says how it may be kept
  bool loader_thread = true;
  int loader_workers = 1, prefetch = 2;
  std::vector<int> loader_cpus;  // bound to these; empty: not bound
  CompileOptions compile;        // dump hooks
  Timeline* timeline = nullptr;  // is told of every step; may be null
  // false: the contents of the source's tensors are not read from now on (called before the memory
  // of the steps is allocated); true: they are about to be, by a program that is made later.
  std::function<void(bool needed)> source_contents = {};
};

struct StepInfo {
  int64_t step = 0, steps = 0;  // from 1; of the whole run
  int64_t epoch = 0;            // from 0
  double loss = 0, lr = 0;
  std::vector<std::pair<std::string, double>> losses;  // by output, where there are several
  bool has_loss = true;        // false: no target of the step counts, so there was no update
  double epoch_loss = 0;       // mean over the valid targets of the epoch so far; NaN: none
  double grad_norm = -1;       // negative: not computed
  double loss_scale = 0;       // the one used; 0: none
  double ms = 0, wait_ms = 0;  // the whole step; of it, waiting for data
  double load_ms = 0;          // CPU time of the loader's threads meanwhile
  int64_t samples = 0;
  int64_t skipped = 0;        // steps so far
  bool this_skipped = false;  // loss or gradients were not finite
};

struct EvalResult : EvalValues {
  int64_t step = 0, samples = 0;
  double seconds = 0;
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_step(const StepInfo&) {}
  // A batch of an evaluation has run; targets as find_targets() gives them.
  virtual void on_eval_batch(Program&, const data::Batch&, const std::vector<Target>&) {}
  virtual void on_eval(const EvalResult&) {}
  // Before a checkpoint is written: what was told of the steps so far must be safe by now, or a
  // kill right after the commit would lose it.
  virtual void before_checkpoint() {}
  virtual void on_checkpoint(const std::string& /*path*/) {}
  virtual void on_watch(const WatchReport&) {}
  virtual void on_note(const std::string& /*text*/) {}  // one line, once
  virtual bool should_stop() { return false; }          // asked after each step
};

struct TrainResult {
  int64_t step = 0, skipped = 0;
  bool stopped = false;  // by should_stop()
  std::optional<EvalResult> last_eval;
  std::string checkpoint;  // path of the last one written, or ""
};

class Trainer {
 public:
  // `spec` says loss, optimizer, precision and seed; shapes, labels and total_steps come from the
  // data. All references must outlive the trainer. `eval` may be null.
  Trainer(const Graph& source, const data::Dataset& train, const data::Dataset* eval, StepSpec spec,
          TrainOptions options, const ParamStore::Copied& copied = {});

  // Continues from a checkpoint. Throws Error(kData) listing all that does not fit.
  void resume(const std::string& path);
  TrainResult run(Observer& observer);
  EvalResult evaluate(Observer* observer = nullptr);  // needs `eval`; of the averaged weights where
                                                      // spec.optimizer.ema is set

  ParamStore& store() { return store_; }
  // After run(): the parameters and states without the memory of the steps, which goes back at
  // once. Nothing can run afterwards.
  ParamStore finish();
  Program& program() { return *main_; }  // of a full batch; the one with the update
  Program* eval_program() { return evals_.empty() ? nullptr : evals_.begin()->second.get(); }
  const std::vector<std::string>& messages() const { return messages_; }  // said once, at the start
  int64_t total_steps() const { return total_; }
  int64_t steps_per_epoch() const { return sampler_.steps_per_epoch(); }
  int64_t step() const { return run_.step; }  // done so far
  // Parameters, states, constants, arena and batch buffers: what run() works in, to the byte.
  size_t memory_bytes() const {
    return store_.bytes() + arena_.bytes() + loader_bytes_ + (watch_ ? watch_->bytes() : 0);
  }
  std::string memory_text() const;

 private:
  using Phase = WindowSpec::Phase;
  // By batch size, largest first.
  using Programs = std::map<std::pair<int64_t, Phase>, std::unique_ptr<Program>, std::greater<>>;
  // The micro-batches of a step, as steps of micro_.
  struct Window {
    int64_t first, count;
  };
  Window window(int64_t step) const;
  Program* add_program(Programs& programs, const data::Dataset& data, Mode mode, int64_t batch,
                       Phase phase = Phase::kOnly);
  void need_contents(bool needed);
  void make_programs();
  bool watches() const {
    return options_.watch_every > 0 &&
           (run_.step == 0 || (run_.step + 1) % options_.watch_every == 0);
  }
  void make_counts();  // window_targets.cc, with the next two
  void make_eval_programs();
  void count_targets(data::Loader& labels, const Window& w);
  std::optional<data::Loader> label_loader(int64_t first_step, int64_t end_step);
  void fit_to_memory(const std::string& recompute);  // trainer_memory.cc
  void watch_recompute(Observer& observer, int64_t steps);
  size_t buffer_bytes(int64_t batch);
  data::Sampler make_sampler(int64_t batch) const;
  data::Sampler eval_sampler() const;
  std::vector<Target> eval_targets() const;
  Program& run_window(data::Loader& loader, data::Loader* labels, StepInfo& info);
  void judge(Program& program, StepInfo& info);
  bool overflow_is_normal() const;
  void record(Timeline* timeline);
  std::string save(Observer& observer);
  [[noreturn]] void stop_at_nan(double loss);  // trainer_nan.cc, with the next
  std::optional<BadNode> search_window(const Programs& programs);
  std::optional<BadNode> search_unfused();

  const Graph& source_;
  bool contents_needed_ = true;  // of its tensors
  const data::Dataset &train_, *eval_;
  StepSpec spec_;
  TrainOptions options_;
  ParamStore::Copied copied_;
  data::Sampler sampler_, micro_;  // of effective batches and of micro-batches: the same order
  int64_t total_ = 0;
  std::vector<Target> targets_;
  ParamStore store_;
  Arena arena_;
  Programs programs_, evals_, counts_;  // counts_: of several losses' targets in a window
  Programs watched_;                    // the last of each window, with gradients
  std::unique_ptr<NumericsWatch> watch_;
  std::vector<double*> targets_of_window_;  // states that counts_ fill, in the order of its outputs
  Program* main_ = nullptr;
  std::vector<const void*> arrays_;  // of the micro-batch at hand
  int64_t skipped_in_a_row_ = 0;
  size_t loader_bytes_ = 0;
  std::unique_ptr<StepMemory> step_memory_;
  BudgetFit fit_;
  checkpoint::RunState run_;
  std::string last_checkpoint_;
  std::vector<std::string> messages_;
};

}  // namespace ortrain
