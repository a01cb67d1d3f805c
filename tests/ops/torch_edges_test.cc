// Gradients at ties, kinks and edge values, as PyTorch 2 gives them (literal numbers; the generic
// engine's central differences cannot see these points).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

struct Input {
  Dims dims;
  std::vector<double> values;
};

// The gradient of `op` to input `which` for dy (ones when empty), in double precision.
std::vector<double> gradient(const char* op, const std::vector<Input>& in, size_t which,
                             Attrs attrs = {}, std::vector<double> dy = {}) {
  Graph g(all_ops());
  std::vector<ValueId> ids;
  std::map<ValueId, HostTensor> values;
  for (const Input& x : in) {
    HostTensor t(DType::kF64, x.dims);
    for (size_t i = 0; i < x.values.size(); ++i) t.set_double(static_cast<int64_t>(i), x.values[i]);
    ids.push_back(g.add_input("x", DType::kF64, Shape(x.dims)));
    values[ids.back()] = std::move(t);
  }
  const NodeId n = g.add_node(all_ops().get(op), ids, std::move(attrs), 1, "edge");
  g.infer(n);
  Builder b(g, "gradient");
  const Dims out = g.value(g.node(n).outputs[0]).shape.values();
  HostTensor seed(DType::kF64, out);
  for (int64_t i = 0; i < seed.count(); ++i)
    seed.set_double(i, dy.empty() ? 1 : dy[static_cast<size_t>(i)]);
  const std::vector<ValueId> dys{b.constant(std::move(seed)).id()};
  Grad context{Builder(g, "gradient"), n, static_cast<int>(which), dys};
  const GradRule* rule = g.node(n).op->grad_rule(static_cast<int>(which));
  Expr dx = rule->formula(context);
  const Shape target = g.value(ids[which]).shape;
  dx = b.sum_to(b.wrap(dx.id()), target);
  g.add_output(dx.id(), "dx");
  const HostTensor result = std::move(run_graph(g, values)[0]);
  std::vector<double> numbers;
  for (int64_t i = 0; i < result.count(); ++i) numbers.push_back(result.as_double(i));
  return numbers;
}

using V = std::vector<double>;
const double kInf = INFINITY;

TEST(TorchEdges, UnaryKinks) {
  EXPECT_EQ(gradient("Abs", {{{3}, {-2, 0, 3}}}, 0), (V{-1, 0, 1}));
  EXPECT_EQ(gradient("Relu", {{{3}, {-2, 0, 3}}}, 0), (V{0, 0, 1}));
  EXPECT_EQ(gradient("Sqrt", {{{2}, {0, 4}}}, 0), (V{kInf, 0.25}));
  EXPECT_EQ(gradient("LeakyRelu", {{{3}, {-2, 0, 3}}}, 0, {{"alpha", 0.25}}), (V{0.25, 0.25, 1}));
  EXPECT_EQ(gradient("Elu", {{{1}, {0}}}, 0, {{"alpha", 0.5}}), (V{0.5}));
  EXPECT_EQ(gradient("HardSigmoid", {{{3}, {-3, 0, 3}}}, 0, {{"alpha", 0.5}, {"beta", 0.5}}),
            (V{0, 0.5, 0}));
}

TEST(TorchEdges, PowAtZero) {
  const Input x{{4}, {0, 0, 0, 2}};
  // torch.pow(x, e): d/dx = 0 where e == 0; d/de = 0 where x == 0 and e >= 0.
  EXPECT_EQ(gradient("Pow", {x, {{4}, {0, 1, 2, 3}}}, 0), (V{0, 1, 0, 12}));
  const V de = gradient("Pow", {x, {{4}, {0, 1, 2, 3}}}, 1);
  EXPECT_EQ((V{de[0], de[1], de[2]}), (V{0, 0, 0}));
  EXPECT_NEAR(de[3], 8 * std::log(2.0), 1e-14);
  EXPECT_EQ(gradient("Pow", {{{2}, {-2, -3}}, {{}, {2}}}, 0), (V{-4, -6}));
  EXPECT_TRUE(std::isnan(gradient("Pow", {{{1}, {-2}}, {{1}, {2}}}, 1)[0]));
}

