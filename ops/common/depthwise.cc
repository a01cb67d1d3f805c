// See depthwise.h. Vector code in Highway, compiled for AVX2, AVX-512 and the baseline.
#include "ops/common/depthwise.h"

#include <algorithm>
#include <utility>

#include "runtime/kernel.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/depthwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef ORTRAIN_DEPTHWISE_PLAN
#define ORTRAIN_DEPTHWISE_PLAN
namespace ortrain::ops {

// Sizes in floats; `lanes` channels make a block.
struct DepthwisePlan {
  int64_t lanes, blocks, pieces;
  bool by_samples;             // pieces are of samples, else of blocks
  int64_t pw, strip;           // columns of a padded row; output rows of a strip
  int64_t sums, image, grads;  // of a piece: [blocks, taps + 1, lanes]; a block's padded x and dy
};
inline DepthwisePlan depthwise_plan(const Depthwise& s, int64_t lanes) {
  constexpr int64_t kBlock = 8 << 10;   // of a block's strip of x: half a first-level cache
  constexpr int64_t kStrip = 96 << 10;  // of a strip of x, all channels: in the second-level cache
  DepthwisePlan p{};
  p.lanes = lanes;
  p.blocks = (s.c + lanes - 1) / lanes;
  p.by_samples = s.n >= s.threads;
  p.pieces = std::min<int64_t>(s.threads, p.by_samples ? s.n : p.blocks);
  p.pw = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1;
  const int64_t high = std::min(kBlock / lanes, kStrip / s.c) / p.pw;  // rows of x
  p.strip = std::clamp<int64_t>((high - (s.kh - 1) * s.dh - 1) / s.sh + 1,
                                std::min<int64_t>(4, s.oh), s.oh);
  p.sums = p.blocks * (s.kh * s.kw + 1) * lanes;
  p.image = ((p.strip - 1) * s.sh + (s.kh - 1) * s.dh + 1) * p.pw * lanes;
  p.grads = p.strip * s.ow * lanes;
  return p;
}

}  // namespace ortrain::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr int kSums = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 28 : 12;  // registers

int64_t lanes() { return static_cast<int64_t>(hn::Lanes(D())); }

// One strip: outputs [rows, ow]; all strides in floats.
struct Strip {
  int64_t rows, ow;
  int64_t down, right;          // from an output's window to that below and beside it
  int64_t tap_down, tap_right;  // from tap to tap
};

// sums[R, K] += x dy over a strip.
template <int R, int K>
HWY_NOINLINE void add_taps(const Strip& s, const float* HWY_RESTRICT x,
                           const float* HWY_RESTRICT dy, float* HWY_RESTRICT sums) {
  const D d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  V sum[R][K];
#pragma GCC unroll 7
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 7
    for (int j = 0; j < K; ++j) sum[i][j] = hn::Zero(d);
  for (int64_t r = 0; r < s.rows; ++r) {
    const float* at = x + r * s.down;
    for (int64_t q = 0; q < s.ow; ++q, at += s.right, dy += n) {
      const V g = hn::Load(d, dy);
#pragma GCC unroll 7
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 7
        for (int j = 0; j < K; ++j)
          sum[i][j] = hn::MulAdd(hn::Load(d, at + i * s.tap_down + j * s.tap_right), g, sum[i][j]);
    }
  }
#pragma GCC unroll 7
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 7
    for (int j = 0; j < K; ++j) {
      float* to = sums + (i * K + j) * n;
      hn::Store(hn::Add(hn::Load(d, to), sum[i][j]), d, to);
    }
}

template <int K>
void add_rows_of_taps(const Strip& s, int64_t kh, const float* x, const float* dy, float* sums) {
  constexpr int kMost = std::min(7, std::max(1, kSums / K));
  const int64_t step = K * lanes();
  for (int64_t i = 0; i < kh;) {
    const float* at = x + i * s.tap_down;
    float* to = sums + i * step;
    const int64_t left = kh - i;
    if (left >= kMost) {
      add_taps<kMost, K>(s, at, dy, to), i += kMost;
    } else if (kMost > 3 && left >= 3) {
      add_taps<std::min(3, kMost), K>(s, at, dy, to), i += 3;
    } else if (kMost > 2 && left == 2) {
      add_taps<std::min(2, kMost), K>(s, at, dy, to), i += 2;
    } else {
      add_taps<1, K>(s, at, dy, to), i += 1;
    }
  }
}

// to[cols] vectors from `cols` positions `step` floats apart, `channels` of each.
void gather(const float* from, int64_t step, int64_t cols, int64_t channels, float* to) {
  const D d;
  const int64_t n = lanes();
  if (channels == n) {
    for (int64_t i = 0; i < cols; ++i) hn::Store(hn::LoadU(d, from + i * step), d, to + i * n);
    return;
  }
  for (int64_t i = 0; i < cols; ++i) {
    std::copy_n(from + i * step, channels, to + i * n);
    std::fill(to + i * n + channels, to + (i + 1) * n, 0.f);
  }
}

