// Gradients against central differences in f64, through the test interpreter: broadcasting, reuse,
// dtype changes, decompositions; and what is refused.
#include "graph/autodiff.h"

#include <gmock/gmock.h>

#include "tests/graph/mini_ops.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

const OpTable& ops() {
  static const OpTable table = mini::table();
  return table;
}

Graph typed(const std::string& text) {
  Graph g = parse_graph(text, ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  return g;
}

double loss_of(const Graph& g, const std::map<std::string, HostTensor>& feed) {
  return mini::run(g, feed).at("loss").as_double(0);
}

// Compares every element of every parameter's gradient with a central difference.
void check(const std::string& text, double tolerance = 1e-7) {
  const Graph forward = typed(text);
  Graph g = forward.share();
  const std::vector<ValueId> wanted = g.sources(Source::kParam);
  const std::vector<ValueId> grads = differentiate(g, g.outputs()[0], wanted);
  EXPECT_EQ(verify(g), "");
  ASSERT_EQ(grads.size(), wanted.size());
  for (size_t p = 0; p < wanted.size(); ++p) {
    ASSERT_NE(grads[p], kNone);
    EXPECT_EQ(g.value(grads[p]).shape, g.value(wanted[p]).shape);
    EXPECT_EQ(g.value(grads[p]).dtype, g.value(wanted[p]).dtype);
    g.add_output(grads[p], "g" + std::to_string(p));
  }
  const auto results = mini::run(g);
  const double h = 1e-5;
  for (size_t p = 0; p < wanted.size(); ++p) {
    const HostTensor& at = *forward.tensor(wanted[p]);
    for (int64_t i = 0; i < at.count(); ++i) {
      double side[2];
      for (int s = 0; s < 2; ++s) {
        std::map<std::string, HostTensor> feed;
        HostTensor moved = at.clone();
        moved.set_double(i, at.as_double(i) + (s ? -h : h));
        feed[forward.value(wanted[p]).name] = std::move(moved);
        side[s] = loss_of(forward, feed);
      }
      EXPECT_NEAR(results.at("g" + std::to_string(p)).as_double(i), (side[0] - side[1]) / (2 * h),
                  tolerance)
          << forward.value(wanted[p]).name << "[" << i << "]";
    }
  }
}

TEST(Autodiff, BroadcastingIsUndone) {
  check(
      "param %0:f64[2,3] \"a\" = {1.0, -2.0, 0.5, 0.25, 2.0, -1.0}\n"
      "param %1:f64[3] \"b\" = {0.5, 1.5, -0.75}\n"
      "param %2:f64[2,1] \"c\" = {0.3, -0.6}\n"
      "param %3:f64[] \"d\" = {1.25}\n"
      "%4 = Mul(%0, %1) #m\n%5 = Add(%4, %2) #a\n%6 = Mul(%5, %3) #s\n%7 = Tanh(%6) #t\n"
      "%8 = ReduceMean(%7) {keepdims=0} #loss\noutput %8 \"loss\"\n");
}

TEST(Autodiff, AValueUsedOftenAccumulates) {
  check(
      "param %0:f64[3] \"a\" = {0.7, -0.4, 1.1}\n"
      "%1 = Mul(%0, %0) #sq\n%2 = Exp(%0) #e\n%3 = Add(%1, %2) #add\n%4 = Mul(%3, %0) #m\n"
      "%5 = ReduceSum(%4) {keepdims=0} #loss\noutput %5 \"loss\"\n");
}

TEST(Autodiff, TwoLayersOfMatMul) {
  check(
      "const %0:f64[2,3] = {0.1, 0.2, -0.3, 0.5, -0.5, 0.9}\n"
      "param %1:f64[3,2] \"w1\" = {0.3, -0.1, 0.8, 0.2, -0.7, 0.4}\n"
      "param %2:f64[2] \"b1\" = {0.05, -0.2}\n"
      "param %3:f64[1,2] \"w2\" = {1.5, -0.5}\n"
      "%4 = MatMul(%0, %1) #l1\n%5 = Add(%4, %2) #l1b\n%6 = Tanh(%5) #act\n"
      "%7 = Transpose(%3) {perm=[1, 0]} #wt\n%8 = MatMul(%6, %7) #l2\n%9 = Mul(%8, %8) #sq\n"
      "%10 = ReduceMean(%9) {keepdims=0} #loss\noutput %10 \"loss\"\n");
}

TEST(Autodiff, ThroughADecomposition) {
  check(
      "param %0:f64[3] \"a\" = {0.7, -0.4, 1.1}\n"
      "%1 = Swish(%0) #act\n%2 = ReduceSum(%1) {keepdims=0} #loss\noutput %2 \"loss\"\n");
}

TEST(Autodiff, TheLossItselfMayDecompose) {
  check("param %0:f64[] \"a\" = {0.7}\n%1 = Swish(%0) #act\noutput %1 \"loss\"\n");
}

TEST(Autodiff, ADtypeChangeIsUndone) {
  Graph g = typed(
      "param %0:f32[2] \"a\" = {1.5, -2.0}\n%1 = Cast(%0) {to=\"f64\"} #up\n%2 = Mul(%1, %1) #sq\n"
      "%3 = ReduceSum(%2) {keepdims=0} #loss\noutput %3 \"loss\"\n");
  const auto grads = differentiate(g, g.outputs()[0], {0});
  EXPECT_EQ(g.value(grads[0]).dtype, DType::kF32);
  g.add_output(grads[0], "g");
  const auto r = mini::run(g);
  EXPECT_EQ(r.at("g").as_double(0), 3.0);
  EXPECT_EQ(r.at("g").as_double(1), -4.0);
}

TEST(Autodiff, NothingFlowsThroughAZeroRuleAndEveryNodeSaysWhereItIsFrom) {
  Graph g = typed(
      "param %0:f64[2] \"a\" = {1.5, -2.0}\nparam %1:f64[2] \"b\" = {1.0, 2.0}\n"
      "%2 = Less(%0, %1) #less\n%3 = Where(%2, %0, %0) #w\n%4 = ReduceSum(%3) {keepdims=0} #loss\n"
      "output %4 \"loss\"\n");
  const auto grads = differentiate(g, g.outputs()[0], {0, 1});
  EXPECT_NE(grads[0], kNone);
  EXPECT_EQ(grads[1], kNone);
  for (NodeId n = 3; n < g.node_count(); ++n)
    EXPECT_THAT(g.node(n).origin, HasSubstr("|autodiff")) << n;
}

TEST(Autodiff, ListsEveryObstacleAtOnce) {
  Graph g = typed(
      "param %0:f64[2] \"a\" = {1.5, -2.0}\nparam %1:f64[2] \"b\" = {1.0, 2.0}\n"
      "%2 = Softmax(%0) #soft\n%3 = Max(%2, %1) #max\n%4 = ReduceSum(%3) {keepdims=0} #loss\n"
      "output %4 \"loss\"\n");
  try {
    differentiate(g, g.outputs()[0], {0, 1});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(e.what(), HasSubstr("Softmax 'soft': input 'x': operator Softmax has no gradient"));
    EXPECT_THAT(e.what(), HasSubstr("Max 'max': input 'b': the bound is fixed"));
  }
  // Only what is asked for counts.
  EXPECT_EQ(gradient_problems(g, g.outputs()[0], {0}).size(), 1u);
}

TEST(Autodiff, ReachesAndDepends) {
  Graph g = typed(
      "param %0:f64[2] \"a\" = {1.5, -2.0}\nparam %1:f64[2] \"s\" = {1.0, 2.0}\n"
      "%2 = Scaled(%0, %1) #scaled\n%3 = Shape(%0) #shape\n%4 = Cast(%3) {to=\"f64\"} #c\n"
      "output %2 \"y\"\noutput %4 \"z\"\n");
  PerValue<bool> r = reaches(g, g.outputs());
  EXPECT_TRUE(r[0]);
  EXPECT_FALSE(r[1]);
  EXPECT_FALSE(r[3]);
  PerValue<bool> d = depends(g, {0});
  EXPECT_TRUE(d[2]);
  EXPECT_FALSE(d[4]);
}

}  // namespace
}  // namespace ortrain
