// f32 attention over strided operands, forward and backward, with vector instructions.
//
// Nothing of size T x S per head is kept: forward holds a few rows of scores, backward a block of
// rows (kBlockBytes) that it computes again from the row maxima and sums. Keys beyond the causal
// limit are skipped. Work is split over batch x key heads; results do not depend on the number of
// threads. Scratch memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Broadcast over [batch, heads, T, S] by zero strides. Float: added; bool: false hides the key.
struct AttentionMask {
  const void* p = nullptr;  // null: none
  bool boolean = false;
  int64_t batch = 0, head = 0, row = 0, key = 0;
  int64_t at(int64_t b, int64_t h, int64_t t) const { return b * batch + h * head + t * row; }
};

struct AttentionForwardArgs {
  AttentionSizes s;
  AttentionPlane<const float> q, k, v;
  AttentionMask mask;
  AttentionPlane<float> y;
  float* stats = nullptr;  // [batch, heads, T, 2]: row maximum, 1 / sum; may be null
};
struct AttentionBackwardArgs {
  AttentionSizes s;
  AttentionPlane<const float> q, k, v, y, dy;
  AttentionMask mask;
  const float* stats = nullptr;
  AttentionPlane<float> dq, dk, dv;  // p null: not wanted
  float* dmask = nullptr;            // [batch, heads, T, S], not summed; null: not wanted
};

struct AttentionUnit {  // one batch and key head
  int64_t batch = -1, head = 0;
};
struct AttentionScratch {   // of one thread
  float *kt, *vt;           // keys and values transposed: [D, ld], [Dv, ld]
  float *k, *v, *q, *dy;    // rows copied together where they are strided
  float *scores, *dscores;  // [rows of a block, ld]
  float* mask;              // [8, ld]
};

// Bytes of scratch memory per thread.
size_t attention_forward_workspace(const AttentionSizes& s);
size_t attention_backward_workspace(const AttentionSizes& s);
void attention_forward_f32(const AttentionForwardArgs& a, int threads, void* workspace);
void attention_backward_f32(const AttentionBackwardArgs& a, int threads, void* workspace);

}  // namespace ortrain::ops
