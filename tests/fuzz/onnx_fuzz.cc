// libFuzzer entry for the ONNX importer and export. Only Error may come out; an accepted model has
// readable tensors, a topological order, and an export that is itself accepted.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "graph/error.h"
#include "graph/structure.h"
#include "importers/onnx.h"

using namespace ortrain;

namespace {

OpTable make_table() {
  OpTable t;
  const auto add = [&](const char* name, std::vector<std::string> in, std::vector<int> states) {
    t.add({.name = name,
           .inputs = std::move(in),
           .outputs = {"y", "z?"},
           .infer = infer_same_as_first,
           .state_inputs = std::move(states)});
  };
  for (const char* name : {"Relu", "Cast", "Identity", "Squeeze", "ConstantOfShape"})
    add(name, {"x", "y?"}, {});
  for (const char* name : {"Gemm", "Add", "Mul", "Slice", "Resize"})
    add(name, {"a", "b", "c?", "d?", "e?"}, {});
  for (const char* name : {"Concat", "If", "Loop", "Scan", "SequenceMap", "SequenceConstruct",
                           "SequenceAt", "SplitToSequence", kBodyOp, kMissingOp, kPerIterationOp,
                           "Shape", "Gather", "MatMul", "Tanh", "ReduceMean", "Greater", "Sub"})
    add(name, {"xs*"}, {});
  add("BatchNormalization", {"x", "scale", "b", "mean", "var"}, {3, 4});
  t.add({.name = "Upsample", .infer = infer_same_as_first, .adapt = [](RawNode& n) {
           n.op = "Resize";
           n.ints_to_input("axes", 2);
         }});
  return t;
}

std::string temp_path() {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("ortrain-fuzz-" + std::to_string(::getpid())))
          .string();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const OpTable ops = make_table();
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  std::unique_ptr<OnnxFile> file;
  try {
    file = OnnxFile::parse(bytes, "", ops);
  } catch (const Error&) {
    return 0;
  }
  const Graph& g = file->graph();
  g.topo();
  volatile double sum = 0;
  for (ValueId v = 0; v < g.value_count(); ++v)
    if (const HostTensor* t = g.tensor(v))
      for (int64_t i = 0; i < t->count(); ++i) sum = sum + t->as_double(i);

  // Every third model is also exported, each float tensor with its own values, and read again.
  if (size % 3) return 0;
  std::map<std::string, HostTensor> values;
  for (ValueId v = 0; v < g.value_count(); ++v)
    if (const HostTensor* t = g.tensor(v); t && is_float(t->dtype()))
      values.emplace(g.value(v).name, t->share());
  try {
    file->export_model(temp_path(),
                       [&](const std::string& name) -> const HostTensor* {
                         const auto it = values.find(name);
                         return it == values.end() ? nullptr : &it->second;
                       },
                       {{"k", "v"}});
  } catch (const Error&) {  // data split over merged messages cannot be written back
    return 0;
  }
  OnnxFile::open(temp_path(), ops);
  std::filesystem::remove(temp_path());
  return 0;
}
