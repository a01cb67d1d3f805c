// See class_weights.h.
#include "runtime/class_weights.h"

#include <cstdio>

#include "graph/error.h"

namespace ortrain {
namespace {

std::vector<double> of_indices(const Target& t, const HostTensor& labels) {
  std::vector<int64_t> count(static_cast<size_t>(t.classes), 0);
  int64_t total = 0, present = 0;
  for (int64_t i = 0; i < labels.count(); ++i) {
    const int64_t k = labels.as_int(i);
    if (k == t.metric.ignore_index || k < 0 || k >= t.classes) continue;  // check_labels() says so
    present += count[static_cast<size_t>(k)]++ == 0;
    ++total;
  }
  std::vector<double> weights;
  for (int64_t n : count)
    weights.push_back(n == 0 ? 1
                             : static_cast<double>(total) /
                                   (static_cast<double>(present) * static_cast<double>(n)));
  return weights;
}

std::vector<double> of_scores(const HostTensor& labels) {
  const int64_t scores = labels.rank() < 2 ? 1 : labels.dims().back();
  std::vector<double> positive(static_cast<size_t>(scores), 0), weights;
  for (int64_t i = 0; i < labels.count(); ++i)
    positive[static_cast<size_t>(i % scores)] += labels.as_double(i) > 0.5;
  const double rows = static_cast<double>(labels.count() / std::max<int64_t>(scores, 1));
  for (double n : positive) weights.push_back(n == 0 || n == rows ? 1 : (rows - n) / n);
  return weights;
}

}  // namespace

std::vector<std::string> balance_classes(const std::vector<Target>& targets,
                                         const data::Dataset& data, StepSpec& spec) {
  std::vector<std::string> said;
  for (size_t i = 0; i < targets.size(); ++i) {
    LossSpec& loss = i == 0 ? spec.loss : spec.more_losses[i - 1];
    if (!loss.balance) continue;
    const Target& t = targets[i];
    const bool binary = t.kind == "bce" || t.kind == "bce_with_logits";
    if ((t.classes == 0 && !binary) || !data.has(t.label))
      fail(ErrorCode::kUsage, "--class-weights auto: loss ", t.kind, " on output '", t.output,
           "' has no class labels in ", data.where(), " to count");
    const HostTensor& labels = data.array(t.label);
    loss.class_weights = binary ? of_scores(labels) : of_indices(t, labels);
    std::string text =
        cat(binary ? "weight of positives" : "class weights", " from '", t.label, "':");
    for (size_t k = 0; k < loss.class_weights.size() && k < 12; ++k) {
      char number[32];
      std::snprintf(number, sizeof number, " %.4g", loss.class_weights[k]);
      text += number;
    }
    said.push_back(text + (loss.class_weights.size() > 12 ? " ..." : ""));
  }
  return said;
}

}  // namespace ortrain
