// Pass infer on control flow (graph/passes/unroll.h): text in and text out, refusals, and gradients
// in double precision against central differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "runtime/evaluate.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string infer(const std::string& text, Mode mode = Mode::kPredict,
                  void (*then)(Graph&, PassContext&) = nullptr) {
  Graph g = parse_graph(text, all_ops());
  StepSpec spec;
  spec.mode = mode;
  std::vector<std::string> messages;
  const Evaluate evaluate = make_evaluator();
  PassContext ctx{spec, evaluate, messages, {}};
  pass_infer(g, ctx);
  if (then) then(g, ctx);
  EXPECT_EQ(verify(g), "") << print_graph(g);
  return print_graph(parse_graph(print_graph(g), all_ops()));
}

std::string refusal(const std::string& text, Mode mode = Mode::kPredict) {
  try {
    return "no error: " + infer(text, mode);
  } catch (const Error& e) {
    return e.what();
  }
}

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Unroll, IfOnAShapeTakesItsBranchAndNeverLooksAtTheOther) {
  EXPECT_EQ(infer("input %0:f32[2,3] \"x\"\nconst %1:i64[] = {0}\nconst %2:i64[] = {2}\n"
                  "const %9:i64[1] = {1}\n"
                  "%3 = Shape(%0) #s\n%4 = Gather(%3, %1) #g\n%5 = Equal(%4, %2) #e\n"
                  "%6 = Relu(%0) #if/then\n"
                  "%7 = Squeeze(%0, %9) #if/else\n"  // axis 1 has extent 3: would fail
                  "%8 \"y\" = If(%5, %6, %7) #if\noutput %8 \"y\"\n"),
            "graph \"\" inferred\ninput %0:f32[2,3] \"x\"\n"
            "%1:f32[2,3] \"y\" = Relu(%0) #if/then\noutput %1 \"y\"\n");
}

const char* const kIfOnData =
    "input %0:f32[2] \"x\"\ninput %1:bool[1] \"c\"\nparam %2:f32[2] \"w\" = {-1, 4}\n"
    "%3 = Sqrt(%2) #if/then\n%4 = Mul(%2, %0) #if/else\n%5 = If(%1, %3, %4) #if\n"
    "output %5 \"y\"\n";

TEST(Unroll, IfOnDataComputesBothAndChooses) {
  EXPECT_EQ(infer(kIfOnData),
            "graph \"\" inferred\ninput %0:f32[2] \"x\"\ninput %1:bool[1] \"c\"\n"
            "param %2:f32[2] \"w\" = {-1.0, 4.0}\nconst %3:i64[0] = {}\n"
            "%4:f32[2] = Sqrt(%2) #if/then\n%5:f32[2] = Mul(%2, %0) #if/else\n"
            "%6:bool[] = Reshape(%1, %3) {allowzero=1} #if\n%7:f32[2] = Where(%6, %4, %5) #if\n"
            "output %7 \"y\"\n");
  EXPECT_EQ(count(infer(kIfOnData, Mode::kGrads), "ortrain.Gate"), 3);  // w twice, x once
  std::string text = kIfOnData;
  text.replace(text.find("Sqrt(%2)"), 8, "Concat(%2, %2) {axis=0}");
  EXPECT_EQ(
      refusal(text),
      "If 'if': output 0 is f32[4] or f32[2] by a condition that is only known while training "
      "(it depends on the contents of input 'c'); both must have one type and shape");
}

// v' = v * w, stacked v + x; three times by the shape of x.
const char* const kLoop =
    "input %0:f32[3,2] \"x\"\nparam %1:f32[3,2] \"w\" = {1, 2, 3, 4, 5, 6}\nconst %2:i64[] = {0}\n"
    "%3 = Shape(%0) #s\n%4 = Gather(%3, %2) #m\n"
    "%5, %6, %7 = ortrain.Body() #loop/body\n"
    "%8 = Mul(%7, %1) #loop/mul\n%9 = Add(%8, %0) #loop/add\n%10 = Neg(%1) #loop/same\n"
    "%11 = Add(%9, %10) #loop/sum\n"
    "%12 \"v\", %13 \"vs\" = Loop(%4, _, %0, %5, %6, %8, %11) {token=3} #loop\n"
    "output %12 \"v\"\noutput %13 \"vs\"\n";

