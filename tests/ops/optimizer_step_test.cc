// Optimizer steps against torch.optim's formulas (three steps; the literals were computed in
// double by the single-tensor formulas of torch 2), and the schedule's fixed points.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using V = std::vector<double>;
const V kStart = {1.0, -2.0, 0.5, 3.0};
const V kGradients[] = {{0.1, -0.2, 0.3, 0.0}, {1.0, 0.5, -0.25, 2.0}, {-0.5, 0.25, 0.125, 1e-3}};

HostTensor tensor(DType dtype, const V& v) {
  HostTensor t(dtype, {static_cast<int64_t>(v.size())});
  for (size_t i = 0; i < v.size(); ++i) t.set_double(static_cast<int64_t>(i), v[i]);
  return t;
}

// Runs the three steps on one group and returns its parameter and states.
std::vector<HostTensor> three_steps(const char* op, DType dtype, int states, const Attrs& attrs,
                                    bool apply = true, double clip = 0) {
  std::vector<HostTensor> group;
  for (int i = 0; i <= states; ++i) group.push_back(tensor(dtype, i == 0 ? kStart : V(4, 0.0)));
  for (int64_t step = 0; step < 3; ++step) {
    Graph g(all_ops());
    std::map<ValueId, HostTensor> values;
    const auto input = [&](HostTensor t) {
      const ValueId v = g.add_input("x", t.dtype(), Shape(t.dims()));
      values[v] = std::move(t);
      return v;
    };
    std::vector<ValueId> in{input(HostTensor::scalar(0.1)), input(HostTensor::scalar(step)),
                            input(HostTensor::scalar(apply)),
                            clip == 0 ? kNone : input(HostTensor::scalar_of(dtype, clip))};
    in.push_back(input(group[0].clone()));
    in.push_back(input(tensor(dtype, kGradients[step])));
    for (int i = 1; i <= states; ++i) in.push_back(input(group[static_cast<size_t>(i)].clone()));
    const NodeId n = g.add_node(all_ops().get(op), in, attrs, states + 1, "step");
    g.infer(n);
    for (ValueId v : g.node(n).outputs) g.add_output(v, "out");
    group = run_graph(g, values, "simd");
  }
  return group;
}

void expect_values(const HostTensor& got, const V& want) {
  const double tolerance = got.dtype() == DType::kF64 ? 1e-14 : 5e-7;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.as_double(static_cast<int64_t>(i)), want[i],
                tolerance * std::max(1.0, std::fabs(want[i])))
        << "element " << i;
}

Attrs decay(double wd, Attrs more) {
  more.set("weight_decay", V{wd});
  return more;
}

TEST(OptimizerStep, AdamW) {
  for (DType t : {DType::kF64, DType::kF32}) {
    const auto out = three_steps("ortrain.AdamW", t, 2, decay(0.01, {}));
    expect_values(out[0],
                  {0.7891900289787465, -1.996296760078457, 0.3725980187263389, 2.859115787752982});
    expect_values(out[1], {0.0481, 0.0538, 0.0143, 0.1801});
    expect_values(out[2], {0.00125898001, 0.00035217004, 0.00016788259, 0.003996001});
  }
}

TEST(OptimizerStep, AdamWithL2AndClip) {
  for (DType t : {DType::kF64, DType::kF32}) {
    const auto out =
        three_steps("ortrain.AdamW", t, 2, decay(0.1, {{"decoupled", int64_t{0}}}), true, 0.5);
    expect_values(
        out[0], {0.7624478034270787, -1.7978483162321526, 0.31801803282964586, 2.7327789943420653});
  }
}

TEST(OptimizerStep, SgdMomentumAndNesterov) {
  for (DType t : {DType::kF64, DType::kF32}) {
    const auto plain = three_steps("ortrain.SGDMomentum", t, 1,
                                   decay(0.1, {{"momentum", 0.9}, {"dampening", 0.2}}));
    expect_values(plain[0], {0.81191072, -1.94222144, 0.42248376, 2.54740208});
    expect_values(plain[1], {0.6224928, -0.0609856, 0.2729624, 2.1183792});
    const auto nesterov = three_steps("ortrain.SGDMomentum", t, 1,
                                      decay(0.1, {{"momentum", 0.9}, {"nesterov", int64_t{1}}}));
    expect_values(nesterov[0], {0.715136882, -1.956248764, 0.4034432935, 2.227711823});
  }
}

TEST(OptimizerStep, SkippedStepChangesNoBit) {
  for (const auto& [op, states] :
       {std::pair{"ortrain.AdamW", 2}, {"ortrain.SGDMomentum", 1}, {"ortrain.SGD", 0}}) {
    Attrs attrs = decay(0.1, {});
    if (states == 1) attrs.set("momentum", 0.9);
    const auto out = three_steps(op, DType::kF32, states, attrs, false);
    const HostTensor start = tensor(DType::kF32, kStart);
    EXPECT_EQ(std::memcmp(out[0].raw(), start.raw(), start.bytes()), 0) << op;
    for (size_t i = 1; i < out.size(); ++i)
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(out[i].as_double(k), 0) << op;
  }
}

double rate(int64_t step, const char* schedule) {
  Graph g(all_ops());
  const ValueId s = g.add_input("step", DType::kI64, Shape());
  const NodeId n = g.add_node(all_ops().get("ortrain.LearningRate"), {s},
                              {{"schedule", std::string(schedule)},
                               {"lr", 1.0},
                               {"min_lr", 0.2},
                               {"warmup_steps", int64_t{4}},
                               {"total_steps", int64_t{12}}},
                              1, "rate");
  g.infer(n);
  g.add_output(g.node(n).outputs[0], "lr");
  std::map<ValueId, HostTensor> values;
  values[s] = HostTensor::scalar(step);
  return run_graph(g, values)[0].as_double(0);
}

TEST(OptimizerStep, Schedules) {
  for (const char* s : {"constant", "linear", "cosine"}) {
    EXPECT_DOUBLE_EQ(rate(0, s), 0.25);  // the first of four warm-up steps
    EXPECT_DOUBLE_EQ(rate(3, s), 1.0);
    EXPECT_DOUBLE_EQ(rate(4, s), 1.0);
  }
  EXPECT_DOUBLE_EQ(rate(8, "linear"), 0.6);
  EXPECT_DOUBLE_EQ(rate(8, "cosine"), 0.6);
  EXPECT_DOUBLE_EQ(rate(6, "cosine"), 0.2 + 0.4 * (1 + std::cos(M_PI / 4)));
  for (int64_t late : {12, 50}) {
    EXPECT_DOUBLE_EQ(rate(late, "linear"), 0.2);
    EXPECT_DOUBLE_EQ(rate(late, "cosine"), 0.2);
    EXPECT_DOUBLE_EQ(rate(late, "constant"), 1.0);
  }
}

}  // namespace
}  // namespace ortrain::test
