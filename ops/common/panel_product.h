// y[M,N] = x[M,K] w[N,K]^T (+ bias[N]), f32, by our own product (packed_product.h), on all threads.
//
// For where the library's inner_product loses to the order in which the weight is stored: few rows
// of x share the cost of turning it, or rows lie a multiple of 2 KiB apart.
#pragma once

#include <string>

#include "ops/common/packed_product.h"

namespace ortrain::ops {

struct PanelProduct {
  int64_t m = 0, n = 0, k = 0;
  int threads = 1;

  // "" or why the library's product is no slower.
  std::string reject() const;
  size_t workspace() const;  // bytes, 64-byte aligned
  void operator()(const float* x, const float* w, const float* bias, float* y,
                  void* workspace) const;

 private:
  PackedSizes sizes() const { return {n, k, true}; }
  bool by_columns() const;
  int64_t rows_at_once() const;
  size_t each() const;    // bytes of one thread
  size_t shared() const;  // bytes of the packed weight
};

}  // namespace ortrain::ops
