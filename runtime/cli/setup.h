// From settings to what the core wants: data sets checked against the model, the step's spec, and
// compiled graphs bound to memory. Shared by all commands.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "runtime/cli/commands.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/executor.h"
#include "runtime/param_store.h"
#include "runtime/plan.h"

namespace ortrain::cli {

// A data set that fits the model.
struct ModelData {
  data::Dataset set;
  std::string label;                    // "" when there is none
  std::vector<data::ArraySpec> arrays;  // the model's inputs, then the label
  int64_t samples = 0;
  std::vector<std::string> notes;  // said once to the user
};

enum class Labels : uint8_t { kNone, kIfThere, kNeeded };

// Opens `paths` and checks it against the model's inputs; everything that does not fit is one
// Error(kData). `batch` is the batch size the shapes are checked with.
ModelData open_data(const Context& c, const std::string& paths, Labels labels);

// --batch-size, or the batch that the model's inputs have built in.
int64_t batch_size(const Context& c, std::vector<std::string>& notes);

// The spec of one step over `batch` samples; without data the shapes stay symbolic.
StepSpec make_spec(const Context& c, const ModelData* data, Mode mode, int64_t batch);

// One compiled graph, planned and ready to run. Store and arena may be shared between several.
struct Runner {
  CompileResult compiled;
  Plan plan;
  std::unique_ptr<Executor> executor;
};
CompileOptions compile_options(const Context& c);
SelectOptions select_options(const Context& c);
// Compiles and plans; `allocate` also reserves the arena and makes the executor.
Runner make_runner(const Context& c, const StepSpec& spec, ParamStore& store, Arena& arena);
void start(Runner& r, const Arena& arena);
// The batch's arrays in the order of the plan's inputs; valid until the next call.
std::span<const void* const> input_pointers(const Plan& plan, const data::Batch& batch);

// Where `command` needs data and there is none: what is missing and the exact next command.
[[noreturn]] void explain_missing_data(const Context& c, const std::string& command);

// The folder of the run: --out, else the newest runs/MODEL-N (resume) or the next free one.
std::string run_folder(const Context& c, bool resume);

// "train: 21 parameters of 53,130 elements" style counts with thousands separators.
std::string count_text(int64_t n);

}  // namespace ortrain::cli
