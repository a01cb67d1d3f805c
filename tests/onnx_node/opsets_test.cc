// ctest-timeout: 300
// Every operator in every form that it had since opset 7, one tiny model each, against
// onnx.reference or numpy (tests/golden/opsets/make_opsets.py, which made the stored file).
//
// A case passes, or kRefused names it with what our error must say, so that the list stays true.
// Cases of operators without a record are counted. ORTRAIN_OPSET_CASE=SUBSTRING runs a part.
#include <gtest/gtest.h>
#include <onnx/onnx-ml.pb.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "graph/pipeline.h"
#include "importers/onnx.h"
#include "importers/onnx_tensor.h"
#include "ops/all_ops.h"
#include "ortrain_test_paths.h"
#include "runtime/evaluate.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

struct Refused {
  const char* name;
  const char* message;  // part of our error
};
const std::vector<Refused> kRefused = {};

// One prediction through importer, passes, planner and executor.
std::vector<HostTensor> predict(const onnx::ModelProto& model,
                                const std::map<std::string, const HostTensor*>& inputs,
                                const OpTable& ops) {
  const std::string bytes = model.SerializeAsString();
  const auto file = OnnxFile::parse(std::as_bytes(std::span(bytes)), "", ops);
  StepSpec spec;
  spec.mode = Mode::kPredict;
  spec.file_modes = true;
  for (const auto& [name, tensor] : inputs) spec.input_dims[name] = tensor->dims();
  CompileResult compiled = compile(file->graph(), spec, {.evaluate = make_evaluator()});
  ParamStore store;
  const Plan plan = make_plan(compiled.graph, store, {});
  Arena arena;
  arena.reserve(plan.arena_bytes);
  arena.allocate();
  Executor executor(plan, arena);
  std::vector<const void*> data;
  for (const PlanTensor& t : plan.inputs) data.push_back(inputs.at(t.name)->raw());
  executor.run(data);
  std::vector<HostTensor> out;
  for (const auto& o : model.graph().output()) {
    const int i = plan.output(o.name());
    if (i < 0) fail(ErrorCode::kModel, "the plan has no output '", o.name(), "'");
    out.push_back(executor.output(i).clone());
  }
  return out;
}

// |got - want| <= atol + rtol |want| with the defaults of onnx.backend.test; "" = equal.
std::string difference(const HostTensor& got, const HostTensor& want) {
  constexpr double kRtol = 1e-3, kAtol = 1e-7;
  if (got.dtype() != want.dtype())
    return cat("type ", name_of(got.dtype()), ", expected ", name_of(want.dtype()));
  if (got.dims() != want.dims())
    return cat("shape ", Shape(got.dims()).str(), ", expected ", Shape(want.dims()).str());
  for (int64_t i = 0; i < got.count(); ++i) {
    if (!is_float(got.dtype()) && !is_storage_float(got.dtype())) {
      if (got.as_int(i) != want.as_int(i))
        return cat("element ", i, " is ", got.as_int(i), ", expected ", want.as_int(i));
      continue;
    }
    const double a = got.as_double(i), b = want.as_double(i);
    const bool equal = (std::isnan(a) && std::isnan(b)) || a == b ||
                       std::abs(a - b) <= kAtol + kRtol * std::abs(b);
    if (!equal) return cat("element ", i, " is ", a, ", expected ", b);
  }
  return "";
}

const onnx::AttributeProto* attribute(const onnx::NodeProto& n, const char* name) {
  for (const auto& a : n.attribute())
    if (a.name() == name) return &a;
  return nullptr;
}

// "" when the case passes, "no record" or what went wrong.
std::string run_case(const onnx::NodeProto& c, const OpTable& ops) {
  onnx::ModelProto model;
  if (!model.ParseFromString(attribute(c, "model")->s())) return "cannot parse the model";
  const std::string& op = model.graph().node(0).op_type();
  const auto tensors = [&](const char* name) {
    std::vector<HostTensor> out;
    if (const auto* a = attribute(c, name))
      for (const auto& t : a->tensors()) {
        HostTensor read(dtype_from_onnx(t.data_type()), Dims(t.dims().begin(), t.dims().end()));
        EXPECT_EQ(read.bytes(), t.raw_data().size()) << c.name();
        std::memcpy(read.mutable_raw(), t.raw_data().data(), t.raw_data().size());
        out.push_back(std::move(read));
      }
    return out;
  };
  const std::vector<HostTensor> feeds = tensors("feeds"), results = tensors("results");
  std::map<std::string, const HostTensor*> inputs;
  for (size_t i = 0; i < feeds.size(); ++i)
    inputs[attribute(c, "feeds")->tensors(static_cast<int>(i)).name()] = &feeds[i];
  try {
    const std::vector<HostTensor> got = predict(model, inputs, ops);
    for (size_t i = 0; i < got.size(); ++i)
      if (const std::string d = difference(got[i], results[i]); !d.empty())
        return cat("output ", i, ": ", d);
  } catch (const Error& e) {
    const std::string text = e.what();
    return text.find("no such operator") != std::string::npos && !ops.find(op) ? "no record" : text;
  }
  return "";
}

TEST(Opsets, EveryFormOfEveryOperator) {
  onnx::ModelProto all;
  std::ifstream in(fs::path(kSourceDir) / "tests/golden/opsets/opsets.onnx", std::ios::binary);
  ASSERT_TRUE(all.ParseFromIstream(&in));
  OpTable ops;
  ops::register_all(ops);
  const char* only = std::getenv("ORTRAIN_OPSET_CASE");
  int passed = 0, without = 0, refused = 0;
  for (const auto& c : all.graph().node()) {
    if (only && c.name().find(only) == std::string::npos) continue;
    const std::string why = run_case(c, ops);
    if (only) std::printf("%s: %s\n", c.name().c_str(), why.c_str());
    const auto it = std::find_if(kRefused.begin(), kRefused.end(),
                                 [&](const Refused& r) { return c.name() == r.name; });
    if (it != kRefused.end()) {
      ++refused;
      EXPECT_NE(why.find(it->message), std::string::npos)
          << c.name() << ": expected a refusal with '" << it->message << "', got '" << why << "'";
      continue;
    }
    passed += why.empty();
    without += why == "no record";
    if (!why.empty() && why != "no record") ADD_FAILURE() << c.name() << ": " << why;
  }
  std::printf("%d forms passed, %d refused as listed, %d of operators without a record\n", passed,
              refused, without);
  EXPECT_TRUE(only || passed > 500);
}

}  // namespace
}  // namespace ortrain::test
