// Puts a sequence of nodes and copies into a graph: the copies become nodes, readers read what was
// made last before them, the graph's order is that of the sequence.
#pragma once

#include "graph/passes/recompute_model.h"

namespace ortrain {

// `model` was made of g, or of the graph that g is a copy of.
void apply_recompute(Graph& g, const RecomputeModel& model,
                     const RecomputeModel::Sequence& sequence);

}  // namespace ortrain
