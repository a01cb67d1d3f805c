// ctest-timeout: 300
// Every operator's gradient against PyTorch autograd in double precision, through the whole path of
// training: importer, passes, planner, executor; with the preferred and with the reference kernels.
//
// The cases are made by tests/golden/ops/make_ops.py (manifest.json, cases.safetensors). A case's
// model is extended by the loss sum(y * dy); its inputs x* become parameters. Outputs, loss and
// gradients must agree to 1e-9 of the element plus 1e-11 of the tensor's largest; integers and
// infinities exactly. The forward pass is repeated in f32, f16 and bf16 with the precision of the
// type.
#include <gtest/gtest.h>
#include <onnx/onnx-ml.pb.h>
#include <ortrain_test_paths.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/error.h"
#include "graph/pipeline.h"
#include "importers/onnx.h"
#include "importers/onnx_tensor.h"
#include "runtime/data/safetensors.h"
#include "tests/ops/interpreter.h"
#include "tests/ops/run_model.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, HostTensor>;  // by the name inside the case

struct Case {
  std::string name, op, label;
  std::vector<std::string> gradients;
  bool train = false;
};

fs::path folder() { return fs::path(kSourceDir) / "tests/golden/ops"; }

std::vector<Case> read_manifest() {
  std::vector<Case> out;
  std::ifstream in(folder() / "manifest.json");
  for (const auto& line : nlohmann::json::parse(in)) {
    Case c{line["case"], line["op"], {}, line["gradients"], line.contains("train")};
    for (const char ch : c.name) c.label += std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
    out.push_back(std::move(c));
  }
  return out;
}
const std::vector<Case>& cases() {
  static const std::vector<Case> all = read_manifest();
  return all;
}

Tensors tensors_of(const Case& c) {
  static const data::ArrayFile file =
      data::open_safetensors((folder() / "cases.safetensors").string());
  Tensors out;
  for (const data::StoredArray& a : file.arrays)
    if (a.name.starts_with(c.name + ":"))
      out[a.name.substr(c.name.size() + 1)] = a.tensor().clone();
  return out;
}

onnx::ModelProto model_of(const Tensors& t) {
  onnx::ModelProto m;
  const HostTensor& bytes = t.at("model");
  ORTRAIN_CHECK(m.ParseFromArray(bytes.raw(), static_cast<int>(bytes.bytes())), "a case's model");
  return m;
}

onnx::NodeProto& add_node(onnx::GraphProto& g, const char* op, std::vector<std::string> in,
                          const std::string& out) {
  onnx::NodeProto& n = *g.add_node();
  n.set_op_type(op);
  n.set_name("loss_" + out);
  for (const std::string& name : in) n.add_input(name);
  n.add_output(out);
  return n;
}

// Inputs that want a gradient become initializers, hence parameters. Numbers without axes never
// train (they are constants of a formula), so such an input comes out of a parameter of shape [1].
void inputs_to_parameters(onnx::ModelProto& m, const Tensors& t) {
  auto& g = *m.mutable_graph();
  google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> rest;
  for (const auto& input : g.input()) {
    if (input.name()[0] != 'x') {
      *rest.Add() = input;
      continue;
    }
    HostTensor x = t.at(input.name()).clone();
    std::string name = input.name();
    if (x.rank() == 0) {
      x.reshape({1});
      name += "_1";
      const std::string shape = name + "_axes";
      g.add_initializer()->ParseFromString(write_tensor(shape, HostTensor(DType::kI64, {0})));
      add_node(g, "Reshape", {name, shape}, input.name());
    }
    g.add_initializer()->ParseFromString(write_tensor(name, x));
  }
  *g.mutable_input() = rest;
}

