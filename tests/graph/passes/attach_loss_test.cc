// attach_loss: which loss, its value against numbers worked out by hand (PyTorch's definitions),
// label shapes, and the trainable set with its reasons.
#include <cmath>

#include "tests/graph/passes/pass_tests.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

const std::vector<double> kX = {0.5, -1.5, 2.0, 0.25}, kY = {1.0, -1.0, 0.0, 0.5};

StepSpec spec(const std::string& kind, DType label = DType::kF32, Dims dims = {2, 2}) {
  StepSpec s;
  s.mode = Mode::kGrads;
  s.loss.kind = kind;
  s.loss.label = "labels";
  s.loss.label_dtype = label;
  s.loss.label_dims = std::move(dims);
  return s;
}

const char* const kModel =
    "param %0:f32[2,2] \"p\" = {0.5, -1.5, 2, 0.25}\n%1:f32[2,2] = Identity(%0) #id\n"
    "output %1 \"out\"\n";

HostTensor tensor(Dims dims, const std::vector<double>& values) {
  HostTensor t(DType::kF32, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) t.set_double(static_cast<int64_t>(i), values[i]);
  return t;
}

double loss_value(const std::string& kind, const std::vector<double>& labels, double delta = 1,
                  const char* model = kModel) {
  Graph g = mini::typed(model);
  StepSpec s = spec(kind);
  s.loss.huber_delta = delta;
  mini::run_pass(pass_attach_loss, g, s);
  std::map<std::string, HostTensor> feed;
  feed["labels"] = tensor({2, 2}, labels);
  return mini::run(g, feed).at("loss").as_double(0);
}

template <class F>
double mean(const std::vector<double>& y, F&& f) {
  double sum = 0;
  for (size_t i = 0; i < kX.size(); ++i) sum += f(kX[i], y[i]);
  return sum / 4;
}

TEST(AttachLoss, Regression) {
  EXPECT_NEAR(loss_value("mse", kY), mean(kY, [](double x, double y) { return (x - y) * (x - y); }),
              1e-6);
  EXPECT_NEAR(loss_value("l1", kY), (0.5 + 0.5 + 2.0 + 0.25) / 4, 1e-6);
  // |d| = 0.5, 0.5, 2, 0.25. Huber with delta 0.4: 0.5 d^2 below, 0.4 (|d| - 0.2) above.
  EXPECT_NEAR(loss_value("huber", kY, 0.4), (0.4 * 0.3 + 0.4 * 0.3 + 0.4 * 1.8 + 0.5 * 0.0625) / 4,
              1e-6);
  // Smooth L1 with beta 0.4: 0.5 d^2 / 0.4 below, |d| - 0.2 above.
  EXPECT_NEAR(loss_value("smooth_l1", kY, 0.4), (0.3 + 0.3 + 1.8 + 0.5 * 0.0625 / 0.4) / 4, 1e-6);
}

TEST(AttachLoss, Binary) {
  const std::vector<double> y = {1, 0, 0.25, 1};
  const auto by_logits = [](double x, double t) {
    const double p = 1 / (1 + std::exp(-x));
    return -(t * std::log(p) + (1 - t) * std::log(1 - p));
  };
  EXPECT_NEAR(loss_value("bce_with_logits", y), mean(y, by_logits), 1e-6);
  const char* const sigmoid =
      "param %0:f32[2,2] \"p\" = {0.5, -1.5, 2, 0.25}\n%1:f32[2,2] = Sigmoid(%0) #s\n"
      "output %1 \"out\"\n";
  EXPECT_NEAR(loss_value("bce", y, 1, sigmoid), mean(y, by_logits), 1e-6);
  Graph g = mini::typed(sigmoid);
  const auto ran = mini::run_pass(pass_attach_loss, g, spec("bce"));
  ASSERT_EQ(ran.messages.size(), 1u);
  EXPECT_THAT(ran.messages[0], HasSubstr("ends in Sigmoid: trained through its logits"));
  EXPECT_THAT(print_graph(g), testing::Not(HasSubstr("Sigmoid")));
}

// Numbers from PyTorch 2.15 in double precision, by the formulas of torchvision's
// sigmoid_focal_loss (alpha off) and of losses.cc for dice.
TEST(AttachLoss, FocalAndDice) {
  const std::vector<double> y = {1, 0, 0.25, 1};
  EXPECT_NEAR(loss_value("focal", y), 0.24003832430860744, 1e-6);
  StepSpec s = spec("focal");
  s.loss.focal_gamma = 0;
  Graph g = mini::typed(kModel);
  mini::run_pass(pass_attach_loss, g, s);
  std::map<std::string, HostTensor> feed;
  feed["labels"] = tensor({2, 2}, y);
  EXPECT_NEAR(mini::run(g, feed).at("loss").as_double(0), 0.7195894232711688, 1e-6);
  const char* const sigmoid =
      "param %0:f32[2,2] \"p\" = {0.5, -1.5, 2, 0.25}\n%1:f32[2,2] = Sigmoid(%0) #s\n"
      "output %1 \"out\"\n";
  EXPECT_NEAR(loss_value("focal", y, 1, sigmoid), 0.24003832430860744, 1e-6);
  EXPECT_NEAR(loss_value("dice", y, 1, sigmoid), 0.2525723378185187, 1e-6);
}

