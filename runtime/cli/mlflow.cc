// See mlflow.h. Layout: mlflow/store/tracking/file_store.py (MLflow 2).
#include "runtime/cli/mlflow.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "graph/error.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {
int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}
void put(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  data::AtomicFile file(path.string());
  file.write(text);
  file.commit();
}
// A name that MLflow takes: letters, digits, _ - . / and blanks.
std::string clean(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && !std::strchr("_-. /", c)) c = '_';
  return name;
}
std::string yaml_text(const std::string& text) {  // YAML, single quotes
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}
}  // namespace

MlflowRun::MlflowRun(const std::string& folder, const std::string& name,
                     const std::map<std::string, std::string>& params)
    : name_(name), start_(now_ms()) {
  std::random_device random;
  for (int i = 0; i < 4; ++i) {
    char part[16];
    std::snprintf(part, sizeof part, "%08x", random());
    id_ += part;
  }
  experiment_ = (fs::absolute(folder).lexically_normal() / "0").string();
  run_ = (fs::path(experiment_) / id_).string();
  if (!fs::exists(fs::path(experiment_) / "meta.yaml"))
    put(fs::path(experiment_) / "meta.yaml",
        cat("artifact_location: ", yaml_text("file://" + experiment_), "\ncreation_time: ", start_,
            "\nexperiment_id: '0'\nlast_update_time: ", start_,
            "\nlifecycle_stage: active\nname: Default\n"));
  std::error_code error;
  for (const char* part : {"metrics", "params", "tags", "artifacts"})
    fs::create_directories(fs::path(run_) / part, error);
  if (error) fail(ErrorCode::kIo, "cannot create ", run_, ": ", error.message());
  write_meta(1, 0);
  for (const auto& [key, value] : params) put(fs::path(run_) / "params" / clean(key), value);
  put(fs::path(run_) / "tags" / "mlflow.runName", name);
  put(fs::path(run_) / "tags" / "mlflow.source.name", "ortrain");
}

MlflowRun::~MlflowRun() {
  for (auto& [name, file] : metrics_) std::fclose(file);
}

void MlflowRun::write_meta(int status, int64_t end) {
  put(fs::path(run_) / "meta.yaml",
      cat("artifact_uri: ", yaml_text(cat("file://", run_, "/artifacts")),
          "\nend_time: ", end ? std::to_string(end) : "null", "\nentry_point_name: ''\n",
          "experiment_id: '0'\nlifecycle_stage: active\nrun_id: ", yaml_text(id_),
          "\nrun_name: ", yaml_text(name_), "\nrun_uuid: ", yaml_text(id_),
          "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: ", start_,
          "\nstatus: ", status, "\ntags: []\nuser_id: ortrain\n"));
}

void MlflowRun::metric(const std::string& name, int64_t step, double value) {
  std::FILE*& file = metrics_[name];
  if (!file) {
    const fs::path path = fs::path(run_) / "metrics" / clean(name);
    std::error_code ignored;
    fs::create_directories(path.parent_path(), ignored);
    file = std::fopen(path.c_str(), "a");
    if (!file) {
      metrics_.erase(name);
      fail(ErrorCode::kIo, "cannot write ", path.string(), ": ", std::strerror(errno));
    }
  }
  std::fprintf(file, "%lld %.17g %lld\n", static_cast<long long>(now_ms()), value,
               static_cast<long long>(step));
}

void MlflowRun::artifact(const std::string& path) {
  std::error_code ignored;
  fs::copy_file(path, fs::path(run_) / "artifacts" / fs::path(path).filename(),
                fs::copy_options::overwrite_existing, ignored);
}

void MlflowRun::flush() {
  for (auto& [name, file] : metrics_)
    if (std::fflush(file) != 0)
      fail(ErrorCode::kIo, "cannot write metric ", name, " below ", run_, ": ",
           std::strerror(errno));
}

void MlflowRun::finish(bool good) {
  flush();
  write_meta(good ? 3 : 4, now_ms());
}

}  // namespace ortrain::cli
