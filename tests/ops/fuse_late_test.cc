// fuse_late: what is joined and what is not, and that the fused graph computes the same.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/passes/passes.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

void fuse(Graph& g) {
  const StepSpec spec;
  const Evaluate evaluate;
  std::vector<std::string> messages;
  PassContext ctx{spec, evaluate, messages, {}};
  pass_fuse_late(g, ctx);
  EXPECT_EQ(verify(g), "");
}

int count(const Graph& g, std::string_view op) {
  int n = 0;
  for (NodeId id : g.topo()) n += g.node(id).op->name == op;
  return n;
}

HostTensor numbers(Dims dims, double phase) {
  HostTensor t(DType::kF32, std::move(dims));
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, std::sin(phase + 0.7 * static_cast<double>(i)));
  return t;
}

struct Made {
  Graph g{all_ops()};
  Builder b{g, "test"};
  std::map<ValueId, HostTensor> values;
  Expr input(Dims dims) {
    const ValueId v = g.add_input("x", DType::kF32, Shape(dims));
    values[v] = numbers(dims, static_cast<double>(v));
    return b.wrap(v);
  }
};

// Fuses and compares every output with the unfused graph's.
void expect_same(Made& m, int fused_nodes) {
  const std::vector<HostTensor> before = run_graph(m.g, m.values, "ref");
  fuse(m.g);
  EXPECT_EQ(count(m.g, "ortrain.FusedElementwise"), fused_nodes) << print_graph(m.g);
  for (const char* kernel : {"ref", "simd"}) {
    const std::vector<HostTensor> after = run_graph(m.g, m.values, kernel);
    ASSERT_EQ(before.size(), after.size());
    for (size_t o = 0; o < after.size(); ++o) {
      ASSERT_EQ(before[o].dims(), after[o].dims());
      ASSERT_EQ(before[o].dtype(), after[o].dtype());
      for (int64_t i = 0; i < after[o].count(); ++i)
        ASSERT_NEAR(after[o].as_double(i), before[o].as_double(i), 2e-6) << kernel;
    }
  }
}

TEST(FuseLate, ChainWithBroadcastsAndConstants) {
  Made m;
  const Expr x = m.input({4, 300}), bias = m.input({300}), column = m.input({4, 1});
  const Expr y = m.b.unary("Tanh", x + bias) * 0.5 - column;
  m.g.add_output(y.id(), "y");
  expect_same(m, 1);
  EXPECT_EQ(m.g.topo().size(), 1u);
}

TEST(FuseLate, CompositesAreTakenApart) {
  Made m;
  const Expr x = m.input({3, 50}), bias = m.input({50});
  const Expr y = m.b.op("Gelu", {x + bias});
  const Expr z = m.b.op("LeakyRelu", {y}, {{"alpha", 0.1}});
  m.g.add_output(z.id(), "z");
  expect_same(m, 1);
  EXPECT_EQ(m.g.topo().size(), 1u);
}

TEST(FuseLate, IntermediateResultsThatOthersNeedAreOutputs) {
  Made m;
  const Expr x = m.input({6, 6});
  const Expr a = m.b.exp(x), b = a + 1.0, c = m.b.matmul(a, a);
  m.g.add_output((b * 2.0).id(), "y");
  m.g.add_output(c.id(), "c");
  expect_same(m, 1);
}

// a -> matmul -> add with a: one group would need its own result.
TEST(FuseLate, NoCycles) {
  Made m;
  const Expr x = m.input({5, 5});
  const Expr a = m.b.exp(x) * 0.1;
  const Expr y = m.b.unary("Tanh", m.b.matmul(a, a) + a);
  m.g.add_output(y.id(), "y");
  expect_same(m, 2);
  EXPECT_EQ(count(m.g, "MatMul"), 1);
}

TEST(FuseLate, ComparisonsAndSelections) {
  Made m;
  const Expr x = m.input({3, 40}), y = m.input({3, 40});
  const Expr larger = m.b.op("Greater", {x, y});
  const Expr z = m.b.where(larger, x, m.b.scalar(DType::kF32, 0)) + m.b.cast(larger, DType::kF32);
  m.g.add_output(z.id(), "z");
  m.g.add_output(larger.id(), "larger");
  expect_same(m, 1);
}

TEST(FuseLate, OtherShapesAndIntegersStayApart) {
  Made m;
  const Expr x = m.input({3, 1}), y = m.input({3, 40});
  const Expr small = m.b.exp(x) + 1.0;  // [3,1]: a group of its own
  m.g.add_output((m.b.unary("Tanh", y) * small).id(), "y");
  const Expr i = m.b.ints({1, 2, 3});
  m.g.add_output((i + i).id(), "i");
  expect_same(m, 2);
  EXPECT_EQ(count(m.g, "Add"), 1);
}

// The sum of an early chain over two big inputs and a late matmul: joining would keep both inputs.
TEST(FuseLate, DoesNotKeepBigInputsWaiting) {
  Made m;
  const Expr x = m.input({8, 8});
  const Expr p = m.b.matmul(x, x), q = m.b.matmul(p, x);
  const Expr early = p * q;
  const Expr late = m.b.matmul(m.b.matmul(q, x), x);
  m.g.add_output((late + early).id(), "y");
  expect_same(m, 0);
}

}  // namespace
}  // namespace ortrain::test
