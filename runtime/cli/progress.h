// Progress for people and machines: a live line on a terminal, plain lines elsewhere, JSON lines in
// a file.
//
// The live line, with a sparkline of the loss where there is room, is redrawn at most ten times a
// second and never wider than the terminal; elsewhere a line is printed at most every five seconds
// and after each evaluation. The log gets one object per step, flushed with each checkpoint and at
// the end; a write that fails stops the run with an Error(kIo).
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/terminal.h"

namespace ortrain::cli {

// What is known after one step. Times in milliseconds.
struct StepLine {
  int64_t step = 0;  // from 1
  int64_t steps = 0, epoch = 0, epochs = 0;
  double loss = 0;
  std::vector<std::pair<std::string, double>> losses;  // by output, where there are several
  bool has_loss = true;   // false: no target counted; shown as n/a, null in the log
  double epoch_loss = 0;  // mean of the epoch so far
  double lr = 0;
  double grad_norm = -1;  // negative: not computed
  double loss_scale = 0;  // 0: none
  double samples_per_s = 0, ms = 0, wait_ms = 0, load_ms = 0;
  std::string input;    // not empty: the run waits for its data; says how much
  int64_t skipped = 0;  // so far
  bool this_skipped = false;
};

class Progress {
 public:
  Progress(bool quiet, size_t memory_bytes);
  ~Progress();
  void step(const StepLine& s);
  void line(const std::string& text);  // a full line that stays; the live line moves below it
  void finish();                       // ends the live line

 private:
  std::string render(const StepLine& s, double seconds) const;
  std::string fitted(const StepLine& s, double seconds) const;
  void remember(double loss);
  bool quiet_;
  Terminal terminal_;
  std::vector<double> losses_;  // of the whole run, at most 2 x kKept points
  int64_t stride_ = 1, pending_ = 0;
  double sum_ = 0;
  size_t memory_;
  double started_, shown_ = 0;
  int64_t first_step_ = 0;
  bool live_ = false;
};

class RunLog {
 public:
  // `append`: keep the lines of steps up to `keep_steps` (resume), drop what came after.
  RunLog(std::string path, bool append, int64_t keep_steps);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;
  // log_row(), or of an evaluation {"step", "eval": {metric: value, ...}}.
  void write(const nlohmann::ordered_json& row);
  void flush();

 private:
  void write_text(const std::string& text);
  std::string path_;
  std::FILE* file_ = nullptr;
};

// The row of a step. What is not finite is a string ("nan", "inf"), which JSON lacks.
nlohmann::ordered_json log_row(const StepLine& s);

std::string duration_text(double seconds);  // "1:05:09", "0:42", "0.4 s"

}  // namespace ortrain::cli
