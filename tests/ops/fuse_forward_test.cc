// fuse_forward's rules for attention, norms and Gelu: what is recognised, what is left alone, and
// that the fused graph computes the same in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Made {
  Graph g{all_ops()};
  Builder b{g, "test"};
  std::map<ValueId, HostTensor> values;

  Expr input(Dims dims) {
    const ValueId v = g.add_input("x", DType::kF64, Shape(dims));
    HostTensor t(DType::kF64, dims);
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_double(i, std::sin(v + 0.7 * static_cast<double>(i)));
    values[v] = std::move(t);
    return b.wrap(v);
  }
  Expr f64(Dims dims, const std::vector<double>& x) {
    return b.constant(HostTensor::from<double>(std::move(dims), x));
  }
  Expr flags(Dims dims, const std::vector<int>& x) {
    HostTensor t(DType::kBool, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i) t.mutable_data<bool>()[i] = x[static_cast<size_t>(i)];
    return b.constant(std::move(t));
  }
  Expr softmax(Expr x) { return b.op("Softmax", {x}, {{"axis", int64_t{-1}}}); }
  void result(Expr y) { g.add_output(y.id(), "y"); }
  int count(std::string_view op) const {
    int n = 0;
    for (NodeId id : g.topo()) n += g.node(id).op->name == op;
    return n;
  }
  const Node* find(std::string_view op) const {
    for (NodeId id : g.topo())
      if (g.node(id).op->name == op) return &g.node(id);
    return nullptr;
  }
  void fuse() {
    const StepSpec spec;
    const Evaluate evaluate;
    std::vector<std::string> messages;
    PassContext ctx{spec, evaluate, messages, {}};
    pass_fuse_forward(g, ctx);
    g.erase_dead();
    ASSERT_EQ(verify(g), "");
  }
  // Fuses; `op` must then occur `times` and the outputs must be what they were.
  void expect(std::string_view op, int times) {
    const std::vector<HostTensor> before = run_graph(g, values, "ref");
    fuse();
    EXPECT_EQ(count(op), times) << print_graph(g);
    const std::vector<HostTensor> after = run_graph(g, values, "ref");
    ASSERT_EQ(before.size(), after.size());
    for (size_t o = 0; o < after.size(); ++o) {
      ASSERT_EQ(before[o].dims(), after[o].dims());
      for (int64_t i = 0; i < after[o].count(); ++i)
        ASSERT_NEAR(after[o].as_double(i), before[o].as_double(i), 1e-6) << i;
    }
  }
};

const std::vector<int> kTriangle{1, 0, 0, 1, 1, 0, 1, 1, 1};

TEST(FuseAttention, ScaleOnBothSidesAndCausalMask) {
  Made m;
  const Expr q = m.input({2, 2, 3, 4}), k = m.input({2, 2, 3, 4}), v = m.input({2, 2, 3, 4});
  const Expr scores = m.b.matmul(q * 0.7, m.b.transpose(k, {0, 1, 3, 2}) * 0.7);
  const double h = -3.4028234663852886e38;
  const Expr mask = m.f64({3, 3}, {0, h, h, 0, 0, h, 0, 0, 0});
  m.result(m.b.matmul(m.softmax(scores + mask), v));
  m.expect("ortrain.Attention", 1);
  const Node* a = m.find("ortrain.Attention");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->attrs.i("causal", 0), 1);
  EXPECT_NEAR(a->attrs.f("scale", 0), 0.49, 1e-12);
  EXPECT_EQ(input(*a, 3), kNone);
}

TEST(FuseAttention, MaskedFillAndDivision) {
  Made m;
  const Expr q = m.input({2, 2, 3, 4}), k = m.input({2, 2, 3, 4}), v = m.input({2, 2, 3, 5});
  const Expr scores = m.b.matmul(q, m.b.transpose(k, {0, 1, 3, 2})) / 2;
  const Expr seen = m.flags({1, 1, 3, 3}, kTriangle);
  const Expr hidden = m.b.where(seen, scores, m.b.scalar(DType::kF64, -1e9));
  m.result(m.b.matmul(m.softmax(hidden), v));
  m.expect("ortrain.Attention", 1);
  EXPECT_EQ(m.find("ortrain.Attention")->attrs.i("causal", 0), 1);
}

