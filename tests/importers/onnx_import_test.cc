// The importer on small models: sources, names, dims, attributes, older opsets, functions,
// branches, sequences, and the message for each thing that is wrong or missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/structure.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Names = std::vector<std::string>;

std::string op_of(const Graph& g, const std::string& value) {
  return g.node(g.value(g.find(value)).producer).op->name;
}
const Node& node_of(const Graph& g, const std::string& value) {
  return g.node(g.value(g.find(value)).producer);
}

TEST(Import, SourcesAndDims) {
  onnx::ModelProto m = linear_model();
  auto& g = *m.mutable_graph();
  add_input(g, "w", {2, 3});  // IR < 4 lists initializers among the inputs
  auto* shape = g.mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  shape->mutable_dim(1)->clear_dim_value();
  *g.add_initializer() = int_tensor("axes", {1}, {4});
  *g.add_initializer() = float_tensor("alpha", {}, {0.5}, true);
  const auto file = parse(m, table_for(m));
  const Graph& r = file->graph();
  EXPECT_EQ(names_of(r, Source::kParam), (Names{"b", "w"}));
  EXPECT_EQ(names_of(r, Source::kConst), (Names{"alpha", "axes"}));
  ASSERT_EQ(r.inputs().size(), 1u);
  const Value& x = r.value(r.inputs()[0]);
  EXPECT_EQ(x.dtype, DType::kF32);
  EXPECT_EQ(x.shape[0], Dim::symbol("batch"));
  EXPECT_FALSE(x.shape[1].is_const());
  EXPECT_THAT(x.shape[1].str(), HasSubstr("x_1"));
  EXPECT_THAT(r.output_names(), ElementsAre("y"));
  EXPECT_EQ(r.stage, Stage::kImported);
  EXPECT_EQ(node_of(r, "y").origin, "fc");
  EXPECT_EQ(node_of(r, "y").attrs.i("transB", 0), 1);
  EXPECT_EQ(floats_of(*r.tensor(r.find("w"))), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(Import, NodesInAnyOrderCyclesNamed) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "c");
  add_node(g, "Relu", "second", {"a"}, {"c"});
  add_node(g, "Abs", "", {"x"}, {"a"});
  const OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  EXPECT_EQ(file->graph().topo().size(), 2u);
  EXPECT_EQ(node_of(file->graph(), "a").origin, "Abs_1");  // made up for a node without a name
  g.mutable_node(1)->set_input(0, "c");
  EXPECT_THAT(import_error(m, ops), AllOf(HasSubstr("model: "), HasSubstr("cycle"),
                                          HasSubstr("'second'"), HasSubstr("'Abs_1'")));
}

