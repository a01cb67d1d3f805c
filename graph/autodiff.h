// Reverse-mode differentiation of a graph by the formulas of the operator records, and the
// questions about gradient flow that other passes ask.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// How gradient passes from an output of a node back to its input i. An input that says "no
// gradient" stops it; a refused or missing rule counts as passing, so that it is found and told.
enum class Flow : uint8_t { kStops, kFormula, kDecompose, kRefused, kMissing };
Flow gradient_flow(const Node& n, int input);

// The values from which a gradient path leads to one of `roots`. Values known to be no floats stop
// it.
PerValue<bool> reaches(const Graph& g, const std::vector<ValueId>& roots);
// The values that depend on one of `sources` through such a path.
PerValue<bool> depends(const Graph& g, const std::vector<ValueId>& sources);

// What prevents d loss / d wanted, one line per node and input ("Conv 'c1': input 'W': why");
// empty when nothing does.
std::vector<std::string> gradient_problems(const Graph& g, ValueId loss,
                                           const std::vector<ValueId>& wanted);

// Where integers stand between some of `params` and `roots`: a node that refuses the gradient gives
// them, and what reads them refuses it too (a QuantizeLinear that no DequantizeLinear undoes). The
// nodes, one line each with the reason; `params` keeps those that are behind them.
std::vector<std::string> integers_between(const Graph& g, const std::vector<ValueId>& roots,
                                          std::vector<ValueId>& params);

// Adds nodes that compute d loss / d v for each wanted value and returns the gradients in the same
// order (kNone: nothing flows there). The loss has one element. Each gradient has its value's shape
// and dtype (I4). Nodes on the path that have only a decomposition are decomposed in place. Throws
// Error(kUnsupported) listing gradient_problems(). `seed`: a scalar of the loss's dtype that all
// gradients are multiplied by, as the chain starts from it; kNone = 1.
std::vector<ValueId> differentiate(Graph& g, ValueId loss, const std::vector<ValueId>& wanted,
                                   ValueId seed = kNone);

}  // namespace ortrain
