// The sampler against its independent Python version (sampler_reference.py), and its properties:
// permutations, purity, all last-batch policies, ranks, positions.
#include "runtime/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using testing::ElementsAre;
using testing::HasSubstr;
using Indices = std::vector<int64_t>;

Indices batch(Sampler& s, int64_t step) {
  Indices out;
  s.batch_indices(step, out);
  EXPECT_EQ(static_cast<int64_t>(out.size()), s.count(step));
  return out;
}
Indices batch(const SamplerOptions& o, int64_t step) {
  Sampler s(o);
  return batch(s, step);
}

TEST(EpochOrder, MatchesTheReference) {
  EXPECT_THAT(epoch_order(10, 0, 0), ElementsAre(4, 9, 2, 5, 1, 7, 6, 0, 3, 8));
  EXPECT_THAT(epoch_order(10, 0, 1), ElementsAre(9, 4, 0, 5, 2, 1, 6, 8, 3, 7));
  EXPECT_THAT(epoch_order(10, 1234567890123456789u, 3), ElementsAre(0, 8, 5, 7, 6, 3, 2, 1, 9, 4));
  EXPECT_THAT(epoch_order(16, 42, 7),
              ElementsAre(13, 8, 2, 11, 12, 15, 4, 9, 5, 3, 6, 1, 0, 10, 7, 14));
  uint64_t hash = 0;
  for (const uint32_t v : epoch_order(100000, 7, 2)) hash = hash * 1000003 + v;
  EXPECT_EQ(hash, 16470610400625268530u);
}

TEST(EpochOrder, IsAPermutationThatDependsOnSeedAndEpoch) {
  for (const int64_t n : {1, 2, 3, 17, 1000}) {
    std::vector<uint32_t> sorted = epoch_order(n, 5, 9);
    std::sort(sorted.begin(), sorted.end());
    std::vector<uint32_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
  }
  EXPECT_EQ(epoch_order(50, 5, 9), epoch_order(50, 5, 9));
  EXPECT_NE(epoch_order(50, 5, 9), epoch_order(50, 5, 10));
  EXPECT_NE(epoch_order(50, 5, 9), epoch_order(50, 6, 9));
}

// Each of the 24 orders of 4 samples over 24,000 epochs: chi-square with 23 degrees of freedom is
// below 49.7 with probability 0.999; the seed is fixed, so the test cannot flake.
TEST(EpochOrder, IsUniform) {
  std::map<std::vector<uint32_t>, int> seen;
  for (int64_t epoch = 0; epoch < 24000; ++epoch) ++seen[epoch_order(4, 3, epoch)];
  double chi2 = 0;
  for (const auto& [order, n] : seen) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_EQ(seen.size(), 24u);
  EXPECT_LT(chi2, 49.7);
}

TEST(Sampler, EveryEpochVisitsEachSampleOnce) {
  for (const int64_t n : {1, 7, 32, 100}) {
    for (const int64_t b : {1, 3, 32, 200}) {
      Sampler s({.samples = n, .batch_size = b, .seed = 11});
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int> visits(static_cast<size_t>(n));
        for (int64_t k = 0; k < s.steps_per_epoch(); ++k)
          for (const int64_t i : batch(s, epoch * s.steps_per_epoch() + k))
            ++visits[static_cast<size_t>(i)];
        EXPECT_THAT(visits, testing::Each(1)) << n << " " << b;
      }
    }
  }
}

TEST(Sampler, ShuffledBatchesAreSlicesOfTheEpochOrder) {
  const std::vector<uint32_t> order = epoch_order(10, 42, 1);
  const SamplerOptions o{.samples = 10, .batch_size = 4, .seed = 42};
  EXPECT_EQ(batch(o, 3 + 1), Indices(order.begin() + 4, order.begin() + 8));
}

// The golden runs: file order, divisible by the batch, wrapping at the end of the file.
TEST(Sampler, FileOrderStartsOverAtTheEnd) {
  const SamplerOptions o{.samples = 6, .batch_size = 2, .shuffle = false};
  const Indices want[] = {{0, 1}, {2, 3}, {4, 5}, {0, 1}, {2, 3}};
  for (int64_t step = 0; step < 5; ++step) EXPECT_EQ(batch(o, step), want[step]);
  EXPECT_TRUE(Sampler(o).always_contiguous());
}

