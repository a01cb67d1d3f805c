// See node_case.h. SequenceProto and OptionalProto (onnx-data.proto) are read from the wire.
#include "tests/onnx_node/node_case.h"

#include <fstream>
#include <sstream>

#include "graph/error.h"
#include "importers/onnx_tensor.h"
#include "importers/wire.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;
using Tensors = std::vector<std::pair<std::string, HostTensor>>;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<Bytes> fields(Bytes message, uint32_t number) {
  std::vector<Bytes> out;
  wire::Reader reader(message.data(), 0, message.size());
  for (wire::Field f; reader.next(f);)
    if (f.number == number && f.type == wire::kBytes)
      out.push_back(message.subspan(f.payload, f.end - f.payload));
  return out;
}

class Reading {
 public:
  explicit Reading(NodeCase& c) : c_(c) {}

  // Lists the tensors of a value; `g` not null: also declares them as inputs and builds the value.
  void value(const onnx::TypeProto& type, Bytes bytes, const std::string& name, Tensors& out,
             onnx::GraphProto* g) {
    if (type.has_tensor_type()) return tensor(type.tensor_type().elem_type(), bytes, name, out, g);
    if (type.has_sequence_type()) {
      const onnx::TypeProto& item = type.sequence_type().elem_type();
      const std::vector<Bytes> items = fields(bytes, item.has_tensor_type() ? 3 : 5);
      std::vector<std::string> parts;
      for (size_t i = 0; i < items.size(); ++i)
        value(item, items[i], parts.emplace_back(cat(name, ".", i)), out, g);
      if (g) build(*g, items.empty() ? "SequenceEmpty" : "SequenceConstruct", parts, name);
      return;
    }
    if (type.has_optional_type()) {
      const onnx::TypeProto& item = type.optional_type().elem_type();
      const std::vector<Bytes> held = fields(bytes, item.has_tensor_type() ? 3 : 5);
      const std::string inner = g ? name + ".element" : name;
      if (!held.empty()) value(item, held[0], inner, out, g);
      if (g)
        build(*g, "Optional", held.empty() ? std::vector<std::string>{} : std::vector{inner}, name);
      return;
    }
    c_.outside = "maps and sparse tensors";
  }

 private:
  void tensor(int type, Bytes bytes, const std::string& name, Tensors& out, onnx::GraphProto* g) {
    if (dtype_from_onnx(type) == DType::kUndefined) {
      c_.outside = "element type " + onnx_dtype_name(type);
      return;
    }
    const HostTensor& t = out.emplace_back(name, read_tensor_bytes(bytes, "")).second;
    if (!g) return;
    auto* input = g->add_input();
    input->set_name(name);
    auto* to = input->mutable_type()->mutable_tensor_type();
    to->set_elem_type(type);
    to->mutable_shape();
    for (int64_t d : t.dims()) to->mutable_shape()->add_dim()->set_dim_value(d);
  }

  static void build(onnx::GraphProto& g, const char* op, const std::vector<std::string>& in,
                    const std::string& out) {
    auto* n = g.add_node();
    n->set_op_type(op);
    n->set_name(out);
    for (const auto& i : in) n->add_input(i);
    n->add_output(out);
  }

  NodeCase& c_;
};

}  // namespace

NodeCase read_node_case(const fs::path& folder, const fs::path& data) {
  NodeCase c;
  if (!c.model.ParseFromString(slurp(folder / "model.onnx")))
    throw Error(ErrorCode::kModel, "cannot parse model.onnx");
  auto& g = *c.model.mutable_graph();
  Reading reading(c);
  const auto inputs = g.input();
  g.clear_input();
  const auto read = [&](const char* kind, int i, const onnx::ValueInfoProto& info, Tensors& out,
                        bool is_input) {
    const bool plain = info.type().has_tensor_type();
    const std::string bytes = slurp(data / cat(kind, "_", i, ".pb"));
    reading.value(info.type(), std::as_bytes(std::span(bytes)), info.name(), out,
                  is_input && !plain ? &g : nullptr);
    if (is_input && plain) *g.add_input() = info;
  };
  for (int i = 0; i < inputs.size(); ++i) read("input", i, inputs[i], c.inputs, true);
  for (int i = 0; i < g.output_size(); ++i) read("output", i, g.output(i), c.outputs, false);
  return c;
}

}  // namespace ortrain::test
