// The vector code behind packed_product.h, by Highway; only the AVX-512 set is used.
//
// Panels of the right side are two vectors of columns, k by k. The rows of a call are shared out
// evenly among register tiles of up to 14 rows x 2 vectors; sums run over blocks of k of at most
// kDepth. Measured: up to 170 GFLOP/s of a core's 171 (FMA from registers), 14 rows from cache.
// bf16 goes the same way, two numbers along k in the place of one f32: vdpbf16ps sums such pairs.
#include "ops/common/packed_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "graph/error.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/packed_product.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3
#define ORTRAIN_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = 16, kPanel = 2 * kLanes;  // columns of a panel
constexpr int64_t kTile = 14;                        // 28 of 32 registers hold sums
constexpr int64_t kDepth = 512;                      // units of k of a block, at most

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What one 32-bit place along k holds: a float, or two bf16 numbers.
int64_t units(const PackedSizes& s) { return s.bf16 ? ceil_div(s.k, 2) : s.k; }
float pair(uint16_t low, uint16_t high) {
  const uint32_t both = low | static_cast<uint32_t>(high) << 16;
  float x;
  std::memcpy(&x, &both, sizeof x);
  return x;
}

// Part `i` of `parts` of n things, evenly.
struct Range {
  int64_t begin, end;
};
Range part(int64_t n, int64_t parts, int64_t i) {
  const int64_t base = n / parts, extra = n % parts;
  const int64_t begin = i * base + std::min(i, extra);
  return {begin, begin + base + (i < extra)};
}

// to[l * step + i] = from[i * ld + l], i < rows, l < k. Writes no further than step * k + 3.
void pack_across(const float* from, int64_t ld, int64_t rows, int64_t k, float* to, int64_t step) {
  const hn::FixedTag<float, 4> d;
  const int64_t whole = k / 4 * 4;
  int64_t i = 0;
  for (; rows >= 4 && i < rows; i += 4) {
    i = std::min(i, rows - 4);  // the last four rows overlap those before
    const float* p = from + i * ld;
    float* o = to + i;
    for (int64_t l = 0; l < whole; l += 4, p += 4, o += 4 * step) {
      const auto a = hn::LoadU(d, p), b = hn::LoadU(d, p + ld), c = hn::LoadU(d, p + 2 * ld),
                 e = hn::LoadU(d, p + 3 * ld);
      const auto ac = hn::InterleaveLower(d, a, c), be = hn::InterleaveLower(d, b, e);
      const auto ac2 = hn::InterleaveUpper(d, a, c), be2 = hn::InterleaveUpper(d, b, e);
      hn::StoreU(hn::InterleaveLower(d, ac, be), d, o);
      hn::StoreU(hn::InterleaveUpper(d, ac, be), d, o + step);
      hn::StoreU(hn::InterleaveLower(d, ac2, be2), d, o + 2 * step);
      hn::StoreU(hn::InterleaveUpper(d, ac2, be2), d, o + 3 * step);
    }
  }
  for (int64_t l = rows >= 4 ? whole : 0; l < k; ++l)
    for (int64_t r = 0; r < rows; ++r) to[l * step + r] = from[r * ld + l];
}

// pack_across for rows of an odd number of bf16 numbers: their pairs, units [l0, l0 + depth).
void pack_odd_across(const uint16_t* from, int64_t ld, int64_t rows, int64_t l0, int64_t depth,
                     float* to, int64_t step) {
  for (int64_t l = 0; l < depth; ++l)
    for (int64_t r = 0; r < rows; ++r) {
      const uint16_t* x = from + r * ld + 2 * (l0 + l);
      to[l * step + r] = pair(x[0], 2 * (l0 + l) + 1 < ld ? x[1] : uint16_t{0});
    }
}

// pack_along for pairs of rows of bf16 numbers; a row that lacks its partner is paired with zeros.
void pack_pairs_along(const uint16_t* from, int64_t ld, int64_t cols, int64_t rows, float* to) {
  static constexpr uint16_t kZeros[kPanel] = {};
  for (; rows > 0; rows -= 2, from += 2 * ld, to += kPanel) {
    const uint16_t* next = rows > 1 ? from + ld : kZeros;
    uint32_t both[kPanel] = {};
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) both[i] = from[i] | static_cast<uint32_t>(next[i]) << 16;
    std::memcpy(to, both, sizeof both);
  }
}