TEST(AttachLoss, ASigmoidIsFoundBehindViews) {
  const auto ends = [](const char* view) {
    Graph g = mini::typed(std::string("param %0:f32[2,2] \"p\" = {0.5, -1.5, 2, 0.25}\n"
                                      "const %1:i64[1] \"shape\" = {4}\n"
                                      "%2:f32[2,2] = Sigmoid(%0) #s\n") +
                          view + "output %3 \"out\"\n");
    const auto ran = mini::run_pass(pass_attach_loss, g, spec("bce", DType::kF32, {4}));
    return print_graph(g) + (ran.messages.empty() ? "" : ran.messages[0]);
  };
  EXPECT_THAT(ends("%3:f32[4] = Reshape(%2, %1) #view\n"),
              testing::AllOf(HasSubstr("Softplus"), HasSubstr("ends in Sigmoid: trained through"),
                             testing::Not(HasSubstr("Log("))));
}

// Softmax as TensorFlow writes it: a shift, Exp, and a sum that is brought back to the shape.
TEST(AttachLoss, ASoftmaxMayBeSpelledOut) {
  const auto loss = [](const char* axis, const char* divisor) {
    Graph g = mini::typed(std::string("param %0:f32[3,3] \"p\"\nconst %1:i64[1] \"a\" = {") + axis +
                          "}\nconst %2:i64[2] \"column\" = {3, 1}\n%3 = Exp(%0) #e\n"
                          "%4 = ReduceSum(%3, %1) {keepdims=0} #sum\n" +
                          divisor + "%7 = Div(%3, %6) #quotient\noutput %7 \"out\"\n");
    const auto ran = mini::run_pass(pass_attach_loss, g, spec("auto", DType::kI64, {3}));
    return (ran.messages.empty() ? "" : ran.messages[0]) + "\n" + print_graph(g);
  };
  const char* const column = "%6 = Reshape(%4, %2) #r\n";
  EXPECT_THAT(loss("1", column), testing::AllOf(HasSubstr("ends in a softmax spelled out"),
                                                testing::Not(HasSubstr("Div("))));
  EXPECT_THAT(loss("-1", column), HasSubstr("ends in a softmax spelled out"));
  EXPECT_THAT(loss("0", column), HasSubstr("Div("));  // sums along another axis
  EXPECT_THAT(loss("1", "%6 = Identity(%4) #same\n"), HasSubstr("Div("));  // divides columns
}

TEST(AttachLoss, CtcNeedsItsShapes) {
  const auto error = [](const char* scores, DType dtype, const Dims& labels) {
    return mini::error_of(ErrorCode::kShape, [&] {
      Graph g = mini::typed(std::string("param %0:f32") + scores + " \"p\"\noutput %0 \"out\"\n");
      mini::run_pass(pass_attach_loss, g, spec("ctc", dtype, labels));
    });
  };
  EXPECT_THAT(error("[2,5,4]", DType::kF32, {2, 3}),
              HasSubstr("loss ctc needs scores [B,T,C] or [T,B,C] and integer labels [B,S]; output "
                        "'out' has shape [2,5,4], labels 'labels' are f32[2,3]"));
  EXPECT_THAT(error("[2,5]", DType::kI64, {2, 3}), HasSubstr("'out' has shape [2,5]"));
  EXPECT_THAT(error("[2,5,4]", DType::kI64, {3, 3}), HasSubstr("are i64[3,3]"));
}

TEST(AttachLoss, BceOfProbabilitiesClampsTheLogs) {
  const char* const model =
      "param %0:f32[2,2] \"p\" = {0.25, 0, 1, 0.5}\n%1:f32[2,2] = Identity(%0) #id\n"
      "output %1 \"out\"\n";
  EXPECT_NEAR(loss_value("bce", {1, 1, 1, 0}, 1, model),
              (-std::log(0.25) + 100 - std::log(0.5)) / 4, 1e-5);
}

TEST(AttachLoss, KlDivergenceIsZeroWhereTheTargetIs) {
  const std::vector<double> y = {0.5, 0, 0.25, 0.25};
  EXPECT_NEAR(loss_value("kl_div", y),
              mean(y, [](double x, double t) { return t > 0 ? t * (std::log(t) - x) : 0; }), 1e-6);
}

