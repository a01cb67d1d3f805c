// Gradient formulas are asked once per input; those that come from one multi-output node share it.
#pragma once

#include <string_view>
#include <vector>

#include "graph/builder.h"

namespace ortrain::ops {

// Output `index` of op(inputs) {attrs}: of an existing node with the same op, inputs and attributes
// if there is one (the output is then asked for), else of a new node. The first input must be
// present.
Expr share_node(Builder& b, std::string_view op, const std::vector<Expr>& inputs,
                const Attrs& attrs, int index);

}  // namespace ortrain::ops