// loss = sum over the float outputs of y * dy; dy comes in with the batch.
void add_loss(onnx::ModelProto& m, const Tensors& t) {
  auto& g = *m.mutable_graph();
  std::string loss;
  const auto outputs = g.output();
  for (const auto& y : outputs) {
    const auto dy = t.find("d" + y.name());
    if (dy == t.end()) continue;
    auto& info = *g.add_input();
    info = y;
    info.set_name(dy->first);
    auto& type = *info.mutable_type()->mutable_tensor_type();
    type.mutable_shape()->clear_dim();
    for (int64_t d : dy->second.dims()) type.mutable_shape()->add_dim()->set_dim_value(d);
    add_node(g, "Mul", {y.name(), dy->first}, "p_" + y.name());
    auto& sum = add_node(g, "ReduceSum", {"p_" + y.name()}, "s_" + y.name());
    auto& keep = *sum.add_attribute();
    keep.set_name("keepdims");
    keep.set_type(onnx::AttributeProto::INT);
    keep.set_i(0);
    if (loss.empty()) {
      loss = "s_" + y.name();
    } else {
      add_node(g, "Add", {loss, "s_" + y.name()}, "t_" + y.name());
      loss = "t_" + y.name();
    }
  }
  // One parameter that always trains: a case whose gradients are all zero has no other.
  g.add_initializer()->ParseFromString(write_tensor("x_probe", HostTensor(DType::kF64, {1})));
  add_node(g, "ReduceMax", {"x_probe"}, "probe");
  add_node(g, "Squeeze", {"probe"}, "probe_number");
  add_node(g, "Add", {loss, "probe_number"}, "loss_and_probe");
  g.clear_output();
  auto& out = *g.add_output();
  out.set_name("loss_and_probe");
  out.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::DOUBLE);
  out.mutable_type()->mutable_tensor_type()->mutable_shape();
}

std::map<std::string, HostTensor> run(const onnx::ModelProto& m, const Tensors& t, Mode mode,
                                      bool reference, DType compute = DType::kF64) {
  const std::string bytes = m.SerializeAsString();
  const auto file = OnnxFile::parse(std::as_bytes(std::span(bytes)), "", all_ops());
  StepSpec spec;
  spec.mode = mode;
  spec.compute = compute == DType::kF64 ? DType::kF64 : DType::kF32;
  if (mode == Mode::kGrads) {
    spec.loss.kind = "graph";
    spec.train = {"^x"};
  }
  std::map<std::string, const HostTensor*> inputs;
  for (const auto& [name, x] : t) inputs[name] = &x;
  return run_model(file->graph(), spec, inputs, reference);
}

