// Gradients at ties, kinks, bounds, empty and size-1 shapes, and the right behaviour for operators
// that other trainers get wrong (row numbers of the list of known defects), against PyTorch's
// autograd in double precision: tests/golden/edges/make_edges.py. Each case is an ONNX file of its
// own, so importer and opset forms are part of it. NaN and infinities must be where PyTorch has
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/pipeline.h"
#include "importers/onnx.h"
#include "ortrain_test_paths.h"
#include "runtime/data/npz.h"
#include "runtime/evaluate.h"
#include "tests/ops/interpreter.h"
#include "tests/ops/run_model.h"

namespace ortrain::test {
namespace {

struct Case {
  HostTensor model, y, dy;
  std::map<std::string, HostTensor> in, grad;
};

const std::map<std::string, Case>& all_cases() {
  static const std::map<std::string, Case> cases = [] {
    std::map<std::string, Case> out;
    const data::ArrayFile file =
        data::open_npz(std::string(kSourceDir) + "/tests/golden/edges/edges.npz");
    for (const data::StoredArray& a : file.arrays) {
      const size_t slash = a.name.find('/');
      Case& c = out[a.name.substr(0, slash)];
      const std::string rest = a.name.substr(slash + 1);
      HostTensor t = a.tensor().clone();
      if (rest == "model") {
        c.model = std::move(t);
      } else if (rest == "out/y") {
        c.y = std::move(t);
      } else if (rest == "dy") {
        c.dy = std::move(t);
      } else {
        const size_t second = rest.find('/');
        (rest[0] == 'i' ? c.in : c.grad)[rest.substr(second + 1)] = std::move(t);
      }
    }
    return out;
  }();
  return cases;
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, c] : all_cases()) out.push_back(name);
  return out;
}

