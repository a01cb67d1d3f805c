// canonicalize: Identity gone and weights behind it tied, training policy per mode, folding after.
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

StepSpec mode(Mode m, const char* batch_norm = "train") {
  StepSpec s;
  s.mode = m;
  s.batch_norm = batch_norm;
  return s;
}

const char* const kNorm =
    "input %0:f32[4,2] \"x\"\nstate %1:f32[2] \"mean\"\nstate %2:f32[2] \"var\" = {1, 1}\n"
    "%3:f32[4,2] = Norm(%0, %1, %2) #bn\n%4:f32[4,2] = Dropout(%3) {ratio=0.5} #drop\n"
    "output %4 \"y\"\n";

TEST(Canonicalize, AParameterBehindIdentityIsUsedItself) {
  EXPECT_EQ(mini::after(pass_canonicalize,
                        "input %0:f32[2] \"x\"\nparam %1:f32[2] \"w\" = {1, 2}\n"
                        "%2 = Identity(%1) #tie\n%3 = Mul(%0, %1) #a\n%4 = Mul(%3, %2) #b\n"
                        "output %4 \"y\"\n"),
            "graph \"\" inferred\n"
            "input %0:f32[2] \"x\"\n"
            "param %1:f32[2] \"w\" = {1.0, 2.0}\n"
            "%2:f32[2] = Mul(%0, %1) #a\n"
            "%3:f32[2] = Mul(%2, %1) #b\n"
            "output %3 \"y\"\n");
}

TEST(Canonicalize, TrainingUpdatesRunningStateAndKeepsDropout) {
  const std::string text = mini::after(pass_canonicalize, kNorm, mode(Mode::kTrain));
  EXPECT_EQ(text,
            "graph \"\" inferred\n"
            "input %0:f32[4,2] \"x\"\n"
            "state %1:f32[2] \"mean\" = {0.0, 0.0}\n"
            "state %2:f32[2] \"var\" = {1.0, 1.0}\n"
            "state %3:i64[] \"ortrain/step\" = {0}\n"
            "%4:f32[4,2], %5:f32[2], %6:f32[2] = Norm(%0, %1, %2) {training_mode=1} #bn\n"
            "%7:f32[4,2] = test.Masked(%4, %3) #drop\n"
            "output %7 \"y\"\n"
            "update %1 <- %5\n"
            "update %2 <- %6\n");
}

TEST(Canonicalize, GradsUpdateNothing) {
  const std::string text = mini::after(pass_canonicalize, kNorm, mode(Mode::kGrads));
  EXPECT_THAT(text, HasSubstr("training_mode=1"));
  EXPECT_THAT(text, testing::Not(HasSubstr("update")));
}

TEST(Canonicalize, FrozenNormsAndInference) {
  EXPECT_THAT(mini::after(pass_canonicalize, kNorm, mode(Mode::kTrain, "frozen")),
              HasSubstr("training_mode=0"));
  const std::string text = mini::after(pass_canonicalize, kNorm, mode(Mode::kEval));
  EXPECT_THAT(text, HasSubstr("training_mode=0"));
  EXPECT_THAT(text, testing::Not(HasSubstr("Masked")));
  EXPECT_THAT(text, testing::Not(HasSubstr("step")));
}

TEST(Canonicalize, RunningStateOfTwoNodesIsRefused) {
  EXPECT_THAT(mini::error_of(ErrorCode::kUnsupported,
                             [] {
                               mini::after(pass_canonicalize,
                                           "input %0:f32[4,2] \"x\"\nstate %1:f32[2] \"mean\"\n"
                                           "state %2:f32[2] \"var\"\n%3 = Norm(%0, %1, %2) #bn1\n"
                                           "%4 = Norm(%3, %1, %2) #bn2\noutput %4 \"y\"\n",
                                           mode(Mode::kTrain));
                             }),
              HasSubstr("Norm 'bn2' shares its running state 'mean'"));
}

}  // namespace
}  // namespace ortrain
