// run.json of a run folder: what the run is and how far it came; and reading run folders back.
//
// Written at the start, with each report and at the end, atomically. A run that says "running" but
// whose process is gone was killed. Folders without run.json (older runs) are read from their log.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "runtime/cli/history.h"

namespace ortrain::cli {

struct RunFile {
  nlohmann::ordered_json facts;   // model, data, sizes, machine, versions: fixed at the start
  std::string state = "running";  // done, stopped, failed
  std::string error;
  int64_t step = 0, steps = 0;
  double seconds = 0;  // of training, with earlier parts of a resumed run
  std::map<std::string, std::pair<double, int64_t>> best;  // by metric: value, step

  nlohmann::ordered_json json() const;
  void write(const std::string& folder) const;
};

// What a run folder tells. `name` is the folder as it was given.
struct RunSummary {
  std::string folder, name, state, model, started, error;
  int64_t step = 0, steps = 0;
  double seconds = 0, last_loss = 0;
  std::map<std::string, std::pair<double, int64_t>> best;
  nlohmann::ordered_json json;  // run.json, or null
  std::string log;              // path
};
bool is_run(const std::string& folder);
// Error(kUsage) where `folder` holds no run.
RunSummary read_run(const std::string& folder);
History read_history(const RunSummary& run);
// "val accuracy 0.99 (step 90)": the metric that says most.
std::string headline(const RunSummary& run);
// The metric that runs are compared by: accuracy before f1, rmse, ..., loss; "" without evaluation.
std::string main_metric(const std::map<std::string, std::pair<double, int64_t>>& best);

std::string utc_now();  // "2026-12-02T08:47:03Z"

}  // namespace ortrain::cli
