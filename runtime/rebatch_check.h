// Proof by execution that a rebatched graph (graph/rebatch.h) computes what the file computes.
//
// In float64, on random samples: the file at its batch against the new graph at that batch, at
// twice it and at one; every sample must give the same. What differs is told with the first node
// at which samples meet.
#pragma once

#include "graph/rebatch.h"

namespace ortrain {

// Throws Error(kUnsupported) when a sample's result depends on its neighbours or differs from the
// file's.
void check_rebatched(const Graph& source, const Rebatched& now);

}  // namespace ortrain
