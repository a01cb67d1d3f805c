// optimizer: the whole update as nodes: names, buckets, groups, clip, guarded states.
#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two parameters with their gradients as autodiff leaves them: %6 is ready before %5.
const char* const kDifferentiated =
    "graph \"g\" differentiated\n"
    "param %0:f32[2,2] \"fc.weight\"\nparam %1:f32[2] \"fc.bias\"\n"
    "state %2:f32[2] \"bn.mean\"\n"
    "%3:f32[] = ReduceSum(%0) {keepdims=0} #sum\n"
    "%4:f32[2] = Add(%1, %2) #bn\n"
    "%6:f32[2] = Exp(%1) #b|autodiff\n"
    "%5:f32[2,2] = Exp(%0) #a|autodiff\n"
    "output %3 \"loss\"\noutput %5 \"grad/fc.weight\"\noutput %6 \"grad/fc.bias\"\n"
    "update %2 <- %4\n"
    "trainable %0 \"\"\ntrainable %1 \"\"\n";

StepSpec spec(const std::string& optimizer) {
  StepSpec s;
  s.optimizer.name = optimizer;
  s.optimizer.weight_decay = 0.1;
  return s;
}

std::string optimized(const StepSpec& s, std::string* did = nullptr) {
  Graph g = parse_graph(kDifferentiated, mini::ops());
  const auto ran = mini::run_pass(pass_optimizer, g, s);
  if (did) *did = ran.did;
  return mini::normal(g);
}

TEST(Optimizer, AdamWInFull) {
  StepSpec s = spec("adamw");
  s.optimizer.no_decay = {"norm_bias"};
  s.optimizer.clip_norm = 1;
  s.optimizer.schedule = "cosine";
  s.optimizer.warmup_steps = 3;
  s.optimizer.total_steps = 10;
  std::string did;
  EXPECT_EQ(optimized(s, &did),
            "graph \"g\" differentiated\n"
            "param %0:f32[2,2] \"fc.weight\" = {0.0, 0.0, 0.0, 0.0}\n"
            "param %1:f32[2] \"fc.bias\" = {0.0, 0.0}\n"
            "state %2:f32[2] \"bn.mean\" = {0.0, 0.0}\n"
            "state %3:i64[] \"ortrain/step\" = {0}\n"
            "state %4:f32[2] \"fc.bias/exp_avg\" = {0.0, 0.0}\n"
            "state %5:f32[2] \"fc.bias/exp_avg_sq\" = {0.0, 0.0}\n"
            "state %6:f32[2,2] \"fc.weight/exp_avg\" = {0.0, 0.0, 0.0, 0.0}\n"
            "state %7:f32[2,2] \"fc.weight/exp_avg_sq\" = {0.0, 0.0, 0.0, 0.0}\n"
            "const %8:f32[] = {1e-06}\n"
            "const %9:f32[] = {1.0}\n"
            "const %10:f32[] = {1.0}\n"
            "%11:f32[] = ReduceSum(%0) {keepdims=0} #sum\n"
            "%12:f32[2] = Add(%1, %2) #bn\n"
            "%13:f32[2] = Exp(%1) #b|autodiff\n"
            "%14:f32[2,2] = Exp(%0) #a|autodiff\n"
            "%15:f64[] = ortrain.LearningRate(%3) {lr=0.001, min_lr=0.0, schedule=\"cosine\", "
            "total_steps=10, warmup_steps=3} #optimizer\n"
            "%16:f32[] = ortrain.GlobalNorm(%13, %14) #optimizer\n"
            "%17:f32[] = Add(%16, %8) #optimizer\n"
            "%18:f32[] = Div(%9, %17) #optimizer\n"
            "%19:f32[] = Min(%18, %10) #optimizer\n"
            "%20:bool[] = ortrain.AllFinite(%11, %16) #optimizer\n"
            "%21:f32[2] = Where(%20, %12, %2) #bn.mean|optimizer\n"
            "%22:f32[2], %23:f32[2], %24:f32[2], %25:f32[2,2], %26:f32[2,2], %27:f32[2,2] = "
            "ortrain.AdamW(%15, %3, %20, %19, %1, %13, %4, %5, %0, %14, %6, %7) {beta1=0.9, "
            "beta2=0.999, decoupled=1, eps=1e-08, weight_decay=floats[0.0, 0.1]} "
            "#fc.bias...|optimizer\n"
            "%28:i64[] = Cast(%20) {to=\"i64\"} #optimizer\n"
            "%29:i64[] = Add(%3, %28) #optimizer\n"
            "output %11 \"loss\"\n"
            "output %15 \"lr\"\n"
            "output %16 \"grad_norm\"\n"
            "output %20 \"finite\"\n"
            "update %2 <- %21\n"
            "update %1 <- %22\n"
            "update %4 <- %23\n"
            "update %5 <- %24\n"
            "update %0 <- %25\n"
            "update %6 <- %26\n"
            "update %7 <- %27\n"
            "update %3 <- %29\n"
            "trainable %0 \"\"\n"
            "trainable %1 \"\"\n");
  EXPECT_EQ(did, "adamw: 2 parameters in 1 buckets, clipped by global norm");
}

