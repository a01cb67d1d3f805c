// Helpers of the importer's tests (onnx_models.h).
#include "tests/importers/onnx_models.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "graph/error.h"
#include "graph/structure.h"

namespace ortrain::test {
namespace {

Expr pass_on(Grad& g) { return g.dy(); }

OpDef record(const std::string& name) {
  OpDef d{.name = name, .infer = infer_same_as_first};
  if (name == "BatchNormalization") d.state_inputs = {3, 4};
  if (name == "Resize") {
    d.inputs = {"x", "roi?", "scales?", "sizes?"};
    d.grad = {grad("x", pass_on), no_grad("roi"), no_grad("scales"), no_grad("sizes")};
  }
  return d;
}

void collect(const onnx::GraphProto& g, std::set<std::string>& names) {
  for (const auto& n : g.node()) {
    const bool plain = n.domain().empty() || n.domain() == "ai.onnx";
    names.insert(plain ? n.op_type() : n.domain() + "." + n.op_type());
    for (const auto& a : n.attribute())
      if (a.has_g()) collect(a.g(), names);
  }
}

}  // namespace

OpTable table_of(const std::vector<std::string>& names) {
  OpTable t;
  for (const auto& n : names) t.add(record(n));
  return t;
}

OpTable table_for(const onnx::ModelProto& model) {
  std::set<std::string> names{kBodyOp, kMissingOp, kPerIterationOp};  // what bodies need
  collect(model.graph(), names);
  return table_of({names.begin(), names.end()});
}

onnx::ModelProto empty_model(int opset) {
  onnx::ModelProto m;
  m.set_ir_version(8);
  auto* o = m.add_opset_import();
  o->set_domain("");
  o->set_version(opset);
  m.mutable_graph()->set_name("g");
  return m;
}

void add_input(onnx::GraphProto& g, const std::string& name, const std::vector<int64_t>& dims,
               int type) {
  auto* v = g.add_input();
  v->set_name(name);
  auto* t = v->mutable_type()->mutable_tensor_type();
  t->set_elem_type(type);
  t->mutable_shape();
  for (int64_t d : dims) {
    auto* dim = t->mutable_shape()->add_dim();
    if (d >= 0)
      dim->set_dim_value(d);
    else
      dim->set_dim_param("batch");
  }
}

void add_output(onnx::GraphProto& g, const std::string& name) { g.add_output()->set_name(name); }

onnx::NodeProto& add_node(onnx::GraphProto& g, const std::string& op, const std::string& name,
                          const std::vector<std::string>& in, const std::vector<std::string>& out) {
  auto& n = *g.add_node();
  n.set_op_type(op);
  if (!name.empty()) n.set_name(name);
  for (const auto& i : in) n.add_input(i);
  for (const auto& o : out) n.add_output(o);
  return n;
}

onnx::TensorProto float_tensor(const std::string& name, const std::vector<int64_t>& dims,
                               const std::vector<float>& values, bool raw) {
  onnx::TensorProto t;
  t.set_name(name);
  t.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t d : dims) t.add_dims(d);
  if (raw)
    t.set_raw_data(values.data(), values.size() * sizeof(float));
  else
    for (float v : values) t.add_float_data(v);
  return t;
}

onnx::TensorProto int_tensor(const std::string& name, const std::vector<int64_t>& dims,
                             const std::vector<int64_t>& values) {
  onnx::TensorProto t;
  t.set_name(name);
  t.set_data_type(onnx::TensorProto::INT64);
  for (int64_t d : dims) t.add_dims(d);
  for (int64_t v : values) t.add_int64_data(v);
  return t;
}

void set_int(onnx::NodeProto& n, const std::string& name, int64_t value) {
  auto* a = n.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::INT);
  a->set_i(value);
}

void set_tensor(onnx::NodeProto& n, const std::string& name, const onnx::TensorProto& value) {
  auto* a = n.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::TENSOR);
  *a->mutable_t() = value;
}

onnx::ModelProto linear_model() {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {-1, 3});
  add_output(g, "y");
  *g.add_initializer() = float_tensor("w", {2, 3}, {1, 2, 3, 4, 5, 6}, true);
  *g.add_initializer() = float_tensor("b", {2}, {-1, 1}, true);
  auto& n = add_node(g, "Gemm", "fc", {"x", "w", "b"}, {"y"});
  set_int(n, "transB", 1);
  return m;
}

std::unique_ptr<OnnxFile> parse(const onnx::ModelProto& m, const OpTable& ops,
                                const std::string& folder) {
  const std::string bytes = m.SerializeAsString();
  return OnnxFile::parse(std::as_bytes(std::span(bytes)), folder, ops);
}

std::string import_error(const onnx::ModelProto& m, const OpTable& ops) {
  try {
    parse(m, ops);
    return "";
  } catch (const Error& e) {
    const char* code = e.code() == ErrorCode::kModel         ? "model: "
                       : e.code() == ErrorCode::kUnsupported ? "unsupported: "
                                                             : "other: ";
    return code + std::string(e.what());
  }
}

std::vector<float> floats_of(const HostTensor& t) {
  std::vector<float> out;
  for (int64_t i = 0; i < t.count(); ++i) out.push_back(static_cast<float>(t.as_double(i)));
  return out;
}

std::vector<std::string> names_of(const Graph& g, Source source) {
  std::vector<std::string> out;
  for (ValueId v : g.sources(source)) out.push_back(g.value(v).name);
  std::sort(out.begin(), out.end());
  return out;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "ortrain-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

TempFolder::~TempFolder() { std::filesystem::remove_all(path_); }

std::vector<std::string> TempFolder::files() const {
  std::vector<std::string> out;
  for (const auto& e : std::filesystem::recursive_directory_iterator(path_))
    out.push_back(std::filesystem::relative(e.path(), path_).string());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace ortrain::test