TEST(TorchEdges, TiesOfMaxAndMin) {
  const std::vector<Input> in{{{3}, {1, 2, 5}}, {{3}, {1, 3, 4}}};
  EXPECT_EQ(gradient("Max", in, 0), (V{0.5, 0, 1}));
  EXPECT_EQ(gradient("Max", in, 1), (V{0.5, 1, 0}));
  EXPECT_EQ(gradient("Min", in, 0), (V{0.5, 1, 0}));
  const std::vector<Input> three{{{2}, {1, 4}}, {{2}, {1, 4}}, {{2}, {0, 4}}};
  EXPECT_EQ(gradient("Max", three, 0, {}, {6, 6}), (V{3, 2}));
  EXPECT_EQ(gradient("Max", three, 2, {}, {6, 6}), (V{0, 2}));
}

TEST(TorchEdges, ReducedTies) {
  const Input x{{2, 3}, {1, 4, 4, 2, 2, 2}};
  EXPECT_EQ(gradient("ReduceMax", {x}, 0), (V{0, 0.5, 0.5, 0, 0, 0}));
  EXPECT_EQ(gradient("ReduceMin", {x}, 0), (V{1, 0, 0, 0, 0, 0}));
}

TEST(TorchEdges, NormOfZeroAndProductWithZeros) {
  EXPECT_EQ(gradient("ReduceL2", {{{2}, {0, 0}}}, 0), (V{0, 0}));
  const V unit = gradient("ReduceL2", {{{2}, {3, 4}}}, 0);
  EXPECT_NEAR(unit[0], 0.6, 1e-15);
  EXPECT_NEAR(unit[1], 0.8, 1e-15);
  EXPECT_EQ(gradient("ReduceL1", {{{3}, {-3, 0, 4}}}, 0), (V{-1, 0, 1}));
  EXPECT_EQ(gradient("ReduceProd", {{{3}, {2, 0, 3}}}, 0), (V{0, 6, 0}));
  EXPECT_EQ(gradient("ReduceProd", {{{3}, {0, 0, 3}}}, 0), (V{0, 0, 0}));
  EXPECT_EQ(gradient("ReduceLogSumExp", {{{2}, {-kInf, -kInf}}}, 0), (V{0, 0}));
}

TEST(TorchEdges, UntakenBranchIsExactlyZero) {
  Graph g(all_ops());
  const ValueId c = g.add_input("c", DType::kBool, Shape({2}));
  const ValueId a = g.add_input("a", DType::kF64, Shape({2}));
  const ValueId o = g.add_input("o", DType::kF64, Shape({2}));
  const NodeId n = g.add_node(all_ops().get("Where"), {c, a, o}, {}, 1, "where");
  g.infer(n);
  const ValueId dy = g.add_const(HostTensor::of<double>({2}, {NAN, 2}));
  for (int which : {1, 2}) {
    const std::vector<ValueId> dys{dy};
    Grad context{Builder(g, "gradient"), n, which, dys};
    g.add_output(g.node(n).op->grad_rule(which)->formula(context).id(), "dx");
  }
  std::map<ValueId, HostTensor> values;
  values[c] = HostTensor::of<bool>({2}, {false, true});
  values[a] = HostTensor::of<double>({2}, {NAN, 1});
  values[o] = HostTensor::of<double>({2}, {1, kInf});
  const std::vector<HostTensor> out = run_graph(g, values);
  EXPECT_EQ(out[0].as_double(0), 0);
  EXPECT_EQ(out[0].as_double(1), 2);
  EXPECT_TRUE(std::isnan(out[1].as_double(0)));
  EXPECT_EQ(out[1].as_double(1), 0);
}

}  // namespace
}  // namespace ortrain::test
