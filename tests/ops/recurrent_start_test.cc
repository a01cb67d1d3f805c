// The zeros that exporters give a recurrent layer to start from are float data on a gradient path,
// but no parameters; an initial state that is not zero is one (a learned start).
#include <gtest/gtest.h>

#include "graph/pipeline.h"
#include "runtime/evaluate.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

// LSTM over x[3,2,4] from a start of `value` expanded to [1,2,3]; which parameters train.
std::map<std::string, bool> trained(double value) {
  Graph g(all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape(Dims{3, 2, 4}));
  const auto filled = [&](Dims dims, double v, const char* name) {
    HostTensor t(DType::kF32, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, v);
    return g.add_param(std::move(t), name);
  };
  const ValueId w = filled({1, 12, 4}, 0.1, "W"), r = filled({1, 12, 3}, 0.2, "R");
  const ValueId start = filled({1, 1, 3}, value, "start");
  const ValueId shape = g.add_const(HostTensor::ints({1, 2, 3}));
  const NodeId expand = g.add_node(all_ops().get("Expand"), {start, shape}, {}, 1, "expand");
  const ValueId h = g.node(expand).outputs[0];
  const NodeId lstm =
      g.add_node(all_ops().get("LSTM"), {x, w, r, kNone, kNone, h, h}, {}, 1, "lstm");
  g.add_output(g.node(lstm).outputs[0], "y");
  StepSpec spec;
  spec.mode = Mode::kGrads;
  spec.loss.kind = "mse";
  spec.loss.label = "labels";
  spec.loss.label_dtype = DType::kF32;
  spec.loss.label_dims = {3, 1, 2, 3};
  CompileOptions options;
  options.evaluate = make_evaluator();
  options.until = "check_trainable";
  const CompileResult compiled = compile(g, spec, options);
  std::map<std::string, bool> out;
  for (const auto& [v, info] : compiled.graph.params)
    out[compiled.graph.value(v).name] = info.trainable;
  return out;
}

TEST(RecurrentStart, ZerosDoNotTrain) {
  const std::map<std::string, bool> expected{{"W", true}, {"R", true}, {"start", false}};
  EXPECT_EQ(trained(0), expected);
}

TEST(RecurrentStart, LearnedStartTrains) {
  const std::map<std::string, bool> expected{{"W", true}, {"R", true}, {"start", true}};
  EXPECT_EQ(trained(0.5), expected);
}

}  // namespace
}  // namespace ortrain::test
