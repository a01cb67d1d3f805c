// Every golden model (PyTorch's exporters) imports, and its export is the same file with new values
// in its float tensors: protobuf, which shares no code with our reader, is the witness.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>

#include "ortrain_test_paths.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> golden_models() {
  std::vector<std::string> out;
  for (const auto& e : fs::recursive_directory_iterator(fs::path(kSourceDir) / "tests/golden"))
    if (e.path().extension() == ".onnx" && fs::exists(e.path().parent_path() / "case.json"))
      out.push_back(e.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

onnx::ModelProto load(const std::string& path) {
  onnx::ModelProto m;
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(m.ParseFromIstream(&in)) << path;
  return m;
}

// All float tensors of the main graph with an axis, by name.
std::map<std::string, onnx::TensorProto*> float_tensors(onnx::ModelProto& m) {
  std::map<std::string, onnx::TensorProto*> out;
  for (auto& t : *m.mutable_graph()->mutable_initializer())
    if (t.data_type() == onnx::TensorProto::FLOAT) out[t.name()] = &t;
  for (auto& n : *m.mutable_graph()->mutable_node())
    if (n.op_type() == "Constant" && n.attribute(0).t().data_type() == onnx::TensorProto::FLOAT)
      out[n.output(0)] = n.mutable_attribute(0)->mutable_t();
  return out;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, Imports) {
  onnx::ModelProto m = load(GetParam());
  const OpTable ops = table_for(m);
  const auto file = OnnxFile::open(GetParam(), ops);
  const Graph& g = file->graph();
  ASSERT_EQ(g.outputs().size(), static_cast<size_t>(m.graph().output_size()));
  ASSERT_EQ(g.inputs().size(), static_cast<size_t>(m.graph().input_size()));
  int tensors = 0;
  for (const auto& [name, t] : float_tensors(m)) {
    const ValueId v = g.find(name);
    ASSERT_NE(v, kNone) << name;
    const std::string& raw = t->raw_data();
    ASSERT_EQ(g.tensor(v)->bytes(), raw.size()) << name;
    EXPECT_EQ(0, std::memcmp(g.tensor(v)->raw(), raw.data(), raw.size())) << name;
    ++tensors;
  }
  EXPECT_GT(tensors, 0);
  for (const auto& n : m.graph().node())
    if (n.op_type() == "BatchNormalization") {
      EXPECT_EQ(g.value(g.find(n.input(1))).source, Source::kParam);
      EXPECT_EQ(g.value(g.find(n.input(3))).source, Source::kState) << n.input(3);
      EXPECT_EQ(g.value(g.find(n.input(4))).source, Source::kState) << n.input(4);
    }
  EXPECT_EQ(g.topo().size(), static_cast<size_t>(g.node_count()));
}

TEST_P(Golden, ExportChangesOnlyTheValues) {
  onnx::ModelProto m = load(GetParam());
  const OpTable ops = table_for(m);
  const ImportOptions as_it_is{.untie = false};  // separated tensors are new ones in the export
  const auto file = OnnxFile::open(GetParam(), ops, as_it_is);
  TempFolder folder;
  const std::string path = folder.path("model.onnx");
  file->export_model(path, nullptr);
  EXPECT_EQ(read_file(path), read_file(GetParam()));

  std::map<std::string, HostTensor> values;
  for (auto& [name, t] : float_tensors(m)) {
    HostTensor v = file->graph().tensor(file->graph().find(name))->clone();
    for (int64_t i = 0; i < v.count(); ++i) v.mutable_data<float>()[i] += 1.5f;
    t->set_raw_data(v.raw(), v.bytes());
    values.emplace(name, std::move(v));
  }
  file->export_model(path, [&](const std::string& name) {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : &it->second;
  });
  const onnx::ModelProto got = load(path);
  EXPECT_EQ(got.SerializeAsString(), m.SerializeAsString());
  EXPECT_EQ(OnnxFile::open(path, ops, as_it_is)->hash(), file->hash());
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, ::testing::ValuesIn(golden_models()), [](const auto& info) {
  const fs::path p(info.param);
  std::string name = p.parent_path().filename().string() + "_" + p.stem().string();
  for (char& c : name)  // what GoogleTest allows; the index keeps "a-b" and "a_b" apart
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name + "_" + std::to_string(info.index);
});

// PyTorch's TorchScript exporter merges equal tensors through Identity nodes. Scales, biases and
// statistics become tensors of their own again, and the export writes them as initializers.
TEST(GoldenMerged, StatisticsAreSeparatedAndExported) {
  onnx::ModelProto m = linear_model();  // only the shape of the merge matters
  m.mutable_graph()->clear_node();
  auto& g = *m.mutable_graph();
  *g.add_initializer() = float_tensor("bn.bias", {3}, {0, 0, 0}, true);
  *g.add_initializer() = float_tensor("bn.weight", {3}, {1, 1, 1}, true);
  add_node(g, "Identity", "", {"bn.bias"}, {"bn.running_mean"});
  add_node(g, "Identity", "", {"bn.weight"}, {"bn.running_var"});
  add_node(g, "BatchNormalization", "bn",
           {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}, {"h"});
  add_node(g, "Gemm", "fc", {"h", "w", "b"}, {"y"});
  const OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  EXPECT_EQ(names_of(file->graph(), Source::kParam),
            (std::vector<std::string>{"b", "bn.bias", "bn.weight", "w"}));
  EXPECT_EQ(names_of(file->graph(), Source::kState),
            (std::vector<std::string>{"bn.running_mean", "bn.running_var"}));
  EXPECT_EQ(file->problems().size(), 2u);  // one line for each merged tensor
  TempFolder folder;
  const HostTensor mean = HostTensor::of<float>({3}, {5, 6, 7});
  file->export_model(folder.path("m.onnx"), [&](const std::string& name) {
    return name == "bn.running_mean" ? &mean : nullptr;
  });
  const auto again = OnnxFile::open(folder.path("m.onnx"), ops);
  const Graph& r = again->graph();
  EXPECT_EQ(floats_of(*r.tensor(r.find("bn.running_mean"))), (std::vector<float>{5, 6, 7}));
  EXPECT_EQ(floats_of(*r.tensor(r.find("bn.bias"))), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(floats_of(*r.tensor(r.find("bn.running_var"))), (std::vector<float>{1, 1, 1}));
}

}  // namespace
}  // namespace ortrain::test