TEST(Unroll, LoopByAShape) {
  const std::string text = infer(kLoop);
  EXPECT_EQ(count(text, " = Mul("), 3);
  EXPECT_EQ(count(text, " = Neg("), 1) << "what is the same in all iterations is computed once";
  EXPECT_THAT(text, HasSubstr("%9:f32[3,2] = Mul(%6, %1) #loop/mul[1]\n"));
  EXPECT_THAT(text, HasSubstr(":f32[3,3,2] \"vs\" = Concat("));
  EXPECT_THAT(text, Not(HasSubstr("Loop")));
}

TEST(Unroll, NoIterationGivesTheFirstValuesAndAnEmptyStack) {
  std::string text = kLoop;
  text.replace(text.find("Loop(%4, _"), 10, "Loop(%2, _");
  EXPECT_EQ(infer(text),
            "graph \"\" inferred\ninput %0:f32[3,2] \"x\"\n"
            "param %1:f32[3,2] \"w\" = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}\n"
            "const %2:f32[0,3,2] \"vs\" = {}\noutput %0 \"v\"\noutput %2 \"vs\"\n");
}

// The condition counts: i < n, computed in the body; M is the largest number.
const char* const kWhile =
    "input %0:f32[2] \"x\"\nconst %1:i64[] = {9223372036854775807}\nconst %2:bool[] = {1}\n"
    "const %3:i64[] = {0}\nconst %4:i64[] = {1}\nconst %5:i64[] = {4}\n"
    "%6, %7, %8, %9 = ortrain.Body() #w/body\n"
    "%10 = Add(%8, %4) #w/count\n%11 = Less(%10, %5) #w/less\n%12 = Relu(%9) #w/relu\n"
    "%13, %14 \"y\" = Loop(%1, %2, %3, %0, %6, %11, %10, %12) {token=4} #w\n"
    "output %14 \"y\"\noutput %13 \"n\"\n";

TEST(Unroll, AConditionThatCountsFoldsIterationByIteration) {
  const std::string text = infer(kWhile);
  EXPECT_EQ(count(text, " = Relu("), 4);
  EXPECT_THAT(text, HasSubstr("const %1:i64[] = {4}"));
  std::string endless = kWhile;
  endless.replace(endless.find("const %5:i64[] = {4}"), 20, "const %5:i64[] = {40000000}");
  EXPECT_THAT(refusal(endless), HasSubstr("Loop 'w': unrolled, the loops of the model would pass "
                                          "200000 nodes; fewer iterations"));
}

TEST(Unroll, RefusalsOfLoopsNameWhatIsNotKnown) {
  std::string text = kLoop;
  text.replace(text.find("Loop(%4, _"), 10, "Loop(_, _");
  EXPECT_THAT(refusal(text), HasSubstr("Loop 'loop': it has neither a trip count nor a condition"));
  text = kLoop;
  text.replace(text.find("const %2:i64[] = {0}"), 20, "input %2:i64[] \"n\"  ");
  text.replace(text.find("Loop(%4, _"), 10, "Loop(%2, _");
  EXPECT_EQ(refusal(text),
            "Loop 'loop': its trip count must be known before training, and it depends on the "
            "contents of input 'n'");
  text = kLoop;
  text.replace(text.find("f32[3,2] \"x\""), 12, "f32[T,2] \"x\"");
  EXPECT_THAT(refusal(text), HasSubstr("it comes from the size 'T', which is still open"));
  text = kLoop;
  text.replace(text.find("const %2:i64[] = {0}"), 20, "const %2:i64[] = {1000000}");
  text.replace(text.find("Loop(%4, _"), 10, "Loop(%2, _");
  EXPECT_THAT(refusal(text), HasSubstr("1000000 iterations of 4 nodes are more than the 200000"));
}

// v doubles while its sum is below the limit, four times at most.
std::string loop_on_data(const std::string& most, const std::string& scan) {
  return "input %0:f32[2] \"x\"\nparam %1:f32[2] \"w\" = {2, 2}\nconst %2:i64[] = {" + most +
         "}\ninput %3:f32[] \"limit\"\n%4, %5, %6 = ortrain.Body() #d/body\n"
         "%7 = Mul(%6, %1) #d/mul\n%8 = ReduceSum(%7) {keepdims=0} #d/sum\n"
         "%9 = Less(%8, %3) #d/less\n"
         "%10 \"y\"" +
         (scan.empty() ? "" : ", %11") + " = Loop(%2, _, %0, %4, %9, %7" + scan +
         ") {token=3} #d\noutput %10 \"y\"\n" + (scan.empty() ? "" : "output %11 \"ys\"\n");
}

