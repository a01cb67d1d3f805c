// Structural operators: If, Loop, Scan, sequences, optionals. They have no kernels and no gradient
// rules: pass infer dissolves them (passes/unroll.h), and what is left has both.
//
// A body lies flat in the graph around its node. Its nodes read values of outside as they are; its
// own inputs are the outputs of an "ortrain.Body" node, the token of the body:
//   If          (cond, then values..., else values...)
//   Loop        (M?, cond?, first values..., token, cond, next values..., scanned...)   {token=i}
//   Scan        (first states..., scanned..., token, next states..., scanned...) {token=i,states=n}
//   SequenceMap (sequence, others..., token, results...)                                {token=i}
// where the token input is output 0 of the Body node and attribute `token` its position. What does
// not depend on the Body node is the same in all iterations and is computed once.
#pragma once

#include "graph/op_def.h"

namespace ortrain {

// The infer rule of structural operators: refuses, because nothing may ask for their types.
void infer_dissolved(InferCtx& c);
inline bool is_structural(const OpDef& op) { return op.infer == infer_dissolved; }

inline constexpr const char* kBodyOp = "ortrain.Body";
// (x, active): x; its gradient is where(active, dy, 0), so that what lies behind an inactive
// branch or iteration gives exactly zero, whatever its own formulas give at a zero gradient.
inline constexpr const char* kGateOp = "ortrain.Gate";
// (x, token): x, but what is computed from it belongs to the body: drawn anew in each iteration.
inline constexpr const char* kPerIterationOp = "ortrain.PerIteration";
// A node that the importer could not bring in: {why} is told if anything needs it.
inline constexpr const char* kMissingOp = "ortrain.Missing";

}  // namespace ortrain