TEST(Import, MalformedGraphsNameTheNode) {
  const OpTable ops = table_of({"Relu", "Add"});
  onnx::ModelProto base = empty_model();
  add_input(*base.mutable_graph(), "x", {2});
  add_output(*base.mutable_graph(), "y");
  {
    auto m = base;
    add_node(*m.mutable_graph(), "Relu", "r", {"nowhere"}, {"y"});
    EXPECT_THAT(import_error(m, ops), HasSubstr("model: Relu 'r' reads 'nowhere', which is no"));
  }
  {
    auto m = base;
    add_node(*m.mutable_graph(), "Relu", "r", {"x"}, {"z"});
    EXPECT_THAT(import_error(m, ops), HasSubstr("model: the list of outputs reads 'y'"));
  }
  {
    auto m = base;
    add_node(*m.mutable_graph(), "Relu", "r", {"x"}, {"y"});
    add_node(*m.mutable_graph(), "Relu", "s", {"x"}, {"y"});
    EXPECT_THAT(import_error(m, ops), HasSubstr("model: the name 'y' is defined twice"));
  }
  {
    auto m = base;
    *m.mutable_graph()->add_initializer() = float_tensor("w", {2}, {1, 2}, true);
    *m.mutable_graph()->add_initializer() = float_tensor("w", {2}, {1, 2}, true);
    EXPECT_THAT(import_error(m, ops), HasSubstr("'w' is defined twice"));
  }
  {
    auto m = base;
    auto& n = add_node(*m.mutable_graph(), "Relu", "r", {"x"}, {"y"});
    set_int(n, "k", 1);
    set_int(n, "k", 2);
    EXPECT_THAT(import_error(m, ops), HasSubstr("attribute 'k' twice"));
  }
  {
    auto m = base;
    add_input(*m.mutable_graph(), "x", {3});
    EXPECT_THAT(import_error(m, ops), HasSubstr("two inputs are called 'x'"));
  }
  {
    auto m = base;
    m.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
    EXPECT_THAT(import_error(m, ops), HasSubstr("unsupported: input 'x' has no shape"));
  }
  {
    auto m = base;
    *m.mutable_graph()->add_initializer() = float_tensor("w", {4}, {1, 2}, true);
    EXPECT_THAT(import_error(m, ops), HasSubstr("model: tensor 'w': raw data has 8 bytes"));
  }
  EXPECT_THAT(import_error(onnx::ModelProto(), ops), HasSubstr("empty"));
  onnx::ModelProto none;
  none.set_ir_version(8);
  EXPECT_THAT(import_error(none, ops), HasSubstr("no graph"));
}

TEST(Import, CountsAreCheckedAgainstTheRecord) {
  OpTable ops;
  ops.add({.name = "Add", .inputs = {"a", "b"}, .outputs = {"c"}, .infer = infer_broadcast});
  ops.add({.name = "Sum", .inputs = {"xs*"}, .outputs = {"c"}, .infer = infer_broadcast});
  ops.add({.name = "Clip",
           .inputs = {"x", "min?", "max?"},
           .outputs = {"y"},
           .infer = infer_same_as_first});
  const auto with = [&](const std::string& op, Names in, Names out) {
    onnx::ModelProto m = empty_model();
    add_input(*m.mutable_graph(), "x", {2});
    add_output(*m.mutable_graph(), "y");
    add_node(*m.mutable_graph(), op, "n", in, out);
    return import_error(m, ops);
  };
  EXPECT_EQ(with("Add", {"x", "x"}, {"y"}), "");
  EXPECT_THAT(with("Add", {"x"}, {"y"}), HasSubstr("Add 'n' lacks inputs 1 ('b')"));
  EXPECT_THAT(with("Add", {"", "x"}, {"y"}), HasSubstr("lacks inputs 0"));
  EXPECT_THAT(with("Add", {"x", "x", "x"}, {"y"}), HasSubstr("has 3 inputs, Add takes at most 2"));
  EXPECT_THAT(with("Add", {"x", "x"}, {"y", "z"}), HasSubstr("has 2 outputs"));
  EXPECT_EQ(with("Sum", {"x", "x", "x"}, {"y"}), "");
  EXPECT_EQ(with("Clip", {"x", "", "x"}, {"y"}), "");
  EXPECT_EQ(with("Clip", {"x", "", ""}, {"y", ""}), "");
}

TEST(Import, AllProblemsAtOnce) {
  onnx::ModelProto m = empty_model(13);
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  add_node(g, "Foo", "foo1", {"x"}, {"a"});
  add_node(g, "Relu", "r", {"a"}, {"b"});
  add_node(g, "Foo", "foo2", {"b"}, {"c"});
  add_node(g, "Bar", "bar", {"c"}, {"d"}).set_domain("my.domain");
  auto* loop = &add_node(g, "Loop", "loop", {"d"}, {"e"});
  auto* body = loop->add_attribute();
  body->set_name("body");
  body->set_type(onnx::AttributeProto::GRAPH);
  body->mutable_g()->set_name("b");
  auto& cast = add_node(g, "Cast", "cast", {"x"}, {"f"});
  set_int(cast, "to", onnx::TensorProto::COMPLEX64);
  add_node(g, "Add", "add", {"e", "f"}, {"y"});
  const std::string e = import_error(m, table_of({"Relu", "Add", "Cast", "Floor"}));
  EXPECT_THAT(e, HasSubstr("unsupported: "));
  EXPECT_THAT(e, HasSubstr("Foo (domain ai.onnx, opset 13): no such operator in ortrain"));
  EXPECT_THAT(e, HasSubstr("'foo1', 'foo2'"));
  EXPECT_THAT(e, HasSubstr("nearest: "));
  EXPECT_THAT(e, HasSubstr("Bar (domain my.domain, opset 1)"));
  EXPECT_THAT(e, HasSubstr("Loop (domain ai.onnx): no such operator in ortrain; at 'loop'"));
  EXPECT_THAT(e, HasSubstr("COMPLEX64 is not supported; at 'cast'"));
  EXPECT_THAT(e, Not(HasSubstr("Relu")));
}

