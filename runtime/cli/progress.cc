// The live line, plain lines and the JSON-lines log.
#include "runtime/cli/progress.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "runtime/plan.h"

namespace ortrain::cli {
namespace {
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
std::string number(const char* format, double v) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, v);
  return buffer;
}
// JSON has no NaN or infinity; such numbers are written as strings, which json.loads reads back.
nlohmann::json finite(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}
}  // namespace

std::string duration_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  char buffer[64];
  if (seconds < 0.95)
    std::snprintf(buffer, sizeof buffer, "%.1f s", std::max(0.0, seconds));
  else if (total >= 3600)
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                  static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  else
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld", static_cast<long long>(total / 60),
                  static_cast<long long>(total % 60));
  return buffer;
}

Progress::Progress(bool quiet, size_t memory_bytes)
    : quiet_(quiet), terminal_(Terminal::of_stdout()), memory_(memory_bytes), started_(now()) {}
Progress::~Progress() { finish(); }

std::string Progress::render(const StepLine& s, double seconds) const {
  std::string out = cat("step ", s.step, "/", s.steps);
  if (s.epochs > 0) out += cat("  epoch ", s.epoch, "/", s.epochs);
  out += "  loss " + (s.has_loss ? number("%.4g", s.loss) : "n/a");
  for (size_t i = 0; i < s.losses.size(); ++i)
    out += cat(i == 0 ? " (" : ", ", s.losses[i].first, number(" %.4g", s.losses[i].second),
               i + 1 == s.losses.size() ? ")" : "");
  out += "  lr " + number("%.3g", s.lr);
  if (s.grad_norm >= 0) out += "  norm " + number("%.3g", s.grad_norm);
  out += "  " + number(s.samples_per_s < 100 ? "%.1f" : "%.0f", s.samples_per_s) + " samples/s";
  if (s.loss_scale > 0) out += "  scale " + number("%.6g", s.loss_scale);
  if (s.skipped > 0) out += cat("  skipped ", s.skipped);
  if (!s.input.empty()) out += "  " + s.input;
  const int64_t done = s.step - first_step_ + 1;
  if (done > 1 && s.step < s.steps)
    out += "  ETA " + duration_text(seconds / static_cast<double>(done) *
                                    static_cast<double>(s.steps - s.step));
  return out + "  " + bytes_text(memory_);
}

// Within the terminal's width: a line that wraps cannot be redrawn.
std::string Progress::fitted(const StepLine& s, double seconds) const {
  const std::string text = render(s, seconds);
  const int room = terminal_.columns - 1 - static_cast<int>(text.size());
  if (room < 0) return text.substr(0, static_cast<size_t>(std::max(1, terminal_.columns - 1)));
  const std::string bars = room >= 10 ? sparkline(losses_, std::min(room - 2, 32), terminal_) : "";
  return bars.empty() ? text : text + "  " + paint(bars, 0, terminal_);
}

// A mean of each `stride_` losses, however long the run.
void Progress::remember(double loss) {
  constexpr size_t kKept = 128;
  if (!std::isfinite(loss)) return;
  sum_ += loss;
  if (++pending_ < stride_) return;
  losses_.push_back(sum_ / static_cast<double>(pending_));
  sum_ = 0;
  pending_ = 0;
  if (losses_.size() < 2 * kKept) return;
  for (size_t i = 0; i < kKept; ++i) losses_[i] = (losses_[2 * i] + losses_[2 * i + 1]) / 2;
  losses_.resize(kKept);
  stride_ *= 2;
}

void Progress::step(const StepLine& s) {
  if (quiet_) return;
  if (terminal_.live && s.has_loss) remember(s.loss);
  const double t = now();
  if (first_step_ == 0) first_step_ = s.step, started_ = t - s.ms / 1e3;
  const bool last = s.step == s.steps;
  if (!last && t - shown_ < (terminal_.live ? 0.1 : 5.0)) return;
  if (!last && !terminal_.live && shown_ == 0) {  // the first plain line comes after five seconds
    shown_ = t;
    return;
  }
  shown_ = t;
  if (terminal_.live) {
    terminal_ = Terminal::of_stdout();  // its size may have changed
    std::printf("\r\033[K%s", fitted(s, t - started_).c_str());
    live_ = true;
  } else {
    std::printf("%s\n", render(s, t - started_).c_str());
  }
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (quiet_) return;
  if (live_) std::printf("\r\033[K");
  live_ = false;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Progress::finish() {
  if (live_) std::printf("\n");
  live_ = false;
  std::fflush(stdout);
}

RunLog::RunLog(std::string path, bool append, int64_t keep_steps) : path_(std::move(path)) {
  std::string kept;
  if (append) {
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json j = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!j.is_object() || j.value("step", int64_t{0}) > keep_steps) continue;
      kept += line + "\n";
    }
  }
  std::error_code ignored;
  const auto folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  // Aside and renamed: a kill at any instant leaves the old rows or the kept ones.
  const std::string aside = append ? path_ + ".new" : path_;
  file_ = std::fopen(aside.c_str(), "w");
  if (!file_) fail(ErrorCode::kIo, "cannot write the log ", aside, ": ", std::strerror(errno));
  if (!append) return;
  write_text(kept);
  flush();
  std::filesystem::rename(aside, path_, ignored);
  if (ignored) fail(ErrorCode::kIo, "cannot write the log ", path_, ": ", ignored.message());
}

RunLog::~RunLog() {
  if (file_) std::fclose(file_);
}

void RunLog::write_text(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size())
    fail(ErrorCode::kIo, "cannot write the log ", path_, ": ", std::strerror(errno));
}

nlohmann::ordered_json log_row(const StepLine& s) {
  nlohmann::ordered_json j;
  j["step"] = s.step;
  j["epoch"] = s.epoch;
  j["loss"] = s.has_loss ? finite(s.loss) : nullptr;
  for (const auto& [name, loss] : s.losses) j["loss/" + name] = finite(loss);
  j["epoch_loss"] = std::isnan(s.epoch_loss) ? nlohmann::json() : finite(s.epoch_loss);
  j["lr"] = s.lr;
  if (s.grad_norm >= 0 || std::isnan(s.grad_norm)) j["grad_norm"] = finite(s.grad_norm);
  if (s.loss_scale > 0) j["loss_scale"] = s.loss_scale;
  j["skipped"] = s.this_skipped;
  j["samples_per_s"] = s.samples_per_s;
  j["ms"] = s.ms;
  j["wait_ms"] = s.wait_ms;
  j["load_ms"] = s.load_ms;
  return j;
}

void RunLog::write(const nlohmann::ordered_json& row) { write_text(row.dump() + "\n"); }

void RunLog::flush() {
  if (std::fflush(file_) != 0)
    fail(ErrorCode::kIo, "cannot write the log ", path_, ": ", std::strerror(errno));
}

}  // namespace ortrain::cli
