// See few_channels.h. Vector code in Highway, compiled for AVX2, AVX-512 and the baseline.
#include "ops/common/few_channels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/kernel.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/few_channels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef ORTRAIN_FEW_CHANNELS_PLAN
#define ORTRAIN_FEW_CHANNELS_PLAN
namespace ortrain::ops {

// Widest vector of a channel count: the one that leaves the fewest lanes empty.
inline int64_t few_width(int64_t channels) {
  return channels <= 4 ? 4 : (channels + 7) / 8 % 2 ? 8 : 16;
}
// Where things lie in the workspace, in floats. Shared parts first, then one part per piece.
struct FewPlan {
  int64_t padded = 0;         // output channels
  int64_t ph = 0, pw = 0;     // of x with its padding, as far as windows reach
  bool copy_x = false;        // else x is read where it is
  int64_t run = 0, runs = 0;  // taps x channels that lie together, and how often per kernel row
  int64_t weights = 0, bias = 0, image = 0, rows = 0;  // bias: room for doubles
  int pieces = 1;
};
inline int64_t few_round(int64_t floats) { return (floats + 31) / 16 * 16; }
inline FewPlan few_plan(const FewChannels& s) {
  FewPlan p;
  p.padded = few_channels_padded(s.cout);
  p.ph = (s.oh - 1) * s.sh + (s.kh - 1) * s.dh + 1;
  p.pw = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1;
  p.copy_x = s.top > 0 || s.left > 0 || p.ph > s.h || p.pw > s.w;
  p.run = s.dw == 1 ? s.kw * s.cin : s.cin;
  p.runs = s.dw == 1 ? 1 : s.kw;
  p.weights = few_round(s.kh * s.kw * s.cin * p.padded);
  p.bias = few_round(2 * p.padded);
  p.image = p.copy_x ? few_round(p.ph * p.pw * s.cin) : 0;
  p.rows = p.padded == s.cout ? 0 : few_round(s.oh * s.ow * p.padded);
  p.pieces = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(s.threads, s.n)));
  return p;
}
// x of one sample into the middle of `to`, whose border stays as it is.
inline void few_copy(const FewChannels& s, const FewPlan& p, const float* x, float* to) {
  const int64_t cols = std::min(s.w, p.pw - s.left);
  if (cols <= 0) return;
  for (int64_t i = s.top; i < std::min(p.ph, s.top + s.h); ++i)
    std::memcpy(to + (i * p.pw + s.left) * s.cin, x + (i - s.top) * s.w * s.cin,
                static_cast<size_t>(cols * s.cin) * sizeof(float));
}

}  // namespace ortrain::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTile = 14;

struct Walk {        // one tile's way through x
  int64_t step;      // floats between neighbours
  int64_t row, tap;  // floats between kernel rows, and between runs
  int64_t kh, runs, run;
};

// y[p] = bias + sum over the taps, P positions of a row, one vector of channels. `room`: channels
// to store where they do not fill it; `left`: floats from y on that may be written in any case,
// since later positions write them again.
template <size_t L, int P>
HWY_NOINLINE void tile(const Walk& s, const float* HWY_RESTRICT x, const float* HWY_RESTRICT w,
                       int64_t padded, const float* HWY_RESTRICT bias, float* HWY_RESTRICT y,
                       int64_t cout, int64_t room, int64_t left) {
  const hn::CappedTag<float, L> d;
  using V = hn::Vec<decltype(d)>;
  V sum[P];
#pragma GCC unroll 14
  for (int p = 0; p < P; ++p) sum[p] = hn::Load(d, bias);
  constexpr int kBases = (P + 2) / 3;  // neighbours at 0, 1 and 2 steps from each
  for (int64_t i = 0; i < s.kh; ++i)
    for (int64_t t = 0; t < s.runs; ++t) {
      const float* at[kBases];
#pragma GCC unroll 5
      for (int q = 0; q < kBases; ++q) at[q] = x + i * s.row + t * s.tap + 3 * q * s.step;
      for (int64_t c = 0; c < s.run; ++c, w += padded) {
        const V v = hn::Load(d, w);
#pragma GCC unroll 14
        for (int p = 0; p < P; ++p)
          sum[p] = hn::MulAdd(hn::Set(d, at[p / 3][p % 3 * s.step]), v, sum[p]);
#pragma GCC unroll 5
        for (int q = 0; q < kBases; ++q) ++at[q];
      }
    }
#pragma GCC unroll 14
  for (int p = 0; p < P; ++p) {
    if (std::max(room, left - p * cout) >= static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(sum[p], d, y + p * cout);
    } else {
      HWY_ALIGN float v[16];
      hn::Store(sum[p], d, v);
      std::memcpy(y + p * cout, v, static_cast<size_t>(room) * sizeof(float));
    }
  }
}

