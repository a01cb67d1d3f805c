// LoRA: which weights take adapters, and what the adapters make of them.
//
// A target is a 2-D weight that every use multiplies from the right (MatMul or Gemm, directly or
// behind Identity and Transpose). y = x W becomes y = x W + alpha/r (x A) B with A [in,r], B
// [out...]: [r,out]; W stays as it is. Weights that exist only as integers (behind
// DequantizeLinear, in MatMulNBits) and other computed constants count too, but cannot be merged.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/pipeline.h"

namespace ortrain {

struct LoraTarget {
  std::string weight;       // name of the tensor
  std::string base;         // the same without ".weight": adapters are base + ".lora_A.weight"
  bool transposed = false;  // the tensor lies as [out, in]
  bool mergeable = true;    // float data of the file
  int64_t in = 0, out = 0;
  std::vector<NodeId> nodes;  // the products
  std::string a() const { return base + ".lora_A.weight"; }
  std::string b() const { return base + ".lora_B.weight"; }
};

bool is_lora_name(std::string_view param);

// The targets of a graph right after pass infer, by name. Throws Error(kUsage) where the regexes
// name nothing, or a tensor that cannot take adapters (with the reason).
std::vector<LoraTarget> lora_targets(const Graph& g, const LoraSpec& spec);
// The same of an imported graph.
std::vector<LoraTarget> lora_targets_of_file(const Graph& source, const StepSpec& spec,
                                             const Evaluate& evaluate);

// W + alpha/r A B in W's layout, summed in f64. `find` gives tensors by name.
HostTensor lora_merged(const LoraTarget& target, const LoraSpec& spec, const HostTensor& weight,
                       const HostTensor& a, const HostTensor& b);

}  // namespace ortrain
