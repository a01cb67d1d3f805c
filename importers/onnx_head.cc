// --reset-head OUTPUT=CLASSES: the last layer before an output starts anew, for another number of
// classes (onnx_import.h), and the export says so: tensors, output shapes, metadata.
//
// Values are drawn as torch.nn.Linear and Conv draw them: uniform in +-1/sqrt(fan_in), by the seed.
// Refuses, with the node's name, where the last layer cannot be found behind views, softmax and
// sigmoid, where its weight serves something else too, or where the old number is built into a
// Reshape.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "graph/error.h"
#include "graph/spelling.h"
#include "importers/onnx_import.h"

namespace ortrain {
namespace {

const char* const kLookThrough[] = {"Softmax", "LogSoftmax", "Sigmoid",   "Identity", "Transpose",
                                    "Reshape", "Squeeze",    "Unsqueeze", "Flatten",  "Cast"};

HostTensor drawn(DType dtype, const Dims& dims, double bound, std::mt19937_64& random) {
  HostTensor t(dtype, dims);
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, bound * (2 * (static_cast<double>(random() >> 11) * 0x1p-53) - 1));
  return t;
}

}  // namespace

void Importer::reset_head(const std::string& asked, uint64_t seed) {
  const size_t equal = asked.rfind('=');
  int64_t classes = 0;
  const char* end = asked.data() + asked.size();
  if (equal == std::string::npos ||
      std::from_chars(asked.data() + equal + 1, end, classes).ptr != end || classes < 1 ||
      classes > (int64_t{1} << 31))
    fail(ErrorCode::kUsage, "--reset-head '", asked,
         "': expected OUTPUT=CLASSES, such as logits=3");
  head.output = asked.substr(0, equal);
  const std::vector<std::string>& outputs = graph.output_names();
  const auto at = std::find(outputs.begin(), outputs.end(), head.output);
  if (at == outputs.end()) {
    const std::string near = nearest_name(head.output, outputs);
    fail(ErrorCode::kUsage, "--reset-head: the model has no output '", head.output, "', only ",
         list_names(outputs, 10), near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::kUnsupported, "--reset-head ", head.output, ": ", why...);
  };
  // A parameter, also behind Transpose; `turned` flips with each.
  const auto parameter = [&](ValueId v, bool& turned) {
    for (; v != kNone && graph.value(v).producer != kNone;) {
      const Node& n = graph.node(graph.value(v).producer);
      if (n.op->name == "Transpose" && graph.value(v).uses.size() == 1)
        turned = !turned;
      else if (n.op->name != "Identity")
        return kNone;
      v = n.inputs[0];
    }
    return v != kNone && graph.value(v).source == Source::kParam ? v : kNone;
  };
  ValueId bias = kNone, v = graph.outputs()[static_cast<size_t>(at - outputs.begin())];
  NodeId layer = kNone;
  while (layer == kNone) {
    const NodeId n = graph.value(v).producer;
    if (n == kNone) refuse("no layer with weights leads to it");
    const Node& x = graph.node(n);
    const std::string& op = x.op->name;
    bool turned = false;
    if (op == "Gemm" || op == "MatMul" || op == "Conv") {
      layer = n;
    } else if (std::find(std::begin(kLookThrough), std::end(kLookThrough), op) !=
               std::end(kLookThrough)) {
      v = x.inputs[0];
    } else if (op == "Add" && bias == kNone && parameter(x.inputs[1], turned) != kNone) {
      bias = parameter(x.inputs[1], turned);
      v = x.inputs[0];
    } else if (op == "Add" && bias == kNone && parameter(x.inputs[0], turned) != kNone) {
      bias = parameter(x.inputs[0], turned);
      v = x.inputs[1];
    } else {
      refuse("its last layer is not found: it is computed by ", graph.describe(n),
             ", which is neither Gemm, MatMul or Conv nor one of what is looked through");
    }
  }
  const Node& x = graph.node(layer);
  const std::string shown = graph.describe(layer), op = x.op->name;
  bool turned = op == "Gemm" && x.attrs.i("transB", 0) != 0;
  const ValueId weight = x.inputs.size() > 1 ? parameter(x.inputs[1], turned) : kNone;
  if (weight == kNone) refuse(shown, " has no weight in the file");
  if (op == "Conv" && x.attrs.i("group", 1) != 1) refuse(shown, " is a grouped convolution");
  const Dims old = graph.tensor(weight)->dims();
  const bool conv = op == "Conv";
  if (conv ? old.size() < 3 : old.size() != 2)
    refuse("the weight of ", shown, " has ", old.size(), " axes");
  if (op != "MatMul" && x.inputs.size() > 2 && x.inputs[2] != kNone) {
    bool ignored = false;
    bias = parameter(x.inputs[2], ignored);
    if (bias == kNone) refuse("the bias of ", shown, " is not in the file as data");
  }
  const size_t axis = conv || turned ? 0 : 1;
  head.was = old[axis];
  head.classes = classes;
  head.convolution = conv;
  const int64_t fan_in = element_count(old) / std::max<int64_t>(old[axis], 1);
  const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  std::mt19937_64 random(seed ^ 0x68656164u);
  for (const ValueId p : {weight, bias}) {
    if (p == kNone) continue;
    const std::string& name = graph.value(p).name;
    if (graph.value(p).uses.size() != 1)
      refuse("'", name, "' is used ", graph.value(p).uses.size(),
             " times (a tied head?): it cannot change alone");
    Dims dims = graph.tensor(p)->dims();
    const size_t change = p == weight ? axis : dims.empty() ? 0 : dims.size() - 1;
    if (dims.empty() || dims[change] != head.was || (p == bias && element_count(dims) != head.was))
      refuse("'", name, "' ", Shape(dims).str(), " is no bias of ", head.was, " classes");
    dims[change] = classes;
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [&](const TensorSlot& s) { return s.name == name; });
    if (slot == slots.end()) refuse("'", name, "' has no place of its own in the file");
    notes.push_back(cat("--reset-head: '", name, "' ", Shape(slot->dims).str(), " -> ",
                        Shape(dims).str(), " starts anew (seed ", seed, ")"));
    slot->dims = dims;
    slot->resized = true;
    graph.set_tensor(p, drawn(slot->dtype, dims, bound, random));
    head.tensors.insert(name);
  }
  // What depends on the layer changes its shape; a number in a Reshape would not.
  std::vector<NodeId> todo{layer};
  std::set<NodeId> seen{layer};
  while (!todo.empty()) {
    const NodeId n = todo.back();
    todo.pop_back();
    for (const ValueId out : graph.node(n).outputs) {
      if (out == kNone) continue;
      head.values.insert(graph.value(out).name);
      for (const NodeId use : graph.value(out).uses)
        if (seen.insert(use).second) todo.push_back(use);
    }
    const Node& after = graph.node(n);
    for (size_t i = 1; n != layer && i < after.inputs.size(); ++i) {
      const HostTensor* t = after.inputs[i] == kNone ? nullptr : graph.tensor(after.inputs[i]);
      if (!t || is_float(t->dtype()) || t->dtype() == DType::kBool) continue;
      for (int64_t k = 0; after.op->name == "Reshape" && k < t->count(); ++k)
        if (t->as_int(k) == head.was)
          refuse(graph.describe(n), " has the old number of classes, ", head.was, ", built in");
    }
  }
}

