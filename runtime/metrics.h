// Metrics of an evaluation, accumulated batch by batch from a model output and the labels.
//
// Classes: accuracy, top5 (more than 5 classes), f1 (two classes: of class 1; more: macro, over
// the classes that occur), auc (two classes), perplexity = exp(mean loss). Labels equal to
// ignore_index do not count. Binary (one score per label, bce): accuracy, f1, auc.
// Regression: mae, rmse. Ties: the lower class wins; auc counts a tie as half.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/tensor.h"

namespace ortrain {

struct Metric {
  std::string name;
  double value = 0;
  bool higher_is_better = true;
};

struct MetricSpec {
  enum class Kind : uint8_t { kNone, kClasses, kBinary, kRegression };
  Kind kind = Kind::kNone;
  int class_axis = 1;  // of the output; kClasses
  int64_t ignore_index = -100;
  double threshold =
      0;  // kBinary: scores above it are class 1 (0 for logits, 0.5 for probabilities)
};

class Metrics {
 public:
  explicit Metrics(const MetricSpec& spec) : spec_(spec) {}
  // Returns the number of labels that counted.
  int64_t add(const HostTensor& output, const HostTensor& labels);
  std::vector<Metric> values(double mean_loss) const;

 private:
  int64_t add_classes(const HostTensor& x, const HostTensor& y);
  void score(double value, bool positive);
  MetricSpec spec_;
  int64_t count_ = 0, correct_ = 0, in_top5_ = 0, classes_ = 0;
  std::vector<int64_t> hits_, predicted_, labelled_;  // per class
  std::vector<std::pair<double, bool>> scores_;       // two classes only
  double absolute_ = 0, squared_ = 0;
};

}  // namespace ortrain
