// compile(): binding of symbols, options, and whole steps in text form.
#include "graph/pipeline.h"

#include <gmock/gmock.h>

#include "tests/graph/mini_ops.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

const OpTable& ops() {
  static const OpTable table = mini::table();
  return table;
}

const char* const kLinear =
    "input %0:f32[B,2] \"x\"\n"
    "param %1:f32[2,1] \"w\" = {0.5, -1.0}\n"
    "param %2:f32[1] \"b\" = {0.25}\n"
    "%3 = MatMul(%0, %1) #fc\n%4 = Add(%3, %2) #fc_bias\noutput %4 \"pred\"\n";

StepSpec spec_for(Mode mode) {
  StepSpec s;
  s.mode = mode;
  s.input_dims = {{"x", {3, 2}}};
  s.loss.label = "target";
  s.loss.label_dtype = DType::kF32;
  s.loss.label_dims = {3, 1};
  return s;
}

template <class F>
std::string error_of(ErrorCode code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  return "no error";
}

CompileOptions with_interpreter() {
  CompileOptions o;
  o.evaluate = mini::evaluate;
  return o;
}

TEST(BindInputs, SymbolsComeFromTheData) {
  const Graph g = parse_graph(
      "input %0:f32[B,T] \"a\"\ninput %1:f32[B,2*T] \"b\"\ninput %2:f32[3] \"c\"\n", ops());
  EXPECT_EQ(bind_inputs(g, {{"a", {4, 5}}, {"b", {4, 10}}}), (Binding{{"B", 4}, {"T", 5}}));
  EXPECT_THAT(error_of(ErrorCode::kShape,
                       [&] {
                         bind_inputs(g, {{"a", {4, 5}}, {"b", {6, 10}}});
                       }),
              HasSubstr("size 'B' is 4 by axis 0 of input 'a', but 6 by axis 0 of input 'b'"));
  EXPECT_THAT(error_of(ErrorCode::kShape,
                       [&] {
                         bind_inputs(g, {{"a", {4, 5}}, {"b", {4, 11}}});
                       }),
              HasSubstr("the data has 11"));
  const std::string both = error_of(ErrorCode::kShape, [&] {
    bind_inputs(g, {{"a", {4}}, {"c", {2}}});
  });
  EXPECT_THAT(both, HasSubstr("input 'a' has shape [B,T] in the model, [4] in the data"));
  EXPECT_THAT(both, HasSubstr("input 'c' axis 0: the model says 3, the data has 2"));
}

TEST(Compile, OpenSizesAreNamed) {
  const Graph g = parse_graph(kLinear, ops());
  StepSpec s = spec_for(Mode::kPredict);
  s.input_dims.clear();
  EXPECT_THAT(error_of(ErrorCode::kShape, [&] { compile(g, s); }),
              HasSubstr("input 'x' axis 0 ('B')"));
  CompileOptions o;
  o.until = "infer";
  const CompileResult r = compile(g, s, o);
  EXPECT_EQ(r.graph.value(r.graph.outputs()[0]).shape.str(), "[B,1]");
  s.binding = {{"B", 7}};
  EXPECT_EQ(compile(g, s).graph.value(0).shape.str(), "[7,2]");
}

TEST(Compile, PassNamesAreChecked) {
  const Graph g = parse_graph(kLinear, ops());
  StepSpec s = spec_for(Mode::kTrain);
  s.disabled = {"simplifi"};
  EXPECT_THAT(error_of(ErrorCode::kUsage, [&] { compile(g, s); }), HasSubstr("there are infer,"));
  s.disabled = {"autodiff"};
  EXPECT_THAT(error_of(ErrorCode::kUsage, [&] { compile(g, s); }),
              HasSubstr("cannot be switched off"));
  s.disabled = {"simplify", "fuse_late"};
  const CompileResult r = compile(g, s);
  for (const PassNote& n : r.notes)
    EXPECT_EQ(n.did == "switched off", n.pass == "simplify" || n.pass == "fuse_late") << n.pass;
}