// Of several axes with the old extent, classes are the last one, after a convolution the first.
bool HeadReset::apply(onnx::ValueInfoProto& info) const {
  if ((!values.count(info.name()) && info.name() != output) || !info.type().has_tensor_type() ||
      !info.type().tensor_type().has_shape())
    return false;
  auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
  for (int k = 0; k < shape.dim_size(); ++k) {
    auto& d = *shape.mutable_dim(convolution ? k : shape.dim_size() - 1 - k);
    if (!d.has_dim_value() || d.dim_value() != was) continue;
    d.set_dim_value(classes);
    return true;
  }
  return false;
}

void HeadReset::apply(onnx::GraphProto& g, const std::vector<TensorSlot>& slots) const {
  const auto set = [&](onnx::TensorProto& t, const std::string& name) {
    if (!tensors.count(name)) return;
    for (const TensorSlot& s : slots) {
      if (s.name != name) continue;
      t.clear_dims();
      for (const int64_t d : s.dims) t.add_dims(d);
    }
  };
  for (auto& t : *g.mutable_initializer()) set(t, t.name());
  for (auto& n : *g.mutable_node())
    if (n.op_type() == "Constant" && n.attribute_size() == 1 && n.attribute(0).has_t())
      set(*n.mutable_attribute(0)->mutable_t(), n.output(0));
  for (auto& o : *g.mutable_output()) apply(o);
  for (auto& i : *g.mutable_input())
    for (const TensorSlot& s : slots)
      if (s.name == i.name() && tensors.count(s.name)) resize_input(i, s.dims);
}

void HeadReset::resize_input(onnx::ValueInfoProto& info, const Dims& dims) {
  auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
  shape.clear_dim();
  for (const int64_t d : dims) shape.add_dim()->set_dim_value(d);
}

std::string HeadReset::text() const {
  return cat(output, ": ", classes, " classes, was ", was,
             "; reset: ", list_names({tensors.begin(), tensors.end()}, 2));
}

}  // namespace ortrain
