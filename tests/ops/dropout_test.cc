// ortrain.Dropout: the share kept, the scale, and that the mask depends on step and key alone.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

HostTensor dropped(double ratio, int64_t seed, int64_t key, int64_t step, int threads) {
  constexpr int64_t kCount = 100000;
  Graph g(all_ops());
  HostTensor x(DType::kF32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) x.mutable_data<float>()[i] = 2;
  const HostTensor s = HostTensor::scalar<int64_t>(step);
  const ValueId vx = g.add_input("x", DType::kF32, Shape({kCount})),
                vs = g.add_input("step", DType::kI64, Shape());
  const OpDef& op = all_ops().get("ortrain.Dropout");
  const NodeId n =
      g.add_node(op, {vx, vs}, {{"ratio", ratio}, {"seed", seed}, {"key", key}}, 1, "drop");
  g.infer(n);
  return std::move(run_kernel(op.kernels.back(), query_of(g, n, threads), {&x, &s})[0]);
}

int64_t differing(const HostTensor& a, const HostTensor& b) {
  int64_t n = 0;
  for (int64_t i = 0; i < a.count(); ++i) n += a.data<float>()[i] != b.data<float>()[i];
  return n;
}

TEST(Dropout, KeepsTheRightShareAtTheRightScale) {
  for (double ratio : {0.1, 0.5, 0.9}) {
    const HostTensor y = dropped(ratio, 1, 2, 3, 2);
    int64_t kept = 0;
    for (int64_t i = 0; i < y.count(); ++i) {
      const float v = y.data<float>()[i];
      if (v == 0) continue;
      EXPECT_FLOAT_EQ(v, static_cast<float>(2 / (1 - ratio)));
      ++kept;
    }
    // Five standard deviations of a binomial over 100,000.
    EXPECT_NEAR(static_cast<double>(kept) / 1e5, 1 - ratio,
                5 * std::sqrt(ratio * (1 - ratio) / 1e5));
  }
}

TEST(Dropout, MaskIsAFunctionOfSeedKeyAndStep) {
  const HostTensor y = dropped(0.5, 1, 2, 3, 1);
  EXPECT_EQ(differing(y, dropped(0.5, 1, 2, 3, 2)), 0);
  const HostTensor others[] = {dropped(0.5, 1, 2, 4, 1), dropped(0.5, 1, 3, 3, 1),
                               dropped(0.5, 2, 2, 3, 1)};
  for (const HostTensor& other : others)
    EXPECT_NEAR(static_cast<double>(differing(y, other)) / 1e5, 0.5, 0.01);
}

}  // namespace
}  // namespace ortrain::test
