// schedule: every live node once; readers of a state before its writer; nodes right before what
// needs them.
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

std::vector<std::string> scheduled(const std::string& text) {
  Graph g = parse_graph("graph \"\" differentiated\n" + text, mini::ops());
  mini::run_pass(pass_schedule, g);
  EXPECT_EQ(g.stage, Stage::kScheduled);
  std::vector<std::string> out;
  for (NodeId n : g.order) out.push_back(g.node(n).origin);
  return out;
}

using Order = std::vector<std::string>;

TEST(Schedule, ReadersOfTheOldContentsComeFirst) {
  EXPECT_EQ(scheduled("param %0:f32[2] \"w\"\ninput %1:f32[2] \"x\"\n"
                      "%2:f32[2] = Add(%0, %1) #write\n%3:f32[2] = Mul(%0, %1) #read\n"
                      "%4:f32[2] = Exp(%3) #use\noutput %4 \"y\"\nupdate %0 <- %2\n"),
            (Order{"read", "write", "use"}));
}

TEST(Schedule, AnUpdateRunsAsSoonAsItCan) {
  // Backward of two layers: w2's update does not wait for w1's gradient.
  EXPECT_EQ(scheduled("param %0:f32[2] \"w1\"\nparam %1:f32[2] \"w2\"\ninput %2:f32[2] \"x\"\n"
                      "%3:f32[2] = Mul(%2, %0) #f1\n%4:f32[2] = Mul(%3, %1) #f2\n"
                      "%5:f32[2] = Mul(%4, %3) #dw2\n%6:f32[2] = Mul(%4, %1) #dx1\n"
                      "%7:f32[2] = Mul(%6, %2) #dw1\n%8:f32[2] = Sub(%1, %5) #u2\n"
                      "%9:f32[2] = Sub(%0, %7) #u1\noutput %4 \"loss\"\n"
                      "update %1 <- %8\nupdate %0 <- %9\n"),
            (Order{"f1", "f2", "dw2", "dx1", "u2", "dw1", "u1"}));
}

TEST(Schedule, DeadNodesAreDropped) {
  EXPECT_EQ(scheduled("input %0:f32[2] \"x\"\n%1:f32[2] = Exp(%0) #dead\n%2:f32[2] = Neg(%0) #n\n"
                      "output %2 \"y\"\n"),
            (Order{"n"}));
}

TEST(Schedule, DeepGraphsDoNotRecurse) {
  Graph g(mini::ops());
  Builder b(g, "deep");
  Expr x = b.wrap(g.add_input("x", DType::kF32, Shape({1})));
  for (int i = 0; i < 200000; ++i) x = b.op("Neg", {x});
  g.add_output(x.id(), "y");
  mini::run_pass(pass_schedule, g);
  EXPECT_EQ(g.order.size(), 200000u);
}

}  // namespace
}  // namespace ortrain