TEST(Import, OpsetsOutOfRangeAreRefused) {
  onnx::ModelProto m = linear_model();
  const OpTable ops = table_for(m);
  for (int v : {1, 6}) {
    m.mutable_opset_import(0)->set_version(v);
    EXPECT_THAT(import_error(m, ops), HasSubstr("ortrain reads 7 to 27")) << v;
  }
  m.mutable_opset_import(0)->set_version(7);
  EXPECT_EQ(import_error(m, ops), "");
  m.mutable_opset_import(0)->set_version(28);
  EXPECT_THAT(import_error(m, ops), HasSubstr("uses opset 28"));
  m.clear_opset_import();
  EXPECT_THAT(import_error(m, ops), HasSubstr("uses opset 1 "));
}

TEST(Import, AdaptSeesTheNodesOpsetAndMayRename) {
  OpTable ops;
  ops.add({.name = "Upsample", .infer = infer_same_as_first, .adapt = [](RawNode& n) {
             EXPECT_EQ(n.opset, 9);
             n.op = "Resize";
             n.set_input(2, n.inputs[1]);
             n.inputs[1] = kNone;
             n.ints_to_input("sizes", 3);
           }});
  ops.add({.name = "Resize", .infer = infer_same_as_first});
  onnx::ModelProto m = empty_model(9);
  auto& g = *m.mutable_graph();
  add_input(g, "x", {1, 1, 2, 2});
  add_output(g, "y");
  *g.add_initializer() = float_tensor("scales", {4}, {1, 1, 2, 2}, true);
  auto& n = add_node(g, "Upsample", "up", {"x", "scales"}, {"y"});
  auto* a = n.add_attribute();
  a->set_name("sizes");
  a->set_type(onnx::AttributeProto::INTS);
  a->add_ints(3);
  const auto file = parse(m, ops);
  const Node& r = node_of(file->graph(), "y");
  EXPECT_EQ(r.op->name, "Resize");
  ASSERT_EQ(r.inputs.size(), 4u);
  EXPECT_EQ(r.inputs[1], kNone);
  EXPECT_EQ(file->graph().value(r.inputs[2]).name, "scales");
  EXPECT_EQ(file->graph().tensor(r.inputs[3])->as_ints(), (std::vector<int64_t>{3}));
  EXPECT_TRUE(r.attrs.empty());
}

