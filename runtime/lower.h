// Replaces nodes that no kernel accepts by their decomposition, so that every node of a plan has a
// kernel.
//
// Runs after compile() and before planning; repeats until nothing changes, because a decomposition
// may itself hold composite ops. The graph's order is kept, new nodes stand where the old one did.
// Nodes with neither kernel nor decomposition are listed, all at once, in one Error(kUnsupported).
#pragma once

#include <string>
#include <vector>

#include "runtime/select.h"

namespace ortrain {

// Returns how many nodes were replaced.
int decompose_missing(Graph& g, const SelectOptions& options);

}  // namespace ortrain
