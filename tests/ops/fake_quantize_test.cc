// Quantization-aware training against PyTorch: values and gradients of QuantizeLinear followed by
// DequantizeLinear, turned into ortrain.FakeQuantize by the record's own training policy and
// differentiated by graph/autodiff.cc. Data: tests/golden/fake_quantize/values.txt, with its
// script.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/pipeline.h"
#include "ortrain_test_paths.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

struct Recorded {
  std::string name, type;
  int axis = 0;  // -9: per tensor
  Dims dims;
  std::map<std::string, std::vector<double>> arrays;
  int64_t channels() const { return axis < 0 ? 1 : dims[static_cast<size_t>(axis)]; }
};

std::vector<Recorded> recorded() {
  std::ifstream in(std::string(kSourceDir) + "/tests/golden/fake_quantize/values.txt");
  std::vector<Recorded> out;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "case") {
      Recorded r;
      words >> r.name >> r.type >> r.axis;
      for (int64_t d; words >> d;) r.dims.push_back(d);
      out.push_back(std::move(r));
    } else {
      for (double v; words >> v;) out.back().arrays[key].push_back(v);
    }
  }
  return out;
}

HostTensor tensor(DType dtype, Dims dims, const std::vector<double>& values) {
  HostTensor t(dtype, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) t.set_double(static_cast<int64_t>(i), values[i]);
  return t;
}

// L = sum of dy * DQ(Q(x)), with one scale for both or with an equal copy for DequantizeLinear.
struct Model {
  Graph g{all_ops()};
  ValueId x, scale, y, loss;
  Model(const Recorded& r, DType dtype, bool copy = false) {
    const Dims scales = r.axis < 0 ? Dims{} : Dims{r.channels()};
    x = g.add_param(tensor(dtype, r.dims, r.arrays.at("x")), "x");
    scale = g.add_param(tensor(dtype, scales, r.arrays.at("scale")), "scale");
    const auto zero = [&] {
      return g.add_const(tensor(*dtype_from_name(r.type), scales, r.arrays.at("zero")));
    };
    const ValueId z = zero();
    const ValueId again =
        copy ? g.add_param(tensor(dtype, scales, r.arrays.at("scale")), "copy") : scale;
    Attrs attrs;
    if (r.axis >= 0) attrs.set("axis", int64_t{r.axis});
    const auto add = [&](const char* op, std::vector<ValueId> in) {
      const NodeId n = g.add_node(all_ops().get(op), std::move(in), attrs, 1, op);
      g.infer(n);
      return n;
    };
    const NodeId q = add("QuantizeLinear", {x, scale, z});
    const NodeId dq = add("DequantizeLinear", {g.node(q).outputs[0], again, zero()});
    Builder b(g, "loss");
    const Expr dy = b.constant(tensor(dtype, r.dims, r.arrays.at("dy")));
    std::vector<int64_t> axes;
    for (size_t i = 0; i < r.dims.size(); ++i) axes.push_back(static_cast<int64_t>(i));
    g.add_output(b.sum(b.wrap(g.node(dq).outputs[0]) * dy, axes, false).id(), "loss");
    g.add_output(g.node(dq).outputs[0], "y");
    TrainingPolicy policy;
    g.node(dq).op->training_policy(g, dq, policy);
    g.erase_dead();
    loss = g.outputs()[0], y = g.outputs()[1];
  }
};

void expect_near(const HostTensor& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.count(), static_cast<int64_t>(want.size())) << what;
  double scale = 1;
  for (double v : want) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.as_double(static_cast<int64_t>(i)), want[i], tolerance * scale)
        << what << " element " << i;
}

TEST(FakeQuantize, AgreesWithPyTorch) {
  const std::vector<Recorded> all = recorded();
  ASSERT_EQ(all.size(), 6u);
  for (const Recorded& r : all)
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      Model m(r, dtype);
      const std::vector<ValueId> grads = differentiate(m.g, m.loss, {m.x, m.scale});
      m.g.clear_outputs();
      for (ValueId v : {m.y, grads[0], grads[1]}) m.g.add_output(v, "out");
      const std::string what = cat(r.name, " ", name_of(dtype), " ");
      for (const char* kernel : {"first", "ref"}) {
        const std::vector<HostTensor> out = run_graph(m.g, {}, kernel);
        expect_near(out[0], r.arrays.at("y"), 1e-6, what + "y");
        expect_near(out[1], r.arrays.at("dx"), 1e-6, what + "dx");
        expect_near(out[2], r.arrays.at("dscale"), 1e-4, what + "dscale");  // a sum in f32 there
      }
    }
}