TEST(Import, Attributes) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  auto& n = add_node(g, "Odd", "odd", {"x"}, {"y"});
  const auto attribute = [&](const char* name, onnx::AttributeProto::AttributeType type) {
    auto* a = n.add_attribute();
    a->set_name(name);
    a->set_type(type);
    return a;
  };
  attribute("f", onnx::AttributeProto::FLOAT)->set_f(0.1f);
  attribute("s", onnx::AttributeProto::STRING)->set_s("text");
  auto* floats = attribute("fs", onnx::AttributeProto::FLOATS);
  floats->add_floats(1);
  floats->add_floats(2.5);
  attribute("ss", onnx::AttributeProto::STRINGS)->add_strings("a");
  attribute("empty", onnx::AttributeProto::INTS);
  attribute("to", onnx::AttributeProto::INT)->set_i(onnx::TensorProto::BFLOAT16);
  const auto file = parse(m, table_for(m));
  const Attrs& a = node_of(file->graph(), "y").attrs;
  EXPECT_EQ(a.f("f", 0), static_cast<double>(0.1f));
  EXPECT_EQ(a.s("s", ""), "text");
  EXPECT_EQ(a.floats("fs"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(a.strings("ss"), Names{"a"});
  EXPECT_TRUE(a.has("empty"));
  EXPECT_EQ(a.s("to", ""), "bf16");
}

TEST(Import, ConstantNodesBecomeValues) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  set_tensor(add_node(g, "Constant", "c", {}, {"w"}), "value", float_tensor("", {2}, {1, 2}, true));
  set_tensor(add_node(g, "Constant", "", {}, {"scale"}), "value",
             float_tensor("", {4}, {1, 1, 2, 2}, true));
  auto* floats = add_node(g, "Constant", "", {}, {"v"}).add_attribute();
  floats->set_name("value_floats");
  floats->set_type(onnx::AttributeProto::FLOATS);
  floats->add_floats(3);
  floats->add_floats(4);
  auto* number = add_node(g, "Constant", "", {}, {"s"}).add_attribute();
  number->set_name("value_float");
  number->set_type(onnx::AttributeProto::FLOAT);
  number->set_f(7);
  auto* text = add_node(g, "Constant", "", {}, {"unused"}).add_attribute();
  text->set_name("value_string");
  text->set_type(onnx::AttributeProto::STRING);
  text->set_s("nobody reads this");
  add_node(g, "Add", "a1", {"x", "w"}, {"t1"});
  add_node(g, "Add", "a2", {"t1", "v"}, {"t2"});
  add_node(g, "Mul", "m", {"t2", "s"}, {"t3"});
  add_node(g, "Resize", "rs", {"t3", "", "scale"}, {"y"});
  const OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  const Graph& r = file->graph();
  EXPECT_EQ(names_of(r, Source::kParam), (Names{"v", "w"}));
  EXPECT_EQ(names_of(r, Source::kConst), (Names{"s", "scale"}));  // no gradient reaches scale
  EXPECT_EQ(floats_of(*r.tensor(r.find("v"))), (std::vector<float>{3, 4}));
  EXPECT_EQ(r.topo().size(), 4u);
  g.mutable_node(5)->set_input(1, "unused");
  EXPECT_THAT(import_error(m, ops), HasSubstr("strings and sparse tensors"));
}

TEST(Import, ConstantOfShapeValue) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_output(g, "y");
  *g.add_initializer() = int_tensor("shape", {2}, {2, 3});
  auto& n = add_node(g, "ConstantOfShape", "z", {"shape"}, {"y"});
  set_tensor(n, "value", float_tensor("", {1}, {2.5}, false));
  const OpTable ops = table_for(m);
  {
    const auto file = parse(m, ops);
    EXPECT_EQ(node_of(file->graph(), "y").attrs.f("value", 0), 2.5);
    EXPECT_EQ(node_of(file->graph(), "y").attrs.s("dtype", ""), "f32");
  }
  *n.mutable_attribute(0)->mutable_t() = int_tensor("", {1}, {-7});
  {
    const auto file = parse(m, ops);
    EXPECT_EQ(node_of(file->graph(), "y").attrs.i("value", 0), -7);
    EXPECT_EQ(node_of(file->graph(), "y").attrs.s("dtype", ""), "i64");
  }
  *n.mutable_attribute(0)->mutable_t() = int_tensor("", {2}, {1, 2});
  EXPECT_THAT(import_error(m, ops), HasSubstr("2 elements, expected 1"));
}