// to[l * kPanel + i] = from[l * ld + i], i < cols <= kPanel, l < k; zeros up to kPanel.
void pack_along(const float* from, int64_t ld, int64_t cols, int64_t k, float* to) {
  const D d;
  const auto lanes = [](int64_t n) {
    return hn::FirstN(D(), static_cast<size_t>(std::clamp<int64_t>(n, 0, kLanes)));
  };
  const auto in = lanes(cols), in2 = lanes(cols - kLanes);
  for (int64_t l = 0; l < k; ++l, from += ld, to += kPanel) {
    hn::Store(hn::MaskedLoad(in, d, from), d, to);
    hn::Store(hn::MaskedLoad(in2, d, from + kLanes), d, to + kLanes);
  }
}

// c[R, cols] (+)= a[R, k] b[k, cols], packed; cols <= N vectors, the last of them `tail` wide.
template <int R, int N>
HWY_NOINLINE void tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t k,
                       float* HWY_RESTRICT c, int64_t ldc, bool add, int64_t tail) {
  const D d;
  const auto in = hn::FirstN(d, static_cast<size_t>(tail));
  V sum[R][N];
#pragma GCC unroll 14
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) sum[i][j] = hn::Zero(d);
  for (int64_t l = 0; l < k; ++l, a += R, b += kPanel) {
    V row[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) row[j] = hn::Load(d, b + j * kLanes);
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i) {
      const V x = hn::Set(d, a[i]);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) sum[i][j] = hn::MulAdd(x, row[j], sum[i][j]);
    }
  }
  if (tail == kLanes) {
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) {
        float* to = c + i * ldc + j * kLanes;
        V v = sum[i][j];
        if (add) v = hn::Add(v, hn::LoadU(d, to));
        hn::StoreU(v, d, to);
      }
    return;
  }
#pragma GCC unroll 14
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      float* to = c + i * ldc + j * kLanes;
      const auto m = j == N - 1 ? in : hn::FirstN(d, kLanes);
      V v = sum[i][j];
      if (add) v = hn::Add(v, hn::MaskedLoad(m, d, to));
      hn::BlendedStore(v, m, d, to);
    }
}

// The same for pairs of bf16 numbers. Denormals count as zero, as the instruction has it.
template <int R, int N>
ORTRAIN_BF16 HWY_NOINLINE void tile_bf16(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                                         int64_t k, float* HWY_RESTRICT c, int64_t ldc, bool add,
                                         int64_t tail) {
  __m512 sum[R][N];
#pragma GCC unroll 14
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) sum[i][j] = _mm512_setzero_ps();
  for (int64_t l = 0; l < k; ++l, a += R, b += kPanel) {
    __m512bh row[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) row[j] = (__m512bh)_mm512_load_ps(b + j * kLanes);
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i) {
      const __m512bh x = (__m512bh)_mm512_set1_ps(a[i]);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, row[j]);
    }
  }
  const auto last = static_cast<__mmask16>((1u << tail) - 1);
#pragma GCC unroll 14
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      float* to = c + i * ldc + j * kLanes;
      const __mmask16 m = j == N - 1 ? last : static_cast<__mmask16>(0xffff);
      __m512 v = sum[i][j];
      if (add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, to));
      _mm512_mask_storeu_ps(to, m, v);
    }
}

using TileFn = void (*)(const float*, const float*, int64_t, float*, int64_t, bool, int64_t);
using Tiles = std::array<std::array<TileFn, 2>, kTile>;
template <int... R>
constexpr Tiles tiles_of(std::integer_sequence<int, R...>) {
  return {{{{&tile<R + 1, 1>, &tile<R + 1, 2>}}...}};
}
template <int... R>
constexpr Tiles bf16_tiles_of(std::integer_sequence<int, R...>) {
  return {{{{&tile_bf16<R + 1, 1>, &tile_bf16<R + 1, 2>}}...}};
}
constexpr Tiles kTiles = tiles_of(std::make_integer_sequence<int, kTile>());
constexpr Tiles kBf16Tiles = bf16_tiles_of(std::make_integer_sequence<int, kTile>());