TEST(Optimizer, SgdKeepsMomentumOnlyWhenAsked) {
  StepSpec s = spec("sgd");
  std::string text = optimized(s);
  EXPECT_THAT(text, HasSubstr("= ortrain.SGD("));
  EXPECT_THAT(text, Not(HasSubstr("/momentum")));
  EXPECT_THAT(text, Not(HasSubstr("grad_norm")));
  EXPECT_THAT(text, HasSubstr(", _, %1, "));  // no clip scale
  EXPECT_THAT(text, HasSubstr("weight_decay=floats[0.1, 0.1]"));
  s.optimizer.momentum = 0.9;
  s.optimizer.nesterov = true;
  text = optimized(s);
  EXPECT_THAT(text, HasSubstr("\"fc.weight/momentum\""));
  EXPECT_THAT(text, HasSubstr("momentum=0.9, nesterov=1"));
}

TEST(Optimizer, AdamDecaysIntoTheGradient) {
  EXPECT_THAT(optimized(spec("adam")), HasSubstr("decoupled=0"));
}

TEST(Optimizer, NoDecayTakesRegexesToo) {
  StepSpec s = spec("adamw");
  s.optimizer.no_decay = {"weight$"};
  EXPECT_THAT(optimized(s), HasSubstr("weight_decay=floats[0.1, 0.0]"));
}

TEST(Optimizer, WithoutSkippingNothingIsGuarded) {
  StepSpec s = spec("adamw");
  s.skip_nonfinite = false;
  const std::string text = optimized(s);
  EXPECT_THAT(text, Not(HasSubstr("AllFinite")));
  EXPECT_THAT(text, Not(HasSubstr("Where")));
}

TEST(Optimizer, BucketsOfFourMegabytesInTheOrderOfReadiness) {
  std::string params, nodes, outputs, trainable;
  for (int i = 0; i < 5; ++i) {  // 1.5 MB each: two fit
    params += cat("param %", i, ":f32[393216] \"p", i, "\"\n");
    trainable += cat("trainable %", i, " \"\"\n");
    outputs += cat("output %", 10 + i, " \"grad/p", i, "\"\n");
  }
  for (int i = 4; i >= 0; --i) nodes += cat("%", 10 + i, ":f32[393216] = Exp(%", i, ") #g\n");
  Graph g = parse_graph("graph \"\" differentiated\n" + params +
                            "%9:f32[] = ReduceSum(%0) {keepdims=0} #sum\n" + nodes +
                            "output %9 \"loss\"\n" + outputs + trainable,
                        mini::ops());
  mini::run_pass(pass_optimizer, g, spec("sgd"));
  std::vector<std::vector<std::string>> buckets;
  for (NodeId n : g.topo()) {
    if (g.node(n).op->name != "ortrain.SGD") continue;
    buckets.emplace_back();
    for (size_t i = 4; i < g.node(n).inputs.size(); i += 2)
      buckets.back().push_back(g.value(g.node(n).inputs[i]).name);
  }
  EXPECT_EQ(buckets, (std::vector<std::vector<std::string>>{{"p4", "p3"}, {"p2", "p1"}, {"p0"}}));
}

