// ctest-timeout: 300
// Every operator in every form that it had since opset 7, one tiny model each, against
// onnx.reference or numpy (tests/golden/opsets/make_opsets.py, which made the stored file).
//
// ORTRAIN_OPSET_CASE=SUBSTRING runs a part.
#include <gtest/gtest.h>
#include <onnx/onnx-ml.pb.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "importers/onnx.h"
#include "importers/onnx_tensor.h"
#include "ops/all_ops.h"
#include "ortrain_test_paths.h"
#include "tests/ops/run_model.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

const onnx::AttributeProto* attribute(const onnx::NodeProto& n, const char* name) {
  for (const auto& a : n.attribute())
    if (a.name() == name) return &a;
  return nullptr;
}

// "" when the case passes, else what went wrong.
std::string run_case(const onnx::NodeProto& c, const OpTable& ops) {
  onnx::ModelProto model;
  if (!model.ParseFromString(attribute(c, "model")->s())) return "cannot parse the model";
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
    const std::string& bytes = attribute(c, "model")->s();
    const auto file = OnnxFile::parse(std::as_bytes(std::span(bytes)), "", ops);
    StepSpec spec;
    spec.mode = Mode::kPredict;
    spec.file_modes = true;
    const auto got = run_model(file->graph(), spec, inputs);
    for (int i = 0; i < model.graph().output_size(); ++i) {
      const std::string& name = model.graph().output(i).name();
      if (const std::string d = difference(got, name, results.at(static_cast<size_t>(i)));
          !d.empty())
        return cat("output '", name, "': ", d);
    }
  } catch (const Error& e) {
    return e.what();
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
  int passed = 0;
  for (const auto& c : all.graph().node()) {
    if (only && c.name().find(only) == std::string::npos) continue;
    const std::string why = run_case(c, ops);
    if (only) std::printf("%s: %s\n", c.name().c_str(), why.c_str());
    passed += why.empty();
    EXPECT_EQ(why, "") << c.name();
  }
  std::printf("%d forms passed\n", passed);
  EXPECT_TRUE(only || passed > 500);
}

}  // namespace
}  // namespace ortrain::test
