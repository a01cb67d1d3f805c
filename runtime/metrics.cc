// See metrics.h.
#include "runtime/metrics.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"

namespace ortrain {
namespace {
double f1(int64_t hits, int64_t predicted, int64_t labelled) {
  return predicted + labelled
             ? 2.0 * static_cast<double>(hits) / static_cast<double>(predicted + labelled)
             : 0;
}

// Area under the ROC curve: the chance that a positive scores above a negative, ties half.
double auc(std::vector<std::pair<double, bool>> scores) {
  std::sort(scores.begin(), scores.end());
  double below = 0, area = 0, positives = 0;
  for (size_t i = 0; i < scores.size();) {
    size_t end = i;
    double p = 0, n = 0;
    for (; end < scores.size() && scores[end].first == scores[i].first; ++end)
      (scores[end].second ? p : n) += 1;
    area += p * (below + n / 2);
    below += n;
    positives += p;
    i = end;
  }
  return positives > 0 && below > 0 ? area / (positives * below) : std::nan("");
}
}  // namespace

void Metrics::score(double value, bool positive) { scores_.emplace_back(value, positive); }

int64_t Metrics::add_classes(const HostTensor& x, const HostTensor& y) {
  const size_t axis = static_cast<size_t>(spec_.class_axis);
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < x.dims().size(); ++i)
    (i < axis ? outer : inner) *= i == axis ? 1 : x.dims()[i];
  const int64_t classes = x.dims()[axis];
  if (classes_ == 0) {
    classes_ = classes;
    hits_.assign(static_cast<size_t>(classes), 0);
    predicted_ = labelled_ = hits_;
  }
  const bool soft = is_float(y.dtype());  // probabilities: the likeliest class is the label
  ORTRAIN_CHECK(y.count() == (soft ? x.count() : outer * inner), "labels do not fit the output");
  int64_t valid = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      const auto at = [&](int64_t c) { return (o * classes + c) * inner + i; };
      int64_t label = soft ? 0 : y.as_int(o * inner + i);
      if (soft)
        for (int64_t c = 1; c < classes; ++c)
          if (y.as_double(at(c)) > y.as_double(at(label))) label = c;
      if (!soft && label == spec_.ignore_index) continue;
      if (label < 0 || label >= classes) continue;  // the loss kernel has reported it
      int64_t best = 0, above = 0;
      double best_value = x.as_double(at(0));
      const double own = x.as_double(at(label));
      for (int64_t c = 0; c < classes; ++c) {
        const double v = x.as_double(at(c));
        if (v > best_value) best = c, best_value = v;
        above += v > own || (v == own && c < label);
      }
      ++valid;
      correct_ += best == label;
      in_top5_ += above < 5;
      ++predicted_[static_cast<size_t>(best)];
      ++labelled_[static_cast<size_t>(label)];
      hits_[static_cast<size_t>(best)] += best == label;
      if (classes == 2) score(x.as_double(at(1)) - x.as_double(at(0)), label == 1);
    }
  count_ += valid;
  return valid;
}

int64_t Metrics::add(const HostTensor& output, const HostTensor& labels) {
  switch (spec_.kind) {
    case MetricSpec::Kind::kNone: return 0;
    case MetricSpec::Kind::kClasses: return add_classes(output, labels);
    case MetricSpec::Kind::kBinary:
      if (hits_.empty()) hits_ = predicted_ = labelled_ = {0, 0};
      for (int64_t i = 0; i < labels.count(); ++i) {
        const double v = output.as_double(i);
        const bool positive = labels.as_double(i) > 0.5, said = v > spec_.threshold;
        correct_ += positive == said;
        predicted_[1] += said;
        labelled_[1] += positive;
        hits_[1] += said && positive;
        score(v, positive);
      }
      break;
    case MetricSpec::Kind::kRegression:
      for (int64_t i = 0; i < labels.count(); ++i) {
        const double d = output.as_double(i) - labels.as_double(i);
        absolute_ += std::abs(d);
        squared_ += d * d;
      }
      break;
  }
  count_ += labels.count();
  return labels.count();
}

std::vector<Metric> Metrics::values(double mean_loss) const {
  std::vector<Metric> out;
  if (spec_.kind == MetricSpec::Kind::kNone || count_ == 0) return out;
  const double n = static_cast<double>(count_);
  if (spec_.kind == MetricSpec::Kind::kRegression)
    return {{"mae", absolute_ / n, false}, {"rmse", std::sqrt(squared_ / n), false}};
  out.push_back({"accuracy", static_cast<double>(correct_) / n, true});
  if (classes_ > 5) out.push_back({"top5", static_cast<double>(in_top5_) / n, true});
  if (!scores_.empty()) {
    out.push_back({"f1", f1(hits_[1], predicted_[1], labelled_[1]), true});
    out.push_back({"auc", auc(scores_), true});
  } else {
    double sum = 0, seen = 0;
    for (size_t c = 0; c < hits_.size(); ++c)
      if (predicted_[c] + labelled_[c] > 0)
        sum += f1(hits_[c], predicted_[c], labelled_[c]), seen += 1;
    out.push_back({"f1", seen > 0 ? sum / seen : 0, true});
  }
  if (spec_.kind == MetricSpec::Kind::kClasses)
    out.push_back({"perplexity", std::exp(mean_loss), false});
  return out;
}

}  // namespace ortrain