TEST(Unroll, AConditionOnDataKeepsTheLastValueThatCounts) {
  Graph g = parse_graph(infer(loop_on_data("4", "")), all_ops());
  EXPECT_EQ(count(print_graph(g), " = Where("), 3);  // the first iteration always runs
  for (const auto& [limit, want] : std::map<float, float>{{0, 2}, {7, 4}, {9, 8}, {1e9f, 16}}) {
    std::map<ValueId, HostTensor> in;
    in[g.inputs()[0]] = HostTensor::of<float>({2}, {1, 1});
    in[g.inputs()[1]] = HostTensor::scalar<float>(limit);
    EXPECT_EQ(run_graph(g, in)[0].as_double(1), want) << limit;
  }
  EXPECT_THAT(refusal(loop_on_data("4", ", %7")),
              HasSubstr("Loop 'd': it stacks a value per iteration, and their number is only known "
                        "while training"));
  EXPECT_THAT(refusal(loop_on_data("9223372036854775807", "")),
              HasSubstr("its trip count of 9223372036854775807 is too large to run them all"));
}

TEST(Unroll, ScanAlongAnAxisBackwards) {
  EXPECT_EQ(infer("input %0:f32[2,2] \"x\"\nconst %1:f32[2] = {0, 0}\n"
                  "%2, %3 = ortrain.Body() #s/body\n%4 = Add(%2, %3) #s/add\n"
                  "%5, %6 = Scan(%1, %0, %2, %4, %4) {scan_input_axes=[1], "
                  "scan_input_directions=[1], scan_output_axes=[-1], states=1, token=2} #s\n"
                  "output %5 \"last\"\noutput %6 \"all\"\n"),
            "graph \"\" inferred\ninput %0:f32[2,2] \"x\"\nconst %1:f32[2] = {0.0, 0.0}\n"
            "const %2:i64[2] = {1, 1}\nconst %3:i64[1] = {1}\nconst %4:i64[1] = {1}\n"
            "const %5:i64[1] = {-1}\nconst %6:i64[1] = {-1}\n"
            "%7:f32[2,1], %8:f32[2,1] = Split(%0, %2) {axis=1} #s\n"
            "%9:f32[2] = Squeeze(%7, %3) #s\n%10:f32[2] = Squeeze(%8, %4) #s\n"
            "%11:f32[2] = Add(%1, %10) #s/add[0]\n%12:f32[2] = Add(%11, %9) #s/add[1]\n"
            "%13:f32[2,1] = Unsqueeze(%11, %5) #s\n%14:f32[2,1] = Unsqueeze(%12, %6) #s\n"
            "%15:f32[2,2] = Concat(%13, %14) {axis=-1} #s\n"
            "output %12 \"last\"\noutput %15 \"all\"\n");
}

TEST(Unroll, NestedLoopsWithCapturedValues) {
  // outer 2 times: inner 3 times: v = v * u + w, u the outer value.
  const std::string text = infer(
      "input %0:f32[2] \"x\"\nparam %1:f32[2] \"w\" = {1, 2}\nconst %2:i64[] = {2}\n"
      "const %3:i64[] = {3}\n"
      "%4, %5, %6 = ortrain.Body() #o/body\n%7, %8, %9 = ortrain.Body() #o/i/body\n"
      "%10 = Mul(%9, %6) #o/i/mul\n%11 = Add(%10, %1) #o/i/add\n"
      "%12 = Loop(%3, _, %0, %7, %8, %11) {token=3} #o/i\n"
      "%13 = Loop(%2, _, %0, %4, %5, %12) {token=3} #o\noutput %13 \"y\"\n");
  EXPECT_EQ(count(text, " = Mul("), 6);
  EXPECT_THAT(text, HasSubstr("#o/i/add[1][2]"));
}