// bn reads w as its running mean and fc reads it as a weight.
TEST(Import, MergedStatisticIsSplitFromAParameter) {
  const auto model = [](std::vector<float> mean) {
    onnx::ModelProto m = linear_model();
    auto& g = *m.mutable_graph();
    g.clear_node();
    *g.add_initializer() = float_tensor("m", {3}, mean, true);
    *g.add_initializer() = float_tensor("var", {3}, {1, 2, 3}, true);
    add_node(g, "BatchNormalization", "bn", {"x", "m", "m", "m", "var"}, {"h"});
    add_node(g, "Gemm", "fc", {"h", "w", "b"}, {"y"});
    return m;
  };
  const onnx::ModelProto merged = model({0, 0, 0});
  const OpTable ops = table_for(merged);
  const auto file = parse(merged, ops);
  EXPECT_EQ(names_of(file->graph(), Source::kState), (Names{"m@bn.3", "var"}));
  EXPECT_EQ(names_of(file->graph(), Source::kParam), (Names{"b", "m", "w"}));
  ASSERT_EQ(file->problems().size(), 1u);
  TempFolder folder;
  const HostTensor mean = HostTensor::of<float>({3}, {7, 8, 9});
  file->export_model(folder.path("m.onnx"),
                     [&](const std::string& n) { return n == "m@bn.3" ? &mean : nullptr; });
  const auto again = OnnxFile::open(folder.path("m.onnx"), ops);
  const Graph& r = again->graph();
  const Node& bn = node_of(r, "h");
  EXPECT_EQ(floats_of(*r.tensor(bn.inputs[3])), (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(floats_of(*r.tensor(bn.inputs[1])), (std::vector<float>{0, 0, 0}));
  // Unequal elements: not a merge of fresh statistics, so nothing is split.
  EXPECT_EQ(names_of(parse(model({1, 2, 3}), ops)->graph(), Source::kState), (Names{"m", "var"}));
}

onnx::FunctionProto leaky() {  // y = alpha * x + k, k a tensor of the body
  onnx::FunctionProto f;
  f.set_name("Leaky");
  f.set_domain("my");
  f.add_input("in");
  f.add_output("out");
  auto* d = f.add_attribute_proto();
  d->set_name("alpha");
  d->set_type(onnx::AttributeProto::FLOAT);
  d->set_f(0.25f);
  f.add_attribute("beta");
  auto* o = f.add_opset_import();
  o->set_version(17);
  onnx::GraphProto g;
  auto& n = add_node(g, "Scale", "scale", {"in"}, {"t"});
  for (const char* name : {"alpha", "beta"}) {
    auto* a = n.add_attribute();
    a->set_name(name);
    a->set_type(onnx::AttributeProto::FLOAT);
    a->set_ref_attr_name(name);
  }
  set_tensor(add_node(g, "Constant", "", {}, {"k"}), "value", float_tensor("", {2}, {1, 2}, true));
  add_node(g, "Add", "", {"t", "k"}, {"out"});
  *f.mutable_node() = g.node();
  return f;
}

TEST(Import, FunctionsAreInlined) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "z");
  *m.add_functions() = leaky();
  add_node(g, "Leaky", "one", {"x"}, {"y"}).set_domain("my");
  auto& two = add_node(g, "Leaky", "two", {"y"}, {"z"});
  two.set_domain("my");
  auto* a = two.add_attribute();
  a->set_name("alpha");
  a->set_type(onnx::AttributeProto::FLOAT);
  a->set_f(0.5f);
  const OpTable ops = table_of({"Scale", "Add"});
  const auto file = parse(m, ops);
  const Graph& r = file->graph();
  EXPECT_EQ(r.topo().size(), 4u);
  EXPECT_EQ(op_of(r, "y"), "Add");
  EXPECT_EQ(node_of(r, "z").origin, "two/Add_2");
  EXPECT_EQ(node_of(r, "one/t").attrs.f("alpha", 0), 0.25);
  EXPECT_EQ(node_of(r, "two/t").attrs.f("alpha", 0), 0.5);
  EXPECT_FALSE(node_of(r, "two/t").attrs.has("beta"));  // neither given nor defaulted
  // Both calls share the one tensor that the file has, and the export writes it.
  EXPECT_EQ(names_of(r, Source::kParam), Names{"my.Leaky/k"});
  TempFolder folder;
  const HostTensor k = HostTensor::of<float>({2}, {5, 6});
  file->export_model(folder.path("m.onnx"), [&](const std::string&) { return &k; });
  onnx::ModelProto got;
  ASSERT_TRUE(got.ParseFromString(read_file(folder.path("m.onnx"))));
  const std::string& raw = got.functions(0).node(1).attribute(0).t().raw_data();
  EXPECT_EQ(0, std::memcmp(raw.data(), k.raw(), 8));
}

