// See run_file.h.
#include "runtime/cli/run_file.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "runtime/cli/machine.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

// When a process began, in clock ticks since the boot (/proc/PID/stat, field 22); "": it is gone.
std::string birth(int64_t process) {
  std::ifstream in(cat("/proc/", process, "/stat"));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t at = text.rfind(')');
  if (at == std::string::npos) return {};
  for (int i = 0; i < 20 && at != std::string::npos; ++i) at = text.find(' ', at + 1);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find(' ', at + 1) - at - 1);
}

// A member of a file that anybody may have written: the fallback where it is missing or of another
// type.
template <class T>
T member(const ordered_json& j, const char* key, T fallback) {
  if (!j.is_object()) return fallback;
  const auto it = j.find(key);
  if (it == j.end()) return fallback;
  if constexpr (std::is_same_v<T, std::string>)
    return it->is_string() ? it->template get<T>() : fallback;
  else
    return it->is_number() ? it->template get<T>() : fallback;
}

bool alive(const ordered_json& j) {
  const std::string born = member<std::string>(j, "process_born", "");
  if (member<std::string>(j, "host", "") != this_machine().host) return true;  // cannot be known
  return !born.empty() && born == birth(member<int64_t>(j, "process", 0));
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

ordered_json RunFile::json() const {
  ordered_json j{{"state", state}};
  if (!error.empty()) j["error"] = error;
  j["step"] = step;
  j["steps"] = steps;
  j["seconds"] = rounded(seconds);
  j["updated"] = utc_now();
  j["best"] = ordered_json::object();
  for (const auto& [name, at] : best)
    j["best"][name] = {{"value", rounded(at.first)}, {"step", at.second}};
  j.update(facts);
  j["process"] = static_cast<int64_t>(getpid());
  j["process_born"] = birth(getpid());
  return j;
}

void RunFile::write(const std::string& folder) const {
  data::AtomicFile file((fs::path(folder) / "run.json").string());
  file.write(json().dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  file.commit();
}

bool is_run(const std::string& folder) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(folder) / "run.json", ignored) ||
         fs::is_regular_file(fs::path(folder) / "run.jsonl", ignored);
}

RunSummary read_run(const std::string& folder) {
  if (!is_run(folder))
    fail(ErrorCode::kUsage, folder, " holds no run: expected a folder with run.json or run.jsonl");
  RunSummary r;
  r.folder = folder;
  const fs::path path = fs::path(folder).lexically_normal();
  r.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  r.log = (fs::path(folder) / "run.jsonl").string();
  std::ifstream in(fs::path(folder) / "run.json");
  if (in) r.json = ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!r.json.is_object()) r.json = nullptr;
  const ordered_json& j = r.json;
  r.state = member<std::string>(j, "state", "unknown");
  if (r.state == "running" && !alive(j)) r.state = "killed";
  r.error = member<std::string>(j, "error", "");
  r.model = member<std::string>(j, "model", "");
  r.started = member<std::string>(j, "started", "");
  r.steps = member<int64_t>(j, "steps", 0);
  r.log = member<std::string>(j, "log", r.log);
  const History h = read_history(r);
  r.step = h.last_step();
  r.seconds = std::max(member<double>(j, "seconds", 0), h.milliseconds() / 1e3);
  r.last_loss = h.last("loss");
  const ordered_json curves = h.json();
  for (const auto& e : curves["eval"])
    for (const auto& [name, value] : e.items()) {
      if (name == "step" || !value.is_number()) continue;
      const double v = value;
      auto [it, fresh] = r.best.try_emplace(name, v, e["step"].get<int64_t>());
      if (!fresh && (higher_is_better(name) ? v > it->second.first : v < it->second.first))
        it->second = {v, e["step"].get<int64_t>()};
    }
  return r;
}

History read_history(const RunSummary& run) { return History::read(run.log); }

std::string main_metric(const std::map<std::string, std::pair<double, int64_t>>& best) {
  for (const char* name : {"accuracy", "auc", "f1", "rmse", "mae", "perplexity", "loss"})
    if (best.contains(name)) return name;
  return best.empty() ? "" : best.begin()->first;
}

std::string headline(const RunSummary& run) {
  const std::string name = main_metric(run.best);
  char text[64];
  if (name.empty()) return "-";
  std::snprintf(text, sizeof text, "%.4g", run.best.at(name).first);
  return cat(name, " ", text, " (step ", run.best.at(name).second, ")");
}

}  // namespace ortrain::cli
