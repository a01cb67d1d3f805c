// RunOutputs: everything that a training run writes for people beside its model: the log, run.json,
// report.html, TensorBoard events, MLflow files. Which ones: --log-to.
//
// Promises: flush() makes what was told so far safe; a run that ends by an Error says so in
// run.json and its report. Refuses (kUsage) unknown words of --log-to.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/cli/eval_look.h"
#include "runtime/cli/event_file.h"
#include "runtime/cli/history.h"
#include "runtime/cli/mlflow.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/run_file.h"
#include "runtime/cli/setup.h"
#include "runtime/timeline.h"
#include "runtime/trainer.h"

namespace ortrain::cli {

struct LogSinks {
  bool report = false, tensorboard = false, histograms = false, mlflow = false;
  std::string mlflow_folder = "mlruns";
};
LogSinks parse_sinks(const std::vector<std::string>& words);  // Error(kUsage)

class RunOutputs {
 public:
  // Before training; `resumed`: go on with what the folder holds up to trainer.step().
  RunOutputs(const Context& c, Trainer& trainer, const data::Dataset& train,
             const data::Dataset* eval, const std::string& folder, bool resumed,
             const Timeline* timeline);
  ~RunOutputs();

  void step(const StepLine& line);
  void batch(Program& program, const data::Batch& batch, const std::vector<Target>& targets);
  void eval(const EvalResult& e);
  void watch(const WatchReport& report);
  void note(const std::string& text);
  void flush();
  // "done", "stopped" or "failed"; writes all files once more.
  void finish(const std::string& state, const std::string& error = {});
  const std::map<std::string, std::pair<double, int64_t>>& best() const { return file_.best; }
  std::string written() const;  // "report: ...", a line per file to tell of

 private:
  void write_report();
  void write_events(const EvalResult& e);
  std::string folder_;
  LogSinks sinks_;
  Trainer& trainer_;
  const data::Dataset* eval_;
  RunLog log_;
  History history_;
  RunFile file_;
  EvalLook look_;
  std::optional<EventFile> events_;
  std::optional<MlflowRun> mlflow_;
  const Timeline* timeline_;
  std::string recipe_, timeline_path_;
  std::vector<std::string> notes_;
  nlohmann::ordered_json memory_;
  double began_, earlier_ = 0, sampled_ = 0, reported_ = 0, flushed_ = 0;
  int64_t resident_ = 0;
  bool finished_ = false;
};

}  // namespace ortrain::cli
