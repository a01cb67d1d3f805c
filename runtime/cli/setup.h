// From settings to what the core wants: the step's spec, options, programs on a data set, folders.
// Shared by all commands.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "runtime/budget.h"
#include "runtime/cli/commands.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/program.h"

namespace ortrain::cli {

// --batch-size, or the batch that the model's inputs have built in (then a note says so), at most
// `samples`.
int64_t batch_size(const Context& c, int64_t samples, std::vector<std::string>& notes);

// What the settings say about a step; shapes and labels come from the data (spec_for_data).
StepSpec make_spec(const Context& c, Mode mode);
// The same with shapes and labels of a data set, for batches of `batch` samples, and with the class
// weights that --class-weights auto takes from the training data.
StepSpec data_spec(const Context& c, const data::Dataset& data, Mode mode, int64_t batch,
                   std::vector<std::string>& notes);
// What --loss-scale says; `precision` decides where that is auto. Errors: kUsage.
LossScaleSpec loss_scale_spec(const std::vector<std::string>& words, const std::string& precision);
CompileOptions compile_options(const Context& c);
SelectOptions select_options(const Context& c);
// Lets the pages of the model file go once a weight has been copied out of them.
ParamStore::Copied drop_pages(const Context& c);

// --- open_data.cc ---
enum class DataUse : uint8_t { kTrain, kEval, kPredict };
data::OpenOptions open_options(const Context& c, DataUse use);
// Opens `paths` (as of --data) as a data set of this model.
data::Dataset open_data(const Context& c, const std::string& paths, DataUse use);
// Classes and symbols that the model's metadata, or the run's folder, says.
void read_vocabularies(Context& c);
void read_run_vocabularies(Context& c, const std::string& run);
// What training found out about its data becomes a setting: preparation, vocabularies.
void keep_data_settings(Context& c, const data::Dataset& data);
void write_vocabularies(const Context& c, const std::string& run);
// Recipe and vocabularies, for the exported model.
void add_data_metadata(const Context& c, std::map<std::string, std::string>& metadata);
void write_skipped(const data::Dataset& data, const std::string& run);
struct LoaderSettings {
  int workers = 1, prefetch = 2;
  std::vector<int> cpus;
  std::string note;
};
LoaderSettings loader_settings(const Context& c, const data::Dataset& data);

// Programs of one mode over a data set in file order: full batches and the short last one.
class DataRun {
 public:
  // `paths` as of --data; throws one Error(kData) listing everything that does not fit.
  // Without `short_last`, of full batches only: for looking at the step.
  DataRun(const Context& c, const std::string& paths, Mode mode, bool short_last = true);
  const data::Dataset& data() const { return set_; }
  int64_t batch() const { return batch_; }
  const StepSpec& spec() const { return spec_; }  // of a full batch
  // What the losses compare, in Mode::kEval. Found here, as this reads weights of the file, whose
  // copies are given back once the programs have theirs.
  const std::vector<Target>& targets() const { return targets_; }
  Program& program() { return *programs_.at(batch_); }
  const Program& program() const { return *programs_.at(batch_); }
  ParamStore& store() { return store_; }
  const std::vector<std::string>& notes() const { return notes_; }
  // Runs every batch once; `each` sees the program after its run.
  template <class Each>
  void run(Each&& each) {
    data::Loader loader(set_, program().arrays(), sampler(),
                        {.end_step = sampler().steps_per_epoch(),
                         .workers = loader_.workers,
                         .prefetch = loader_.prefetch});
    while (const data::Batch* b = loader.next()) {
      run_one(*b);
      each(*b, *programs_.at(b->count));
    }
  }
  const BudgetFit& fit() const { return fit_; }
  const LoaderSettings& loader() const { return loader_; }
  void run_one(const data::Batch& b);
  data::Sampler sampler() const;

 private:
  data::Dataset set_;
  LoaderSettings loader_;
  std::vector<std::string> notes_;  // before batch_: choosing the batch size writes a note
  int64_t batch_;
  StepSpec spec_;
  std::vector<Target> targets_;
  ParamStore store_;
  Arena arena_;
  std::unique_ptr<StepMemory> memory_;
  BudgetFit fit_;
  std::map<int64_t, std::unique_ptr<Program>> programs_;
};

// With --accumulate: the programs of a step's micro-batches and their memory; "" without.
std::string window_text(const Context& c, const DataRun& run);

// Where `command` needs data and there is none: what is missing and the exact next command.
[[noreturn]] void explain_missing_data(const Context& c, const std::string& command);

// The folder of the run: --out, else the newest runs/NAME-N of this model (resume) or the next free
// one.
std::string run_folder(const Context& c, bool resume);
// runs/NAME-N; Error(kUsage) where there is none, naming the flag that says another folder.
std::string newest_run(const Context& c, const std::string& flag);

// "53,130"
std::string count_text(int64_t n);

}  // namespace ortrain::cli
