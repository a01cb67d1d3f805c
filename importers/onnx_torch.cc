// Parses pkg.torch.* metadata (onnx_torch.h).
#include "importers/onnx_torch.h"

#include <sstream>

namespace ortrain {
namespace {

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::string node_note(const onnx::NodeProto& node, const std::string& key) {
  for (const auto& e : node.metadata_props())
    if (e.key() == key) return e.value();
  return {};
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Lines such as "p_h_0_ln_1_weight: PARAMETER target='h.0.ln_1.weight'".
TorchNotes::TorchNotes(const onnx::GraphProto& graph) {
  for (const auto& e : graph.metadata_props()) {
    if (e.key() != "pkg.torch.export.ExportedProgram.graph_signature") continue;
    std::istringstream lines(e.value());
    for (std::string line; std::getline(lines, line);) {
      const size_t colon = line.find(": PARAMETER target='");
      if (colon == std::string::npos) continue;
      const size_t begin = colon + std::string_view(": PARAMETER target='").size();
      const size_t end = line.find('\'', begin);
      if (end == std::string::npos) continue;
      const std::string target = line.substr(begin, end - begin);
      if (targets_.emplace(line.substr(0, colon), target).second) parameters_.push_back(target);
    }
  }
  if (empty()) return;
  for (const auto& v : graph.value_info())
    for (const auto& e : v.metadata_props())
      if (e.key() == "pkg.onnxscript.optimizer.folded_from") folded_[v.name()] = e.value();
}

std::vector<std::string> TorchNotes::computed_from(const std::string& tensor) const {
  const auto it = folded_.find(tensor);
  if (it == folded_.end() || it->second.find(',') == std::string::npos) return {};
  std::vector<std::string> out;
  for (const std::string& name : parameters_)
    if (it->second.find("'" + name + "'") != std::string::npos) out.push_back(name);
  return out;
}

std::vector<std::string> TorchNotes::parameters_of(const onnx::NodeProto& node) const {
  std::vector<std::string> out;
  if (empty()) return out;
  const std::string text = node_note(node, "pkg.torch.onnx.fx_node");
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 1)) {
    size_t end = at + 1;
    while (end < text.size() && name_char(text[end])) ++end;
    const auto it = targets_.find(text.substr(at + 1, end - at - 1));
    if (it != targets_.end()) out.push_back(it->second);
  }
  return out;
}

}  // namespace ortrain