TEST(FuseAttention, PaddingMaskWithNanTest) {
  Made m;
  const Expr q = m.input({2, 2, 3, 4}), k = m.input({2, 2, 3, 4}), v = m.input({2, 2, 3, 4});
  const Expr mask = m.f64({2, 1, 1, 3}, {0, 0, -kInf, -kInf, -kInf, -kInf});  // sample 1: nothing
  const Expr p = m.softmax(m.b.matmul(q, m.b.transpose(k, {0, 1, 3, 2})) * 0.5 + mask);
  const Expr safe = m.b.where(m.b.unary("IsNaN", p), m.b.scalar(DType::kF64, 0), p);
  m.result(m.b.matmul(safe, v));
  m.expect("ortrain.Attention", 1);
  const Node* a = m.find("ortrain.Attention");
  EXPECT_EQ(a->attrs.i("guard", 0), 1);
  EXPECT_NE(input(*a, 3), kNone);
}

TEST(FuseAttention, ReshapedKeysAndRankThree) {
  Made m;
  const Expr q = m.input({2, 2, 3, 4}), k = m.input({2, 2, 3, 4}), v = m.input({2, 2, 3, 4});
  const Expr flat = m.b.transpose(m.b.reshape(k, {4, 3, 4}), {0, 2, 1});
  const Expr scores = m.b.matmul(q, m.b.reshape(flat, {2, 2, 4, 3}) * 0.5);
  m.result(m.b.matmul(m.softmax(scores), v));
  const Expr x = m.input({5, 3, 4}), z = m.input({5, 6, 4});
  const Expr mask = m.f64({5, 1, 6}, std::vector<double>(30, 0.25));
  const Expr s3 = m.b.matmul(x, m.b.transpose(z, {0, 2, 1})) * 0.3 + mask;
  m.result(m.b.matmul(m.softmax(s3), z));
  m.expect("ortrain.Attention", 2);
  EXPECT_EQ(m.count("Transpose"), 0);
}

TEST(FuseAttention, PackedProjectionLosesItsSplitAndTransposes) {
  Made m;
  const Expr x = m.input({2, 3, 24});
  const std::vector<Expr> parts = m.b.ops("Split", {x}, {{"axis", int64_t{2}}}, 3);
  std::vector<Expr> heads;
  for (Expr p : parts) heads.push_back(m.b.transpose(m.b.reshape(p, {2, 3, 2, 4}), {0, 2, 1, 3}));
  const Expr kt = m.b.transpose(m.b.reshape(parts[1], {2, 3, 2, 4}), {0, 2, 3, 1});
  const Expr y = m.b.matmul(m.softmax(m.b.matmul(heads[0], kt) * 0.5), heads[2]);
  m.result(m.b.reshape(m.b.transpose(y, {0, 2, 1, 3}), {2, 3, 8}));
  m.g.erase_dead();
  m.expect("ortrain.Attention", 1);
  EXPECT_EQ(m.count("Transpose") + m.count("Split"), 0) << print_graph(m.g);
}

TEST(FuseAttention, PlanesOfOneTransposeToo) {
  Made m;
  const Expr x = m.b.transpose(m.b.reshape(m.input({2, 3, 24}), {2, 3, 3, 2, 4}), {2, 0, 3, 1, 4});
  const std::vector<Expr> parts = m.b.ops("Split", {x}, {{"axis", int64_t{0}}}, 3);
  const Expr q = m.b.squeeze(parts[0], {0}), k = m.b.squeeze(parts[1], {0}),
             v = m.b.squeeze(parts[2], {0});
  const Expr s = m.b.matmul(q * 0.8, m.b.transpose(k, {0, 1, 3, 2}) * 0.8);
  m.result(m.b.matmul(m.softmax(s), v));  // head-major result: one transpose stays
  m.expect("ortrain.Attention", 1);
  EXPECT_EQ(m.count("Split"), 0);
  EXPECT_EQ(m.count("Transpose"), 1);
}