TEST(Optimizer, UnknownNames) {
  EXPECT_THAT(mini::error_of(ErrorCode::kUsage, [] { optimized(spec("adamax")); }),
              HasSubstr("optimizer 'adamax' is unknown"));
  StepSpec s = spec("sgd");
  s.optimizer.schedule = "staircase";
  EXPECT_THAT(mini::error_of(ErrorCode::kUsage, [&] { optimized(s); }),
              HasSubstr("schedule 'staircase' is unknown"));
}

// --- windows of micro-batches and the loss scale
StepSpec window_spec(WindowSpec::Phase phase) {
  StepSpec s = spec("sgd");
  s.optimizer.clip_norm = 1;
  s.window = {.phase = phase, .accumulate = 3, .samples = 4, .nominal = 4};
  return s;
}

TEST(Optimizer, TheFirstMicroBatchOnlyKeepsSums) {
  const std::string text = optimized(window_spec(WindowSpec::Phase::kFirst));
  EXPECT_THAT(text, Not(HasSubstr("ortrain.SGD")));
  EXPECT_THAT(text, Not(HasSubstr("ortrain/step")));
  EXPECT_THAT(text, HasSubstr("\"ortrain/window/grad/fc.weight\""));
  EXPECT_THAT(text, HasSubstr("\"ortrain/window/bn.mean\""));
  EXPECT_THAT(text, HasSubstr("update %2 <- %2\n"));  // the state itself waits for the last
}

TEST(Optimizer, TheLastMicroBatchDividesByTheWeights) {
  const std::string text = optimized(window_spec(WindowSpec::Phase::kLast));
  EXPECT_THAT(text, HasSubstr("ortrain.SGD("));
  for (const char* output : {"\"loss\"", "\"lr\"", "\"grad_norm\"", "\"weight\"", "\"finite\""})
    EXPECT_THAT(text, HasSubstr(output));
  EXPECT_THAT(optimized(window_spec(WindowSpec::Phase::kMiddle)), Not(HasSubstr("\"lr\"")));
}

// The gradients as autodiff leaves them when they start from the loss scale.
Graph scaled() {
  std::string text = kDifferentiated;
  const auto replace = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("%3:f32[]", "state %7:f32[] \"ortrain/loss_scale\" = {8}\n%3:f32[]");
  replace("output %3",
          "%8:f32[2] = Mul(%6, %7) #b|autodiff\n%9:f32[2,2] = Mul(%5, %7) #a|autodiff\noutput %3");
  replace("output %5", "output %9");
  replace("output %6", "output %8");
  return parse_graph(text, mini::ops());
}

