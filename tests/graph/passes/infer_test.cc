// infer: types everywhere, shape chains and constant subgraphs folded, parameters left alone.
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

std::string inferred(const std::string& text, DType compute = DType::kF32) {
  Graph g = parse_graph(text, mini::ops());
  StepSpec s;
  s.compute = compute;
  mini::run_pass(pass_infer, g, s);
  return mini::normal(g);
}

TEST(Infer, ShapeChainsAndConstantsFoldParametersDoNot) {
  EXPECT_EQ(inferred("input %0:f32[2,3] \"x\"\n"
                     "param %1:f32[3] \"w\" = {1, 2, 3}\n"
                     "const %2:f32[] = {2}\nconst %3:f32[] = {0.5}\n"
                     "%4 = Shape(%0) #shape\n"
                     "%5 = Add(%2, %3) #c\n"
                     "%6 = Mul(%1, %5) #scaled\n"
                     "%7 = Expand(%6, %4) #expand\n"
                     "output %7 \"y\"\n"),
            "graph \"\" inferred\n"
            "input %0:f32[2,3] \"x\"\n"
            "param %1:f32[3] \"w\" = {1.0, 2.0, 3.0}\n"
            "const %2:f32[] = {2.5}\n"
            "const %3:i64[2] = {2, 3}\n"
            "%4:f32[3] = Mul(%1, %2) #scaled\n"
            "%5:f32[2,3] = Expand(%4, %3) #expand\n"
            "output %5 \"y\"\n");
}

TEST(Infer, SymbolicSizesStay) {
  EXPECT_THAT(inferred("input %0:f32[B,3] \"x\"\nparam %1:f32[1,3] \"w\"\n%2 = Shape(%0) #s\n"
                       "%3 = Expand(%1, %2) #e\noutput %3 \"y\"\n"),
              HasSubstr("f32[B,3] = Expand"));
}

TEST(Infer, DataWithoutAnyGradientPathIsAConstantFromTheStart) {
  const std::string text = inferred(
      "input %0:f32[2] \"x\"\nparam %1:f32[2] \"scales\" = {1, 2}\nparam %2:f32[2] \"w\" = {1, 2}\n"
      "%3 = Scaled(%0, %1) #r\n%4 = Mul(%3, %2) #m\noutput %4 \"y\"\n");
  EXPECT_THAT(text, HasSubstr("const %2:f32[2] \"scales\""));
  EXPECT_THAT(text, HasSubstr("param %1:f32[2] \"w\""));
  EXPECT_THAT(text, HasSubstr("frozen %2 \"a constant: no gradient passes"));
}

TEST(Infer, F64WidensDataCastsAndInputs) {
  EXPECT_EQ(inferred("input %0:f32[2] \"x\"\nparam %1:f32[2] \"w\" = {0.5, 1}\n"
                     "state %2:f32[2] \"s\" = {1, 1}\n"
                     "%3 = Mul(%0, %1) #m\n%4 = Less(%3, %2) #l\n%5 = Cast(%4) {to=\"f32\"} #c\n"
                     "output %5 \"y\"\noutput %3 \"m\"\n",
                     DType::kF64),
            "graph \"\" inferred\n"
            "input %0:f32[2] \"x\"\n"
            "param %1:f64[2] \"w\" = {0.5, 1.0}\n"
            "state %2:f64[2] \"s\" = {1.0, 1.0}\n"
            "%3:f64[2] = Cast(%0) {to=\"f64\"} #x|f64\n"
            "%4:f64[2] = Mul(%3, %1) #m\n"
            "%5:bool[2] = Less(%4, %2) #l\n"
            "%6:f64[2] = Cast(%5) {to=\"f64\"} #c\n"
            "output %6 \"y\"\n"
            "output %4 \"m\"\n");
}

TEST(Infer, ErrorsNameTheNode) {
  EXPECT_THAT(mini::error_of(ErrorCode::kShape,
                             [] {
                               inferred(
                                   "input %0:f32[2] \"x\"\ninput %1:f32[3] \"z\"\n"
                                   "%2 = Add(%0, %1) #block1/add\noutput %2 \"y\"\n");
                             }),
              HasSubstr("Add 'block1/add': shapes [2] and [3] do not broadcast"));
}

// What reads a node without a type is passed over; independent faults are all told.
TEST(Infer, AllNodesThatCannotBeTypedAreToldAtOnce) {
  const std::string said = mini::error_of(ErrorCode::kShape, [] {
    inferred(
        "input %0:f32[2] \"x\"\ninput %1:f32[3] \"z\"\n"
        "%2 = Add(%0, %1) #first\n%3 = Mul(%2, %0) #reader\n%4 = Add(%1, %0) #second\n"
        "%5 = Add(%3, %4) #last\noutput %5 \"y\"\n");
  });
  EXPECT_THAT(said, HasSubstr("2 nodes"));
  EXPECT_THAT(said, HasSubstr("Add 'first': shapes [2] and [3] do not broadcast"));
  EXPECT_THAT(said, HasSubstr("Add 'second': shapes [3] and [2] do not broadcast"));
  EXPECT_THAT(said, testing::Not(HasSubstr("reader")));
  EXPECT_THAT(said, testing::Not(HasSubstr("last")));
}

}  // namespace
}  // namespace ortrain
