// What pass pad_dims knows about an operator: which axes of its operands zeros may be added to.
//
// An operator's register function says it beside its record (add_pad_rule); elementwise ones need
// only OpDef::pad. It is a table of its own because few operators take part.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/op_def.h"

namespace ortrain {

// One letter per axis of each input and output ('.': must stay as it is; "": takes no part). Axes
// with one letter are one extent. The promise: zeros in the lanes that are added to all inputs of a
// letter give zeros in those lanes of the outputs and leave everything else as it is; so do the
// gradient formulas. Capitals: extents worth a multiple of the tile.
struct PadAxes {
  std::vector<std::string> inputs, outputs;
};
struct PadRule {
  // The node is typed. nullopt: it takes no part.
  std::optional<PadAxes> (*axes)(const Graph&, const Node&) = nullptr;
  // Called before the inputs are widened: writes down what the node took from its shapes (the
  // number of classes or groups), and what says the new shape of output 0, `widened`.
  void (*widen)(Graph&, NodeId, const Dims& widened) = nullptr;
};
// Elementwise with broadcasting: lanes are zeros where every input is, or already where one is.
std::optional<PadAxes> pad_axes_all_zero(const Graph& g, const Node& n);
std::optional<PadAxes> pad_axes_any_zero(const Graph& g, const Node& n);
// [N, C, spatial...] to the same channels.
std::optional<PadAxes> pad_axes_of_channels(const Graph& g, const Node& n);

void add_pad_rule(const std::string& op, PadRule rule);
// The rule of an operator; from OpDef::pad where none was added. `axes` is null where there is
// none.
PadRule pad_rule(const OpDef& op);

}  // namespace ortrain
