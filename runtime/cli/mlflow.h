// A run in MLflow's file layout (its "file store"), so that `mlflow ui --backend-store-uri DIR`
// shows it: DIR/0/<run id>/{meta.yaml, params/, metrics/, tags/, artifacts/}. The trained model and
// the report are artifacts. Metrics are lines "milliseconds value step". Errors: kIo.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

namespace ortrain::cli {

class MlflowRun {
 public:
  MlflowRun(const std::string& folder, const std::string& name,
            const std::map<std::string, std::string>& params);
  ~MlflowRun();
  MlflowRun(const MlflowRun&) = delete;
  MlflowRun& operator=(const MlflowRun&) = delete;
  void metric(const std::string& name, int64_t step, double value);
  void artifact(const std::string& path);  // a copy; a file that is not there is left out
  void flush();
  void finish(bool good);  // FINISHED or FAILED
  const std::string& folder() const { return run_; }

 private:
  void write_meta(int status, int64_t end);
  std::string run_, id_, name_, experiment_;
  int64_t start_;
  std::map<std::string, std::FILE*> metrics_;
};

}  // namespace ortrain::cli
