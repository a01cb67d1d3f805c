// Second half of fuse_attention: the op reads and writes what the projections leave.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// Every head-major ortrain.Attention whose q, k and v are Transpose(0,2,1,3) of [B,T,H,D] becomes
// token-major; q, k and v that are the thirds of one tensor become that tensor. Transposes, Split
// and Squeeze left without users die with the caller's erase_dead.
void absorb_attention_layout(Graph& g);

}  // namespace ortrain
