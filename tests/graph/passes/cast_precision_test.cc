// cast_precision and round_tf32: text in and out, with the operators' own records; what stays f32,
// what follows, what is cast once.
#include "tests/graph/passes/pass_tests.h"
#include "tests/ops/interpreter.h"

namespace ortrain {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Done {
  std::string text, did;
};
Done cast(const std::string& text, DType narrow = DType::kBF16) {
  Graph g = parse_graph(text, test::all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  StepSpec s;
  s.narrow = narrow;
  const auto ran = mini::run_pass(pass_cast_precision, g, s, false);
  return {mini::normal(g), ran.did};
}
Done tf32(const std::string& text) {
  Graph g = parse_graph(text, test::all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  StepSpec s;
  s.tf32 = true;
  const auto ran = mini::run_pass(pass_round_tf32, g, s, false);
  return {mini::normal(g), ran.did};
}

TEST(CastPrecision, ProductsAreNarrowWhatFollowsStaysNarrowLossIsF32) {
  const Done d = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[2,3] \"x\"\n"
      "param %1:f32[3,4] \"w\"\nparam %2:f32[4] \"b\"\n"
      "%3:f32[2,4] = ortrain.Linear(%0, %1, %2) #fc\n"
      "%4:f32[2,4] = Relu(%3) #relu\n"
      "%5:f32[2,4] = Softmax(%4) {axis=-1} #softmax\n"
      "output %5 \"y\"\n");
  EXPECT_EQ(
      d.text,
      "graph \"g\" inferred\n"
      "input %0:f32[2,3] \"x\"\n"
      "param %1:f32[3,4] \"w\" = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}\n"
      "param %2:f32[4] \"b\" = {0.0, 0.0, 0.0, 0.0}\n"
      "%3:bf16[2,3] = Cast(%0) {to=\"bf16\"} #'x'|cast_precision\n"
      "%4:bf16[3,4] = Cast(%1) {to=\"bf16\"} #'w'|cast_precision\n"
      "%5:bf16[4] = Cast(%2) {to=\"bf16\"} #'b'|cast_precision\n"
      "%6:bf16[2,4] = ortrain.Linear(%3, %4, %5) #fc\n"
      "%7:bf16[2,4] = Relu(%6) #relu\n"
      "%8:f32[2,4] = Cast(%7) {to=\"f32\"} #%4|cast_precision\n"
      "%9:f32[2,4] = Softmax(%8) {axis=-1} #softmax\n"
      "output %9 \"y\"\n");
  EXPECT_EQ(d.did, "1 products in bf16, 1 nodes follow, 4 casts (2 of parameters)");
}

TEST(CastPrecision, OneCastPerValueAndNoneBackAndForth) {
  const Done d = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[2,4] \"x\"\n"
      "param %1:f32[4,4] \"w\"\n"
      "%2:f32[2,4] = MatMul(%0, %1) #a\n"
      "%3:f32[2,4] = Exp(%2) #exp\n"       // f32 version of %2
      "%4:f32[2,4] = MatMul(%2, %1) #b\n"  // %2 itself
      "%5:f32[2,4] = Add(%3, %4) #add\n"   // f32 + bf16: f32
      "output %5 \"y\"\n");
  EXPECT_EQ(d.did, "2 products in bf16, 0 nodes follow, 4 casts (1 of parameters)");
  EXPECT_THAT(d.text, HasSubstr("= Add("));
  EXPECT_THAT(d.text, HasSubstr("output %"));
}

TEST(CastPrecision, NumbersFollowWhatTheTypeHolds) {
  const std::string text =
      "graph \"g\" inferred\n"
      "input %0:f32[2,4] \"x\"\nparam %1:f32[4,4] \"w\"\n"
      "const %2:f32[] = {VALUE}\n"
      "%3:f32[2,4] = MatMul(%0, %1) #a\n"
      "%4:f32[2,4] = Mul(%3, %2) #scale\n"
      "%5:f32[2,4] = Relu(%4) #relu\n"
      "output %5 \"y\"\n";
  const auto with = [&](const char* value, DType d) {
    std::string t = text;
    t.replace(t.find("VALUE"), 5, value);
    return cast(t, d).text;
  };
  EXPECT_THAT(with("0.125", DType::kF16), HasSubstr(":f16[2,4] = Relu("));
  EXPECT_THAT(with("1e30", DType::kBF16), HasSubstr(":bf16[2,4] = Relu("));
  EXPECT_THAT(with("1e30", DType::kF16), HasSubstr(":f32[2,4] = Relu("));   // would be infinite
  EXPECT_THAT(with("1e-12", DType::kF16), HasSubstr(":f32[2,4] = Relu("));  // would be zero
}

TEST(CastPrecision, StatisticsMasksAndIntegersStay) {
  const Done d = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[2,3,4,4] \"x\"\ninput %1:i64[2] \"ids\"\n"
      "param %2:f32[5,3,1,1] \"w\"\n"
      "param %3:f32[5] \"scale\"\nparam %4:f32[5] \"bias\"\n"
      "state %5:f32[5] \"mean\"\nstate %6:f32[5] \"var\"\n"
      "%7:f32[2,5,4,4] = Conv(%0, %2) #conv\n"
      "%8:f32[2,5,4,4], %9:f32[5], %10:f32[5] = BatchNormalization(%7, %3, %4, %5, %6) "
      "{training_mode=1} #bn\n"
      "%11:i64[2] = Add(%1, %1) #ids\n"
      "output %8 \"y\"\noutput %11 \"i\"\nupdate %5 <- %9\nupdate %6 <- %10\n");
  EXPECT_THAT(d.text, HasSubstr(":bf16[2,5,4,4], %"));
  EXPECT_THAT(d.text, HasSubstr(":f32[5], %"));
  EXPECT_THAT(d.did, HasSubstr("1 products in bf16, 1 nodes follow"));

