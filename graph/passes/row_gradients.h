// Gradients of tables that are looked up, by the rows that were touched instead of a tensor of the
// table's size that is almost all zeros. For the optimizer pass.
#pragma once

#include <optional>

#include "graph/builder.h"

namespace ortrain {

struct RowGradient {
  ValueId rows, slots;  // of ortrain.GatherGradRows
};

// `grad` by touched rows: where a lookup alone makes it, nothing else reads it, and the table has
// at least twice as many rows as there are lookups; else nothing, and the graph stays as it is.
std::optional<RowGradient> row_gradient(Graph& g, ValueId grad);

// base + x: the touched rows are added to base where x is such a gradient.
Expr add_gradient(Expr base, Expr x);

// A sum of gradients of which some are such: these are added into the others. Returns the new sum,
// or `grad` itself.
ValueId merge_row_gradients(Graph& g, ValueId grad);

}  // namespace ortrain
