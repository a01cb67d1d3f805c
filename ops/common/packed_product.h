// c[M,N] = a[M,K] op(b) (+ bias[N]) for a right side that is packed once and then used by threads
// that each have rows of their own (the steps of a recurrent layer, products of many rows), or by
// threads that each have columns of their own (products of few rows). a and b are both f32 or both
// bf16, c and the sums f32.
//
// Nothing here starts threads or waits for one. A row of c depends on its row of a and on b alone,
// bit for bit, however rows are shared out. Scratch memory is the caller's, 64-byte aligned. Only
// where packed_product_available() (AVX-512; for bf16 its BF16 units, and no AMX, with which the
// library is faster); elsewhere the calls fail a check.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortrain::ops {

struct PackedSizes {
  int64_t n = 0, k = 0;
  bool trans_b = false;  // b is stored [n,k], else [k,n]
  bool bf16 = false;     // a and b are bf16, else f32
};

bool packed_product_available(bool bf16 = false);

size_t packed_right_bytes(const PackedSizes& s);
int64_t packed_panels(const PackedSizes& s);
// Panels [first, last) of b, which is given whole.
void pack_right(const PackedSizes& s, const void* b, int64_t first, int64_t last, void* packed);

size_t packed_workspace(const PackedSizes& s, int64_t m);  // grows with m no faster than m does
void multiply_packed(const PackedSizes& s, int64_t m, const void* a, const void* packed, float* c,
                     void* workspace, const float* bias = nullptr);

// The columns of panels [first, last) alone, b as it is stored: each panel is packed and used while
// it is in the cache. The same bits as multiply_packed.
size_t packed_columns_workspace(const PackedSizes& s, int64_t m);
void multiply_columns(const PackedSizes& s, int64_t m, const void* a, const void* b, int64_t first,
                      int64_t last, float* c, void* workspace, const float* bias = nullptr);

}  // namespace ortrain::ops
