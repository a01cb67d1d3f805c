// Shape and type rules that several operators' inference shares. They throw through InferCtx::fail
// what does not fit; element types are the caller's to check.
#pragma once

#include "graph/op_def.h"

namespace ortrain::ops {

// numpy.matmul of inputs ia and ib (rank 1 and higher, batches broadcast), with the attributes
// trans_a and trans_b.
Shape product_shape(InferCtx& c, int ia, int ib);
// Convolution of input ix by weight iw [O, C / group, k...], in the layout of the attributes.
Shape conv_shape(InferCtx& c, int ix, int iw);

// The element type that attribute `name` holds as a short name; Error(kUnsupported) on another
// text.
DType type_attribute(const Attrs& attrs, const char* name, DType missing);

}  // namespace ortrain::ops
