// Shared by the records of com.microsoft operators, which optimised exports of onnxruntime hold.
//
// They mean standard operators, and are replaced by these as soon as shapes are numbers
// (canonicalize), so that fuse_forward finds in them what it finds in a plain export.
#pragma once

#include "graph/op_def.h"

namespace ortrain::ops {

// A training policy: the node becomes its decomposition. Shapes that are still open leave it alone.
void expand_early(Graph& g, NodeId n, const TrainingPolicy&);

// Activations that onnxruntime fuses into Conv and Gemm, by ONNX's names, with their parameters in
// the order of onnxruntime's activation_params. Unknown names throw Error(kUnsupported).
void check_activation(const std::string& name);
Expr activated(Builder& b, Expr x, const std::string& name, const std::vector<double>& params);

}  // namespace ortrain::ops
