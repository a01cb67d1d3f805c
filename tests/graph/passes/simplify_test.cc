// simplify: each rule by text in and out; values stay bit-equal on a random graph.
#include <cstring>
#include <random>

#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

std::string lines(const std::string& text) {  // nodes and outputs only
  std::string out;
  size_t start = 0;
  for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::string line = text.substr(start, end - start);
    if (line[0] == '%' || line.starts_with("output")) out += line + "\n";
  }
  return out;
}
std::string simplified(const std::string& text) { return lines(mini::after(pass_simplify, text)); }

TEST(Simplify, EqualNodesBecomeOne) {
  EXPECT_EQ(simplified("input %0:f32[2] \"x\"\nconst %1:f32[] = {3}\nconst %2:f32[] = {3}\n"
                       "%3 = Mul(%0, %1) #a\n%4 = Mul(%0, %2) #b\n%5 = Add(%3, %4) #c\n"
                       "output %5 \"y\"\n"),
            "%2:f32[2] = Mul(%0, %1) #a\n%3:f32[2] = Add(%2, %2) #c\noutput %3 \"y\"\n");
}

TEST(Simplify, AttributesAndRandomnessKeepNodesApart) {
  EXPECT_EQ(
      simplified("input %0:f32[2,3] \"x\"\nstate %1:i64[] \"s\"\n"
                 "%2 = ReduceSum(%0) {keepdims=0} #a\n%3 = ReduceSum(%0) {keepdims=1} #b\n"
                 "%4 = test.Masked(%0, %1) #c\n%5 = test.Masked(%0, %1) #d\n"
                 "output %2 \"p\"\noutput %3 \"q\"\noutput %4 \"r\"\noutput %5 \"s\"\n"),
      "%2:f32[] = ReduceSum(%0) {keepdims=0} #a\n%3:f32[1,1] = ReduceSum(%0) {keepdims=1} #b\n"
      "%4:f32[2,3] = test.Masked(%0, %1) #c\n%5:f32[2,3] = test.Masked(%0, %1) #d\n"
      "output %2 \"p\"\noutput %3 \"q\"\noutput %4 \"r\"\noutput %5 \"s\"\n");
}

TEST(Simplify, NeutralElementsAndSigns) {
  EXPECT_EQ(simplified("input %0:f32[2] \"x\"\nconst %1:f32[] = {1}\nconst %2:f32[2] = {0, 0}\n"
                       "const %3:f32[] = {-1}\n"
                       "%4 = Mul(%0, %1) #a\n%5 = Add(%2, %4) #b\n%6 = Div(%5, %1) #c\n"
                       "%7 = Mul(%3, %6) #d\n%8 = Neg(%7) #e\n%9 = Sub(%8, %2) #f\n"
                       "%10 = Exp(%9) #g\noutput %10 \"y\"\n"),
            "%1:f32[2] = Exp(%0) #g\noutput %1 \"y\"\n");
  EXPECT_EQ(simplified("input %0:f32[2] \"x\"\ninput %1:f32[2] \"z\"\n%2 = Neg(%1) #n\n"
                       "%3 = Add(%2, %0) #a\noutput %3 \"y\"\n"),
            "%2:f32[2] = Sub(%0, %1) #a|simplify\noutput %2 \"y\"\n");
}

TEST(Simplify, AnOperandThatSpreadsTheResultStays) {
  EXPECT_EQ(simplified("input %0:f32[1] \"x\"\nconst %1:f32[2] = {0, 0}\n%2 = Add(%0, %1) #a\n"
                       "output %2 \"y\"\n"),
            "%2:f32[2] = Add(%0, %1) #a\noutput %2 \"y\"\n");
}

