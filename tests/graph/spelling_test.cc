// Nearest names: typical slips are corrected, unrelated words are not.
#include "graph/spelling.h"

#include <gtest/gtest.h>

#include <vector>

namespace ortrain {
namespace {
const std::vector<std::string> kNames = {"labels", "input_ids", "attention_mask", "x",
                                         "--batch-size"};

TEST(NearestName, CorrectsSlips) {
  EXPECT_EQ(nearest_name("lables", kNames), "labels");
  EXPECT_EQ(nearest_name("label", kNames), "labels");
  EXPECT_EQ(nearest_name("INPUT_IDS", kNames), "input_ids");
  EXPECT_EQ(nearest_name("attention_msak", kNames), "attention_mask");
  EXPECT_EQ(nearest_name("--batchsize", kNames), "--batch-size");
  EXPECT_EQ(nearest_name("X", kNames), "x");
}

TEST(NearestName, LeavesUnrelatedWordsAlone) {
  EXPECT_EQ(nearest_name("pixel_values", kNames), "");
  EXPECT_EQ(nearest_name("target", kNames), "");
  EXPECT_EQ(nearest_name("", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), kNames), "");
}

}  // namespace
}  // namespace ortrain
