// Evaluation of single nodes on constants, for the compiler's constant folding.
#pragma once

#include "graph/pipeline.h"

namespace ortrain {

// Runs the node's reference kernel. False when an input is not constant, a shape is not a number or
// the op has no kernel; throws Error(kModel) when the model's constants hold an index out of range.
Evaluate make_evaluator();

}  // namespace ortrain
