// A small operator table with hand-written kernels, so that tests of the runtime do not depend on
// ops/. All values are f32 unless said.
#pragma once

#include "graph/op_def.h"

namespace ortrain::test {

// Add, Sub, Mul (equal shapes or a scalar second input; in place over either full-size input),
// Neg (in place), Flat (view, to one axis), Sum (to a scalar, not in place), Shift1 (y[i] = x[i-1],
// cyclic: not in place, uses workspace), Gather (rows of f32 by i64 index, reports faults), Two
// (outputs x+1 and x*2, each in place over input 0), Twice (decomposes to Add(x, x), no kernel),
// Picky (kernel "fast" refuses odd counts, "ref" takes all: 0 - x), Lonely (neither kernel nor
// decomposition), Log (natural logarithm).
const OpTable& toy_ops();

// A node of the toy table, typed; returns its output `index`.
ValueId add(Graph& g, std::string_view op, std::vector<ValueId> inputs, int outputs = 1,
            std::string origin = {});

}  // namespace ortrain::test