TEST(Simplify, CastsThatUndoEachOther) {
  EXPECT_EQ(simplified("input %0:f32[2] \"x\"\n%1 = Cast(%0) {to=\"f64\"} #a\n"
                       "%2 = Cast(%1) {to=\"f32\"} #b\n%3 = Exp(%2) #c\noutput %3 \"y\"\n"),
            "%1:f32[2] = Exp(%0) #c\noutput %1 \"y\"\n");
  const std::string kept = simplified(
      "input %0:f32[2] \"x\"\n%1 = Cast(%0) {to=\"f16\"} #a\n%2 = Cast(%1) {to=\"f32\"} #b\n"
      "%3 = Exp(%2) #c\noutput %3 \"y\"\n");
  EXPECT_THAT(kept, testing::HasSubstr("to=\"f16\""));  // it rounds
}

TEST(Simplify, TransposesAndViews) {
  EXPECT_EQ(
      simplified("input %0:f32[2,3,4] \"x\"\n%1 = Transpose(%0) {perm=[1, 2, 0]} #a\n"
                 "%2 = Transpose(%1) {perm=[2, 0, 1]} #b\n%3 = Exp(%2) #c\n"
                 "%4 = Transpose(%3) {perm=[0, 2, 1]} #d\n%5 = Transpose(%4) {perm=[1, 0, 2]} #e\n"
                 "output %5 \"y\"\n"),
      "%1:f32[2,3,4] = Exp(%0) #c\n"
      "%2:f32[4,2,3] = Transpose(%1) {perm=[2, 0, 1]} #e|simplify\noutput %2 \"y\"\n");
  EXPECT_EQ(simplified("input %0:f32[2,6] \"x\"\nconst %1:i64[3] = {2, 3, 2}\n"
                       "const %2:i64[2] = {4, 3}\nconst %3:i64[2] = {2, 6}\n"
                       "%4 = Reshape(%0, %1) #a\n%5 = Reshape(%4, %2) #b\n%6 = Exp(%5) #c\n"
                       "%7 = Reshape(%6, %1) #d\n%8 = Reshape(%0, %1) #e\n%9 = Reshape(%8, %3) #f\n"
                       "output %7 \"y\"\noutput %9 \"z\"\n"),
            "%3:f32[4,3] = Reshape(%0, %2) {allowzero=1} #b|simplify\n%4:f32[4,3] = Exp(%3) #c\n"
            "%5:f32[2,3,2] = Reshape(%4, %1) #d\noutput %5 \"y\"\noutput %0 \"z\"\n");
}

TEST(Simplify, ATransposeUnderMergedBatchAxesIsOneTranspose) {
  EXPECT_EQ(simplified("input %0:f32[2,5,3,4] \"x\"\nconst %1:i64[3] = {10, 3, 4}\n"
                       "const %2:i64[4] = {2, 5, 4, 3}\n%3 = Reshape(%0, %1) #a\n"
                       "%4 = Transpose(%3) {perm=[0, 2, 1]} #t\n%5 = Reshape(%4, %2) #b\n"
                       "output %5 \"y\"\n"),
            "%1:f32[2,5,4,3] = Transpose(%0) {perm=[0, 1, 3, 2]} #b|simplify\noutput %1 \"y\"\n");
  EXPECT_THAT(simplified("input %0:f32[2,5,3,4] \"x\"\nconst %1:i64[3] = {10, 3, 4}\n"
                         "const %2:i64[4] = {5, 2, 4, 3}\n%3 = Reshape(%0, %1) #a\n"
                         "%4 = Transpose(%3) {perm=[0, 2, 1]} #t\n%5 = Reshape(%4, %2) #b\n"
                         "output %5 \"y\"\n"),
              testing::HasSubstr("Reshape"));
}

TEST(Simplify, BroadcastingReplacesExpand) {
  EXPECT_EQ(
      simplified("input %0:f32[2,3] \"x\"\ninput %1:f32[1,3] \"z\"\nconst %2:i64[2] = {2, 3}\n"
                 "%3 = Expand(%1, %2) #e\n%4 = Mul(%0, %3) #m\noutput %4 \"y\"\n"),
      "%2:f32[2,3] = Mul(%0, %1) #m\noutput %2 \"y\"\n");
}