void expect_same(const HostTensor& got, const HostTensor& want, const std::string& what) {
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(got.dims(), want.dims()) << what;
  double largest = 1;
  for (int64_t i = 0; i < want.count(); ++i)
    if (std::isfinite(want.as_double(i))) largest = std::max(largest, std::abs(want.as_double(i)));
  for (int64_t i = 0; i < want.count(); ++i) {
    const double a = got.as_double(i), b = want.as_double(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double tolerance = is_float(want.dtype()) ? 1e-9 * std::abs(b) + 1e-11 * largest : 0;
    ASSERT_LE(std::abs(a - b), tolerance)
        << what << " element " << i << ": " << a << ", PyTorch has " << b;
  }
}

void compare(const Case& c, const Tensors& t, const onnx::ModelProto& forward,
             const onnx::ModelProto& training, bool reference) {
  if (!c.train)
    for (const auto& [name, y] : run(forward, t, Mode::kPredict, reference))
      expect_same(y, t.at(name), name);
  if (c.gradients.empty() || !t.contains("dy0")) return;
  double loss = 0;
  for (const auto& [name, dy] : t)
    if (name.starts_with("dy"))
      for (int64_t i = 0; i < dy.count(); ++i)
        loss += dy.as_double(i) * t.at(name.substr(1)).as_double(i);
  auto got = run(training, t, Mode::kGrads, reference);
  if (std::isfinite(loss)) {
    EXPECT_NEAR(got.at("loss").as_double(0), loss, 1e-9 * std::max(1.0, std::abs(loss)));
  }
  for (const std::string& x : c.gradients) {
    auto it = got.find("grad/" + x);
    const HostTensor& want = t.at("d" + x);
    if (want.rank() == 0 && (it = got.find("grad/" + x + "_1")) != got.end())
      it->second.reshape({});
    if (it != got.end()) {
      expect_same(it->second, want, "gradient of " + x);
      continue;
    }
    for (int64_t i = 0; i < want.count(); ++i)  // not trainable: PyTorch must say zero
      ASSERT_EQ(want.as_double(i), 0) << "no gradient for " << x << ", element " << i;
  }
}

// Every f64 tensor and element type of the model as `to`.
onnx::ModelProto converted(const onnx::ModelProto& model, DType to) {
  onnx::ModelProto m = model;
  const int f64 = onnx::TensorProto::DOUBLE, type = dtype_to_onnx(to);
  const auto tensor = [&](onnx::TensorProto& t) {
    if (t.data_type() != f64) return;
    const Dims dims(t.dims().begin(), t.dims().end());
    const void* data =
        t.has_raw_data() ? t.raw_data().data() : static_cast<const void*>(t.double_data().data());
    HostTensor x(DType::kF64, dims);
    if (x.bytes()) std::memcpy(x.mutable_raw(), data, x.bytes());
    t.ParseFromString(write_tensor(t.name(), x.cast(to)));
  };
  auto& g = *m.mutable_graph();
  for (auto& t : *g.mutable_initializer()) tensor(t);
  for (auto& n : *g.mutable_node())
    for (auto& a : *n.mutable_attribute()) {
      if (a.has_t()) tensor(*a.mutable_t());
      const bool names_type = a.name() == "to" || a.name() == "dtype" || a.name().ends_with("type");
      if (names_type && a.i() == f64) a.set_i(type);
    }
  for (auto* list : {g.mutable_input(), g.mutable_output()})
    for (auto& v : *list) {
      auto& t = *v.mutable_type()->mutable_tensor_type();
      if (t.elem_type() == f64) t.set_elem_type(type);
    }
  return m;
}

// Outputs in `to` against PyTorch's f64: `tolerance` of the largest element of the case.
void compare_in(const Tensors& t, const onnx::ModelProto& forward, DType to, double tolerance) {
  const onnx::ModelProto m = converted(forward, to);
  std::map<std::string, HostTensor> got;
  try {
    got = run(m, t, Mode::kPredict, false, to);
  } catch (const Error&) {
    return;  // an operator may be without this type: `ortrain ops` lists the types
  }
  double largest = 1;
  for (const auto& [name, x] : t)
    if (is_float(x.dtype()) && name[0] != 'd')
      for (int64_t i = 0; i < x.count(); ++i)
        if (std::isfinite(x.as_double(i))) largest = std::max(largest, std::abs(x.as_double(i)));
  for (const auto& [name, y] : got) {
    const HostTensor& want = t.at(name);
    ASSERT_EQ(y.dims(), want.dims()) << name;
    if (!is_float(want.dtype())) continue;  // positions may differ where rounding makes ties
    for (int64_t i = 0; i < want.count(); ++i) {
      const double a = y.as_double(i), b = want.as_double(i);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      ASSERT_LE(std::abs(a - b), tolerance * largest)
          << name_of(to) << " " << name << " element " << i << ": " << a << ", PyTorch has " << b;
    }
  }
}

class TorchGradient : public testing::TestWithParam<Case> {};

TEST_P(TorchGradient, Agrees) {
  const Case& c = GetParam();
  const Tensors t = tensors_of(c);
  onnx::ModelProto forward = model_of(t);
  inputs_to_parameters(forward, t);
  onnx::ModelProto training = forward;
  add_loss(training, t);
  if (!c.train) {
    compare_in(t, forward, DType::kF32, 1e-5);
    compare_in(t, forward, DType::kF16, 1e-2);
    compare_in(t, forward, DType::kBF16, 5e-2);
  }
  for (const bool reference : {false, true}) {
    SCOPED_TRACE(cat(c.name, reference ? ", reference kernels" : ", preferred kernels"));
    try {
      compare(c, t, forward, training, reference);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, TorchGradient, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.label; });

TEST(TorchGradientManifest, CoversTheOperators) {
  std::set<std::string> ops, standard;
  for (const Case& c : cases()) {
    ops.insert(c.op);
    if (c.op.find('.') == std::string::npos) standard.insert(c.op);
  }
  std::printf("PyTorch's gradients: %zu operators (%zu of ai.onnx), %zu cases\n", ops.size(),
              standard.size(), cases().size());
  EXPECT_GE(ops.size(), 150u);
  // The other checks of an operator derive from its own record; this one does not.
  for (const OpDef* op : all_ops().all()) {
    if (op->name.find('.') != std::string::npos || op->inputs.empty() || !op->differentiable())
      continue;
    EXPECT_TRUE(ops.contains(op->name) || ops.contains("com.microsoft." + op->name))
        << op->name << " has no case against PyTorch: add one to tests/golden/ops/cases_*.py";
  }
}

}  // namespace
}  // namespace ortrain::test
