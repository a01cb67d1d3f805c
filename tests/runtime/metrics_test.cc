// Metrics against values worked out by hand from their definitions, which are scikit-learn's
// (accuracy_score, f1_score, roc_auc_score, top_k_accuracy_score).
#include "runtime/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace ortrain {
namespace {

std::map<std::string, double> run(const MetricSpec& spec, const HostTensor& x, const HostTensor& y,
                                  double loss = 0) {
  Metrics m(spec);
  m.add(x, y);
  std::map<std::string, double> out;
  for (const Metric& v : m.values(loss)) out[v.name] = v.value;
  return out;
}

using Kind = MetricSpec::Kind;

TEST(Metrics, ThreeClasses) {
  // y_true = [0, 1, 2, 2, 1], y_pred = [0, 2, 2, 2, 0]
  // accuracy 3/5; macro f1 (2/3 + 0 + 4/5) / 3 = 22/45
  const auto x = HostTensor::of<float>({5, 3}, {3, 1, 2, 0, 1, 2, 0, 0, 1, -1, -2, 0, 5, 4, 3});
  const auto y = HostTensor::of<int64_t>({5}, {0, 1, 2, 2, 1});
  const auto m = run({.kind = Kind::kClasses}, x, y, std::log(3.0));
  EXPECT_DOUBLE_EQ(m.at("accuracy"), 0.6);
  EXPECT_DOUBLE_EQ(m.at("f1"), 22.0 / 45);
  EXPECT_DOUBLE_EQ(m.at("perplexity"), 3);
  EXPECT_FALSE(m.contains("top5"));
  EXPECT_FALSE(m.contains("auc"));
}

TEST(Metrics, SequenceWithIgnoredLabelsAndClassesLast) {
  const auto x = HostTensor::of<double>({1, 3, 2}, {0, 1, 1, 0, 0, 1});
  const auto y = HostTensor::of<int64_t>({1, 3}, {1, -100, 0});
  Metrics m({.kind = Kind::kClasses, .class_axis = 2});
  EXPECT_EQ(m.add(x, y), 2);
  EXPECT_DOUBLE_EQ(m.values(0)[0].value, 0.5);
}

TEST(Metrics, ClassesOnAxisOneOfAnImage) {
  // [1, 2, 2]: class scores per position: (1 vs 3), (5 vs 2) -> 1, 0
  const auto x = HostTensor::of<float>({1, 2, 2}, {1, 5, 3, 2});
  const auto y = HostTensor::of<int64_t>({1, 2}, {1, 1});
  EXPECT_DOUBLE_EQ(run({.kind = Kind::kClasses}, x, y).at("accuracy"), 0.5);
}

TEST(Metrics, TopFive) {
  const auto x = HostTensor::of<float>({2, 7}, {7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 2, 1});
  const auto y = HostTensor::of<int64_t>({2}, {4, 5});
  EXPECT_DOUBLE_EQ(run({.kind = Kind::kClasses}, x, y).at("top5"), 0.5);
}

TEST(Metrics, BinaryScores) {
  // auc: pairs (positive, negative) won: 1 + 1/2, 2, 1 of 6; f1: 2 * 1 / (1 + 3)
  const auto x = HostTensor::of<float>({5, 1}, {0.1f, 0.4f, 0.4f, 0.8f, 0.3f});
  const auto y = HostTensor::of<float>({5}, {0, 0, 1, 1, 1});
  const auto m = run({.kind = Kind::kBinary, .threshold = 0.5}, x, y);
  EXPECT_DOUBLE_EQ(m.at("accuracy"), 0.6);
  EXPECT_DOUBLE_EQ(m.at("f1"), 0.5);
  EXPECT_DOUBLE_EQ(m.at("auc"), 0.75);
}

TEST(Metrics, TwoClassesGiveAuc) {
  const auto x = HostTensor::of<float>({4, 2}, {2, 0, 0, 1, 1, 0, 0, 3});
  const auto y = HostTensor::of<int64_t>({4}, {0, 0, 1, 1});
  // scores x1 - x0 = [-2, 1, -1, 3]; pairs won: (-1>-2), (3>-2), (3>1) of 4
  const auto m = run({.kind = Kind::kClasses}, x, y);
  EXPECT_DOUBLE_EQ(m.at("auc"), 0.75);
  EXPECT_DOUBLE_EQ(m.at("f1"), 0.5);
}

TEST(Metrics, RegressionOverBatches) {
  Metrics m({.kind = Kind::kRegression});
  m.add(HostTensor::of<float>({2, 1}, {1, 2}), HostTensor::of<float>({2, 1}, {0, 4}));
  m.add(HostTensor::of<float>({1, 1}, {5}), HostTensor::of<float>({1, 1}, {5}));
  const auto v = m.values(0);
  EXPECT_DOUBLE_EQ(v[0].value, 1);
  EXPECT_DOUBLE_EQ(v[1].value, std::sqrt(5.0 / 3));
}

}  // namespace
}  // namespace ortrain