// One strip of one block of channels: outputs of rows [r0, r0 + rows) of sample i. sums [taps + 1,
// lanes], the last of dy.
void weight_strip(const Depthwise& s, const DepthwisePlan& p, const float* x, const float* dy,
                  int64_t i, int64_t r0, int64_t rows, int64_t block, float* sums, float* image,
                  float* grads) {
  const D d;
  const int64_t n = p.lanes, channel = block * n, channels = std::min(n, s.c - channel);
  const int64_t high = (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1;
  // Columns of x that the windows reach.
  const int64_t begin = std::min(s.left, p.pw), end = std::clamp(s.w + s.left, begin, p.pw);
  for (int64_t r = 0; r < high; ++r) {
    const int64_t row = r0 * s.sh - s.top + r;
    float* to = image + r * p.pw * n;
    if (row < 0 || row >= s.h) {
      std::fill_n(to, p.pw * n, 0.f);
      continue;
    }
    std::fill_n(to, begin * n, 0.f);
    gather(x + ((i * s.h + row) * s.w) * s.c + channel, s.c, end - begin, channels, to + begin * n);
    std::fill(to + end * n, to + p.pw * n, 0.f);
  }
  gather(dy + ((i * s.oh + r0) * s.ow) * s.c + channel, s.c, rows * s.ow, channels, grads);
  float* bias = sums + s.kh * s.kw * n;
  V sum = hn::Zero(d);
  for (int64_t q = 0; q < rows * s.ow; ++q) sum = hn::Add(sum, hn::Load(d, grads + q * n));
  hn::Store(hn::Add(hn::Load(d, bias), sum), d, bias);
  const Strip strip{rows, s.ow, s.sh * p.pw * n, s.sw * n, s.dh * p.pw * n, s.dw * n};
  if (s.kw == 5)
    add_rows_of_taps<5>(strip, s.kh, image, grads, sums);
  else
    add_rows_of_taps<7>(strip, s.kh, image, grads, sums);
}

// A piece of the work: its sums [blocks, taps + 1, lanes], then its buffers.
void weight_piece(const Depthwise& s, const DepthwisePlan& p, const float* x, const float* dy,
                  int64_t piece, float* space) {
  const auto range = [&](int64_t all, bool split) {
    return split ? std::pair(all * piece / p.pieces, all * (piece + 1) / p.pieces)
                 : std::pair<int64_t, int64_t>(0, all);
  };
  const auto [first, last] = range(s.n, p.by_samples);
  const auto [first_block, last_block] = range(p.blocks, !p.by_samples);
  std::fill_n(space, p.sums, 0.f);
  float *image = space + p.sums, *grads = image + p.image;
  for (int64_t i = first; i < last; ++i)
    for (int64_t r0 = 0; r0 < s.oh; r0 += p.strip)
      for (int64_t block = first_block; block < last_block; ++block)
        weight_strip(s, p, x, dy, i, r0, std::min(p.strip, s.oh - r0), block,
                     space + block * (s.kh * s.kw + 1) * p.lanes, image, grads);
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(lanes);
HWY_EXPORT(weight_piece);

namespace {
DepthwisePlan plan_of(const Depthwise& s) {
  return depthwise_plan(s, HWY_DYNAMIC_DISPATCH(lanes)());
}
int64_t piece_floats(const DepthwisePlan& p) {  // whole vectors
  return (p.sums + p.image + p.grads + 15) / 16 * 16;
}
}  // namespace

bool depthwise_takes(int64_t kw) { return kw == 5 || kw == 7; }

size_t depthwise_weight_workspace(const Depthwise& s) {
  const DepthwisePlan p = plan_of(s);
  return static_cast<size_t>(p.pieces * piece_floats(p)) * sizeof(float);
}

void depthwise_weight(const Depthwise& s, const float* x, const float* dy, float* dw, float* db,
                      void* workspace) {
  const DepthwisePlan p = plan_of(s);
  auto* const space = static_cast<float*>(workspace);
  const int64_t size = piece_floats(p), taps = s.kh * s.kw;
  parallel_for(s.threads, p.pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece)
      HWY_DYNAMIC_DISPATCH(weight_piece)(s, p, x, dy, piece, space + piece * size);
  });
  for (int64_t c = 0; c < s.c; ++c)
    for (int64_t t = 0; t <= taps; ++t) {
      float sum = 0;
      for (int64_t piece = 0; piece < p.pieces; ++piece)
        sum += space[piece * size + (c / p.lanes * (taps + 1) + t) * p.lanes + c % p.lanes];
      if (t < taps)
        dw[c * taps + t] = sum;
      else if (db)
        db[c] = sum;
    }
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