// sums[r] += x[.. + r] dy over the windows of a sample, R taps x channels, one vector of channels.
template <size_t L, int R>
HWY_NOINLINE void weight_tile(const FewChannels& s, const float* HWY_RESTRICT x, int64_t x_row,
                              const float* HWY_RESTRICT dy, int64_t dy_step, int64_t padded,
                              float* HWY_RESTRICT sums) {
  const hn::CappedTag<float, L> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kSets = R <= 7 ? 2 : 1;  // few sums would wait for one another
  V sum[kSets][R];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    sum[0][r] = hn::Load(d, sums + r * padded);
    if constexpr (kSets == 2) sum[1][r] = hn::Zero(d);
  }
  const int64_t step = s.sw * s.cin;
  for (int64_t i = 0; i < s.oh; ++i) {
    const float* at = x + i * s.sh * x_row;
    int64_t j = 0;
    for (; j + kSets <= s.ow; j += kSets)
#pragma GCC unroll 2
      for (int k = 0; k < kSets; ++k, at += step, dy += dy_step) {
        const V v = hn::LoadU(d, dy);
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r) sum[k][r] = hn::MulAdd(hn::Set(d, at[r]), v, sum[k][r]);
      }
    for (; j < s.ow; ++j, at += step, dy += dy_step) {
      const V v = hn::LoadU(d, dy);
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) sum[0][r] = hn::MulAdd(hn::Set(d, at[r]), v, sum[0][r]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    if constexpr (kSets == 2) sum[0][r] = hn::Add(sum[0][r], sum[1][r]);
    hn::Store(sum[0][r], d, sums + r * padded);
  }
}

using TileFn = void (*)(const Walk&, const float*, const float*, int64_t, const float*, float*,
                        int64_t, int64_t, int64_t);
using WeightFn = void (*)(const FewChannels&, const float*, int64_t, const float*, int64_t, int64_t,
                          float*);
template <size_t L, int... I>
constexpr std::array<TileFn, kTile> tiles_of(std::integer_sequence<int, I...>) {
  return {{&tile<L, I + 1>...}};
}
template <size_t L, int... I>
constexpr std::array<WeightFn, kTile> weight_tiles_of(std::integer_sequence<int, I...>) {
  return {{&weight_tile<L, I + 1>...}};
}
using All = std::make_integer_sequence<int, kTile>;
constexpr std::array<TileFn, kTile> kTiles[] = {tiles_of<4>(All()), tiles_of<8>(All()),
                                                tiles_of<16>(All())};
constexpr std::array<WeightFn, kTile> kWeightTiles[] = {
    weight_tiles_of<4>(All()), weight_tiles_of<8>(All()), weight_tiles_of<16>(All())};

size_t table_of(int64_t channels) {
  const int64_t width = few_width(channels);
  return width == 4 ? 0 : width == 8 ? 1 : 2;
}
int64_t lanes(int64_t channels) {
  const auto most = static_cast<int64_t>(hn::Lanes(hn::CappedTag<float, 16>()));
  return std::min(most, few_width(channels));
}

