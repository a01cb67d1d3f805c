// Inference rules of elementwise operators on small integer tensors that carry shapes: the contents
// are computed on Dims, so Shape -> Gather -> Mul -> Reshape chains are known before training.
#pragma once

#include <optional>

#include "graph/op_def.h"

namespace ortrain::ops {

// Applies f to the contents of all inputs (equal length, or length 1), folding from the left. Does
// nothing when some contents are unknown, or when f gives nullopt. Call after the output is typed.
using DimFn = std::optional<Dim> (*)(Dim, Dim);
void carry_ints(InferCtx& c, DimFn f);

// infer_broadcast (or infer_compare) followed by carry_ints on integer inputs.
template <DimFn f>
void infer_arithmetic(InferCtx& c) {
  infer_broadcast(c);
  if (is_integer(c.dtype(0))) carry_ints(c, f);
}
template <DimFn f>
void infer_comparison(InferCtx& c) {
  infer_compare(c);
  if (is_integer(c.dtype(0))) carry_ints(c, f);
}
// Output 0 like input 0, contents through f(x, x).
template <DimFn f>
void infer_unary_arithmetic(InferCtx& c) {
  infer_same_as_first(c);
  if (is_integer(c.dtype(0))) carry_ints(c, f);
}

}  // namespace ortrain::ops