TEST(Compile, RunsEveryPassOnceAndInOrder) {
  const Graph g = parse_graph(kLinear, ops());
  std::vector<std::string> ran;
  CompileOptions o = with_interpreter();
  o.after_pass = [&](const std::string& pass, const Graph&) { ran.push_back(pass); };
  const CompileResult r = compile(g, spec_for(Mode::kTrain), o);
  EXPECT_THAT(ran, testing::ElementsAre("infer", "canonicalize", "attach_loss", "check_trainable",
                                        "fuse_forward", "sparse_head", "layout", "autodiff",
                                        "optimizer", "simplify", "fuse_late", "schedule"));
  EXPECT_EQ(r.graph.stage, Stage::kScheduled);
  EXPECT_EQ(r.graph.output_names(), (std::vector<std::string>{"loss", "lr", "finite"}));
  EXPECT_EQ(r.graph.updates().size(), 7u);  // p, m, v of two parameters, and the step
  EXPECT_EQ(g.node_count(), 2);             // the source is untouched
}

// d mean((x w + b - t)^2): 2/N x^T r and 2/N sum r, worked out by hand.
TEST(Compile, GradsOfALinearModel) {
  const Graph g = parse_graph(kLinear, ops());
  const CompileResult r = compile(g, spec_for(Mode::kGrads), with_interpreter());
  EXPECT_EQ(r.graph.output_names(), (std::vector<std::string>{"loss", "grad/w", "grad/b"}));
  std::map<std::string, HostTensor> feed;
  feed["x"] = HostTensor::of<float>({3, 2}, {1, 0, 0, 1, 2, 2});
  feed["target"] = HostTensor::of<float>({3, 1}, {1, 0, 0});
  const auto out = mini::run(r.graph, feed);
  // predictions 0.75, -0.75, -0.75; residuals -0.25, -0.75, -0.75
  EXPECT_FLOAT_EQ(out.at("loss").as_double(0), (0.0625 + 0.5625 + 0.5625) / 3);
  EXPECT_FLOAT_EQ(out.at("grad/w").as_double(0), 2.0 / 3 * (-0.25 - 1.5));
  EXPECT_FLOAT_EQ(out.at("grad/w").as_double(1), 2.0 / 3 * (-0.75 - 1.5));
  EXPECT_FLOAT_EQ(out.at("grad/b").as_double(0), 2.0 / 3 * -1.75);
}

TEST(Compile, F64ComputesEverythingInF64) {
  const Graph g = parse_graph(kLinear, ops());
  StepSpec s = spec_for(Mode::kGrads);
  s.compute = DType::kF64;
  const CompileResult r = compile(g, s, with_interpreter());
  for (NodeId n : r.graph.topo())
    for (ValueId v : r.graph.node(n).outputs)
      EXPECT_EQ(r.graph.value(v).dtype, DType::kF64) << r.graph.describe(n);
  EXPECT_EQ(r.graph.value(r.graph.inputs()[0]).dtype, DType::kF32);  // data stays as it is
  std::map<std::string, HostTensor> feed;
  feed["x"] = HostTensor::of<float>({3, 2}, {1, 0, 0, 1, 2, 2});
  feed["target"] = HostTensor::of<float>({3, 1}, {1, 0, 0});
  EXPECT_DOUBLE_EQ(mini::run(r.graph, feed).at("grad/b").as_double(0), 2.0 / 3 * -1.75);
}

TEST(Compile, EvalKeepsTheModelsOutputsAndPredictNeedsNoLabels) {
  const Graph g = parse_graph(kLinear, ops());
  EXPECT_EQ(compile(g, spec_for(Mode::kEval)).graph.output_names(),
            (std::vector<std::string>{"loss", "pred"}));
  StepSpec s = spec_for(Mode::kPredict);
  s.loss.label_dtype = DType::kUndefined;
  EXPECT_EQ(compile(g, s).graph.output_names(), (std::vector<std::string>{"pred"}));
  s.mode = Mode::kEval;
  EXPECT_EQ(compile(g, s).graph.output_names(), (std::vector<std::string>{"pred"}));
  s.mode = Mode::kTrain;
  EXPECT_THAT(error_of(ErrorCode::kData, [&] { compile(g, s); }), HasSubstr("no labels"));
}

TEST(Compile, ACycleIsAnError) {
  Graph g = parse_graph(
      "input %0:f32[2] \"x\"\n%1 = Add(%0, %0) #a\n%2 = Add(%1, %0) #b\n"
      "output %2 \"y\"\n",
      ops());
  g.set_input(0, 1, 2);
  StepSpec s;
  s.mode = Mode::kPredict;
  EXPECT_THAT(error_of(ErrorCode::kModel, [&] { compile(g, s); }), HasSubstr("cycle"));
}

}  // namespace
}  // namespace ortrain
