// One of the ONNX project's node tests, brought into a form that both runners can run: tensors
// only.
//
// A sequence or optional among the inputs becomes one input per tensor ("q.0", "q.1", ...) and the
// nodes that build it; one among the outputs becomes the outputs that the importer's graph has for
// it. Data of a kind without a counterpart (maps, sparse tensors, strings) is said in `outside`.
#pragma once

#include <onnx/onnx-ml.pb.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "graph/tensor.h"

namespace ortrain::test {

struct NodeCase {
  onnx::ModelProto model;
  std::vector<std::pair<std::string, HostTensor>> inputs, outputs;  // by name
  std::string outside;
};

// `folder` holds model.onnx; `data` the files input_0.pb, output_0.pb, ...
NodeCase read_node_case(const std::filesystem::path& folder, const std::filesystem::path& data);

}  // namespace ortrain::test
