// The decision whether the CPUs are crowded, on given times. Witness: the two limits of crowding.h.
#include "runtime/crowding.h"

#include <gtest/gtest.h>

namespace ortrain {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Crowding, TurnsOnAboveTheUpperLimitOffBelowTheLowerOne) {
  Crowding c;
  EXPECT_FALSE(c.crowded());
  EXPECT_FALSE(c.update(0, 50 * kMs));
  EXPECT_FALSE(c.update(5 * kMs, 50 * kMs));  // 0.10: between, as it was
  EXPECT_FALSE(c.update(7 * kMs, 50 * kMs));  // 0.14
  EXPECT_FALSE(c.update(8 * kMs, 50 * kMs));  // 0.16, but once only
  EXPECT_FALSE(c.update(5 * kMs, 50 * kMs));
  EXPECT_FALSE(c.update(8 * kMs, 50 * kMs));
  EXPECT_TRUE(c.update(8 * kMs, 50 * kMs));   // 0.16
  EXPECT_TRUE(c.update(5 * kMs, 50 * kMs));   // between again
  EXPECT_TRUE(c.update(4 * kMs, 50 * kMs));   // 0.08
  EXPECT_FALSE(c.update(3 * kMs, 50 * kMs));  // 0.06
  EXPECT_FALSE(c.update(5 * kMs, 50 * kMs));
}

TEST(Crowding, CountsTheTimeThatPassed) {
  Crowding c;
  EXPECT_FALSE(c.update(8 * kMs, 500 * kMs));  // the watcher itself came late
  EXPECT_FALSE(c.update(300 * kMs, 100 * kMs));
  EXPECT_TRUE(c.update(300 * kMs, 100 * kMs));  // several threads waited at once
  EXPECT_TRUE(c.update(0, 0));                  // no time passed: as it was
  EXPECT_FALSE(c.update(-1 * kMs, 50 * kMs));   // a thread that had waited has ended
}

TEST(Crowding, AWatchEndsWithItsOwner) {
  for (int i = 0; i < 3; ++i) CrowdingWatch watch;
}

}  // namespace
}  // namespace ortrain
