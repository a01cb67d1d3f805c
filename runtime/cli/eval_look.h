// EvalLook: what an evaluation's batches show beyond metrics: the confusion matrix, the samples
// with the highest loss, and pictures with the model's answers. Of the first loss alone.
//
// Bounded: the confusion matrix is kept up to kMostClasses; after kMostElements elements of outputs
// per evaluation the rest is not looked at (`looked` samples are). Pictures are float or u8 inputs
// [N,C,H,W] or [N,H,W,C] with 1 or 3 channels, scaled from their least to their greatest value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/program.h"

namespace ortrain::cli {

struct Picture {
  int width = 0, height = 0, channels = 0;
  std::string png;  // "": the sample has none
};

class EvalLook {
 public:
  static constexpr int64_t kMostClasses = 200, kMostElements = 50'000'000;
  static constexpr size_t kWorst = 12, kPictures = 8;
  struct Sample {
    int64_t sample = 0, label = -1,
            said = -1;                 // classes; of the worst position where there are more
    double loss = 0, probability = 0;  // of the answer; regression: 0
    double target = 0, output = 0;     // regression
    Picture picture;
    std::string input;  // "x f32[4]: 0.1, 0.2, ..." where there is no picture
  };
  void add(Program& program, const data::Batch& batch, const std::vector<Target>& targets);
  bool empty() const { return looked_ == 0; }
  const std::vector<Sample>& pictures() const {
    return pictures_;
  }                                                            // the first samples, always the same
  const std::vector<Sample>& worst() const { return worst_; }  // by loss
  // {"looked", "kind", "classes", "confusion": [[count by answer] by label], "worst", "pictures"}
  nlohmann::ordered_json json() const;
  std::vector<std::string> class_names;  // may be empty

 private:
  void reset();
  void add_classes(const HostTensor& x, const HostTensor& y, const data::Batch& batch,
                   const Target& t);
  void add_numbers(const HostTensor& x, const HostTensor& y, const data::Batch& batch,
                   const Target& t);
  void keep(Sample s, const data::Batch& batch, int64_t row);
  int64_t looked_ = 0, elements_ = 0, classes_ = 0;
  bool binary_ = false, numbers_ = false;
  std::vector<int64_t> confusion_;
  std::vector<Sample> worst_, pictures_;
};

// The picture of a row of a batch, if it has one.
Picture picture_of(const data::Batch& batch, int64_t row);

}  // namespace ortrain::cli