TEST(AttachLoss, AutoTakesAScalarOutputAsTheLoss) {
  Graph g = mini::typed(
      "param %0:f32[2] \"p\" = {1, 2}\n%1 = ReduceSum(%0) {keepdims=0} #sum\n"
      "output %1 \"total\"\noutput %0 \"other\"\n");
  StepSpec s = spec("auto");
  s.loss.label_dtype = DType::kUndefined;
  mini::run_pass(pass_attach_loss, g, s);
  EXPECT_EQ(g.output_names(), (std::vector<std::string>{"loss"}));
}

std::string classes(const std::string& logits, const Dims& labels, StepSpec* used = nullptr) {
  Graph g = mini::typed("input %0:f32" + logits + " \"x\"\nparam %1:f32" + logits +
                        " \"p\"\n%2 = Add(%0, %1) #a\noutput %2 \"out\"\n");
  StepSpec s = spec("auto", DType::kI32, labels);
  if (used) s = *used;
  const auto ran = mini::run_pass(pass_attach_loss, g, s);
  const std::string text = print_graph(g);
  const size_t at = text.find("CrossEntropy");
  return text.substr(at, text.find('\n', at) - at) +
         (ran.messages.empty() ? "" : " / " + ran.messages[0]);
}

TEST(AttachLoss, CrossEntropyFindsTheClassAxis) {
  EXPECT_THAT(classes("[4,10]", {4}), HasSubstr("axis=1, ignore_index=-100, label_smoothing=0.0"));
  EXPECT_THAT(classes("[4,10,5,6]", {4, 5, 6}), HasSubstr("axis=1"));
  EXPECT_THAT(classes("[4,7,10]", {4, 7}), HasSubstr("axis=2"));
  EXPECT_THAT(classes("[4,7,10]", {4, 10}), HasSubstr("axis=1"));
  EXPECT_THAT(classes("[4,7,7]", {4, 7}),
              testing::AllOf(HasSubstr("axis=2"), HasSubstr("classes could lie on axis 1 or 2")));
  EXPECT_THAT(mini::error_of(ErrorCode::kShape, [] { classes("[4,10]", {5}); }),
              HasSubstr("labels 'labels' (i32[5]) do not fit output 'out' [4,10]"));
}

TEST(AttachLoss, IntegerLabelsBecomeI64AndLogitsReplaceASoftmax) {
  Graph g = mini::typed(
      "param %0:f32[4,3] \"p\"\n%1 = Softmax(%0) {axis=1} #soft\noutput %1 \"probs\"\n");
  const auto ran = mini::run_pass(pass_attach_loss, g, spec("auto", DType::kU8, {4}));
  EXPECT_EQ(
      mini::normal(g),
      "graph \"\" inferred\n"
      "input %0:u8[4] \"labels\"\n"
      "param %1:f32[4,3] \"p\" = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}\n"
      "%2:i64[4] = Cast(%0) {to=\"i64\"} #loss|attach_loss\n"
      "%3:f32[] = ortrain.CrossEntropy(%1, %2) {axis=1, ignore_index=-100, "
      "label_smoothing=0.0} #loss|attach_loss\n"
      "output %3 \"loss\"\n"
      "trainable %1 \"float data on a gradient path\"\n");
  EXPECT_THAT(ran.messages.at(0), HasSubstr("ends in Softmax"));
}

TEST(AttachLoss, LabelsMayLackExtentsOfOne) {
  Graph g = mini::typed("param %0:f32[4,1] \"p\"\noutput %0 \"out\"\n");
  const auto ran = mini::run_pass(pass_attach_loss, g, spec("mse", DType::kF32, {4}));
  EXPECT_THAT(ran.messages.at(0), HasSubstr("labels 'labels' [4] are read as [4,1]"));
  Graph h = mini::typed("param %0:f32[4,1] \"p\"\noutput %0 \"out\"\n");
  EXPECT_THAT(
      mini::error_of(ErrorCode::kShape,
                     [&] { mini::run_pass(pass_attach_loss, h, spec("mse", DType::kF32, {5})); }),
      HasSubstr("output 'out' has shape [4,1], labels 'labels' have [5]"));
}

