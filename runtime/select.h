// Kernel choice: walks an operator's kernel list, best first, and keeps why each one refused.
//
// Promises: the first entry of the device that accepts is prepared; with `reference` the last one
// is taken. Nodes on 16-bit floats may get an f32 kernel between conversions ("simd in f32",
// widen.h). A prepare that throws counts as a refusal with its message. Throws Error(kUnsupported)
// listing every refusal when nothing accepts. (Choosing by timing among several that accept belongs
// in select_kernel, too; today the order of the record decides.)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/kernel.h"

namespace ortrain {

struct SelectOptions {
  std::string device = "cpu";
  bool reference = false;  // --kernels ref, tests: the last entry of every list
  int threads = 1;
};

// A query and the contents that it points to.
struct Query {
  KernelQuery q;
  std::vector<std::unique_ptr<HostTensor>> owned;
};
// What a kernel of node n is asked. Shapes must be numbers.
Query make_query(const Graph& g, NodeId n, int threads);

struct Refusal {
  std::string kernel, why;
};

struct Selection {
  Kernel kernel;
  std::string name;  // "onednn", "ref", ...
  std::vector<Refusal> refused;
};

// Whether some kernel of the node's list accepts it, without preparing it. True for views.
bool has_kernel(const Graph& g, NodeId n, const SelectOptions& options);
Selection select_kernel(const Graph& g, NodeId n, const SelectOptions& options);

// "Conv 'conv1': onednn; refused: fast (groups > 1)": one line of --explain=kernels.
std::string explain(const std::string& node, const Selection& s);

}  // namespace ortrain
