// Checkpoints: folders "step-000100" with manifest.json, params.safetensors and
// optimizer.safetensors.
//
// Promises: a folder of that name is complete or does not exist, whatever instant the process died
// at: files are written in a folder aside, synced, and renamed into place. Contents are logical
// (I10): names, file layout, no padding, so another layout, dtype or device can load them.
// params.safetensors holds the model's own tensors (parameters and running statistics),
// optimizer.safetensors what the run adds (moments, step counter, loss scale). States of a window
// of micro-batches (kWindowPrefix) are in neither: a checkpoint stands between two steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/param_store.h"

namespace ortrain::checkpoint {

// Where a run stands. The sampler and all randomness are functions of (seed, step).
struct RunState {
  int64_t step = 0;  // optimizer steps done: windows of `accumulate` batches consumed
  int64_t skipped = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t batch_size = 0, samples = 0;       // of the training data
  int64_t accumulate = 1;                    // micro-batches of batch_size samples per step
  double epoch_loss = 0, epoch_weight = 0;   // of the unfinished epoch: sum of weight * loss
  uint64_t graph_hash = 0;                   // graph_hash() of the imported graph
  std::map<std::string, std::string> extra;  // for the caller: recipe, best metric, model path
};

struct SaveOptions {
  int keep = 3;        // newest checkpoints kept; 0 = all
  std::string pinned;  // folder name never removed (the best one)
  // For tests of crashes: called with a name before each step that changes the disk; may throw.
  std::function<void(std::string_view)> at;
};

// Writes `folder`/step-NNNNNN and returns its path. An older folder of that name is replaced in one
// rename. Throws Error(kIo); what was there before stays.
std::string save(const std::string& folder, const ParamStore& store, const RunState& run,
                 const SaveOptions& options = {});

// The newest complete checkpoint below `folder` (every checksum is verified), if any. Each newer
// one that is damaged is described in `damaged`.
std::optional<std::string> newest(const std::string& folder,
                                  std::vector<std::string>* damaged = nullptr);
// Empty when the checkpoint at `path` is complete and its checksums hold, else what is wrong.
std::string problem(const std::string& path);

// Reads the manifest only. Throws Error(kData) where it is malformed.
RunState read_run(const std::string& path);

// Loads every tensor of the store. Throws one Error(kData) listing all that does not fit: another
// graph, missing or surplus tensors, shapes, dtypes; the store is then unchanged.
RunState load(const std::string& path, ParamStore& store, uint64_t graph_hash);

// The model's tensors of a checkpoint (parameters, running statistics), by name, for the export.
std::map<std::string, HostTensor> read_params(const std::string& path);
// The averages of parameters that a run with --ema keeps, by parameter; empty without.
std::map<std::string, HostTensor> read_averages(const std::string& path);

// Structure of a graph: operators, wiring, attributes, dtypes, shapes, names of parameters and
// inputs; not the contents of float tensors.
uint64_t graph_hash(const Graph& g);

}  // namespace ortrain::checkpoint