TEST(Simplify, ExpandMovesBehindSmallWork) {
  EXPECT_EQ(simplified("input %0:f32[1,3] \"z\"\nconst %1:i64[2] = {2, 3}\nconst %2:f32[2,3] = "
                       "{0.5, 0.5, 0.5, 0.5, 0.5, 0.5}\n"
                       "%3 = Expand(%0, %1) #e\n%4 = Mul(%3, %2) #m\n%5 = Exp(%4) #x\n"
                       "output %5 \"y\"\n"),
            "%3:f32[1,3] = Mul(%0, %2) #m|simplify\n%4:f32[1,3] = Exp(%3) #x|simplify\n"
            "%5:f32[2,3] = Expand(%4, %1) #x|simplify\noutput %5 \"y\"\n");
}

TEST(Simplify, ConstantsFoldButDoNotSpread) {
  EXPECT_EQ(
      simplified("input %0:f32[100,100] \"x\"\nconst %1:f32[] = {2}\nconst %2:f32[] = {0.25}\n"
                 "const %3:i64[2] = {100, 100}\n"
                 "%4 = Mul(%1, %2) #a\n%5 = Expand(%4, %3) #e\n%6 = Add(%0, %5) #b\n"
                 "output %6 \"y\"\n"),
      "%2:f32[100,100] = Add(%0, %1) #b\noutput %2 \"y\"\n");
}

TEST(Simplify, WritersOfStatesStayNodesOfTheirOwn) {
  EXPECT_EQ(simplified("input %0:f32[2] \"x\"\nstate %1:f32[2] \"s\"\nstate %2:f32[2] \"t\"\n"
                       "const %3:f32[] = {1}\n%4 = Mul(%0, %3) #a\n%5 = Exp(%0) #b\n"
                       "%6 = Exp(%0) #c\noutput %0 \"y\"\nupdate %1 <- %4\nupdate %2 <- %6\n"),
            "%4:f32[2] = Mul(%0, %3) #a\n%5:f32[2] = Exp(%0) #c\noutput %0 \"y\"\n");
}

// Random expressions over a few operators, before and after.
TEST(Simplify, ValuesStayBitEqual) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    Graph g(mini::ops());
    Builder b(g, "t");
    std::vector<Expr> pool;
    const auto pick = [&] { return pool[random() % pool.size()]; };
    for (const Dims& dims : {Dims{2, 3}, Dims{1, 3}, Dims{}}) {
      HostTensor t(DType::kF32, dims);
      for (int64_t i = 0; i < t.count(); ++i)
        t.set_double(i, static_cast<double>(random() % 1000) / 100 - 5);
      pool.push_back(b.wrap(g.add_param(std::move(t), cat("p", pool.size()))));
    }
    for (double c : {1.0, 0.0, -1.0, 0.5}) pool.push_back(b.scalar(DType::kF32, c));
    for (int i = 0; i < 25; ++i) {
      const Expr x = pick(), y = pick();
      switch (random() % 8) {
        case 0: pool.push_back(x + y); break;
        case 1: pool.push_back(x - y); break;
        case 2: pool.push_back(x * y); break;
        case 3: pool.push_back(-x); break;
        case 4: pool.push_back(b.op("Tanh", {x})); break;
        case 5: pool.push_back(b.expand(x, {2, 3})); break;
        case 6:
          pool.push_back(x.rank() == 2 ? b.swap_last_two(b.swap_last_two(x)) : b.op("Tanh", {x}));
          break;
        default: pool.push_back(b.cast(b.cast(x, DType::kF64), DType::kF32));
      }
    }
    for (size_t i = pool.size() - 4; i < pool.size(); ++i) g.add_output(pool[i].id(), cat("y", i));
    g.stage = Stage::kInferred;
    const auto before = mini::run(g);
    mini::run_pass(pass_simplify, g);
    const auto now = mini::run(g);
    for (const auto& [name, t] : before) {
      ASSERT_EQ(t.dims(), now.at(name).dims());
      for (int64_t i = 0; i < t.count(); ++i)
        ASSERT_EQ(t.as_double(i), now.at(name).as_double(i)) << trial << " " << name << "\n"
                                                             << print_graph(g);
    }
  }
}

}  // namespace
}  // namespace ortrain
