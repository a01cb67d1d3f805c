// Evaluation: adds up loss and metrics over the batches of a data set, for one loss or several.
//
// Losses are exact: each batch's mean counts by what it was divided by (valid labels or class
// weights where the loss has them, else samples), so that the result is the mean over all of the
// data whatever the batch size.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/program.h"

namespace ortrain {

struct EvalValues {
  bool has_loss = false;  // false where labels of some loss are missing
  double loss = 0;        // the sum of all, each with its factor
  std::vector<std::pair<std::string, double>> losses;  // by output, where there are several
  std::vector<Metric> metrics;                         // "accuracy", "OUTPUT/accuracy" of several
};

class Evaluation {
 public:
  explicit Evaluation(std::vector<Target> targets);
  // After `program` (Mode::kEval) ran on the batch.
  void add(Program& program, const data::Batch& batch);
  EvalValues values() const;

 private:
  struct Head {
    Target target;
    Metrics metrics;
    double loss = 0, weight = 0;
  };
  std::vector<Head> heads_;
};

// Labels that are class indices, against the classes of their outputs; a missing array is skipped.
// Throws Error(kData).
void check_labels(const std::vector<Target>& targets, const data::Dataset& data);

}  // namespace ortrain
