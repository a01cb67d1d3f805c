// pad_dims: text in and out, with the operators' own records; what is one extent, where zeros and
// parts come in, what must stay as it is.
#include "tests/graph/passes/pass_tests.h"
#include "tests/ops/interpreter.h"

namespace ortrain {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Done {
  std::string text, did;
};
Done pad(const std::string& text, int64_t multiple = 8) {
  Graph g = parse_graph(text, test::all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  StepSpec s;
  s.pad_multiple = multiple;
  const auto ran = mini::run_pass(pass_pad_dims, g, s, false);
  return {mini::normal(g), ran.did};
}

TEST(PadDims, AChainBetweenProductsIsOneExtentClassesAreCounted) {
  const Done d =
      pad("graph \"g\" inferred\n"
          "input %0:f32[2,16] \"x\"\ninput %1:i64[2] \"labels\"\n"
          "param %2:f32[5,16] \"w1\"\nparam %3:f32[5] \"b1\"\nparam %4:f32[3,5] \"w2\"\n"
          "%5:f32[2,5] = ortrain.Linear(%0, %2, %3) {trans_b=1} #fc1\n"
          "%6:f32[2,5] = Relu(%5) #relu\n"
          "%7:f32[2,3] = ortrain.Linear(%6, %4) {trans_b=1} #fc2\n"
          "%8:f32[] = ortrain.CrossEntropy(%7, %1) {axis=1} #loss\n"
          "output %8 \"loss\"\noutput %7 \"logits\"\n");
  EXPECT_THAT(d.did, HasSubstr("2 extents: 5 -> 8 (w1), 3 -> 8 (w2)"));
  // Consts hold what Pad and Slice add and take.
  EXPECT_THAT(d.text,
              HasSubstr("%14:f32[8,16] = Pad(%2, %5, _, %6) #'w1'|pad_dims\n"
                        "%15:f32[8] = Pad(%3, %7, _, %8) #'b1'|pad_dims\n"
                        "%16:f32[2,8] = ortrain.Linear(%0, %14, %15) {trans_b=1} #fc1\n"
                        "%17:f32[2,8] = Relu(%16) #relu\n"
                        "%18:f32[8,8] = Pad(%4, %9, _, %10) #'w2'|pad_dims\n"
                        "%19:f32[2,8] = ortrain.Linear(%17, %18) {trans_b=1} #fc2\n"
                        "%20:f32[] = ortrain.CrossEntropy(%19, %1) {axis=1, classes=3} #loss\n"
                        "%21:f32[2,3] = Slice(%19, %11, %12, %13) #fc2|pad_dims\n"
                        "output %20 \"loss\"\noutput %21 \"logits\"\n"));
}

TEST(PadDims, NormsOverTheAxisSplitTheChain) {
  const Done d =
      pad("graph \"g\" inferred\n"
          "input %0:f32[2,8] \"x\"\n"
          "param %1:f32[8,5] \"w1\"\nparam %2:f32[5] \"s\"\nparam %3:f32[5,8] \"w2\"\n"
          "%4:f32[2,5] = ortrain.Linear(%0, %1) #fc1\n"
          "%5:f32[2,5] = LayerNormalization(%4, %2) #norm\n"
          "%6:f32[2,8] = ortrain.Linear(%5, %3) #fc2\n"
          "output %6 \"y\"\n");
  EXPECT_THAT(d.text, HasSubstr("%13:f32[8,8] = Pad(%1, %4, _, %5) #'w1'|pad_dims\n"
                                "%14:f32[2,8] = ortrain.Linear(%0, %13) #fc1\n"
                                "%15:f32[2,5] = Slice(%14, %6, %7, %8) #fc1|pad_dims\n"
                                "%16:f32[2,5] = LayerNormalization(%15, %2) #norm\n"
                                "%17:f32[2,8] = Pad(%16, %9, _, %10) #%5|pad_dims\n"
                                "%18:f32[8,8] = Pad(%3, %11, _, %12) #'w2'|pad_dims\n"
                                "%19:f32[2,8] = ortrain.Linear(%17, %18) #fc2\n"));
}

// An Add of a number is no zero in the new lanes; a product with one is.
TEST(PadDims, BroadcastNumbers) {
  const std::string head =
      "graph \"g\" inferred\n"
      "input %0:f32[2,8] \"x\"\n"
      "param %1:f32[8,5] \"w1\"\nparam %2:f32[] \"c\"\nparam %3:f32[5,8] \"w2\"\n"
      "%4:f32[2,5] = ortrain.Linear(%0, %1) #fc1\n";
  const std::string tail =
      "%6:f32[2,8] = ortrain.Linear(%5, %3) #fc2\n"
      "output %6 \"y\"\n";
  EXPECT_THAT(pad(head + "%5:f32[2,5] = Add(%4, %2) #add\n" + tail).text, HasSubstr("Slice"));
  EXPECT_THAT(pad(head + "%5:f32[2,5] = Mul(%4, %2) #mul\n" + tail).text, Not(HasSubstr("Slice")));
}

TEST(PadDims, ChannelsOfConvolutionsAndTheirNorms) {
  const Done d =
      pad("graph \"g\" inferred\n"
          "input %0:f32[2,3,4,4] \"x\"\n"
          "param %1:f32[6,3,1,1] \"w1\"\nparam %2:f32[6] \"scale\"\nparam %3:f32[6] \"bias\"\n"
          "state %4:f32[6] \"mean\"\nstate %5:f32[6] \"var\"\nparam %6:f32[6,1,3,3] \"w2\"\n"
          "%7:f32[2,6,4,4] = Conv(%0, %1) #conv\n"
          "%8:f32[2,6,4,4], %9:f32[6], %10:f32[6] = BatchNormalization(%7, %2, %3, %4, %5) "
          "{training_mode=1} #bn\n"
          "%11:f32[2,6,2,2] = Conv(%8, %6) {group=6} #depthwise\n"
          "output %11 \"y\"\nupdate %4 <- %9\nupdate %5 <- %10\n");
  EXPECT_THAT(d.did, HasSubstr("3 -> 8"));
  EXPECT_THAT(d.did, HasSubstr("6 -> 8 (w1)"));
  EXPECT_THAT(d.text, HasSubstr("{group=8}"));
  EXPECT_THAT(d.text, HasSubstr("f32[2,8,4,4], %"));  // the norm takes the wide data
}

TEST(PadDims, WidthsOfHeadsKeepTheScaleAndViewsFollow) {
  const Done d =
      pad("graph \"g\" inferred\n"
          "input %0:f32[2,4,5] \"x\"\n"
          "param %1:f32[5,6] \"w\"\n"
          "%2:f32[2,4,6] = ortrain.Linear(%0, %1) #qkv\n"
          "const %3:i64[4] = {2, 4, 1, 6}\n"
          "%4:f32[2,4,1,6] = Reshape(%2, %3) #heads\n"
          "%5:f32[2,1,4,6] = Transpose(%4) {perm=[0, 2, 1, 3]} #t\n"
          "%6:f32[2,1,4,6] = ortrain.Attention(%5, %5, %5) {scale=0.5} #attention\n"
          "output %6 \"y\"\n");
  EXPECT_THAT(d.text, HasSubstr("f32[2,1,4,8] = Transpose"));
  EXPECT_THAT(d.text, HasSubstr("f32[2,1,4,8] = ortrain.Attention"));
  EXPECT_THAT(d.text, HasSubstr("{scale=0.5}"));
}

TEST(PadDims, MultiplesAndOnesStay) {
  const Done d =
      pad("graph \"g\" inferred\n"
          "input %0:f32[2,16] \"x\"\nparam %1:f32[16,1] \"w\"\n"
          "%2:f32[2,1] = ortrain.Linear(%0, %1) #fc\n"
          "output %2 \"y\"\n");
  EXPECT_EQ(d.did, "");
  EXPECT_THAT(d.text, Not(HasSubstr("Pad")));
}

}  // namespace
}  // namespace ortrain
