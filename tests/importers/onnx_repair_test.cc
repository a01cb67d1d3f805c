// What exporters break in the parameters: merged scales separate, lost ties join, and the export
// has the new values at every place that the file has or needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

// y = ((x * s) + s2) * s with s = s2 = 1 in one tensor, as exporters merge it; m [2,2] all zero.
onnx::ModelProto merged_model(std::vector<float> s = {1, 1}) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2, 2});
  add_output(g, "y");
  *g.add_initializer() = float_tensor("s", {2}, s, true);
  *g.add_initializer() = float_tensor("m", {2, 2}, {0, 0, 0, 0}, true);
  add_node(g, "Mul", "one", {"x", "s"}, {"a"});
  add_node(g, "Add", "two", {"a", "s"}, {"b"});
  add_node(g, "Mul", "three", {"b", "s"}, {"c"});
  add_node(g, "MatMul", "four", {"c", "m"}, {"d"});
  add_node(g, "MatMul", "five", {"d", "m"}, {"y"});
  return m;
}

std::unique_ptr<OnnxFile> open_with(const onnx::ModelProto& m, const OpTable& ops,
                                    const ImportOptions& options) {
  const std::string bytes = m.SerializeAsString();
  return OnnxFile::parse(std::as_bytes(std::span(bytes)), "", ops, options);
}

TEST(Repair, MergedScalesTrainApartAndAreExportedApart) {
  const onnx::ModelProto m = merged_model();
  OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  EXPECT_EQ(names_of(file->graph(), Source::kParam), (Names{"m", "s", "s@three.1", "s@two.1"}));
  ASSERT_EQ(file->problems().size(), 1u);
  EXPECT_THAT(file->problems()[0], HasSubstr("'s' (all 1) was 3 tensors"));
  // The file has one tensor for three: a new value of one moves the others out of its way.
  TempFolder folder;
  const HostTensor value = HostTensor::of<float>({2}, {7, 8});
  file->export_model(folder.path("m.onnx"),
                     [&](const std::string& n) { return n == "s" ? &value : nullptr; });
  const auto again = OnnxFile::open(folder.path("m.onnx"), ops);
  const Graph& g = again->graph();
  EXPECT_EQ(again->hash(), file->hash());
  EXPECT_THAT(again->problems(), IsEmpty());
  EXPECT_EQ(floats_of(*g.tensor(g.find("s"))), (std::vector<float>{7, 8}));
  EXPECT_EQ(floats_of(*g.tensor(g.find("s@two.1"))), (std::vector<float>{1, 1}));
  EXPECT_EQ(floats_of(*g.tensor(g.find("s@three.1"))), (std::vector<float>{1, 1}));
}

TEST(Repair, NoNameCollides) {
  onnx::ModelProto m = merged_model();
  auto& g = *m.mutable_graph();
  *g.mutable_node(3)->mutable_output(0) = "s@two.1";
  *g.mutable_node(4)->mutable_input(0) = "s@two.1";
  const OpTable ops = table_for(m);
  EXPECT_EQ(names_of(parse(m, ops)->graph(), Source::kParam),
            (Names{"m", "s", "s@three.1", "s@two.1@2"}));
}

TEST(Repair, WhatDiffersOrIsMeantAsOneStaysOne) {
  const onnx::ModelProto m = merged_model({1, 2});
  EXPECT_EQ(names_of(parse(m, table_for(m))->graph(), Source::kParam), (Names{"m", "s"}));
  const onnx::ModelProto same = merged_model();
  const OpTable ops = table_for(same);
  const auto file = open_with(same, ops, {.untie = false});
  EXPECT_EQ(names_of(file->graph(), Source::kParam), (Names{"m", "s"}));
  ASSERT_EQ(file->problems().size(), 1u);
  EXPECT_THAT(file->problems()[0], HasSubstr("--untie on"));
  onnx::ModelProto square = empty_model();  // s * s reads one parameter twice
  auto& g = *square.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  *g.add_initializer() = float_tensor("s", {2}, {1, 1}, true);
  add_node(g, "Mul", "a", {"s", "s"}, {"q"});
  add_node(g, "Mul", "b", {"q", "x"}, {"y"});
  EXPECT_EQ(names_of(parse(square, table_for(square))->graph(), Source::kParam), (Names{"s"}));
}

// logits = MatMul(Gather(e, ids), h) with h the transposed copy of e.
onnx::ModelProto twins() {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "ids", {4}, onnx::TensorProto::INT64);
  add_output(g, "y");
  *g.add_initializer() = float_tensor("e", {3, 2}, {1, 2, 3, 4, 5, 6}, true);
  *g.add_initializer() = float_tensor("h", {2, 3}, {1, 3, 5, 2, 4, 6}, true);
  *g.add_initializer() = float_tensor("other", {2, 3}, {1, 3, 5, 2, 4, 7}, true);
  add_node(g, "Gather", "look", {"e", "ids"}, {"a"});
  add_node(g, "MatMul", "head", {"a", "h"}, {"b"});
  add_node(g, "MatMul", "more", {"a", "other"}, {"c"});
  add_node(g, "Add", "sum", {"b", "c"}, {"y"});
  return m;
}

