// 3x3 convolutions of stride 1 by Winograd's F(2x2, 3x3): 16 products of a quarter of the outputs
// each, 2.25 times fewer multiplications than the direct form. f32, channels-last, no groups.
//
// Tiles are taken in blocks whose transforms fit the L2 cache; no transformed tensor ever lies in
// memory, only the transformed weight does (16/9 of the weight). Tiles are split over threads in
// contiguous pieces, sums over tiles are added in the order of the threads: bits repeat for equal
// shapes and thread count. Errors against double: docs/performance.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortrain::ops {

// One pass over images: x [n, h, w, cin] -> y [n, oh, ow, cout]. top, left: padding; what lies
// outside of x is zero.
struct Winograd {
  int64_t n = 0, h = 0, w = 0, cin = 0, oh = 0, ow = 0, cout = 0, top = 0, left = 0;
  int threads = 1;
  int64_t tiles() const { return n * ((oh + 1) / 2) * ((ow + 1) / 2); }
};

// Bytes of workspace.
size_t winograd_workspace(const Winograd& s);
size_t winograd_weight_workspace(const Winograd& s);

// weight [cout, cin, 3, 3], or with `back` the weight [cin, cout, 3, 3] of the forward convolution
// whose input gradient this is: rotated and transposed. bias: cout elements or null.
void winograd(const Winograd& s, const float* x, const float* weight, bool back, const float* bias,
              float* y, void* workspace);
// dw [cout, cin, 3, 3] of x and dy [n, oh, ow, cout]; db: cout elements or null.
void winograd_weight(const Winograd& s, const float* x, const float* dy, float* dw, float* db,
                     void* workspace);

}  // namespace ortrain::ops