TEST(FuseAttention, LeavesAloneWhatItWouldChange) {
  {
    Made m;  // the probabilities are a result too
    const Expr q = m.input({1, 2, 3, 4});
    const Expr p = m.softmax(m.b.matmul(q, m.b.transpose(q, {0, 1, 3, 2})));
    m.result(m.b.matmul(p, q));
    m.result(p);
    m.expect("ortrain.Attention", 0);
  }
  {
    Made m;  // a finite fill under a condition that is not known: a hidden row would be uniform
    const Expr q = m.input({1, 2, 3, 4}), c = m.input({3, 3});
    const Expr s = m.b.matmul(q, m.b.transpose(q, {0, 1, 3, 2}));
    const Expr seen = m.b.op("Greater", {c, m.b.scalar(DType::kF64, 0)});
    m.result(m.b.matmul(m.softmax(m.b.where(seen, s, m.b.scalar(DType::kF64, -1e9))), q));
    m.expect("ortrain.Attention", 0);
  }
  {
    Made m;  // a per-channel scale is no number
    const Expr q = m.input({1, 2, 3, 3});
    const Expr s = m.b.matmul(q, m.b.transpose(q, {0, 1, 3, 2})) * m.f64({3}, {1, 2, 3});
    m.result(m.b.matmul(m.softmax(s), q));
    m.expect("ortrain.Attention", 0);
  }
}

TEST(FuseGelu, AnyOrderOfTheProduct) {
  Made m;
  const Expr x = m.input({3, 5}), y = m.input({3, 5}), z = m.input({3, 5});
  const double root = std::sqrt(2.0);
  m.result(x * (m.b.unary("Erf", x / root) + 1) * 0.5);
  m.result(y * (0.5 * (m.b.unary("Erf", y / root) + 1)));
  m.result((z * 0.5) * (1 + m.b.unary("Erf", z * std::sqrt(0.5))));
  m.expect("ortrain.GeluErf", 3);
}

TEST(FuseGelu, Tanh) {
  Made m;
  const Expr x = m.input({3, 5}), y = m.input({3, 5});
  const double c = std::sqrt(2 / M_PI);
  const Expr cube = m.b.op("Pow", {x, m.b.scalar(DType::kF64, 3)});
  m.result(x * 0.5 * (m.b.unary("Tanh", (x + cube * 0.044715) * c) + 1));
  m.result(0.5 * (y * (1 + m.b.unary("Tanh", c * (y + 0.044715 * (y * y * y))))));
  m.expect("ortrain.GeluTanh", 2);
}

TEST(FuseGelu, OtherNumbersStay) {
  Made m;
  const Expr x = m.input({3, 5});
  m.result(x * (m.b.unary("Erf", x / 1.4) + 1) * 0.5);
  m.result(x * (m.b.unary("Erf", x / std::sqrt(2.0)) + 1));
  m.expect("ortrain.GeluErf", 0);
}

Expr spelled_norm(Made& m, Expr x, bool centre, double epsilon) {
  const Expr d = centre ? x - m.b.mean(x, {-1}) : x;
  const Expr var = m.b.mean(m.b.op("Pow", {d, m.b.scalar(DType::kF64, 2)}), {-1});
  return d / m.b.sqrt(var + epsilon);
}

TEST(FuseNorm, LayerNormalization) {
  Made m;
  const Expr scale = m.f64({4}, {1, 2, 3, 4}), bias = m.f64({1, 1, 4}, {5, 6, 7, 8});
  m.result(spelled_norm(m, m.input({2, 3, 4}), true, 1e-3) * scale + bias);
  m.result(spelled_norm(m, m.input({2, 3, 4}), true, 1e-5) * 2);
  m.expect("LayerNormalization", 2);
}

TEST(FuseNorm, RootMeanSquare) {
  Made m;
  const Expr scale = m.f64({4}, {1, 2, 3, 4});
  m.result(spelled_norm(m, m.input({2, 3, 4}), false, 1e-3) * scale);
  const Expr x = m.input({2, 4});
  m.result(scale * (x * m.b.unary("Reciprocal", m.b.sqrt(m.b.mean(x * x, {-1}) + 1e-6))));
  m.expect("RMSNormalization", 2);
}

TEST(FuseNorm, OtherAxesStay) {
  Made m;
  const Expr x = m.input({2, 3, 4});
  const Expr d = x - m.b.mean(x, {1});
  m.result(d / m.b.sqrt(m.b.mean(d * d, {1}) + 1e-5));
  m.expect("LayerNormalization", 0);
}

}  // namespace
}  // namespace ortrain::test