OpTable twin_table() { return table_of({"Gather", "MatMul", "Add", "Transpose"}); }

TEST(Repair, ATransposedTwinIsOneParameterWhenAsked) {
  const OpTable ops = twin_table();
  const auto apart = parse(twins(), ops);
  EXPECT_EQ(names_of(apart->graph(), Source::kParam), (Names{"e", "h", "other"}));
  ASSERT_EQ(apart->problems().size(), 1u);
  EXPECT_THAT(apart->problems()[0], HasSubstr("'h' is a transposed copy"));
  for (const char* asked : {"auto", "e=h", "h=e"}) {
    const auto file = open_with(twins(), ops, {.tie = asked});
    const std::string kept = asked[0] == 'h' ? "h" : "e", copy = kept == "h" ? "e" : "h";
    EXPECT_EQ(names_of(file->graph(), Source::kParam), (Names{kept, "other"}));
    EXPECT_EQ(file->hash(), apart->hash()) << "the file's structure is the same";
    TempFolder folder;
    const HostTensor value = kept == "e" ? HostTensor::of<float>({3, 2}, {9, 8, 7, 6, 5, 4})
                                         : HostTensor::of<float>({2, 3}, {9, 7, 5, 8, 6, 4});
    file->export_model(folder.path("m.onnx"),
                       [&](const std::string& n) { return n == kept ? &value : nullptr; });
    const auto again = OnnxFile::open(folder.path("m.onnx"), ops);
    const Graph& g = again->graph();
    EXPECT_EQ(floats_of(*g.tensor(g.find("e"))), (std::vector<float>{9, 8, 7, 6, 5, 4}));
    EXPECT_EQ(floats_of(*g.tensor(g.find("h"))), (std::vector<float>{9, 7, 5, 8, 6, 4}));
    EXPECT_EQ(floats_of(*g.tensor(g.find("other"))), (std::vector<float>{1, 3, 5, 2, 4, 7}));
  }
}

void note(google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& props,
          const std::string& key, const std::string& value) {
  auto& e = *props.Add();
  e.set_key(key);
  e.set_value(value);
}

// The notes of PyTorch's exporter name what the file does not hold any more.
TEST(Repair, WhatIsFoldedIsNamed) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {1, 1, 4, 4});
  add_output(g, "y");
  *g.add_initializer() = float_tensor("c.weight", {1, 1, 1, 1}, {2}, true);
  *g.add_initializer() = float_tensor("val_1", {4, 4}, std::vector<float>(16, 3), true);
  *g.add_initializer() = float_tensor("embedding_1", {1, 4}, {1, 2, 3, 4}, true);
  auto& conv = add_node(g, "Conv", "conv", {"x", "c.weight"}, {"a"});
  note(*conv.mutable_metadata_props(), "pkg.onnxscript.rewriter.rule_name",
       "FuseBatchNormIntoConv");
  auto& linear = add_node(g, "MatMul", "linear", {"a", "val_1"}, {"b"});
  note(*linear.mutable_metadata_props(), "pkg.torch.onnx.fx_node",
       "%linear : call_function[target=x](args = (%a, %p_l_weight, %p_l_bias), kwargs = {})");
  add_node(g, "Add", "add", {"b", "embedding_1"}, {"y"});
  note(*g.mutable_metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature",
       "# inputs\np_l_weight: PARAMETER target='l.weight'\np_l_bias: PARAMETER target='l.bias'\n"
       "p_pos: PARAMETER target='pos.weight'\n");
  auto& info = *g.add_value_info();
  info.set_name("embedding_1");
  note(*info.mutable_metadata_props(), "pkg.onnxscript.optimizer.folded_from",
       "['arange', 'pos.weight']");
  const OpTable ops = table_for(m);
  EXPECT_THAT(parse(m, ops)->problems(),
              ElementsAre(HasSubstr("BatchNormalization looks folded into 'conv'"),
                          HasSubstr("'embedding_1' from 'pos.weight'"),
                          HasSubstr("dropped do not train: 'l.bias'")));
  m.mutable_graph()->clear_metadata_props();  // another exporter's file: nothing is guessed
  m.mutable_graph()->mutable_node(0)->clear_metadata_props();
  EXPECT_THAT(parse(m, ops)->problems(), IsEmpty());
}

std::string tie_error(const std::string& asked) {
  try {
    const OpTable ops = twin_table();
    open_with(twins(), ops, {.tie = asked});
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

TEST(Repair, ATieThatWouldChangeTheModelIsRefused) {
  EXPECT_THAT(tie_error("e=other"), HasSubstr("their contents differ"));
  EXPECT_THAT(tie_error("e=othre"), HasSubstr("did you mean 'other'"));
  EXPECT_THAT(tie_error("e=e"), HasSubstr("itself"));
  EXPECT_THAT(tie_error("yes"), HasSubstr("expected auto, off or"));
}

}  // namespace
}  // namespace ortrain::test
