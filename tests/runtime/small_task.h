// A two-layer classifier and data for it, for tests of the training loop.
#pragma once

#include "graph/graph.h"
#include "runtime/data/dataset.h"
#include "runtime/trainer.h"

namespace ortrain::test {

// x[N,6] -> Tanh(x w1 + b1) -> logits = h w2 + b2 [N,3]. Parameters w1, b1, w2, b2.
Graph small_model();
// `samples` rows of x (f32) and labels (i64, learnable from x). The row `bad`, if any, holds NaN.
data::Dataset small_data(int64_t samples, int64_t bad = -1);
StepSpec small_spec();

// Bytes of all parameters and states, and the loss of every step seen.
std::vector<char> contents(const ParamStore& store);
struct Recorder : Observer {
  void on_step(const StepInfo& s) override { steps.push_back(s); }
  void on_eval(const EvalResult& e) override { evals.push_back(e); }
  void on_checkpoint(const std::string& path) override { checkpoints.push_back(path); }
  bool should_stop() override {
    return stop_after > 0 && static_cast<int64_t>(steps.size()) >= stop_after;
  }
  std::vector<double> losses() const;
  std::vector<StepInfo> steps;
  std::vector<EvalResult> evals;
  std::vector<std::string> checkpoints;
  int64_t stop_after = 0;
};

}  // namespace ortrain::test
