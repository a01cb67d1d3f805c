// c[M,N] = op(a) op(b) (+ bias[N]) for 2-D operands, as the fastest oneDNN primitive:
// inner_product (its backward-by-weights form for a transposed left side), matmul otherwise
// (figures: docs/performance.md).
#pragma once

#include "ops/common/onednn.h"

namespace ortrain::ops {

struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;  // stored as [k,m], [n,k]
  DType dtype = DType::kF32;              // of both operands, bias and result; sums are f32
  bool f32_result = false;                // whatever dtype is
};

// Appends the product to the program. Slots' layouts are ignored: row-major as Product says.
// bias_index: input index of a length-n bias, or -1; needs !trans_a.
void add_product(onednn::Program& program, const Product& p, const onednn::Slot& a,
                 const onednn::Slot& b, const onednn::Slot& c, int bias_index = -1);

}  // namespace ortrain::ops
