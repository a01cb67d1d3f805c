// Properties of the memory planner on random lifetimes, checked by brute force, and known cases.
#include "runtime/memplan.h"

#include <gtest/gtest.h>

#include <random>

namespace ortrain {
namespace {

size_t up(size_t n) { return (n + 63) / 64 * 64; }

int root(const std::vector<Interval>& x, int i) {
  while (x[static_cast<size_t>(i)].alias_of >= 0) i = x[static_cast<size_t>(i)].alias_of;
  return i;
}

TEST(Memplan, Empty) {
  const MemPlan p = plan_memory({});
  EXPECT_EQ(p.peak, 0u);
  EXPECT_EQ(p.lower_bound, 0u);
}

TEST(Memplan, ReusesWhatIsDead) {
  const std::vector<Interval> x = {{100, 0, 1}, {100, 1, 2}, {100, 2, 3}};
  const MemPlan p = plan_memory(x);
  EXPECT_EQ(p.peak, 256u);
  EXPECT_EQ(p.offsets[0], p.offsets[2]);
  EXPECT_NE(p.offsets[0], p.offsets[1]);
}

TEST(Memplan, AliasesShareAndLiveOn) {
  const std::vector<Interval> x = {{64, 0, 1}, {64, 1, 5, 0}, {64, 3, 3}, {64, 5, 6, 1}};
  const MemPlan p = plan_memory(x);
  EXPECT_EQ(p.offsets[0], p.offsets[1]);
  EXPECT_EQ(p.offsets[0], p.offsets[3]);
  EXPECT_NE(p.offsets[2], p.offsets[0]);
  EXPECT_EQ(p.peak, 128u);
}

TEST(Memplan, RandomLifetimes) {
  std::mt19937 rng(7);
  double worst = 1, sum = 0;
  const int rounds = 300;
  for (int round = 0; round < rounds; ++round) {
    const int n = 1 + static_cast<int>(rng() % 60), steps = 2 + static_cast<int>(rng() % 40);
    std::vector<Interval> x;
    for (int i = 0; i < n; ++i) {
      const int first = static_cast<int>(rng() % static_cast<unsigned>(steps));
      Interval v{rng() % 7 ? rng() % 5000 : 0, first, first + static_cast<int>(rng() % 10), -1};
      if (i > 0 && rng() % 5 == 0) v.alias_of = static_cast<int>(rng() % static_cast<unsigned>(i));
      x.push_back(v);
    }
    const MemPlan p = plan_memory(x);
    ASSERT_EQ(p.offsets, plan_memory(x).offsets);

    // A block lives from the first to the last step of all that share it.
    std::vector<Interval> block(x);
    for (int i = 0; i < n; ++i) {
      Interval& b = block[static_cast<size_t>(root(x, i))];
      b.first = std::min(b.first, x[static_cast<size_t>(i)].first);
      b.last = std::max(b.last, x[static_cast<size_t>(i)].last);
      b.bytes = std::max(b.bytes, x[static_cast<size_t>(i)].bytes);
    }
    size_t total = 0, bound = 0;
    for (int t = 0; t < steps + 10; ++t) {
      size_t live = 0;
      for (int i = 0; i < n; ++i) {
        const Interval& b = block[static_cast<size_t>(i)];
        if (x[static_cast<size_t>(i)].alias_of < 0 && b.first <= t && t <= b.last)
          live += up(b.bytes);
      }
      bound = std::max(bound, live);
    }
    ASSERT_EQ(p.lower_bound, bound);
    for (int i = 0; i < n; ++i) {
      const size_t a = static_cast<size_t>(i);
      ASSERT_EQ(p.offsets[a] % 64, 0u);
      ASSERT_LE(p.offsets[a] + x[a].bytes, p.peak);
      ASSERT_EQ(p.offsets[a], p.offsets[static_cast<size_t>(root(x, i))]);
      if (x[a].alias_of >= 0) continue;
      total += up(block[a].bytes);
      for (int j = 0; j < i; ++j) {
        const size_t b = static_cast<size_t>(j);
        if (x[b].alias_of >= 0) continue;
        const bool together = block[a].first <= block[b].last && block[b].first <= block[a].last;
        const bool overlap = p.offsets[a] < p.offsets[b] + block[b].bytes &&
                             p.offsets[b] < p.offsets[a] + block[a].bytes;
        ASSERT_FALSE(together && overlap) << "round " << round << ": " << i << " and " << j;
      }
    }
    ASSERT_LE(p.peak, total);
    ASSERT_GE(p.peak, p.lower_bound);
    if (bound > 0) {
      const double ratio = static_cast<double>(p.peak) / static_cast<double>(bound);
      worst = std::max(worst, ratio);
      sum += ratio;
    } else {
      sum += 1;
    }
  }
  // Random lifetimes are harder than a network's; the planner stays near the bound on average.
  EXPECT_LT(sum / rounds, 1.05);
  EXPECT_LT(worst, 1.5);
}

}  // namespace
}  // namespace ortrain