void expect_same(const HostTensor& got, const HostTensor& want, const std::string& what) {
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(got.dims(), want.dims()) << what;
  double scale = 1;
  for (int64_t i = 0; i < want.count(); ++i)
    if (std::isfinite(want.as_double(i))) scale = std::max(scale, std::abs(want.as_double(i)));
  for (int64_t i = 0; i < want.count(); ++i) {
    const double a = got.as_double(i), b = want.as_double(i);
    const bool same =
        (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= 1e-12 * scale;
    EXPECT_TRUE(same) << what << " element " << i << " is " << a << ", PyTorch has " << b;
  }
}

// The file's graph, its inputs parameters with contents; integer chains folded as pass infer does.
Graph typed(const OnnxFile& file, const Case& c) {
  Graph g = file.graph().share();
  const std::vector<ValueId> inputs = g.inputs();
  for (ValueId v : inputs) {
    const HostTensor& t = c.in.at(g.value(v).name);
    g.value(v).shape = Shape(t.dims());
    g.set_source(v, Source::kParam);
    g.set_tensor(v, t.clone());
  }
  for (ValueId v : g.sources(Source::kParam))  // initializers
    if (!c.in.contains(g.value(v).name)) g.set_source(v, Source::kConst);
  for (NodeId n : g.topo()) {
    g.infer(n);
    const std::vector<ValueId> outputs = g.node(n).outputs;
    for (ValueId v : outputs) {
      if (v == kNone || !g.value(v).has_ints || !g.value(v).shape.is_const()) continue;
      HostTensor t(g.value(v).dtype, g.value(v).shape.values());
      const std::vector<Dim> contents = g.value(v).ints;
      if (!std::all_of(contents.begin(), contents.end(), [](Dim d) { return d.is_const(); }))
        continue;
      for (size_t i = 0; i < contents.size(); ++i)
        t.set_double(static_cast<int64_t>(i), static_cast<double>(contents[i].value()));
      g.replace_uses(v, g.add_const(std::move(t)));
    }
  }
  g.erase_dead();
  g.stage = Stage::kInferred;
  return g;
}

class Edges : public testing::TestWithParam<std::string> {};

TEST_P(Edges, AgreeWithPyTorch) {
  const Case& c = all_cases().at(GetParam());
  try {
    const auto file = OnnxFile::parse(
        {static_cast<const std::byte*>(c.model.raw()), c.model.bytes()}, ".", all_ops());
    Graph forward = typed(*file, c);
    expect_same(run_graph(forward, {})[0], c.y, "y");
    Graph g = typed(*file, c);
    Builder b(g, "loss");
    Expr loss = b.wrap(g.outputs()[0]) * b.constant(c.dy.clone());
    std::vector<int64_t> all;
    for (int i = 0; i < loss.rank(); ++i) all.push_back(i);
    if (!all.empty()) loss = b.sum(loss, all, /*keepdims=*/false);
    std::vector<ValueId> wanted;
    for (const auto& [name, t] : c.grad) wanted.push_back(g.find(name));
    g.clear_outputs();
    g.add_output(loss.id(), "loss");
    const std::vector<ValueId> grads = differentiate(g, loss.id(), wanted);
    size_t at = 0;
    std::vector<std::string> order;
    for (const auto& [name, t] : c.grad) {
      const ValueId dx = grads[at++];
      if (dx == kNone) {
        HostTensor zero(DType::kF64, t.dims());
        expect_same(zero, t, "no gradient flows to " + name + ": it");
        continue;
      }
      g.add_output(dx, name);
      order.push_back(name);
    }
    const std::vector<HostTensor> results = run_graph(g, {});
    for (size_t i = 0; i < order.size(); ++i)
      expect_same(results[i + 1], c.grad.at(order[i]), "gradient of " + order[i]);
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Edges, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

// --- what needs no numbers of PyTorch's
// ---------------------------------------------------------------------
std::string error_of(const char* text) {
  Graph g = parse_graph(text, all_ops());
  try {
    for (NodeId n : g.topo()) g.infer(n);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

int nodes_of_gradient(const std::vector<int>& wanted_inputs) {
  Graph g = parse_graph(
      "param %0:f64[3] \"a\" = {1, 2, 3}\nparam %1:f64[3] \"b\" = {4, 5, 6}\n"
      "%2 = Div(%0, %1) #d\n%3 = ReduceSum(%2) {keepdims=0} #l\noutput %3 \"loss\"\n",
      all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  std::vector<ValueId> wanted;
  for (int i : wanted_inputs) wanted.push_back(i);
  for (ValueId v : differentiate(g, g.outputs()[0], wanted)) g.add_output(v, "g");
  return static_cast<int>(g.topo().size());
}

// Softmax, Log, Mul with logits 250 apart: the probability is 0 in f32.
TEST(Row27, SpelledOutCrossEntropyIsFinite) {
  const Graph g = parse_graph(
      "input %0:f32[2,2] \"x\"\ninput %1:f32[2,3] \"target\"\n"
      "param %2:f32[2,3] \"w\" = {250, 0, -20, 3, 1, 0.5}\n"
      "%3 = MatMul(%0, %2) #logits\n%4 = Softmax(%3) {axis=-1} #p\n%5 = Log(%4) #log\n"
      "%6 = Mul(%5, %1) #picked\n%7 = ReduceSum(%6) {keepdims=0} #sum\n%8 = Neg(%7) #loss\n"
      "output %8 \"loss\"\n",
      all_ops());
  StepSpec spec;
  spec.mode = Mode::kGrads;
  const HostTensor x = HostTensor::of<float>({2, 2}, {1, 0, 1, 1}),
                   target = HostTensor::of<float>({2, 3}, {0, 1, 0, 0, 0, 1});
  const auto out = run_model(g, spec, {{"x", &x}, {"target", &target}});
  EXPECT_NEAR(out.at("loss").as_double(0), 250 + 272.5, 1e-3);
  const HostTensor& dw = out.at("grad/w");
  const double want[6] = {2, -1, -1, 1, 0, -1};  // x^T (softmax - target)
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(dw.as_double(i), want[i], 1e-6) << i;
}

// The angles of a rotary embedding and the scale are data, not parameters.
TEST(Row15, TablesOfAnglesDoNotTrain) {
  for (const char* node : {"RotaryEmbedding(%3, %1, %2) {num_heads=2}",
                           "com.microsoft.RotaryEmbedding(%3, %5, %4, %6) {num_heads=2}"}) {
    const Graph g = parse_graph(
        cat("input %0:f32[1,2,3] \"x\"\nparam %1:f32[1,2,2] \"c\" = {1, 0.5, 0.25, 1}\n"
            "param %2:f32[1,2,2] \"s\" = {0.5, 1, 1, 0.25}\n"
            "param %8:f32[3,8] \"w\" = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}\n"
            "param %4:f32[2,2] \"cc\" = {1, 0.5, 0.25, 1}\n"
            "param %6:f32[2,2] \"ss\" = {0.5, 1, 1, 0.25}\nconst %5:i64[1,2] = {0, 1}\n"
            "%3 = MatMul(%0, %8) #m\n%7 = ",
            node, " #r\n%9 = ReduceSumSquare(%7) {keepdims=0} #l\noutput %9 \"loss\"\n"),
        all_ops());
    StepSpec spec;
    spec.mode = Mode::kGrads;
    const CompileResult compiled = compile(g, spec, {.evaluate = make_evaluator()});
    EXPECT_EQ(compiled.graph.output_names(), (std::vector<std::string>{"loss", "grad/w"})) << node;
  }
}

TEST(Row07, DivComputesOnlyTheGradientsAskedFor) {
  const int both = nodes_of_gradient({0, 1});
  EXPECT_LT(nodes_of_gradient({0}), both);
  EXPECT_LT(nodes_of_gradient({1}), both);
}

TEST(Row16, LabelRankIsExplained) {
  const std::string text = error_of(
      "input %0:f32[4,3] \"scores\"\ninput %1:i64[4,3] \"labels\"\n"
      "%2 = SoftmaxCrossEntropyLoss(%0, %1) #loss\noutput %2 \"loss\"\n");
  EXPECT_NE(text.find("labels have shape [4,3], scores [4,3]"), text.npos) << text;
  EXPECT_NE(text.find("[4]"), text.npos) << text;
}

TEST(Row31, IndicesAbove2To24AreExact) {
  constexpr int64_t kRows = (1 << 24) + 4;
  Graph g(all_ops());
  const ValueId data = g.add_input("data", DType::kU8, Shape({Dim(kRows)}));
  const ValueId at = g.add_const(HostTensor::ints({(1 << 24) + 1, (1 << 24) + 3}));
  const NodeId n = g.add_node(all_ops().get("Gather"), {data, at}, {}, 1, "gather");
  g.infer(n);
  g.add_output(g.node(n).outputs[0], "y");
  std::map<ValueId, HostTensor> in;
  in[data] = HostTensor(DType::kU8, {kRows});
  in[data].mutable_data<uint8_t>()[(1 << 24) + 1] = 7;
  in[data].mutable_data<uint8_t>()[(1 << 24) + 3] = 9;
  const std::vector<HostTensor> y = run_graph(g, in);
  EXPECT_EQ(y[0].as_int(0), 7);
  EXPECT_EQ(y[0].as_int(1), 9);
}

// Gradients of duplicate indices must not depend on how threads meet them.
TEST(Row18, GatherGradientIsTheSameForAnyNumberOfThreads) {
  constexpr int64_t kIndices = 5000, kWidth = 48;
  HostTensor dy(DType::kF32, {kIndices, kWidth}), at(DType::kI64, {kIndices});
  for (int64_t i = 0; i < dy.count(); ++i)
    dy.mutable_data<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  for (int64_t i = 0; i < kIndices; ++i) at.mutable_data<int64_t>()[i] = i * i % 17 - 8;
  Graph g(all_ops());
  const ValueId a = g.add_input("dy", DType::kF32, Shape(dy.dims()));
  const ValueId b = g.add_input("at", DType::kI64, Shape(at.dims()));
  const OpDef& op = all_ops().get("ortrain.GatherGrad");
  const NodeId n =
      g.add_node(op, {a, b}, {{"axis", 0}, {"dims", std::vector<int64_t>{30, kWidth}}}, 1, "grad");
  g.infer(n);
  const HostTensor one = std::move(run_kernel(op.kernels[0], query_of(g, n, 1), {&dy, &at})[0]);
  for (int threads : {2, 3, 8}) {
    const HostTensor more =
        std::move(run_kernel(op.kernels[0], query_of(g, n, threads), {&dy, &at})[0]);
    EXPECT_EQ(std::memcmp(one.raw(), more.raw(), one.bytes()), 0) << threads;
  }
}

}  // namespace
}  // namespace ortrain::test
