// What PyTorch's exporter writes about a model beside the model: names of the module's parameters,
// and which of them each node came from.
//
// Only files of torch.onnx.export(dynamo=True) say so; for others everything here is empty. The
// text is somebody's metadata: it names tensors and explains, it never decides what is computed.
#pragma once

#include <onnx/onnx-ml.pb.h>

#include <map>
#include <string>
#include <vector>

namespace ortrain {

class TorchNotes {
 public:
  explicit TorchNotes(const onnx::GraphProto& graph);
  bool empty() const { return targets_.empty(); }
  // Names of the module's parameters that a node was made from ("h.0.ln_1.weight"), as its
  // expression lists them.
  std::vector<std::string> parameters_of(const onnx::NodeProto& node) const;
  // Names of the module's parameters from which the exporter computed a tensor of the file, when it
  // did more than move or transpose one.
  std::vector<std::string> computed_from(const std::string& tensor) const;
  // All parameters of the module.
  const std::vector<std::string>& parameters() const { return parameters_; }

 private:
  std::map<std::string, std::string> targets_;  // "p_h_0_ln_1_weight" -> "h.0.ln_1.weight"
  std::vector<std::string> parameters_;
  std::map<std::string, std::string> folded_;  // tensor -> "['val_1', 'wpe.weight']"
};

// The value of a metadata entry of a node; "" when it has none of that name.
std::string node_note(const onnx::NodeProto& node, const std::string& key);
// "bias" of "h.0.ln_1.bias".
std::string last_part(const std::string& name);

}  // namespace ortrain
