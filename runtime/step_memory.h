// What pass recompute asks about a step on this machine: the time and scratch memory of each node's
// kernel, measured once per distinct node, and the arena that a scheduled graph will be planned
// into, exactly as plan.cc plans it.
//
// Operands of a measurement are made up (0.5 for floats, 0 for integers, real constants): a kernel
// whose time depends on the contents is misjudged, nothing else depends on it. A node that would
// need more scratch memory than kMostBytes is guessed from its operations and bytes.
#pragma once

#include <string>
#include <unordered_map>

#include "graph/pipeline.h"
#include "runtime/select.h"

namespace ortrain {

class StepMemory : public MemoryModel {
 public:
  // Without `measure`, times are guessed: for plans of which only the bytes matter.
  explicit StepMemory(const SelectOptions& select, bool measure = true)
      : select_(select), measure_(measure) {}
  void lower(Graph& g) override;
  Cost cost(const Graph& g, NodeId n) override;
  size_t arena_bytes(const Graph& g) override;

  // Parameters, states and constants as a ParamStore of this graph alone would hold them.
  static size_t store_bytes(const Graph& g);

 private:
  struct Known {
    size_t workspace = 0;
    double ms = -1;  // not measured yet
  };
  Known& known(const Graph& g, NodeId n, bool measured);
  SelectOptions select_;
  bool measure_;
  std::unordered_map<std::string, Known> nodes_;  // by operator, attributes and operands
};

}  // namespace ortrain