// A function of another opset that calls a function, in two overloads, and hands on an attribute.
TEST(Import, FunctionsNestWithTheirOwnOpsetsAttributesAndOverloads) {
  onnx::ModelProto m = empty_model(17);
  m.set_ir_version(10);
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  const auto function = [&](const char* name, const char* overload, const char* call,
                            const char* domain, int opset) {
    auto& f = *m.add_functions();
    f.set_name(name);
    f.set_domain("my");
    f.set_overload(overload);
    f.add_input("a");
    f.add_output("b");
    auto* o = f.add_opset_import();
    o->set_version(opset);
    o = f.add_opset_import();
    o->set_domain("my");
    o->set_version(1);
    auto* with_default = f.add_attribute_proto();
    with_default->set_name("slope");
    with_default->set_type(onnx::AttributeProto::FLOAT);
    with_default->set_f(0.125f);
    auto& n = *f.add_node();
    n.set_op_type(call);
    n.set_domain(domain);
    n.add_input("a");
    n.add_output("b");
    auto* a = n.add_attribute();
    a->set_name(*domain ? "slope" : "alpha");
    a->set_type(onnx::AttributeProto::FLOAT);
    a->set_ref_attr_name("slope");
    return &n;
  };
  function("Inner", "", "Abs", "", 13);
  function("Inner", "two", "Scale", "", 9);
  function("Outer", "", "Inner", "my", 17)->set_overload("two");
  auto& call = add_node(g, "Outer", "outer", {"x"}, {"m"});
  call.set_domain("my");
  auto* slope = call.add_attribute();
  slope->set_name("slope");
  slope->set_type(onnx::AttributeProto::FLOAT);
  slope->set_f(0.5f);
  add_node(g, "Outer", "plain", {"m"}, {"y"}).set_domain("my");
  OpTable ops = table_of({"Abs"});
  OpDef scale{.name = "Scale", .infer = infer_same_as_first};
  scale.adapt = [](RawNode& raw) { raw.attrs.set("opset", int64_t{raw.opset}); };
  ops.add(std::move(scale));
  const auto file = parse(m, ops);
  const Graph& r = file->graph();
  ASSERT_EQ(r.topo().size(), 2u);
  EXPECT_EQ(node_of(r, "m").attrs.f("alpha", 0), 0.5);
  EXPECT_EQ(node_of(r, "m").attrs.i("opset", 0), 9);
  EXPECT_EQ(node_of(r, "y").attrs.f("alpha", 0), 0.125);
  EXPECT_EQ(node_of(r, "y").origin, "plain/Inner_0/Scale_0");
}

TEST(Import, FunctionsThatNeverEndAreRefused) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  add_node(g, "F", "call", {"x"}, {"y"}).set_domain("my");
  auto* f = m.add_functions();
  f->set_name("F");
  f->set_domain("my");
  f->add_input("a");
  f->add_output("b");
  auto* inner = f->add_node();
  inner->set_op_type("F");
  inner->set_domain("my");
  inner->add_input("a");
  inner->add_output("b");
  EXPECT_THAT(import_error(m, table_of({})),
              AllOf(HasSubstr("'call/F_0'"), HasSubstr("calls itself")));
  // 2^40 nodes from 40 functions that each call the next one twice.
  m.clear_functions();
  g.mutable_node(0)->set_op_type("F0");
  for (int i = 0; i < 40; ++i) {
    auto* level = m.add_functions();
    level->set_name("F" + std::to_string(i));
    level->set_domain("my");
    level->add_input("a");
    level->add_output("c");
    for (int k = 0; k < 2; ++k) {
      auto* n = level->add_node();
      n->set_op_type("F" + std::to_string(i + 1));
      n->set_domain("my");
      n->add_input(k ? "b" : "a");
      n->add_output(k ? "c" : "b");
    }
  }
  EXPECT_THAT(import_error(m, table_of({})), HasSubstr("model: "));
}