// verify() follows the scale: each way to have it in a path not once, or not out before clipping.
TEST(Optimizer, AScaleThatIsNotInAndOutOnceIsAProblem) {
  StepSpec s = spec("adamw");
  s.optimizer.clip_norm = 1;
  s.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic};
  const auto find = [](const Graph& g, const char* op) {
    for (NodeId n : g.topo())
      if (g.node(n).op->name == op) return n;
    return kNone;
  };
  Graph sound = scaled();
  mini::run_pass(pass_optimizer, sound, s);  // verifies
  {                                          // a gradient that the scale is not in
    Graph g = scaled();
    mini::run_pass(pass_optimizer, g, s);
    const NodeId update = find(g, "ortrain.AdamW");
    const NodeId mul = g.value(g.node(update).inputs[5]).producer;
    g.set_input(update, 5, g.node(mul).inputs[0]);
    EXPECT_THAT(verify(g), HasSubstr("I13: in ortrain.AdamW"));
  }
  {  // one that it is in twice
    Graph g = scaled();
    mini::run_pass(pass_optimizer, g, s);
    const NodeId mul = g.value(g.node(find(g, "ortrain.AdamW")).inputs[5]).producer;
    g.set_input(mul, 0, g.node(mul).inputs[1]);
    EXPECT_THAT(verify(g), HasSubstr("takes values with the loss scale to the powers 2 and 1"));
  }
  {  // not taken out of the update
    Graph g = scaled();
    mini::run_pass(pass_optimizer, g, s);
    g.set_input(find(g, "ortrain.AdamW"), 3, kNone);
    EXPECT_THAT(verify(g), HasSubstr("has the loss scale to the power 1, expected 0"));
  }
  {  // clipped by the norm of scaled gradients
    Graph g = scaled();
    mini::run_pass(pass_optimizer, g, s);
    const ValueId raw = g.node(find(g, "ortrain.GlobalNorm")).outputs[0];
    NodeId unscaled = kNone;
    for (NodeId n : g.value(raw).uses)
      if (g.node(n).op->name == "Mul") unscaled = n;
    ASSERT_NE(unscaled, kNone);
    g.replace_uses(g.node(unscaled).outputs[0], raw);
    EXPECT_THAT(verify(g), HasSubstr("joins values with the loss scale to the powers 1 and 0"));
  }
  {  // gradients whose sums over a window would mix
    s.window = {.phase = WindowSpec::Phase::kFirst, .accumulate = 3, .samples = 4, .nominal = 4};
    Graph g = scaled();
    mini::run_pass(pass_optimizer, g, s);
    for (size_t i = 0; i < g.updates().size(); ++i)
      if (g.value(g.updates()[i].state).name == "ortrain/window/grad/fc.bias")
        g.set_update(static_cast<int>(i), g.node(g.value(g.updates()[i].next).producer).inputs[0]);
    EXPECT_THAT(verify(g), HasSubstr("sum of gradients 'ortrain/window/grad/fc.bias'"));
  }
}

// I13: the gradients' norm is multiplied by 1 / scale before the clip ratio reads it, and the
// factor of the update holds the same 1 / scale.
TEST(Optimizer, TheScaleIsOutBeforeClipping) {
  StepSpec s = spec("sgd");
  s.optimizer.clip_norm = 1;
  s.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic};
  Graph g = scaled();
  mini::run_pass(pass_optimizer, g, s);
  const auto one = [&](const char* op) {
    NodeId found = kNone;
    for (NodeId n : g.topo())
      if (g.node(n).op->name == op) found = n;
    return found;
  };
  const NodeId norm = one("ortrain.GlobalNorm"), update = one("ortrain.SGD");
  ASSERT_TRUE(norm != kNone && update != kNone && one("ortrain.LossScale") != kNone);
  const ValueId raw = g.node(norm).outputs[0];
  std::vector<std::string> readers;
  for (NodeId n : g.value(raw).uses) readers.push_back(g.node(n).op->name);
  EXPECT_THAT(readers, testing::UnorderedElementsAre("Mul", "ortrain.AllFinite"));
  const Node& factor = g.node(g.value(g.node(update).inputs[3]).producer);
  ASSERT_EQ(factor.op->name, "Mul");  // factor * min(1, max / norm)
  NodeId unscale = g.value(factor.inputs[0]).producer;
  if (g.node(unscale).op->name == "Cast") unscale = g.value(g.node(unscale).inputs[0]).producer;
  ASSERT_EQ(g.node(unscale).op->name, "Div");
  NodeId scale = g.value(g.node(unscale).inputs[1]).producer;
  EXPECT_EQ(g.value(g.node(scale).inputs[0]).name, kLossScaleName);
}

}  // namespace
}  // namespace ortrain