TEST(Unroll, SequencesAreListsOfValues) {
  EXPECT_EQ(infer("input %0:f32[2,6] \"x\"\nconst %1:i64[] = {3}\nconst %2:i64[] = {-1}\n"
                  "const %3:i64[] = {0}\n"
                  "%4 = SplitToSequence(%0, %1) {axis=1} #split\n%5 = SequenceAt(%4, %2) #last\n"
                  "%6 = SequenceInsert(%4, %5, %3) #insert\n%7 = SequenceErase(%6) #erase\n"
                  "%8 = Identity(%7) #same\n%9 = ConcatFromSequence(%8) {axis=0} #join\n"
                  "%10 = SequenceLength(%6) #length\n"
                  "output %9 \"y\"\noutput %10 \"n\"\noutput %7 \"q\"\n"),
            "graph \"\" inferred\ninput %0:f32[2,6] \"x\"\nconst %1:i64[1] = {3}\n"
            "const %2:i64[1] = {6}\nconst %3:i64[1] = {1}\nconst %4:i64[2] = {3, 3}\n"
            "const %5:i64[] = {3}\n%6:f32[2,3] = Slice(%0, %1, %2, %3) #last\n"
            "%7:f32[2,3], %8:f32[2,3] = Split(%0, %4) {axis=1} #insert\n"
            "%9:f32[4,3] = Concat(%6, %7) {axis=0} #join\noutput %9 \"y\"\noutput %5 \"n\"\n"
            "output %6 \"q.0\"\noutput %7 \"q.1\"\n");
  EXPECT_THAT(refusal("input %0:f32[2] \"x\"\ninput %1:i64[] \"i\"\n%2 = SequenceConstruct(%0) #c\n"
                      "%3 = SequenceAt(%2, %1) #at\noutput %3 \"y\"\n"),
              HasSubstr("SequenceAt 'at': its position must be known before training, and it "
                        "depends on the contents of input 'i'"));
  EXPECT_THAT(refusal("input %0:f32[2] \"x\"\n%1 = SequenceConstruct(%0) #c\n"
                      "%2 = Relu(%1) #r\noutput %2 \"y\"\n"),
              HasSubstr("Relu 'r': it takes a sequence, which only sequence"));
  EXPECT_THAT(refusal("input %0:f32[2] \"x\"\nconst %1:i64[] = {1}\n%2 = SequenceConstruct(%0) #c\n"
                      "%3 = SequenceAt(%2, %1) #at\noutput %3 \"y\"\n"),
              HasSubstr("SequenceAt 'at': position 1 of a sequence of 1"));
}

TEST(Unroll, ALoopCarriesASequence) {
  const std::string text = infer(
      "input %0:f32[2] \"x\"\nconst %1:i64[] = {3}\n%2 = SequenceEmpty() #empty\n"
      "%3, %4, %5, %6 = ortrain.Body() #l/body\n%7 = Tanh(%5) #l/tanh\n"
      "%8 = SequenceInsert(%6, %7) #l/insert\n"
      "%9, %10 = Loop(%1, _, %0, %2, %3, %4, %7, %8) {token=4} #l\n"
      "%11 = ConcatFromSequence(%10) {axis=0, new_axis=1} #join\noutput %11 \"y\"\n");
  EXPECT_EQ(count(text, " = Tanh("), 3);
  EXPECT_THAT(text, HasSubstr(":f32[3,2] = Concat("));
}

TEST(Unroll, OptionalsAreKnown) {
  EXPECT_EQ(infer("input %0:f32[2] \"x\"\n%1 = Optional() #none\n%2 = Optional(%0) #some\n"
                  "%3 = OptionalHasElement(%1) #has\n%4 = OptionalGetElement(%1) #never\n"
                  "%5 = OptionalGetElement(%2) #get\n%6 = If(%3, %4, %5) #if\noutput %6 \"y\"\n"),
            "graph \"\" inferred\ninput %0:f32[2] \"x\"\noutput %0 \"y\"\n");
}

