// Checks that inference rules share: what a file may say and a kernel could not survive.
#pragma once

#include <initializer_list>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {

// The inputs listed that are present have one type, a float.
inline void same_floats(InferCtx& c, std::initializer_list<int> inputs) {
  const DType first = c.dtype(*inputs.begin());
  if (!is_float(first)) c.fail(cat("needs floats, got ", name_of(first)));
  for (int i : inputs)
    if (c.has(i) && c.dtype(i) != first)
      c.fail(cat("input ", i, " is ", name_of(c.dtype(i)), ", input ", *inputs.begin(), " ",
                 name_of(first)));
}

// A number of heads, in [1, 65536].
inline int64_t head_count(InferCtx& c, const char* attribute) {
  const int64_t heads = c.attrs().i(attribute, 0);
  if (heads < 1 || heads > 65536) c.fail(cat(attribute, " is ", heads));
  return heads;
}
// width / heads: heads of at least one element.
inline Dim head_width(InferCtx& c, const Dim& width, int64_t heads) {
  if (width.is_const() && (width.value() < heads || width.value() % heads != 0))
    c.fail(cat("width ", width.value(), " does not divide into ", heads, " heads"));
  return floordiv(width, Dim(heads));
}

}  // namespace ortrain::ops
