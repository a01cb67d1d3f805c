// --rebatch: a graph exported at one fixed batch becomes one whose batch is a symbol.
//
// Works on the graph after pass infer at the fixed batch, where every size is a number and shape
// chains are constants. Each node is typed again with a batch several times as large: what was
// built in is found where that fails or where the batch does not arrive, and is replaced: Reshape
// constants by the place where the batch lies in memory, other constant shapes (Resize, Expand,
// Slice) by a size read from an input, operands with the batch's rows (zero states, class tokens)
// by one row spread over the batch. Refuses with the node's name where none of these fits. Shapes
// that fit prove nothing about values: runtime/rebatch_check.h runs both.
#pragma once

#include <string>
#include <vector>

#include "graph/pipeline.h"

namespace ortrain {

// Where the batch lies in a value: axis `axis` has outer * batch * inner elements; -1 = nowhere.
struct BatchPlace {
  int axis = -1;
  int64_t outer = 1;
};

struct Rebatched {
  Graph graph;  // views into the source, which must outlive it; Stage::kImported
  int64_t was = 0;
  std::string symbol;
  std::vector<BatchPlace> outputs;    // of the graph's outputs
  std::vector<std::string> replaced;  // names of the nodes whose constants or operands changed
};

// `source` as imported; `batch` is the extent of axis 0 that becomes a symbol. At batch 1 a Reshape
// may leave open which axis the batch goes into: the choices are tried in turn, until the shapes
// fit and `prove` does not throw. Throws Error(kUnsupported): why the first choice did not fit.
Rebatched rebatch(const Graph& source, int64_t batch, const Evaluate& evaluate,
                  const std::function<void(const Rebatched&)>& prove = {});

}  // namespace ortrain