// Blocks along k: all but the last `depth` units deep.
struct Depths {
  int64_t panels, blocks, depth;
};
Depths depths_of(const PackedSizes& s) {
  const int64_t blocks = ceil_div(units(s), kDepth);
  return {ceil_div(s.n, kPanel), blocks, ceil_div(units(s), std::max<int64_t>(1, blocks))};
}
// Where panel p of the block that begins at l0 lies.
int64_t panel_at(const Depths& c, int64_t l0, int64_t depth, int64_t p) {
  return (l0 * c.panels + p * depth) * kPanel;
}

int64_t panels(const PackedSizes& s) { return ceil_div(s.n, kPanel); }
int64_t depth(const PackedSizes& s) { return depths_of(s).depth; }

// Panel p of b, units [l0, l0 + depth).
void pack_panel(const PackedSizes& s, const void* right, int64_t l0, int64_t depth, int64_t p,
                float* to) {
  const auto* b = static_cast<const float*>(right);
  const auto* half = static_cast<const uint16_t*>(right);
  const int64_t j = p * kPanel, cols = std::min(kPanel, s.n - j);
  if (!s.trans_b && s.bf16)
    return pack_pairs_along(half + 2 * l0 * s.n + j, s.n, cols, std::min(2 * depth, s.k - 2 * l0),
                            to);
  if (!s.trans_b) return pack_along(b + l0 * s.n + j, s.n, cols, depth, to);
  if (cols < kPanel) std::fill_n(to, kPanel * depth, 0.f);
  if (s.bf16 && s.k % 2)
    pack_odd_across(half + j * s.k, s.k, cols, l0, depth, to, kPanel);
  else
    pack_across(b + j * units(s) + l0, units(s), cols, depth, to, kPanel);
}

void pack(const PackedSizes& s, const void* right, int64_t first, int64_t last, float* packed) {
  const Depths c = depths_of(s);
  for (int64_t l0 = 0; l0 < units(s); l0 += c.depth) {
    const int64_t depth = std::min(c.depth, units(s) - l0);
    for (int64_t p = first; p < last; ++p)
      pack_panel(s, right, l0, depth, p, packed + panel_at(c, l0, depth, p));
  }
}

// The rows of a, packed tile by tile: units [l0, l0 + depth).
void pack_left(const PackedSizes& s, int64_t m, const void* a, int64_t l0, int64_t depth,
               float* left) {
  const int64_t tiles = ceil_div(m, kTile), ld = units(s);
  for (int64_t t = 0; t < tiles; ++t) {
    const Range r = part(m, tiles, t);
    const int64_t rows = r.end - r.begin;
    float* to = left + r.begin * depth;
    if (s.bf16 && s.k % 2)
      pack_odd_across(static_cast<const uint16_t*>(a) + r.begin * s.k, s.k, rows, l0, depth, to,
                      rows);
    else
      pack_across(static_cast<const float*>(a) + r.begin * ld + l0, ld, rows, depth, to, rows);
  }
}

// c's columns of panel p (+)= left panel; c begins as the bias where `first`.
void multiply_panel(const PackedSizes& s, int64_t m, const float* left, const float* panel,
                    int64_t depth, int64_t p, float* c, bool first, const float* bias) {
  const Tiles& all = s.bf16 ? kBf16Tiles : kTiles;
  const int64_t tiles = ceil_div(m, kTile), j = p * kPanel, cols = std::min(kPanel, s.n - j);
  const int64_t vectors = ceil_div(cols, kLanes), tail = cols - (vectors - 1) * kLanes;
  for (int64_t t = 0; t < tiles; ++t) {
    const Range r = part(m, tiles, t);
    float* to = c + r.begin * s.n + j;
    if (first && bias)
      for (int64_t i = r.begin; i < r.end; ++i)
        std::copy_n(bias + j, cols, to + (i - r.begin) * s.n);
    const TileFn f =
        all[static_cast<size_t>(r.end - r.begin - 1)][static_cast<size_t>(vectors - 1)];
    f(left + r.begin * depth, panel, depth, to, s.n, !first || bias, tail);
  }
}

