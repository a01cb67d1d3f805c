// Channels-last f32 convolution with few channels, its input gradient and its weight gradient.
//
// The vector runs along the channels of what is computed, in the width (4, 8 or 16) that they fill
// best; a register tile holds up to 14 positions of a row (weight gradient: 14 taps x channels). A
// sample with padding is copied once into a buffer with zeros around it. Samples are shared out
// among threads; sums of several threads are added in their order, so bits repeat.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortrain::ops {

// x [n, h, w, cin] -> y [n, oh, ow, cout]: y[i, j] = sum of x[i * sh - top + ti * dh, j * sw - left
// + tj * dw] at taps ti < kh, tj < kw. Nothing is negative, every extent at least 1.
struct FewChannels {
  int64_t n, h, w, cin, oh, ow, cout, kh, kw, sh, sw, dh, dw, top, left;
  int threads;
};

// Floats of vectors that hold `channels` on this machine, the last one filled up.
int64_t few_channels_padded(int64_t channels);

// Bytes, 64-byte aligned.
size_t few_channels_workspace(const FewChannels& s);
size_t few_channels_weight_workspace(const FewChannels& s);

// weight [cout, cin, kh, kw] as stored; `back`: [cin, cout, kh, kw] with the taps reversed (the
// input gradient as a convolution of dy). bias [cout] or null.
void few_channels(const FewChannels& s, const float* x, const float* weight, bool back,
                  const float* bias, float* y, void* workspace);
// dw [cout, cin, kh, kw], db [cout] or null: a sample's windows added in f32, samples in double.
void few_channels_weight(const FewChannels& s, const float* x, const float* dy, float* dw,
                         float* db, void* workspace);

}  // namespace ortrain::ops