TEST(Import, IfWithAKnownConditionTakesItsBranch) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  onnx::TensorProto c;
  c.set_name("c");
  c.set_data_type(onnx::TensorProto::BOOL);
  c.add_int32_data(0);
  *g.add_initializer() = c;
  auto& n = add_node(g, "If", "if", {"c"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto* a = n.add_attribute();
    a->set_name(branch);
    a->set_type(onnx::AttributeProto::GRAPH);
    auto* b = a->mutable_g();
    b->set_name(branch);
    *b->add_initializer() = float_tensor("w", {2}, {1, 2}, true);
    add_node(*b, branch[0] == 't' ? "Add" : "Mul", "inner", {"late", "w"}, {"out"});
    add_output(*b, "out");
  }
  add_node(g, "Relu", "", {"x"}, {"late"});  // read by the branch, listed after it
  const OpTable ops = table_of({"Add", "Mul", "Relu"});
  const auto file = parse(m, ops);
  const Graph& r = file->graph();
  EXPECT_EQ(r.topo().size(), 2u);
  EXPECT_EQ(r.node(r.value(r.outputs()[0]).producer).op->name, "Mul");
  EXPECT_EQ(r.node(r.value(r.outputs()[0]).producer).origin, "if/inner");
  EXPECT_EQ(names_of(r, Source::kParam), Names{"if/w"});
  // The branch's own parameter is written back where it was, and only there.
  TempFolder folder;
  const HostTensor w = HostTensor::of<float>({2}, {8, 9});
  file->export_model(folder.path("m.onnx"), [&](const std::string&) { return &w; });
  onnx::ModelProto got;
  ASSERT_TRUE(got.ParseFromString(read_file(folder.path("m.onnx"))));
  const auto first = [&](int branch) {
    float v = 0;
    std::memcpy(&v, got.graph().node(0).attribute(branch).g().initializer(0).raw_data().data(), 4);
    return v;
  };
  EXPECT_EQ(first(0), 1);
  EXPECT_EQ(first(1), 8);
}

// y = If(c) {then: op_then(x, w)} else {op_else(x, w)}, c an input.
onnx::ModelProto if_on_data(const std::string& op_then, const std::string& op_else) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "c", {}, onnx::TensorProto::BOOL);
  add_input(g, "x", {2});
  add_output(g, "y");
  auto& n = add_node(g, "If", "if", {"c"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto* a = n.add_attribute();
    a->set_name(branch);
    a->set_type(onnx::AttributeProto::GRAPH);
    auto* b = a->mutable_g();
    *b->add_initializer() = float_tensor("w", {2}, {1, 2}, true);
    add_node(*b, branch[0] == 't' ? op_then : op_else, "inner", {"x", "w"}, {"out"});
    add_output(*b, "out");
  }
  return m;
}

TEST(Import, IfOnDataHoldsBothBranchesAndTheirParameters) {
  const onnx::ModelProto m = if_on_data("Add", "Mul");
  const OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  EXPECT_THAT(print_graph(file->graph()), HasSubstr("%3 \"if/out\" = Add(%1, %2) #if/inner\n"
                                                    "%5 \"if/out\" = Mul(%1, %4) #if/inner\n"
                                                    "%6 \"y\" = If(%0, %3, %5) #if\n"));
  EXPECT_EQ(names_of(file->graph(), Source::kParam), (Names{"if/w", "if/w#2"}));
}