// Two copies of the scale would part while training: both become constants.
TEST(FakeQuantize, EqualScalesAreOneAndFrozen) {
  const Recorded r = recorded()[3];
  Model m(r, DType::kF32, /*copy=*/true);
  EXPECT_EQ(m.g.value(m.scale).source, Source::kConst);
  const std::vector<ValueId> grads = differentiate(m.g, m.loss, {m.x});
  m.g.clear_outputs();
  m.g.add_output(grads[0], "dx");
  expect_near(run_graph(m.g, {})[0], r.arrays.at("dx"), 1e-6, "dx");
}

// Another scale behind the codes is no fake quantization: nothing is fused, no gradient flows.
TEST(FakeQuantize, OtherScalesAreLeftAlone) {
  Graph g(all_ops());
  const ValueId x = g.add_param(tensor(DType::kF32, {3}, {1, 2, 3}), "x");
  Builder b(g, "q");
  const Expr codes = b.op("QuantizeLinear", {b.wrap(x), b.scalar(DType::kF32, 0.5)});
  const Expr y = b.op("DequantizeLinear", {codes, b.scalar(DType::kF32, 0.25)});
  g.add_output(b.sum(y, {0}, false).id(), "loss");
  TrainingPolicy policy;
  const NodeId n = g.value(y.id()).producer;
  g.node(n).op->training_policy(g, n, policy);
  EXPECT_EQ(g.node(g.value(y.id()).producer).op->name, "DequantizeLinear");
  EXPECT_EQ(differentiate(g, g.outputs()[0], {x})[0], kNone);
}

// What trains in a compiled model: float weights in front of a pair; scales only by name; integer
// weights never, and a message says so.
TEST(FakeQuantize, TrainableSet) {
  Graph g(all_ops());
  Builder b(g, "model");
  const auto param = [&](const char* name, Dims dims, double value) {
    HostTensor t(DType::kF32, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, value * static_cast<double>(i + 1));
    return b.wrap(g.add_param(std::move(t), name));
  };
  const Expr x = b.wrap(g.add_input("x", DType::kF32, Shape{Dim(2), Dim(3)}));
  const Expr w = param("w", {3, 4}, 0.1), scale = param("scale", {4}, 0.01);
  const Expr zero = b.constant(HostTensor(DType::kI8, {4}));
  const Attrs axis{{"axis", int64_t{1}}};
  const Expr fake =
      b.op("DequantizeLinear", {b.op("QuantizeLinear", {w, scale, zero}, axis), scale, zero}, axis);
  const Expr frozen = b.wrap(g.add_const(HostTensor(DType::kI4, {3, 4}), "frozen"));
  const Expr v = b.op("DequantizeLinear", {frozen, param("frozen_scale", {4}, 1)}, axis);
  g.add_output((b.matmul(x, fake) + b.matmul(x, v)).id(), "y");
  for (ValueId i = 0; i < g.value_count(); ++i)  // as imported: nothing is typed yet
    if (g.value(i).source == Source::kNode) g.value(i).typed = false;
  StepSpec spec;
  spec.mode = Mode::kGrads;
  spec.loss = {.kind = "mse", .label = "label", .label_dtype = DType::kF32, .label_dims = {2, 4}};
  const auto trained = [&](const CompileResult& r) {
    std::string names;
    for (const auto& [id, info] : r.graph.params)
      names += info.trainable ? r.graph.value(id).name + " " : "";
    return names;
  };
  const CompileResult r = compile(g, spec);
  EXPECT_EQ(trained(r), "w ");
  const auto info = r.graph.params.find(scale.id());
  ASSERT_NE(info, r.graph.params.end());
  EXPECT_EQ(info->second.reason, "a quantization scale; --train with its name trains it");
  ASSERT_EQ(r.messages.size(), 1u);
  EXPECT_EQ(r.messages[0], "1 tensor is stored as integers and stays frozen: 'frozen'");
  spec.train = {"^w$", "^scale$"};
  EXPECT_EQ(trained(compile(g, spec)), "w scale ");
}

}  // namespace
}  // namespace ortrain::test