TEST(Sampler, KeepDropWrap) {
  SamplerOptions o{.samples = 5, .batch_size = 2, .shuffle = false};
  EXPECT_EQ(Sampler(o).steps_per_epoch(), 3);
  EXPECT_EQ(batch(o, 2), Indices{4});
  EXPECT_EQ(batch(o, 3), (Indices{0, 1}));
  o.last = LastBatch::kDrop;
  EXPECT_EQ(Sampler(o).steps_per_epoch(), 2);
  EXPECT_EQ(batch(o, 2), (Indices{0, 1}));
  o.last = LastBatch::kWrap;
  EXPECT_EQ(Sampler(o).steps_per_epoch(), 3);
  EXPECT_EQ(Sampler(o).steps_for_epochs(2), 5);
  EXPECT_EQ(batch(o, 2), (Indices{4, 0}));
  EXPECT_EQ(batch(o, 3), (Indices{1, 2}));
  EXPECT_EQ(batch(o, 4), (Indices{3, 4}));
  EXPECT_EQ(batch(o, 5), (Indices{0, 1}));
  EXPECT_FALSE(Sampler(o).always_contiguous());
  EXPECT_EQ(Sampler(o).contiguous_start(2), std::nullopt);
  EXPECT_EQ(Sampler(o).contiguous_start(3), 1);
  o.batch_size = 12;
  EXPECT_EQ(batch(o, 0), (Indices{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}));
}

TEST(Sampler, WrapRunsIntoTheNextEpochsOrder) {
  const std::vector<uint32_t> e0 = epoch_order(5, 1, 0), e1 = epoch_order(5, 1, 1);
  const SamplerOptions o{.samples = 5, .batch_size = 3, .seed = 1, .last = LastBatch::kWrap};
  EXPECT_EQ(batch(o, 1), (Indices{e0[3], e0[4], e1[0]}));
}

TEST(Sampler, PositionsAndStepsAreInverse) {
  for (const LastBatch last : {LastBatch::kKeep, LastBatch::kDrop, LastBatch::kWrap}) {
    for (const int64_t b : {1, 3, 4, 7}) {
      const Sampler s({.samples = 7, .batch_size = b, .last = last});
      SamplePosition before{-1, 0};
      for (int64_t step = 0; step < 40; ++step) {
        const SamplePosition p = s.position(step);
        EXPECT_EQ(s.step_of(p), step);
        EXPECT_TRUE(p.epoch > before.epoch ? p.batch == 0 : p.batch == before.batch + 1);
        before = p;
      }
    }
  }
}

TEST(Sampler, RanksSplitTheGlobalBatch) {
  for (const LastBatch last : {LastBatch::kKeep, LastBatch::kWrap}) {
    Sampler whole({.samples = 22, .batch_size = 8, .seed = 3, .last = last});
    for (int64_t step = 0; step < 9; ++step) {
      Indices joined;
      for (int rank = 0; rank < 4; ++rank) {
        Sampler s(
            {.samples = 22, .batch_size = 2, .seed = 3, .last = last, .rank = rank, .world = 4});
        EXPECT_EQ(s.steps_per_epoch(), whole.steps_per_epoch());
        EXPECT_EQ(s.global_count(step), whole.count(step));
        const Indices part = batch(s, step);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, batch(whole, step)) << step;
    }
  }
}

TEST(Sampler, StepsFarOutAreFine) {
  const SamplerOptions o{.samples = 7, .batch_size = 3, .shuffle = false, .last = LastBatch::kWrap};
  const int64_t step = int64_t{7} << 58;
  EXPECT_EQ(batch(o, step), (Indices{0, 1, 2}));
  EXPECT_EQ(Sampler(o).position(step), (SamplePosition{int64_t{3} << 58, 0}));
}

TEST(Sampler, ImpossibleOptionsAreRefused) {
  const auto message = [](const SamplerOptions& o) {
    return test::error_of([&] { Sampler s(o); });
  };
  EXPECT_THAT(message({.samples = 0}), HasSubstr("no samples"));
  EXPECT_THAT(message({.samples = 4, .batch_size = 0}), HasSubstr("batch size 0"));
  EXPECT_THAT(message({.samples = 4, .rank = 2, .world = 2}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(message({.samples = 4, .batch_size = 8, .last = LastBatch::kDrop}),
              HasSubstr("at most 4"));
  EXPECT_THAT(message({.samples = int64_t{1} << 33}), HasSubstr("--shuffle none"));
}

}  // namespace
}  // namespace ortrain::data