TEST(Import, WhatABranchLacksIsToldWhenItIsTaken) {
  const onnx::ModelProto m = if_on_data("Add", "Foo");
  const OpTable ops = table_of({"If", "Add", kMissingOp});
  const auto file = parse(m, ops);
  EXPECT_THAT(print_graph(file->graph()),
              HasSubstr("ortrain.Missing() {why=\"If 'if': Foo (domain ai.onnx, opset 17): no such "
                        "operator in ortrain; nearest: "));
}

TEST(Import, LoopBodiesLieFlatAndTheirParametersAreWrittenBack) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  *g.add_initializer() = int_tensor("m", {}, {3});
  auto& n = add_node(g, "Loop", "loop", {"m", "", "x"}, {"y", "ys"});
  auto* a = n.add_attribute();
  a->set_name("body");
  a->set_type(onnx::AttributeProto::GRAPH);
  auto* b = a->mutable_g();
  for (const char* name : {"i", "c", "v"}) b->add_input()->set_name(name);
  *b->add_initializer() = float_tensor("w", {2}, {1, 2}, true);
  add_node(*b, "Mul", "mul", {"v", "w"}, {"next"});
  add_node(*b, "Add", "add", {"next", "x"}, {"seen"});  // x is of the graph around
  for (const char* name : {"c", "next", "seen"}) add_output(*b, name);
  const OpTable ops = table_for(m);
  const auto file = parse(m, ops);
  EXPECT_THAT(print_graph(file->graph()),
              HasSubstr("%2 \"loop/i\", %3 \"loop/c\", %4 \"loop/v\" = ortrain.Body() #loop/body\n"
                        "%6 \"loop/next\" = Mul(%4, %5) #loop/mul\n"
                        "%7 \"loop/seen\" = Add(%6, %1) #loop/add\n"
                        "%8 \"y\", %9 \"ys\" = Loop(%0, _, %1, %2, %3, %6, %7) {token=3} #loop\n"));
  EXPECT_EQ(names_of(file->graph(), Source::kParam), Names{"loop/w"});
  TempFolder folder;
  const HostTensor w = HostTensor::of<float>({2}, {8, 9});
  file->export_model(folder.path("m.onnx"), [&](const std::string&) { return &w; });
  onnx::ModelProto got;
  ASSERT_TRUE(got.ParseFromString(read_file(folder.path("m.onnx"))));
  float v = 0;
  std::memcpy(&v, got.graph().node(0).attribute(0).g().initializer(0).raw_data().data(), 4);
  EXPECT_EQ(v, 8);

  b = m.mutable_graph()->mutable_node(0)->mutable_attribute(0)->mutable_g();
  b->mutable_output()->RemoveLast();
  EXPECT_THAT(import_error(m, ops), HasSubstr("Loop 'loop' has 2 outputs, its body gives 2"));
  b->mutable_input()->RemoveLast();
  EXPECT_THAT(import_error(m, ops),
              HasSubstr("Loop 'loop' gives its body 3 values, the body takes 2"));
}

TEST(Import, HashIsOfTheStructure) {
  onnx::ModelProto m = linear_model();
  const OpTable ops = table_for(m);
  const std::string h = parse(m, ops)->hash();
  EXPECT_EQ(h.size(), 16u);
  auto weights = m;
  *weights.mutable_graph()->mutable_initializer(0) =
      float_tensor("w", {2, 3}, {9, 9, 9, 9, 9, 9}, false);
  weights.set_producer_name("other");
  EXPECT_EQ(parse(weights, ops)->hash(), h);
  auto wider = m;
  *wider.mutable_graph()->mutable_initializer(1) = float_tensor("b", {1}, {1}, true);
  EXPECT_NE(parse(wider, ops)->hash(), h);
  auto other = m;
  other.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_i(0);
  EXPECT_NE(parse(other, ops)->hash(), h);
}

}  // namespace
}  // namespace ortrain::test
