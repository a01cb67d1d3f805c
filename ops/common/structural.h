// The record of a structural operator (graph/structure.h): pass infer dissolves it, so it has
// neither kernels nor gradient formulas, only rules that say where no gradient flows.
#pragma once

#include "graph/structure.h"

namespace ortrain::ops {

inline OpDef structural(std::string name, std::vector<std::string> inputs,
                        std::vector<GradRule> rules, int since, std::string note) {
  OpDef op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.outputs = {"outputs*"};
  op.since = since;
  op.infer = infer_dissolved;
  op.grad = std::move(rules);
  op.fold = false;
  op.note = std::move(note);
  return op;
}

}  // namespace ortrain::ops