// --- the trainable set
const char* const kMixed =
    "input %0:f32[4,3] \"x\"\n"
    "param %1:f32[3,3] \"layer.weight\" = {0.5, 1, 2, 3, 4, 5, 6, 7, 8}\n"
    "param %2:f32[] \"alpha\" = {0.5}\n"
    "param %3:f32[1] \"val_71\" = {0.25}\n"
    "param %4:f32[3,3] \"tril\" = {1, 0, 0, 1, 1, 0, 1, 1, 1}\n"
    "param %5:f32[3] \"rope.inv_freq\" = {1, 0.1, 0.01}\n"
    "param %6:f32[3,1] \"head.weight\" = {1, 2, 3}\n"
    "param %7:f32[1] \"head.bias\" = {0.1}\n"
    "param %8:f32[3] \"aux\" = {1, 2, 3}\n"
    "param %9:f32[3] \"spare\" = {1, 2, 3}\n"
    "%10 = Mul(%1, %4) #masked\n%11 = MatMul(%0, %10) #fc\n%12 = Mul(%11, %2) #a\n"
    "%13 = Mul(%12, %3) #b\n%14 = Mul(%13, %5) #c\n%15 = MatMul(%14, %6) #head\n"
    "%16 = Add(%15, %7) #head_bias\n%17 = Mul(%14, %8) #aux\n"
    "output %16 \"out\"\noutput %17 \"aux_out\"\n";

std::map<std::string, std::string> decisions(const StepSpec& s,
                                             std::vector<std::string>* messages = nullptr) {
  Graph g = mini::typed(kMixed);
  std::map<ValueId, std::string> names;
  for (ValueId v : g.sources(Source::kParam)) names[v] = g.value(v).name;
  const auto ran = mini::run_pass(pass_attach_loss, g, s);
  if (messages) *messages = ran.messages;
  std::map<std::string, std::string> out;
  for (const auto& [v, info] : g.params) {
    out[names[v]] = (info.trainable ? "+" : "-") + info.reason;
    EXPECT_TRUE(!info.trainable || g.value(v).source == Source::kParam);
  }
  return out;
}

TEST(TrainableSet, EachTensorHasItsReason) {
  const auto d = decisions(spec("mse", DType::kF32, {4, 1}));
  EXPECT_EQ(d.at("layer.weight"), "+float data on a gradient path");
  EXPECT_EQ(d.at("head.weight"), "+float data on a gradient path");
  EXPECT_EQ(d.at("head.bias"), "+float data on a gradient path");  // one number, but a real bias
  EXPECT_EQ(d.at("alpha"), "-a scalar");
  EXPECT_EQ(d.at("val_71"), "-one number used as a scalar");
  EXPECT_EQ(d.at("tril"), "-looks like a mask by its contents");
  EXPECT_EQ(d.at("rope.inv_freq"), "-looks like a buffer by its name ('inv_freq')");
  EXPECT_EQ(d.at("aux"), "-does not reach the loss");
  EXPECT_EQ(d.at("spare"), "-not used");
}

TEST(TrainableSet, RegexesWin) {
  StepSpec s = spec("mse", DType::kF32, {4, 1});
  s.freeze = {"^layer\\."};
  auto d = decisions(s);
  EXPECT_EQ(d.at("layer.weight"), "-frozen by --freeze");
  EXPECT_EQ(d.at("head.weight")[0], '+');
  s.freeze.clear();
  s.train = {"head", "alpha", "aux"};
  std::vector<std::string> messages;
  d = decisions(s, &messages);
  EXPECT_EQ(d.at("alpha"), "+named by --train");
  EXPECT_EQ(d.at("layer.weight"), "-not named by --train");
  EXPECT_EQ(d.at("head.bias"), "+named by --train");
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0], HasSubstr("has no loss: 1 parameter that no loss uses stays"));
  EXPECT_THAT(messages[1], HasSubstr("cannot train: 'aux' (does not reach the loss)"));
  s.train = {"nothing"};
  EXPECT_THAT(mini::error_of(ErrorCode::kUsage, [&] { decisions(s); }),
              HasSubstr("no parameter has a name that matches"));
  s.train = {"("};
  EXPECT_THAT(mini::error_of(ErrorCode::kUsage, [&] { decisions(s); }),
              HasSubstr("'(' is not a regular expression"));
}

TEST(TrainableSet, WhatEvalTurnsIntoConstantsNeverTrains) {
  StepSpec eval = spec("mse", DType::kF32, {4, 1});
  eval.mode = Mode::kEval;
  const auto train = decisions(spec("mse", DType::kF32, {4, 1})), other = decisions(eval);
  for (const auto& [name, decision] : train)
    EXPECT_TRUE(decision[0] != '+' || other.at(name)[0] == '+') << name;
}

TEST(TrainableSet, NothingToTrainIsAnError) {
  Graph g = mini::typed("input %0:f32[2] \"x\"\noutput %0 \"y\"\n");
  EXPECT_THAT(
      mini::error_of(ErrorCode::kUnsupported,
                     [&] { mini::run_pass(pass_attach_loss, g, spec("mse", DType::kF32, {2})); }),
      HasSubstr("nothing to train"));
}

}  // namespace
}  // namespace ortrain
