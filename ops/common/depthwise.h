// Weight gradient of depthwise convolutions, channels-last f32: 5 or 7 taps a kernel row. (With 3
// the library is twice as fast; docs/performance.md, "Kernels".)
//
// A block of channels, as many as a vector has lanes, is copied together with its padding a strip
// of rows at a time; sums of kernel rows x taps stay in registers through a strip. Threads have
// samples of their own, or blocks where samples are few; sums are added in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortrain::ops {

// x [n, h, w, c], dy [n, oh, ow, c]: dw[c, i, j] = sum of x[r * sh - top + i * dh, q * sw - left +
// j
// * dw] dy[r, q] over samples and outputs (r, q). Nothing is negative, every extent at least 1.
struct Depthwise {
  int64_t n, h, w, c, oh, ow, kh, kw, sh, sw, dh, dw, top, left;
  int threads;
};

bool depthwise_takes(int64_t kw);                       // taps of a kernel row
size_t depthwise_weight_workspace(const Depthwise& s);  // bytes, 64-byte aligned
// dw [c, kh, kw], db [c] or null.
void depthwise_weight(const Depthwise& s, const float* x, const float* dy, float* dw, float* db,
                      void* workspace);

}  // namespace ortrain::ops
