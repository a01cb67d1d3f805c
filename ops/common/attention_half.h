// Attention on 16-bit floats whose products run as they are (half_units.h), forward and backward:
// f32 sums and softmax, probabilities and their gradients rounded to 16 bits for the next product.
//
// Works batch by batch, on tiles of kRows queries of all heads: nothing of size B x H x T x S is
// kept; keys beyond the causal limit are skipped tile-wise. Operands of a batch are copied together
// (16 bits) for the library's batched products. Refuses (reject_half_attention) CPUs without AMX
// for the type, where attention_kernel.h is faster, key heads that serve groups, 16-bit masks, and
// the gradient of a mask.
#pragma once

#include "ops/common/attention_kernel.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

struct HalfAttention {
  size_t workspace = 0;
  // The one that was asked for. Masks: bool or f32; stats of forward may be null.
  std::function<void(const AttentionForward<uint16_t>&, const KernelArgs&)> forward;
  std::function<void(const AttentionBackward<uint16_t>&, const KernelArgs&)> backward;
};
// "" or why not; asks the library whether it has the products.
std::string reject_half_attention(const KernelQuery& q, const AttentionSizes& s, bool half_mask);
HalfAttention half_attention(const KernelQuery& q, const AttentionSizes& s, bool backward);

}  // namespace ortrain::ops
