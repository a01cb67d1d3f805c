// The tables of onnx_support.h.
#include "importers/onnx_support.h"

namespace ortrain {

const std::vector<DissolvedOp>& dissolved_ops() {
  static const std::vector<DissolvedOp> table = {
      {"Constant", 1, "becomes data; float tensors of it may train like initializers"},
  };
  return table;
}

namespace {
constexpr std::string_view kText =
    "it computes on strings; prepare text before training and feed its numbers";
constexpr std::string_view kTrees =
    "classical models (trees, vector machines, encoders, maps) hold nothing that a gradient could "
    "change; cut the model in front of it, or feed its results as data";
}  // namespace

const std::vector<RefusedOp>& refused_ops() {
  static const std::vector<RefusedOp> table = {
      {"ImageDecoder", "it decodes image files; decode them when the data set is made"},
      {"RegexFullMatch", kText},
      {"StringConcat", kText},
      {"StringNormalizer", kText},
      {"StringSplit", kText},
      {"ai.onnx.ml.*", kTrees},
  };
  return table;
}

std::string_view refusal_of(std::string_view op) {
  for (const RefusedOp& r : refused_ops()) {
    if (r.op == op) return r.reason;
    if (r.op.ends_with(".*") && op.starts_with(r.op.substr(0, r.op.size() - 1))) return r.reason;
  }
  return {};
}

}  // namespace ortrain
