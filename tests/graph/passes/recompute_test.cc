// recompute: text in, text out; what is dropped, where copies go, what is left alone. The whole
// path with kernels and planned arenas is tests/checks/recompute.py.
#include "graph/passes/recompute_model.h"
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

// x [64] -> a = Exp x -> b = Tanh a -> ... -> loss, and a backward that reads b, then a.
constexpr const char* kStep =
    "input %0:f32[64] \"x\"\n"
    "%1:f32[64] = Exp(%0) #e\n"
    "%2:f32[64] = Tanh(%1) #t\n"
    "%3:f32[64] = Mul(%2, %2) #m\n"
    "%4:f32[64] = Neg(%3) #n\n"
    "%5:f32[64] = Exp(%4) #o\n"
    "%6:f32[] = ReduceSum(%5) {keepdims=0} #loss\n"
    "%7:f32[64] = Mul(%5, %6) #o|autodiff\n"
    "%8:f32[64] = Mul(%7, %2) #m|autodiff\n"
    "%9:f32[64] = Mul(%8, %1) #t|autodiff\n"
    "output %6 \"loss\"\noutput %9 \"grad/x\"\n";

Graph scheduled(const std::string& text) {
  Graph g = mini::typed(text);
  mini::run_pass(pass_schedule, g);
  return g;
}
std::vector<std::string> origins(const Graph& g) {
  std::vector<std::string> out;
  for (NodeId n : g.order) out.push_back(g.node(n).origin);
  return out;
}
StepSpec spec(const std::string& mode, size_t arena = 0) {
  StepSpec s;
  s.recompute = {.mode = mode, .arena_bytes = arena};
  return s;
}

TEST(Recompute, ACopyGoesRightBeforeItsBackwardUser) {
  Graph g = scheduled(kStep);
  // Alive from Exp #o on: a, b and #o, 3 x 256 bytes and a scalar; in Mul #m: a, b and #m as well.
  const mini::Ran ran = mini::run_pass(pass_recompute, g, spec("auto", 3 * 256 + 64));
  EXPECT_EQ(origins(g), (std::vector<std::string>{"e", "t", "m", "n", "o", "loss", "o|autodiff",
                                                  "m|autodiff", "e|recompute", "t|autodiff"}))
      << print_graph(g);
  EXPECT_NE(ran.did.find("1 nodes run again"), std::string::npos) << ran.did;
}

TEST(Recompute, NothingWhereItFits) {
  Graph g = scheduled(kStep);
  const std::string before = print_graph(g);
  mini::run_pass(pass_recompute, g, spec("auto", 1 << 20));
  EXPECT_EQ(print_graph(g), before);
  mini::run_pass(pass_recompute, g, spec("auto"));
  EXPECT_EQ(print_graph(g), before);
}

TEST(Recompute, TheModelCountsLiveBytes) {
  Graph g = scheduled(kStep);
  RecomputeModel model(g, g.outputs()[0], [](NodeId) { return MemoryModel::Cost{1, 0}; });
  const auto all = model.run(model.base(), 0);
  EXPECT_EQ(all.copies, 0);
  EXPECT_EQ(model.step_ms(), 9);
  // #o|autodiff reads #o and the scalar and overwrites #o, while e and t are there.
  EXPECT_EQ(all.peak, 4 * 256 + 64u);
  std::vector<char> dropped(model.values().size(), 0);
  dropped[0] = 1;  // #e
  const auto less = model.run(model.with_dropped(dropped), 0);
  EXPECT_EQ(less.copies, 1);
  EXPECT_LT(less.peak, all.peak);
  EXPECT_EQ(model.bound().first, 3 * 256u);  // Mul: two operands and a result
}

// A chain of eight whose backward reads every link: with room for few, links are made several
// times.
TEST(Recompute, AsOftenAsTheBudgetAsksFor) {
  std::string text = "input %0:f32[64] \"x\"\n";
  for (int i = 1; i <= 8; ++i) text += cat("%", i, ":f32[64] = Exp(%", i - 1, ") #f", i, "\n");
  text += "%9:f32[] = ReduceSum(%8) {keepdims=0} #loss\n%10:f32[64] = Mul(%8, %9) #b8\n";
  for (int i = 7; i >= 1; --i)
    text += cat("%", 18 - i, ":f32[64] = Mul(%", 17 - i, ", %", i, ") #b", i, "\n");
  text += "output %9 \"loss\"\noutput %17 \"grad/x\"\n";
  for (size_t links : {8, 6, 4, 3}) {
    Graph now = scheduled(text);
    const size_t arena = links * 256 + 64;
    const mini::Ran ran = mini::run_pass(pass_recompute, now, spec("auto", arena));
    RecomputeModel model(now, now.outputs()[0], [](NodeId) { return MemoryModel::Cost{1, 0}; });
    EXPECT_LE(model.run(model.base(), 0).peak, arena) << ran.did << print_graph(now);
    std::map<std::string, int> runs;
    int most = 0;
    for (NodeId n : now.order) most = std::max(most, ++runs[now.node(n).origin]);
    EXPECT_GT(links > 3 ? 2 : most, 1) << print_graph(now);  // f1|recompute more than once
  }
}

// Running statistics: the copy reads the old ones, so their update waits for it.
TEST(Recompute, AStateIsOverwrittenBehindTheCopyThatReadsIt) {
  Graph g = scheduled(
      "state %0:f32[64] \"s\"\ninput %1:f32[64] \"x\"\n"
      "%2:f32[64] = Mul(%1, %0) #f\n%3:f32[64] = Exp(%2) #e\n%4:f32[64] = Exp(%3) #e2\n"
      "%5:f32[] = ReduceSum(%4) {keepdims=0} #loss\n"
      "%6:f32[64] = Mul(%0, %5) #update\n"
      "%7:f32[64] = Mul(%4, %3) #b1\n%9:f32[64] = Mul(%7, %5) #b2\n"
      "%8:f32[64] = Mul(%9, %2) #b3\n"
      "output %5 \"loss\"\noutput %8 \"grad/x\"\nupdate %0 <- %6\n");
  mini::run_pass(pass_recompute, g, spec("auto", 1));
  const auto order = origins(g);
  const auto at = [&](const char* what) {
    return std::find(order.begin(), order.end(), what) - order.begin();
  };
  ASSERT_LT(at("f|recompute"), static_cast<long>(order.size())) << print_graph(g);
  EXPECT_LT(at("f|recompute"), at("update")) << print_graph(g);
}

}  // namespace
}  // namespace ortrain