  const Done a = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[1,2,3,4] \"q\"\ninput %1:f32[1,2,3,4] \"k\"\ninput %2:f32[1,2,3,4] \"v\"\n"
      "input %3:f32[1,1,3,3] \"mask\"\n"
      "%4:f32[1,2,3,4], %5:f32[1,2,3,2] = ortrain.Attention(%0, %1, %2, %3) #attention\n"
      "output %4 \"y\"\n",
      DType::kF16);
  EXPECT_THAT(a.text, HasSubstr(":f32[1,2,3,2] = ortrain.Attention("));  // statistics
  EXPECT_THAT(a.text, Not(HasSubstr("Cast(%3)")));  // -3.4e38 would be infinite
  EXPECT_THAT(a.did, HasSubstr("4 casts"));         // q, k, v, and the result back
}

// Its inference looks at x alone, but it becomes an Add, which takes one type.
TEST(CastPrecision, ACompositeMeetsAnF32BiasInF32) {
  const Done d = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[2,3] \"x\"\nparam %1:f32[3,4] \"w\"\nparam %2:f32[4] \"b\"\n"
      "%3:f32[2,4] = MatMul(%0, %1) #a\n"
      "%4:f32[2,4] = com.microsoft.BiasGelu(%3, %2) #gelu\noutput %4 \"y\"\n");
  EXPECT_THAT(d.text, HasSubstr(":f32[2,4] = com.microsoft.BiasGelu("));
}

TEST(CastPrecision, OuterProductsStayF32) {
  const Done d = cast(
      "graph \"g\" inferred\n"
      "input %0:f32[7,1] \"positions\"\nconst %1:f32[1,4] = {1, 2, 3, 4}\n"
      "%2:f32[7,4] = MatMul(%0, %1) #angles\noutput %2 \"y\"\n");
  EXPECT_EQ(d.did, "");
  EXPECT_THAT(d.text, Not(HasSubstr("bf16")));
}

TEST(RoundTf32, InputsOfProductsOnce) {
  const Done d = tf32(
      "graph \"g\" inferred\n"
      "input %0:f32[2,3] \"x\"\nparam %1:f32[3,4] \"w\"\nparam %2:f32[3,5] \"v\"\n"
      "%3:f32[2,4] = MatMul(%0, %1) #a\n"
      "%4:f32[2,5] = MatMul(%0, %2) #b\n"
      "%5:f32[2,4] = Relu(%3) #relu\n"
      "output %5 \"y\"\noutput %4 \"z\"\n");
  EXPECT_EQ(d.did, "3 inputs of 2 products rounded to tf32");
  EXPECT_EQ(
      d.text,
      "graph \"g\" inferred\n"
      "input %0:f32[2,3] \"x\"\n"
      "param %1:f32[3,4] \"w\" = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}\n"
      "param %2:f32[3,5] \"v\" = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "
      "0.0, 0.0}\n"
      "%3:f32[2,3] = ortrain.RoundTF32(%0) #'x'|round_tf32\n"
      "%4:f32[3,4] = ortrain.RoundTF32(%1) #'w'|round_tf32\n"
      "%5:f32[2,4] = MatMul(%3, %4) #a\n"
      "%6:f32[2,4] = Relu(%5) #relu\n"
      "%7:f32[3,5] = ortrain.RoundTF32(%2) #'v'|round_tf32\n"
      "%8:f32[2,5] = MatMul(%3, %7) #b\n"
      "output %6 \"y\"\n"
      "output %8 \"z\"\n");
}

}  // namespace
}  // namespace ortrain
