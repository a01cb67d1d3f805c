// One run of a graph through the whole path that a user's model takes: passes, planner, executor.
// And the comparison rule of the ONNX project's node tests.
#pragma once

#include <map>
#include <string>

#include "graph/pipeline.h"
#include "graph/tensor.h"

namespace ortrain::test {

// Compiles `source` for `spec`, whose input shapes are taken from `inputs` (by name; others are
// ignored), runs one step and returns copies of all outputs by name. `reference`: reference kernels
// only. Throws what compile() and the planner throw.
std::map<std::string, HostTensor> run_model(const Graph& source, StepSpec spec,
                                            const std::map<std::string, const HostTensor*>& inputs,
                                            bool reference = false);

// onnx.backend.test's rule with its defaults: |got - want| <= 1e-7 + 1e-3 |want|, integers exactly.
// "" when `want` is among `outputs` as `name` and equal, else what differs.
std::string difference(const std::map<std::string, HostTensor>& outputs, const std::string& name,
                       const HostTensor& want);

}  // namespace ortrain::test
