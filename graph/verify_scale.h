// I13 of verify(): a dynamic loss scale is in each gradient path exactly once, and out again before
// clipping and updates.
#pragma once

#include <string>

#include "graph/graph.h"

namespace ortrain {

// The problems, one per line. Follows the power of the scale through every node: products add
// powers, quotients subtract them, what is linear in one scaled input keeps its power. What cannot
// be told (a function that is not linear) counts as right. A static scale is a constant like
// any other and is not followed.
std::string loss_scale_problems(const Graph& g);

}  // namespace ortrain