void multiply(const PackedSizes& s, int64_t m, const void* a, const float* packed, float* c,
              float* left, const float* bias) {
  const Depths cut = depths_of(s);
  for (int64_t l0 = 0; l0 < units(s); l0 += cut.depth) {
    const int64_t depth = std::min(cut.depth, units(s) - l0);
    pack_left(s, m, a, l0, depth, left);
    for (int64_t p = 0; p < cut.panels; ++p)
      multiply_panel(s, m, left, packed + panel_at(cut, l0, depth, p), depth, p, c, l0 == 0, bias);
  }
}

void columns(const PackedSizes& s, int64_t m, const void* a, const void* b, int64_t first,
             int64_t last, float* c, float* work, const float* bias) {
  const Depths cut = depths_of(s);
  float *panel = work, *left = work + kPanel * cut.depth;
  for (int64_t l0 = 0; l0 < units(s); l0 += cut.depth) {
    const int64_t depth = std::min(cut.depth, units(s) - l0);
    pack_left(s, m, a, l0, depth, left);
    for (int64_t p = first; p < last; ++p) {
      pack_panel(s, b, l0, depth, p, panel);
      multiply_panel(s, m, left, panel, depth, p, c, l0 == 0, bias);
    }
  }
}

bool available() { return true; }
bool bf16_available() {
  return __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_supports("amx-bf16");
}
#else
bool available() { return false; }
bool bf16_available() { return false; }
int64_t units(const PackedSizes&) { return 0; }
int64_t panels(const PackedSizes&) { return 0; }
int64_t depth(const PackedSizes&) { return 0; }
void pack(const PackedSizes&, const void*, int64_t, int64_t, float*) {
  ORTRAIN_CHECK(false, "packed product without AVX-512");
}
void multiply(const PackedSizes&, int64_t, const void*, const float*, float*, float*,
              const float*) {
  ORTRAIN_CHECK(false, "packed product without AVX-512");
}
void columns(const PackedSizes&, int64_t, const void*, const void*, int64_t, int64_t, float*,
             float*, const float*) {
  ORTRAIN_CHECK(false, "packed product without AVX-512");
}
#endif
}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(available);
HWY_EXPORT(bf16_available);
HWY_EXPORT(units);
HWY_EXPORT(panels);
HWY_EXPORT(depth);
HWY_EXPORT(pack);
HWY_EXPORT(multiply);
HWY_EXPORT(columns);

bool packed_product_available(bool bf16) {
  return bf16 ? HWY_DYNAMIC_DISPATCH(bf16_available)() : HWY_DYNAMIC_DISPATCH(available)();
}
int64_t packed_panels(const PackedSizes& s) { return HWY_DYNAMIC_DISPATCH(panels)(s); }
size_t packed_right_bytes(const PackedSizes& s) {
  const int64_t units = HWY_DYNAMIC_DISPATCH(units)(s);
  return static_cast<size_t>(packed_panels(s) * units) * 32 * sizeof(float);
}
void pack_right(const PackedSizes& s, const void* b, int64_t first, int64_t last, void* packed) {
  HWY_DYNAMIC_DISPATCH(pack)(s, b, first, last, static_cast<float*>(packed));
}
// One block along k. Whole vectors are stored four floats beyond a tile's rows: hence the 64 bytes.
size_t packed_workspace(const PackedSizes& s, int64_t m) {
  const auto depth = static_cast<size_t>(HWY_DYNAMIC_DISPATCH(depth)(s));
  return static_cast<size_t>(m) * ((depth * sizeof(float) + 127) / 64 * 64);
}
void multiply_packed(const PackedSizes& s, int64_t m, const void* a, const void* packed, float* c,
                     void* workspace, const float* bias) {
  HWY_DYNAMIC_DISPATCH(multiply)
  (s, m, a, static_cast<const float*>(packed), c, static_cast<float*>(workspace), bias);
}
size_t packed_columns_workspace(const PackedSizes& s, int64_t m) {
  const auto depth = static_cast<size_t>(HWY_DYNAMIC_DISPATCH(depth)(s));
  return packed_workspace(s, m) + depth * 32 * sizeof(float);
}
void multiply_columns(const PackedSizes& s, int64_t m, const void* a, const void* b, int64_t first,
                      int64_t last, float* c, void* workspace, const float* bias) {
  HWY_DYNAMIC_DISPATCH(columns)
  (s, m, a, b, first, last, c, static_cast<float*>(workspace), bias);
}
}  // namespace ortrain::ops
#endif