void sample(const FewChannels& s, const FewPlan& plan, const float* x, const float* weights,
            const float* bias, float* y) {
  const int64_t width = lanes(s.cout), vectors = plan.padded / width;
  const int64_t cols = plan.copy_x ? plan.pw : s.w;
  Walk walk{s.sw * s.cin, s.dh * cols * s.cin, s.dw * s.cin, s.kh, plan.runs, plan.run};
  const auto& fns = kTiles[table_of(s.cout)];
  const int64_t tiles = (s.ow + kTile - 1) / kTile;
  for (int64_t i = 0; i < s.oh; ++i) {
    // Kernel rows that meet x, and not only the zeros above and below it.
    const int64_t above = s.top - i * s.sh;
    const int64_t first = std::min(s.kh, above > 0 ? (above + s.dh - 1) / s.dh : 0);
    const int64_t last = above + s.h > 0 ? std::min(s.kh, (above + s.h - 1) / s.dh + 1) : 0;
    walk.kh = std::max<int64_t>(0, last - first);
    const float* row = x + (i * s.sh + first * s.dh) * cols * s.cin;
    const float* taps = weights + first * s.kw * s.cin * plan.padded;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = s.ow * t / tiles, end = s.ow * (t + 1) / tiles;
      for (int64_t v = 0; v < vectors; ++v)
        fns[static_cast<size_t>(end - begin - 1)](
            walk, row + begin * s.sw * s.cin, taps + v * width, plan.padded, bias + v * width,
            y + (i * s.ow + begin) * s.cout + v * width, s.cout, s.cout - v * width,
            vectors == 1 ? (s.ow - begin) * s.cout : 0);
    }
  }
}

void weight_sample(const FewChannels& s, const FewPlan& plan, const float* x, const float* dy,
                   int64_t dy_step, float* sums, double* bias) {
  const int64_t width = lanes(s.cout), vectors = plan.padded / width;
  const int64_t cols = plan.copy_x ? plan.pw : s.w;
  const auto& fns = kWeightTiles[table_of(s.cout)];
  const int64_t tiles = (plan.run + kTile - 1) / kTile;
  for (int64_t v = 0; v < vectors; ++v)
    for (int64_t i = 0; i < s.kh; ++i)
      for (int64_t r = 0; r < plan.runs; ++r)
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t begin = plan.run * t / tiles, end = plan.run * (t + 1) / tiles;
          fns[static_cast<size_t>(end - begin - 1)](
              s, x + (i * s.dh * cols + r * s.dw) * s.cin + begin, cols * s.cin, dy + v * width,
              dy_step, plan.padded,
              sums + ((i * plan.runs + r) * plan.run + begin) * plan.padded + v * width);
        }
  if (!bias) return;
  const hn::CappedTag<float, 4> d;
  for (int64_t v = 0; v < plan.padded; v += static_cast<int64_t>(hn::Lanes(d))) {
    auto a = hn::Zero(d), b = a;
    int64_t p = 0;
    for (; p + 1 < s.oh * s.ow; p += 2) {
      a = hn::Add(a, hn::LoadU(d, dy + p * dy_step + v));
      b = hn::Add(b, hn::LoadU(d, dy + (p + 1) * dy_step + v));
    }
    if (p < s.oh * s.ow) a = hn::Add(a, hn::LoadU(d, dy + p * dy_step + v));
    HWY_ALIGN float sum[4];
    hn::Store(hn::Add(a, b), d, sum);
    for (size_t i = 0; i < hn::Lanes(d); ++i) bias[v + static_cast<int64_t>(i)] += sum[i];
  }
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(lanes);
HWY_EXPORT(sample);
HWY_EXPORT(weight_sample);

namespace {
// body(piece, first sample, last sample), one piece a thread.
template <class Body>
void in_pieces(const FewChannels& s, const FewPlan& plan, Body&& body) {
  parallel_for(s.threads, plan.pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      body(p, s.n * p / plan.pieces, s.n * (p + 1) / plan.pieces);
  });
}
}  // namespace

int64_t few_channels_padded(int64_t channels) {
  const int64_t width = HWY_DYNAMIC_DISPATCH(lanes)(channels);
  return (channels + width - 1) / width * width;
}

