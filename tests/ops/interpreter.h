// Runs a typed graph node by node on host tensors, without planner, passes or memory reuse: the
// plain witness that op tests and pass tests compare with.
//
// Kernels are picked by name ("ref" takes the last entry of each op); ops without kernels are
// decomposed first. Every output buffer has guard bytes behind it; a kernel that writes past its
// output fails the test.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/kernel.h"

namespace ortrain::test {

const OpTable& all_ops();

// The question a kernel of node n is asked; constants are filled from kConst inputs.
KernelQuery query_of(const Graph& g, NodeId n, int threads = 2);

// Runs one kernel on the given inputs (null = absent). `alias`: output i is written into a copy of
// input j.
std::vector<HostTensor> run_kernel(const KernelEntry& entry, const KernelQuery& q,
                                   const std::vector<const HostTensor*>& inputs,
                                   const std::vector<std::pair<int, int>>& alias = {});

// The kernel of that name if it is in the list and accepts, else null; "first" is the first that
// accepts.
const KernelEntry* pick(const OpDef& op, const std::string& wanted, const KernelQuery& q);

// Values of the graph's outputs; `inputs` by value id (kInput, and kParam/kState if they should
// differ from their initial contents).
std::vector<HostTensor> run_graph(Graph& g, const std::map<ValueId, HostTensor>& inputs,
                                  const std::string& kernel = "ref");

}  // namespace ortrain::test
