// ortrain.CtcLoss and the focal loss of classes against PyTorch 2.15 in double precision
// (torch.nn.functional.ctc_loss of log_softmax, reduction mean; literal numbers), and what becomes
// of padding, labels that do not fit and labels out of range.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/passes/losses.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

struct Result {
  double loss;
  HostTensor gradient;
};

Result ctc(const Dims& dims, double (*wave)(double), const HostTensor& labels, const Attrs& attrs) {
  Graph g(all_ops());
  const ValueId x = g.add_input("x", DType::kF64, Shape(dims));
  const ValueId t = g.add_const(labels.clone(), "t");
  const NodeId n = g.add_node(all_ops().get("ortrain.CtcLoss"), {x, t}, attrs, 2, "loss");
  g.infer(n);
  g.add_output(g.node(n).outputs[0], "loss");
  g.add_output(g.node(n).outputs[1], "dx");
  std::map<ValueId, HostTensor> in;
  in[x] = HostTensor(DType::kF64, dims);
  for (int64_t i = 0; i < in[x].count(); ++i)
    in[x].set_double(i, wave(0.7 * static_cast<double>(i)));
  const auto out = run_graph(g, in, "first");
  return {out[0].as_double(0), out[1].clone()};
}
double sine(double x) { return std::sin(x); }
double cosine(double x) { return std::cos(x); }
double nothing(double) { return 0; }

HostTensor labels_of(Dims dims, const std::vector<int64_t>& values) {
  HostTensor t(DType::kI64, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) t.mutable_data<int64_t>()[i] = values[i];
  return t;
}

TEST(CtcLoss, PyTorchsNumbers) {
  // Targets {1,2,2}, {3}, {}: padded with -1, with the blank and with ignore_index.
  const Result r = ctc({3, 6, 5}, sine, labels_of({3, 3}, {1, 2, 2, 3, -1, -1, 0, -100, -1}),
                       {{"ignore_index", int64_t{-100}}});
  EXPECT_NEAR(r.loss, 6.518529179972709, 1e-12);
  const double expected[] = {-0.00995100220812, -0.0117032905729, 0.00852472904904, 0.0346493963738,
                             0.0330388542041,   -0.0994635706627, 0.0407218566282,  0.0458568307937,
                             0.101373277154,    0.0822241765736,  -0.314796655325,  0.0429804410981,
                             0.0826748913254};
  for (int i = 0; i < 13; ++i) EXPECT_NEAR(r.gradient.as_double(7 * i), expected[i], 1e-11) << i;
}

TEST(CtcLoss, AnotherBlank) {
  const Result r =
      ctc({2, 4, 3}, cosine, labels_of({2, 2}, {0, 0, 1, -1}), {{"blank", int64_t{2}}});
  EXPECT_NEAR(r.loss, 1.73497833079954, 1e-12);
  const double expected[] = {-0.0912733000922, 0.0887550890006,  0.00251821109164, -0.0440280374253,
                             0.0703349448672,  -0.0263069074419, 0.0105069625112,  0.0755164687518,
                             -0.086023431263,  -0.128555523883,  0.0884215353589,  0.0401339885237,
                             0.216036382919,   -0.023839288694,  -0.192197094225,  0.0768983074951,
                             -0.087622058157,  0.0107237506618,  0.227724684113,   -0.180452516774,
                             -0.0472721673393, 0.214210967647,   -0.0804122965321, -0.133798671115};
  for (int i = 0; i < 24; ++i) EXPECT_NEAR(r.gradient.as_double(i), expected[i], 1e-11) << i;
}

TEST(CtcLoss, WhatDoesNotFitIsInfinite) {  // equal labels need a blank between: three steps
  const Result r = ctc({1, 2, 3}, nothing, labels_of({1, 2}, {1, 1}), {});
  EXPECT_EQ(r.loss, INFINITY);
  EXPECT_TRUE(std::isnan(r.gradient.as_double(0)));
}

// Logits [0.5 -1.5 2], [0.25 0.75 -1], classes 2 and 0: -mean((1 - p)^2 log p).
TEST(FocalLoss, OfClasses) {
  Graph g(all_ops());
  Builder b(g, "test");
  const HostTensor x = HostTensor::of<double>({2, 3}, {0.5, -1.5, 2.0, 0.25, 0.75, -1.0});
  const Expr log_p = b.op("LogSoftmax", {b.constant(x.clone())}, {{"axis", int64_t{1}}});
  const Expr index = b.constant(labels_of({2, 1}, {2, 0}));
  const Expr picked = b.op("GatherElements", {log_p, index}, {{"axis", int64_t{1}}});
  const auto loss = [&](std::initializer_list<double> valid) {
    const Expr v = b.constant(HostTensor::of<double>({2, 1}, valid));
    return focal_of_log(b, picked, v, 2).mean.id();
  };
  g.add_output(loss({1, 1}), "both");
  g.add_output(loss({1, 0}), "one");
  const auto out = run_graph(g, {}, "first");
  EXPECT_NEAR(out[0].as_double(0), 0.238646541779314, 1e-12);
  EXPECT_NEAR(out[1].as_double(0), 0.009224939676061961, 1e-12);
}

}  // namespace
}  // namespace ortrain::test