// A random node that reads only what all iterations share: the importer ties it to the body.
TEST(Unroll, RandomNodesDrawAnewInEachIteration) {
  const std::string text =
      "input %0:f32[2] \"x\"\nparam %1:f32[2] \"w\" = {1, 2}\nconst %2:i64[] = {2}\n"
      "const %3:f32[] = {0.5}\nconst %4:bool[] = {1}\n"
      "%5, %6, %7 = ortrain.Body() #l/body\n%8 = ortrain.PerIteration(%1, %5) #l/drop\n"
      "%9 = Dropout(%8, %3, %4) #l/drop\n%10 = Add(%7, %9) #l/add\n"
      "%11 = Loop(%2, _, %0, %5, %6, %10) {token=3} #l\noutput %11 \"y\"\n";
  EXPECT_EQ(count(infer(text), " = Dropout(%1"), 2);
  const std::string training = infer(text, Mode::kTrain, pass_canonicalize);
  EXPECT_EQ(count(training, "key="), 2);
  const size_t first = training.find("key="), second = training.find("key=", first + 1);
  EXPECT_NE(training.substr(first, 12), training.substr(second, 12));
}

TEST(Unroll, RunningStatisticsInsideABranchOnDataAreRefused) {
  EXPECT_EQ(refusal("input %0:f32[2,3] \"x\"\ninput %1:bool[] \"c\"\n"
                    "param %2:f32[3] \"w\"\nstate %3:f32[3] \"m\"\nstate %4:f32[3] \"v\"\n"
                    "%5 = BatchNormalization(%0, %2, %2, %3, %4) #if/bn\n"
                    "%6 = If(%1, %5, %0) #if\noutput %6 \"y\"\n",
                    Mode::kTrain),
            "If 'if': its condition is only known while training, and BatchNormalization 'if/bn' "
            "inside would update its running statistics all the same; --batch-norm frozen trains "
            "such a model");
}

TEST(Unroll, StepsThatReadTheirSliceShareOneSplit) {
  const Graph source = parse_graph(
      "input %0:f32[2,4] \"x\"\nconst %1:i64[] = {4}\nconst %2:f32[2] = {0, 0}\n"
      "%3, %4, %5 = ortrain.Body() #l/body\n%6 = Gather(%0, %3) {axis=1} #l/x\n"
      "%7 = Mul(%6, %6) #l/sq\n%8 = Add(%5, %7) #l/add\n"
      "%9 = Loop(%1, _, %2, %3, %4, %8) {token=3} #l\noutput %9 \"y\"\n",
      all_ops());
  StepSpec spec;
  spec.mode = Mode::kPredict;
  const CompileResult r =
      compile(source, spec, {.evaluate = make_evaluator(), .until = "fuse_forward"});
  const std::string text = print_graph(r.graph);
  EXPECT_EQ(count(text, " = Split("), 1);
  EXPECT_EQ(count(text, " = Squeeze("), 4);
  EXPECT_EQ(count(text, "Gather"), 0);
}

// --- gradients

