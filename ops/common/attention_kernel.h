// Attention over strided operands, forward and backward, with vector instructions, in f32; 16-bit
// operands are widened and results rounded head by head, in the cache.
//
// Nothing of size T x S per head is kept: forward holds a few rows of scores, backward a block of
// rows (kBlockBytes) that it computes again from the row maxima and sums. Keys beyond the causal
// limit are skipped. Work is split over batch x key heads; results do not depend on the number of
// threads. Scratch memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace ortrain::ops {

struct AttentionSizes {
  int64_t batch = 0, heads = 0, kv_heads = 0;  // heads is a multiple of kv_heads
  int64_t queries = 0, keys = 0;               // T, S
  int64_t width = 0, v_width = 0;              // D, Dv
  float scale = 1;
  bool causal = false;  // query t sees keys 0..t
  bool guard = false;   // a row without any key gives 0, else NaN
  int64_t units() const { return batch * kv_heads; }
};

// A [batch, heads, rows, width] operand; strides in elements, the last axis is dense.
template <class T>
struct AttentionPlane {
  T* p = nullptr;
  int64_t batch = 0, head = 0, row = 0;
  T* at(int64_t b, int64_t h, int64_t t = 0) const { return p + b * batch + h * head + t * row; }
};

// Broadcast over [batch, heads, T, S] by zero strides (key: 0 or 1). Float: added; bool: false
// hides the key.
struct AttentionMask {
  const void* p = nullptr;    // null: none
  DType dtype = DType::kF32;  // bool, f32 or a 16-bit float
  int64_t batch = 0, head = 0, row = 0, key = 0;
  int64_t at(int64_t b, int64_t h, int64_t t) const { return b * batch + h * head + t * row; }
};

// T: float, or uint16_t for bits of a 16-bit float.
template <class T>
struct AttentionForward {
  AttentionSizes s;
  AttentionPlane<const T> q, k, v;
  AttentionMask mask;
  AttentionPlane<T> y;
  float* stats = nullptr;  // [batch, heads, T, 2]: row maximum, 1 / sum; may be null
};
template <class T>
struct AttentionBackward {
  AttentionSizes s;
  AttentionPlane<const T> q, k, v, y, dy;
  AttentionMask mask;
  const float* stats = nullptr;
  AttentionPlane<T> dq, dk, dv;  // p null: not wanted
  float* dmask = nullptr;  // [batch, heads, T, S], not summed; null: not wanted (16 bits: null)
};

struct AttentionUnit {  // one batch and key head
  int64_t batch = -1, head = 0;
};
struct AttentionScratch {   // of one thread
  float *kt, *vt;           // keys and values transposed: [D, ld], [Dv, ld]
  float *k, *v, *q, *dy;    // rows copied together where they are strided
  float *scores, *dscores;  // [rows of a block, ld]
  float* mask;              // [8, ld]
  float* wide;              // the unit's operands and results in f32, for 16-bit ones
};

// Bytes of scratch memory per thread; dtype: f32, or the 16-bit type of the operands.
size_t attention_forward_workspace(const AttentionSizes& s, DType dtype);
size_t attention_backward_workspace(const AttentionSizes& s, DType dtype);
void attention_forward(const AttentionForward<float>& a, int threads, void* workspace);
void attention_backward(const AttentionBackward<float>& a, int threads, void* workspace);
void attention_forward(const AttentionForward<uint16_t>& a, DType dtype, int threads,
                       void* workspace);
void attention_backward(const AttentionBackward<uint16_t>& a, DType dtype, int threads,
                        void* workspace);

}  // namespace ortrain::ops
