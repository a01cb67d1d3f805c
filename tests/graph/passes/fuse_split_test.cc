// fuse_split: consecutive Slices become one Split; anything else stays.
#include "graph/rewrite.h"
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

std::string sliced(int64_t s1, int64_t e1, int64_t s2, int64_t e2, int* places) {
  Graph g =
      mini::typed(cat("input %0:f32[2,6] \"x\"\nconst %1:i64[1] = {", s1, "}\nconst %2:i64[1] = {",
                      e1, "}\nconst %3:i64[1] = {", s2, "}\nconst %4:i64[1] = {", e2,
                      "}\nconst %5:i64[1] = {1}\n%6 = Slice(%0, %3, %4, %5) #late\n"
                      "%7 = Slice(%0, %1, %2, %5) #early\noutput %7 \"a\"\noutput %6 \"b\"\n"));
  std::vector<std::string> messages;
  const StepSpec spec;
  const Evaluate evaluate;
  PassContext ctx{spec, evaluate, messages, {}};
  *places = fuse_split(g, ctx);
  g.erase_dead();
  EXPECT_EQ(verify(g), "");
  return mini::normal(g);
}

TEST(FuseSplit, ConsecutivePieces) {
  int places = 0;
  EXPECT_EQ(sliced(0, 2, 2, 6, &places),
            "graph \"\" inferred\ninput %0:f32[2,6] \"x\"\nconst %1:i64[2] = {2, 4}\n"
            "%2:f32[2,2], %3:f32[2,4] = Split(%0, %1) {axis=1} #early|split\n"
            "output %2 \"a\"\noutput %3 \"b\"\n");
  EXPECT_EQ(places, 1);
}

TEST(FuseSplit, GapsOverlapsAndMissingEndsStay) {
  int places = 0;
  for (const auto& [s1, e1, s2, e2] : std::vector<std::array<int64_t, 4>>{
           {0, 2, 3, 6}, {0, 3, 2, 6}, {1, 2, 2, 6}, {0, 2, 2, 5}}) {
    EXPECT_THAT(sliced(s1, e1, s2, e2, &places), testing::Not(testing::HasSubstr("Split")));
    EXPECT_EQ(places, 0);
  }
}

}  // namespace
}  // namespace ortrain
