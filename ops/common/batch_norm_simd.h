// Loops of BatchNormalization over channels-last rows, in vectors of doubles (Highway).
//
// Data are f32, bf16 or f16, widened and rounded (to nearest even; NaN stays NaN) in registers; all
// arithmetic is in double. (x - mean) scale + bias, and what a relu lets through of it, is one
// expression for forward and backward. Nothing allocates or fails; data need no alignment.
#pragma once

#include "graph/dtype.h"

namespace ortrain::ops {

// `channels` adjacent numbers of each of `rows` rows, which lie `pitch` numbers apart.
struct NormRows {
  DType dtype;  // f32, bf16 or f16
  int64_t rows, pitch, channels;
};

// Per channel; entry 0 belongs to the first of NormRows::channels.
struct NormFactors {
  const double *mean, *scale, *bias;
  float low, high;  // a fused relu clips to [low, high]; infinities: no bound
};

// s += sum of x - k, q += sum of (x - k)^2, per channel.
void norm_sums(const NormRows& n, const void* x, const double* k, double* s, double* q);

// y = clip((x - mean) scale + bias (+ z)). z may be null; y may be x.
void norm_apply(const NormRows& n, const void* x, const void* z, void* y, const NormFactors& f);

// g = dy where the relu let through; s += sum g, q += sum g (x - mean). With `y` (the clipped
// output) the mask is y's and g goes to dz; otherwise dz is null and v is made again from x.
void norm_grad_sums(const NormRows& n, const void* dy, const void* x, const void* y, void* dz,
                    const NormFactors& f, double* s, double* q);

// dx = scale g + slope (x - mean) + shift, g as above; dx may be x.
void norm_grad_input(const NormRows& n, const void* dy, const void* x, void* dx,
                     const NormFactors& f, const double* slope, const double* shift);

}  // namespace ortrain::ops