size_t few_channels_workspace(const FewChannels& s) {
  const FewPlan p = few_plan(s);
  return static_cast<size_t>(p.weights + p.bias + p.pieces * p.image) * sizeof(float);
}
size_t few_channels_weight_workspace(const FewChannels& s) {
  const FewPlan p = few_plan(s);
  return static_cast<size_t>(p.pieces * (p.weights + p.bias + p.image + p.rows)) * sizeof(float);
}

void few_channels(const FewChannels& s, const float* x, const float* weight, bool back,
                  const float* bias, float* y, void* workspace) {
  const FewPlan plan = few_plan(s);
  auto* weights = static_cast<float*>(workspace);
  float* padded_bias = weights + plan.weights;
  const int64_t taps = s.kh * s.kw;
  for (int64_t t = 0; t < taps; ++t)
    for (int64_t c = 0; c < s.cin; ++c) {
      float* to = weights + (t * s.cin + c) * plan.padded;
      for (int64_t o = 0; o < s.cout; ++o)
        to[o] = back ? weight[(c * s.cout + o) * taps + taps - 1 - t]
                     : weight[(o * s.cin + c) * taps + t];
      std::fill(to + s.cout, to + plan.padded, 0.f);
    }
  std::fill_n(padded_bias, plan.padded, 0.f);
  if (bias) std::copy_n(bias, s.cout, padded_bias);
  in_pieces(s, plan, [&](int64_t piece, int64_t begin, int64_t end) {
    float* image = padded_bias + plan.bias + piece * plan.image;
    std::fill_n(image, plan.image, 0.f);
    for (int64_t n = begin; n < end; ++n) {
      const float* from = x + n * s.h * s.w * s.cin;
      if (plan.copy_x) few_copy(s, plan, from, image);
      HWY_DYNAMIC_DISPATCH(sample)
      (s, plan, plan.copy_x ? image : from, weights, padded_bias, y + n * s.oh * s.ow * s.cout);
    }
  });
}

void few_channels_weight(const FewChannels& s, const float* x, const float* dy, float* dw,
                         float* db, void* workspace) {
  const FewPlan plan = few_plan(s);
  const int64_t size = plan.weights + plan.bias + plan.image + plan.rows;
  auto* const space = static_cast<float*>(workspace);
  in_pieces(s, plan, [&](int64_t piece, int64_t begin, int64_t end) {
    float* sums = space + piece * size;
    auto* bias = reinterpret_cast<double*>(sums + plan.weights);
    float* image = sums + plan.weights + plan.bias;
    float* rows = image + plan.image;
    std::memset(sums, 0, static_cast<size_t>(size) * sizeof(float));
    const int64_t windows = s.oh * s.ow;
    for (int64_t n = begin; n < end; ++n) {
      const float *from = x + n * s.h * s.w * s.cin, *grad = dy + n * windows * s.cout;
      if (plan.copy_x) few_copy(s, plan, from, image);
      // Vectors may run on into the next samples: what they find there goes into sums of channels
      // that do not exist.
      const bool copy = plan.rows && (s.n - 1 - n) * windows * s.cout < 16;
      if (copy)
        for (int64_t p = 0; p < windows; ++p)
          for (int64_t o = 0; o < s.cout; ++o) rows[p * plan.padded + o] = grad[p * s.cout + o];
      HWY_DYNAMIC_DISPATCH(weight_sample)
      (s, plan, plan.copy_x ? image : from, copy ? rows : grad, copy ? plan.padded : s.cout, sums,
       db ? bias : nullptr);
    }
  });
  const int64_t taps = s.kh * s.kw;
  for (int64_t o = 0; o < s.cout; ++o)
    for (int64_t c = 0; c < s.cin; ++c)
      for (int64_t t = 0; t < taps; ++t) {
        float sum = 0;
        for (int p = 0; p < plan.pieces; ++p)
          sum += space[p * size + (t * s.cin + c) * plan.padded + o];
        dw[(o * s.cin + c) * taps + t] = sum;
      }
  for (int64_t o = 0; db && o < s.cout; ++o) {
    double sum = 0;
    for (int p = 0; p < plan.pieces; ++p)
      sum += reinterpret_cast<const double*>(space + p * size + plan.weights)[o];
    db[o] = static_cast<float>(sum);
  }
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
