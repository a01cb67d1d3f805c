// Which float tensors of a file train, and why (DESIGN section 6, "Trainable set").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/pipeline.h"

namespace ortrain {

// Fills g.params for every parameter of a typed graph: trainable when a gradient path leads from it
// to one of `roots`, it does not look like a constant or a buffer, and spec.train / spec.freeze
// agree. What does not train becomes a constant, so that it folds, except what a regex froze.
// Throws Error(kUsage) on a bad regex or one that names no parameter.
void decide_trainable(Graph& g, const std::vector<ValueId>& roots, PassContext& ctx);

// Whether one of the (ECMAScript) regexes is found in the name. Throws Error(kUsage) on a bad one.
bool matches_any(const std::vector<std::string>& regexes, std::string_view name);

// Whether a parameter of a typed graph trains, and why: spec.train and spec.freeze win, then use,
// then the path (`on_path`: a gradient path leads from it to the roots; `off_path` says that there
// is none), then what it looks like. Keeps the parameter's perm.
ParamInfo judge(const Graph& g, ValueId param, const StepSpec& spec, bool on_path,
                const char* off_path);

// "2 tensors are stored as integers and stay frozen: ..." for data with axes behind a scale
// (DequantizeLinear, MatMulNBits, QLinearConv); "" when there is none. Before folding.
std::string integer_weights(const Graph& g);

// The i64 scalar state kStepName, added when missing.
ValueId step_state(Graph& g);

}  // namespace ortrain
