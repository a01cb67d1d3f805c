// check_trainable: all obstacles in one error, with node names; none when all is well.
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

TEST(CheckTrainable, ListsAll) {
  Graph g = mini::typed(
      "param %0:f32[2] \"a\"\nparam %1:f32[2] \"b\"\n%2 = Softmax(%0) #soft1\n"
      "%3 = Softmax(%1) #soft2\n%4 = Max(%2, %3) #max\n%5 = ReduceSum(%4) {keepdims=0} #sum\n"
      "output %5 \"loss\"\ntrainable %0 \"\"\ntrainable %1 \"\"\n");
  const std::string message =
      mini::error_of(ErrorCode::kUnsupported, [&] { mini::run_pass(pass_check_trainable, g); });
  EXPECT_THAT(message, HasSubstr("3 places stop the gradient"));
  EXPECT_THAT(message, HasSubstr("Softmax 'soft1'"));
  EXPECT_THAT(message, HasSubstr("Softmax 'soft2'"));
  EXPECT_THAT(message, HasSubstr("Max 'max': input 'b': the bound is fixed"));
}

TEST(CheckTrainable, OnlyTheTrainablePathCounts) {
  Graph g = mini::typed(
      "param %0:f32[2] \"a\"\nparam %1:f32[2] \"b\"\n%2 = Softmax(%0) #soft1\n"
      "%3 = Mul(%2, %1) #mul\n%4 = ReduceSum(%3) {keepdims=0} #sum\noutput %4 \"loss\"\n"
      "frozen %0 \"\"\ntrainable %1 \"\"\n");
  EXPECT_EQ(mini::run_pass(pass_check_trainable, g).did, "1 parameters have a gradient");
}

}  // namespace
}  // namespace ortrain