// Gradients of a graph's scalar output for its parameters, by autodiff and by central differences.
void check_gradients(const std::string& text, const std::map<std::string, HostTensor>& inputs) {
  const Graph source = parse_graph(text, all_ops());
  StepSpec spec;
  spec.mode = Mode::kGrads;
  spec.compute = DType::kF64;
  spec.loss.kind = "graph";
  CompileResult r = compile(source, spec, {.evaluate = make_evaluator(), .until = "autodiff"});
  std::map<ValueId, HostTensor> in;
  for (ValueId v : r.graph.inputs()) in[v] = inputs.at(r.graph.value(v).name).clone();
  const auto names = r.graph.output_names();
  const std::vector<HostTensor> base = run_graph(r.graph, in);
  int checked = 0;
  for (size_t o = 0; o < names.size(); ++o) {
    if (!names[o].starts_with("grad/")) continue;
    const ValueId p = r.graph.find(names[o].substr(5));
    const HostTensor before = r.graph.tensor(p)->clone();
    for (int64_t i = 0; i < before.count(); ++i, ++checked) {
      double loss[2];
      for (int side : {0, 1}) {
        HostTensor moved = before.clone();
        moved.set_double(i, before.as_double(i) + (side ? 1e-5 : -1e-5));
        in[p] = std::move(moved);
        loss[side] = run_graph(r.graph, in)[0].as_double(0);
      }
      in.erase(p);
      const double want = (loss[1] - loss[0]) / 2e-5, got = base[o].as_double(i);
      EXPECT_NEAR(got, want, 1e-7 * std::max(1.0, std::abs(want))) << names[o] << " element " << i;
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(Unroll, GradientsOfLoopScanAndIfWithCapturedValues) {
  const std::string text =
      "input %0:f32[4,2] \"x\"\nparam %1:f32[2,2] \"w\" = {0.5, -0.3, 0.2, 0.7}\n"
      "param %2:f32[2] \"b\" = {0.1, -0.2}\nparam %3:f32[1,2] \"h\" = {0.4, -0.6}\n"
      "const %4:i64[] = {4}\nconst %5:f32[] = {0.1}\n"
      // h = tanh(h w + x[t]); if its sum is above 0.1 then h * b else sqrt(h h + 1) - b
      "%6, %7, %8 = ortrain.Body() #l/body\n%9 = Gather(%0, %6) {axis=0} #l/x\n"
      "%10 = MatMul(%8, %1) #l/mm\n%11 = Add(%10, %9) #l/add\n%12 = Tanh(%11) #l/tanh\n"
      "%13 = ReduceSum(%12) {keepdims=0} #l/sum\n%14 = Greater(%13, %5) #l/greater\n"
      "%15 = Mul(%12, %2) #l/if/mul\n%16 = Mul(%12, %12) #l/if/sq\n%17 = Sqrt(%16) #l/if/sqrt\n"
      "%18 = Sub(%17, %2) #l/if/sub\n%19 = If(%14, %15, %18) #l/if\n"
      "%20, %21 = Loop(%4, _, %3, %6, %7, %19, %12) {token=3} #loop\n"
      // a scan over the stacked values, backwards
      "%22, %23 = ortrain.Body() #s/body\n%24 = Mul(%22, %23) #s/mul\n%25 = Add(%24, %2) #s/add\n"
      "%26, %27 = Scan(%20, %21, %22, %25, %24) {scan_input_directions=[1], states=1, token=2} #s\n"
      "%28 = Mul(%27, %27) #sq\n%29 = ReduceSum(%28) {keepdims=0} #a\n"
      "%30 = ReduceSum(%26) {keepdims=0} #b\n%31 = Add(%29, %30) #loss\noutput %31 \"loss\"\n";
  for (const double scale : {0.9, -1.3}) {
    HostTensor x(DType::kF32, {4, 2});
    for (int64_t i = 0; i < 8; ++i)
      x.set_double(i, scale * std::sin(1.0 + 1.7 * static_cast<double>(i)));
    std::map<std::string, HostTensor> in;
    in["x"] = std::move(x);
    check_gradients(text, in);
  }
}

TEST(Unroll, GradientsOfALoopOnDataStopWhereItStops) {
  for (const float limit : {0.f, 9.f, 70.f}) {
    std::map<std::string, HostTensor> in;
    in["x"] = HostTensor::of<float>({2}, {1.25f, 0.5f});
    in["limit"] = HostTensor::scalar<float>(limit);
    std::string text = loop_on_data("4", "");
    text.replace(text.find("output %10 \"y\""), 14,
                 "%12 = Mul(%10, %10) #sq\n%13 = ReduceSum(%12) {keepdims=0} #loss\n"
                 "output %13 \"loss\"");
    check_gradients(text, in);
  }
}

TEST(Unroll, TheBranchNotTakenGivesExactlyZero) {
  std::string text = kIfOnData;  // sqrt(w) has no finite gradient at w = -1
  text.replace(text.find("output %5"), 13,
               "%6 = ReduceSum(%5) {keepdims=0} #loss\noutput %6 \"loss\"");
  const Graph source = parse_graph(text, all_ops());
  StepSpec spec;
  spec.mode = Mode::kGrads;
  spec.loss.kind = "graph";
  CompileResult r = compile(source, spec, {.evaluate = make_evaluator(), .until = "autodiff"});
  std::map<ValueId, HostTensor> in;
  for (ValueId v : r.graph.inputs())
    in[v] = r.graph.value(v).name == "c" ? HostTensor::of<bool>({1}, {false})
                                         : HostTensor::of<float>({2}, {3, 5});
  const HostTensor grad = std::move(run_graph(r.graph, in)[1]);
  EXPECT_EQ(grad.as_double(0), 3);
  EXPECT_EQ(grad.as_double(1), 5);
}

}  // namespace
}  // namespace ortrain::test
