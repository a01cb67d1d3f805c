// c[M,N] = op(a) op(b) (+ bias[N]) for 2-D operands of 16-bit floats: f32 sums, rounded once.
//
// Where the CPU has fast units for the type (half_units.h) the library multiplies the 16-bit
// numbers as they are. Elsewhere f32 products are faster (Intel's AVX-512 BF16 has half the rate of
// f32 FMA: measured 84 against 165 GFLOP/s a core), so blocks that fit the cache are widened,
// multiplied in f32 and rounded; no whole operand is. Refuses other types, mixtures, and empty
// operands.
#pragma once

#include "ops/common/half_units.h"
#include "ops/common/matrix_product.h"

namespace ortrain::ops {

struct HalfProduct {
  Product shape;
  size_t a = 0, b = 1, c = 0;  // indices of inputs and of the output
  int bias = -1;               // input of length n, any float type that half.h knows or f32
  int sums = -1;  // output of length n or m: the sums of b's (a transposed: a's) columns over k
  bool sums_of_a = false;
};
std::string half_product_reject(const KernelQuery& q);
Kernel half_product(const KernelQuery& q, const HalfProduct& p);

}  // namespace ortrain::ops
