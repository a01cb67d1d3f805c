// The vector code behind attention_kernel.h: a small GEMM (register tiles of kRows x 1..3 vectors)
// and row softmax, compiled for several instruction sets (Highway), chosen at run time.
//
// Per head: keys (and, backward, values) are transposed once, so that every product broadcasts its
// left side and streams rows of its right side; operands of the next head are asked for ahead. exp:
// 1 ulp, 0 below -87.33; NaN stays NaN. Measured in whole training steps against MatMul, Softmax
// and the moves around them, one core of a Xeon (AVX-512), ms per step forward + backward: gpt_char
// 7.2 -> 4.2, vit_tiny 57 -> 40, bert_mini 31 -> 28 (a busy machine: 10 % either way).
#include "ops/common/attention_kernel.h"

#include <algorithm>
#include <limits>

#include "graph/half.h"
#include "runtime/kernel.h"

// Two x86 sets beyond the baseline are enough; register tiles need vectors of fixed size.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/attention_kernel.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;
using DI = hn::RebindToSigned<D>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
// 16 vector registers hold 4 x 3 accumulators, 32 hold 8 x 3.
constexpr int kRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 4;
constexpr bool kMaskedAccess = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory of `count` < kLanes floats. Elsewhere than on AVX a masked access touches all lanes.
HWY_INLINE V load_part(const float* p, M in, int64_t count) {
  if constexpr (kMaskedAccess) return hn::MaskedLoad(in, D(), p);
  HWY_ALIGN float whole[kLanes] = {};
  std::copy_n(p, std::min(count, kLanes), whole);
  return hn::Load(D(), whole);
}
HWY_INLINE void store_part(V v, float* p, M in, int64_t count) {
  if constexpr (kMaskedAccess) return hn::BlendedStore(v, in, D(), p);
  HWY_ALIGN float whole[kLanes];
  hn::Store(v, D(), whole);
  std::copy_n(whole, std::min(count, kLanes), p);
}

// A left side: element (i, l) at p[i * row + l * col].
struct Left {
  const float* p;
  int64_t row, col;
};

// c[R, N vectors] (+)= a[R, k] b[k, N vectors]; kTail: the last vector has only `tail` lanes.
template <int R, int N, bool kTail>
HWY_INLINE void tile(Left a, const float* HWY_RESTRICT b, int64_t ldb, float* HWY_RESTRICT c,
                     int64_t ldc, int64_t k, bool accumulate, int64_t tail) {
  const D d;
  const M in = hn::FirstN(d, static_cast<size_t>(tail));
  V sum[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < N; ++j) {
      if (!accumulate)
        sum[i][j] = hn::Zero(d);
      else if (kTail && j == N - 1)
        sum[i][j] = load_part(c + i * ldc + j * kLanes, in, tail);
      else
        sum[i][j] = hn::LoadU(d, c + i * ldc + j * kLanes);
    }
  const float* p = a.p;
  for (int64_t l = 0; l < k; ++l, b += ldb, p += a.col) {
    V row[N];
#pragma GCC unroll 3
    for (int j = 0; j < N; ++j)
      row[j] =
          kTail && j == N - 1 ? load_part(b + j * kLanes, in, tail) : hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const V x = hn::Set(d, p[i * a.row]);
#pragma GCC unroll 3
      for (int j = 0; j < N; ++j) sum[i][j] = hn::MulAdd(x, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < N; ++j) {
      if (kTail && j == N - 1)
        store_part(sum[i][j], c + i * ldc + j * kLanes, in, tail);
      else
        hn::StoreU(sum[i][j], d, c + i * ldc + j * kLanes);
    }
}

template <int R>
HWY_NOINLINE void strip(Left a, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t n,
                        int64_t k, bool accumulate) {
  while (n > 0) {
    const int64_t vectors = (n + kLanes - 1) / kLanes;
    const int64_t take = vectors == 4 ? 2 : std::min<int64_t>(vectors, 3);
    const bool whole = n >= take * kLanes;
    const int64_t tail = whole ? kLanes : n - (take - 1) * kLanes;
    if (take == 3)
      whole ? tile<R, 3, false>(a, b, ldb, c, ldc, k, accumulate, tail)
            : tile<R, 3, true>(a, b, ldb, c, ldc, k, accumulate, tail);
    else if (take == 2)
      whole ? tile<R, 2, false>(a, b, ldb, c, ldc, k, accumulate, tail)
            : tile<R, 2, true>(a, b, ldb, c, ldc, k, accumulate, tail);
    else
      whole ? tile<R, 1, false>(a, b, ldb, c, ldc, k, accumulate, tail)
            : tile<R, 1, true>(a, b, ldb, c, ldc, k, accumulate, tail);
    n -= take * kLanes;
    b += take * kLanes;
    c += take * kLanes;
  }
}

// c[rows, n] (+)= a[rows, k] b[k, n], rows <= kRows.
HWY_INLINE void product(int64_t rows, int64_t n, int64_t k, Left a, const float* b, int64_t ldb,
                        float* c, int64_t ldc, bool accumulate = false) {
  const auto step = [&](int64_t count) {
    a.p += count * a.row;
    c += count * ldc;
    rows -= count;
  };
  if (rows == kRows) return strip<kRows>(a, b, ldb, c, ldc, n, k, accumulate);
  if (rows >= 4) strip<4>(a, b, ldb, c, ldc, n, k, accumulate), step(4);
  if (rows >= 2) strip<2>(a, b, ldb, c, ldc, n, k, accumulate), step(2);
  if (rows >= 1) strip<1>(a, b, ldb, c, ldc, n, k, accumulate);
}

// out[cols, ld] = x[rows, cols] transposed; columns rows..ld of out become 0.
void transpose(const float* x, int64_t row, int64_t rows, int64_t cols, float* out, int64_t ld) {
#if HWY_TARGET == HWY_SCALAR
  const int64_t whole_rows = 0, whole_cols = 0;
#else
  const hn::FixedTag<float, 4> d;
  const int64_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
  for (int64_t j = 0; j < whole_cols; j += 4)
    for (int64_t i = 0; i < whole_rows; i += 4) {
      const float* p = x + i * row + j;
      const auto a = hn::LoadU(d, p), b = hn::LoadU(d, p + row), c = hn::LoadU(d, p + 2 * row),
                 e = hn::LoadU(d, p + 3 * row);
      const auto ac = hn::InterleaveLower(d, a, c), be = hn::InterleaveLower(d, b, e);
      const auto ac2 = hn::InterleaveUpper(d, a, c), be2 = hn::InterleaveUpper(d, b, e);
      float* o = out + j * ld + i;
      hn::StoreU(hn::InterleaveLower(d, ac, be), d, o);
      hn::StoreU(hn::InterleaveUpper(d, ac, be), d, o + ld);
      hn::StoreU(hn::InterleaveLower(d, ac2, be2), d, o + 2 * ld);
      hn::StoreU(hn::InterleaveUpper(d, ac2, be2), d, o + 3 * ld);
    }
#endif
  for (int64_t j = whole_cols; j < cols; ++j)
    for (int64_t i = 0; i < whole_rows; ++i) out[j * ld + i] = x[i * row + j];
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t i = whole_rows; i < rows; ++i) out[j * ld + i] = x[i * row + j];
    std::fill(out + j * ld + rows, out + (j + 1) * ld, 0.f);
  }
}

// e^x for x <= 0, -inf or NaN (simd.h, exp_down_f32).
HWY_INLINE V exp(V x) {
  const D d;
  const DI di;
  const V shift = hn::Set(d, 12582912.f), low = hn::Set(d, -87.33f);
  const M far = hn::Lt(x, low);
  const V c = hn::IfThenElse(far, low, x);
  const V t = hn::MulAdd(c, hn::Set(d, 1.44269504088896341f), shift), n = hn::Sub(t, shift);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), c);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::MulAdd(hn::Set(d, 1.9875691500e-4f), r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  const V e = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.f));
  const auto power =
      hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, t)), hn::Set(di, int32_t{0x3f800000}));
  return hn::IfThenZeroElse(far, hn::Mul(e, hn::BitCast(d, power)));
}

// One head's view of the mask as float rows; others than dense f32 go through `buffer`, kRows rows
// of `ld` floats (one is enough when all queries share it).
struct MaskRows {
  const AttentionMask& m;
  int64_t base, keys, ld;
  float* buffer;
  bool shared_ready = false;
  const float* row(int64_t t, int64_t slot) {
    if (!m.p) return nullptr;
    const int64_t at = base + t * m.row;
    if (m.dtype == DType::kF32 && m.key == 1) return static_cast<const float*>(m.p) + at;
    if (m.row == 0 && shared_ready) return buffer;
    shared_ready = true;
    float* out = buffer + (m.row == 0 ? 0 : slot * ld);
    const int64_t stored = m.key == 0 ? 1 : keys;  // one number for all keys, or one each
    if (is_half(m.dtype))
      half_to_float(m.dtype, static_cast<const uint16_t*>(m.p) + at, out, stored);
    else if (m.dtype == DType::kF32)
      std::copy_n(static_cast<const float*>(m.p) + at, stored, out);
    else
      for (int64_t s = 0; s < stored; ++s)
        out[s] = static_cast<const uint8_t*>(m.p)[at + s] ? 0.f
                                                          : -std::numeric_limits<float>::infinity();
    std::fill(out + stored, out + keys, *out);
    return out;
  }
};

// Rows of one block of scores: [rows, padded) at p, row stride ld. Row r sees keys [0, n[r]); all
// of them see [0, full), a whole number of vectors.
struct Block {
  float* p;
  int64_t ld, rows, full, padded;
  int64_t n[kRows];
  const float* mask[kRows];  // null, or added
};

// Scaled and masked lanes j.. of row r; lanes from n[r] on are -inf.
template <bool kWhole>
HWY_INLINE V score(const Block& b, int64_t r, int64_t j, V scale) {
  const D d;
  V x = hn::Mul(hn::LoadU(d, b.p + r * b.ld + j), scale);
  const float* mask = b.mask[r];
  if (kWhole) return mask ? hn::Add(x, hn::LoadU(d, mask + j)) : x;
  const int64_t left = std::max<int64_t>(b.n[r] - j, 0);
  const M in = hn::FirstN(d, static_cast<size_t>(std::min(left, kLanes)));
  if (mask && left > 0) x = hn::Add(x, load_part(mask + j, in, left));
  return hn::IfThenElse(in, x, hn::Neg(hn::Inf(d)));
}

struct RowStats {
  float top, inverse;
};
// Scores become exp(score - maximum of the row), zero beyond n[r].
HWY_INLINE void softmax_block(const Block& b, float scale, bool guard, RowStats* out) {
  const D d;
  const V by = hn::Set(d, scale);
  V most[kRows];
  for (int64_t r = 0; r < b.rows; ++r) {
    float* row = b.p + r * b.ld;
    V top = hn::Neg(hn::Inf(d));
    for (int64_t j = 0; j < b.full; j += kLanes) {
      const V x = score<true>(b, r, j, by);
      top = hn::Max(top, x);
      hn::StoreU(x, d, row + j);
    }
    for (int64_t j = b.full; j < b.padded; j += kLanes) {
      const V x = score<false>(b, r, j, by);
      top = hn::Max(top, x);
      hn::StoreU(x, d, row + j);
    }
    most[r] = hn::MaxOfLanes(d, top);
  }
  for (int64_t r = 0; r < b.rows; ++r) {
    float* row = b.p + r * b.ld;
    const float top = hn::GetLane(most[r]);
    // A row of -inf: exp(-inf) = 0 with a guard, exp(-inf + inf) = NaN without.
    const bool empty = guard && top == -std::numeric_limits<float>::infinity();
    const V shift = hn::Set(d, empty ? 0.f : top);
    V total = hn::Zero(d);
    for (int64_t j = 0; j < b.padded; j += kLanes) {
      const V e = exp(hn::Sub(hn::LoadU(d, row + j), shift));
      total = hn::Add(total, e);
      hn::StoreU(e, d, row + j);
    }
    most[r] = hn::SumOfLanes(d, total);
    out[r].top = empty ? 0.f : top;
  }
  for (int64_t r = 0; r < b.rows; ++r) {
    const float sum = hn::GetLane(most[r]);
    out[r].inverse = guard && sum == 0.f ? 0.f : 1.f / sum;
  }
}

// Scores become probabilities p by the stats of the forward pass, and ds, gradients of p on entry,
// becomes scale p (ds - delta): the gradient of the unscaled scores. Without the scale it is the
// gradient of the mask (may be null; rows of `keys`).
HWY_INLINE void backward_block(const Block& b, float scale, const float* stats, const float* delta,
                               float* ds, float* dmask, int64_t keys) {
  const D d;
  const V by = hn::Set(d, scale);
  for (int64_t r = 0; r < b.rows; ++r, ds += b.ld) {
    const V top = hn::Set(d, stats[2 * r]), inverse = hn::Set(d, stats[2 * r + 1]);
    const V less = hn::Set(d, delta[r]);
    float* row = b.p + r * b.ld;
    const auto finish = [&](V x, int64_t j) HWY_ATTR {
      const V p = hn::Mul(exp(hn::Sub(x, top)), inverse);
      hn::StoreU(p, d, row + j);
      const V g = hn::Mul(p, hn::Sub(hn::LoadU(d, ds + j), less));
      hn::StoreU(hn::Mul(g, by), d, ds + j);
      if (!dmask) return;
      const int64_t left = keys - j;
      if (left >= kLanes)
        hn::StoreU(g, d, dmask + r * keys + j);
      else if (left > 0)
        store_part(g, dmask + r * keys + j, hn::FirstN(d, static_cast<size_t>(left)), left);
    };
    for (int64_t j = 0; j < b.full; j += kLanes) finish(score<true>(b, r, j, by), j);
    for (int64_t j = b.full; j < b.padded; j += kLanes) finish(score<false>(b, r, j, by), j);
    if (dmask && b.padded < keys)
      std::fill(dmask + r * keys + b.padded, dmask + (r + 1) * keys, 0.f);
  }
}

HWY_INLINE void scale_row(float* row, int64_t n, float by) {
  const D d;
  const V scale = hn::Set(d, by);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, row + j), scale), d, row + j);
  for (; j < n; ++j) row[j] *= by;
}

HWY_INLINE float dot(const float* a, const float* b, int64_t n) {
  const D d;
  V sum = hn::Zero(d);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), sum);
  float rest = 0;
  for (; j < n; ++j) rest += a[j] * b[j];
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
}

// Keys that rows [t, t + rows) may see.
HWY_INLINE int64_t visible(const AttentionSizes& s, int64_t t, int64_t rows) {
  return s.causal ? std::min(s.keys, t + rows) : s.keys;
}

HWY_INLINE Block block_at(const AttentionSizes& s, int64_t t, int64_t rows, float* p, int64_t ld,
                          MaskRows& mask) {
  Block b{p,  ld, rows, visible(s, t, 1) / kLanes * kLanes, round_up(visible(s, t, kRows), kLanes),
          {}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    b.n[r] = visible(s, t + r, 1);
    b.mask[r] = mask.row(t + r, r);
  }
  return b;
}

struct Rows {  // the right side of a product
  const float* p;
  int64_t row;
};
// Rows that lie far apart share few cache sets: they are copied together first.
HWY_INLINE Rows together(const float* p, int64_t row, int64_t rows, int64_t width, float* to) {
  if (row == width) return {p, row};
  const D d;
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = p + i * row;
    float* out = to + i * width;
    int64_t j = 0;
    for (; j + kLanes <= width; j += kLanes) hn::StoreU(hn::LoadU(d, from + j), d, out + j);
    for (; j < width; ++j) out[j] = from[j];
  }
  return {to, width};
}

// Asks for rows [t, t + kRows) of an operand of the unit that comes next: heads lie a few cache
// lines apart, which hardware does not foresee.
template <class T>
HWY_INLINE void ahead(const AttentionPlane<T>& x, AttentionUnit next, int64_t head, int64_t t,
                      int64_t rows, int64_t width) {
  if (next.batch < 0 || !x.p) return;
  const T* row = x.at(next.batch, head, t);
  for (int64_t r = t; r < std::min(t + kRows, rows); ++r, row += x.row)
    for (int64_t j = 0; j < width; j += 16) __builtin_prefetch(row + j, 0, 2);
}

void forward_unit(const AttentionForward<float>& a, AttentionUnit unit, AttentionUnit next,
                  const AttentionScratch& w, int64_t ld) {
  const int64_t b = unit.batch, kv = unit.head;
  const AttentionSizes& s = a.s;
  const int64_t group = s.heads / s.kv_heads;
  transpose(a.k.at(b, kv), a.k.row, s.keys, s.width, w.kt, ld);
  const Rows v = together(a.v.at(b, kv), a.v.row, s.keys, s.v_width, w.v);
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    MaskRows mask{a.mask, a.mask.at(b, h, 0), s.keys, ld, w.mask};
    float* stats = a.stats ? a.stats + (b * s.heads + h) * s.queries * 2 : nullptr;
    for (int64_t t = 0; t < s.queries; t += kRows) {
      const int64_t rows = std::min<int64_t>(kRows, s.queries - t);
      if (h == kv * group) {
        ahead(a.q, next, next.head * group, t, s.queries, s.width);
        ahead(a.k, next, next.head, t, s.keys, s.width);
        ahead(a.v, next, next.head, t, s.keys, s.v_width);
      }
      const Block block = block_at(s, t, rows, w.scores, ld, mask);
      product(rows, block.padded, s.width, {a.q.at(b, h, t), a.q.row, 1}, w.kt, ld, w.scores, ld);
      RowStats got[kRows];
      softmax_block(block, s.scale, s.guard, got);
      if (stats)
        for (int64_t r = 0; r < rows; ++r)
          stats[(t + r) * 2] = got[r].top, stats[(t + r) * 2 + 1] = got[r].inverse;
      float* y = a.y.at(b, h, t);
      product(rows, s.v_width, visible(s, t, rows), {w.scores, ld, 1}, v.p, v.row, y, a.y.row);
      for (int64_t r = 0; r < rows; ++r) scale_row(y + r * a.y.row, s.v_width, got[r].inverse);
    }
  }
}

void backward_unit(const AttentionBackward<float>& a, AttentionUnit unit, AttentionUnit next,
                   const AttentionScratch& w, int64_t ld, int64_t block) {
  const int64_t b = unit.batch, kv = unit.head;
  const AttentionSizes& s = a.s;
  const int64_t group = s.heads / s.kv_heads;
  transpose(a.k.at(b, kv), a.k.row, s.keys, s.width, w.kt, ld);
  transpose(a.v.at(b, kv), a.v.row, s.keys, s.v_width, w.vt, ld);
  const Rows k = together(a.k.at(b, kv), a.k.row, s.keys, s.width, w.k);
  bool more = false;  // dk and dv hold something already
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    MaskRows mask{a.mask, a.mask.at(b, h, 0), s.keys, ld, w.mask};
    const float* stats = a.stats + (b * s.heads + h) * s.queries * 2;
    for (int64_t begin = 0; begin < s.queries; begin += block) {
      const int64_t end = std::min(s.queries, begin + block);
      const Rows q = together(a.q.at(b, h, begin), a.q.row, end - begin, s.width, w.q);
      const Rows dy = together(a.dy.at(b, h, begin), a.dy.row, end - begin, s.v_width, w.dy);
      for (int64_t t = begin; t < end; t += kRows) {
        const int64_t rows = std::min<int64_t>(kRows, end - t), at = t - begin;
        if (h == kv * group) {
          ahead(a.q, next, next.head * group, t, s.queries, s.width);
          ahead(a.y, next, next.head * group, t, s.queries, s.v_width);
          ahead(a.dy, next, next.head * group, t, s.queries, s.v_width);
          ahead(a.k, next, next.head, t, s.keys, s.width);
          ahead(a.v, next, next.head, t, s.keys, s.v_width);
          ahead(a.dk, unit, kv, t, s.keys, s.width);
          ahead(a.dv, unit, kv, t, s.keys, s.v_width);
        }
        ahead(a.dq, unit, h, t, s.queries, s.width);
        float *p = w.scores + at * ld, *ds = w.dscores + at * ld;
        const Block now = block_at(s, t, rows, p, ld, mask);
        const Left left_q{q.p + at * q.row, q.row, 1}, left_dy{dy.p + at * dy.row, dy.row, 1};
        product(rows, now.padded, s.width, left_q, w.kt, ld, p, ld);
        product(rows, now.padded, s.v_width, left_dy, w.vt, ld, ds, ld);
        float delta[kRows];
        for (int64_t r = 0; r < rows; ++r)
          delta[r] = dot(left_dy.p + r * dy.row, a.y.at(b, h, t + r), s.v_width);
        float* dmask = a.dmask ? a.dmask + ((b * s.heads + h) * s.queries + t) * s.keys : nullptr;
        backward_block(now, s.scale, stats + t * 2, delta, ds, dmask, s.keys);
        if (a.dq.p)
          product(rows, s.width, visible(s, t, rows), {ds, ld, 1}, k.p, k.row, a.dq.at(b, h, t),
                  a.dq.row);
      }
      // dv += p^T dy, dk += ds^T q: a block of keys gets from the query rows that see it. What a
      // block of rows holds beyond its own keys is zero up to the next multiple of kRows.
      for (int64_t key = 0; key < s.keys; key += kRows) {
        const int64_t rows = std::min<int64_t>(kRows, s.keys - key);
        const int64_t from = s.causal ? std::clamp(key, begin, end) : begin, at = from - begin;
        if (from == end && more) continue;
        if (a.dv.p)
          product(rows, s.v_width, end - from, {w.scores + at * ld + key, 1, ld},
                  dy.p + at * dy.row, dy.row, a.dv.at(b, kv, key), a.dv.row, more);
        if (a.dk.p)
          product(rows, s.width, end - from, {w.dscores + at * ld + key, 1, ld}, q.p + at * q.row,
                  q.row, a.dk.at(b, kv, key), a.dk.row, more);
      }
      more = true;
    }
  }
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
namespace {

HWY_EXPORT(forward_unit);
HWY_EXPORT(backward_unit);

constexpr size_t kBlockBytes = 256 << 10;  // scores and their gradients of one block of rows
constexpr int64_t kMostRows = 128;         // of a block; a multiple of every kRows

// Row stride of what is indexed by key: an odd number of cache lines, so that a column of rows
// spreads over all sets.
int64_t stride_of(const AttentionSizes& s) { return ((s.keys + 15) / 16 | 1) * 16; }
int64_t block_of(const AttentionSizes& s) {
  const int64_t fit = static_cast<int64_t>(kBlockBytes / sizeof(float) / 2) / stride_of(s);
  return std::clamp<int64_t>(std::min(fit, (s.queries + 7) / 8 * 8) / 8 * 8, 8, kMostRows);
}

size_t part(int64_t count) { return static_cast<size_t>((count + 15) / 16 * 16); }

// A unit of 16-bit operands, widened: all its heads, dense. The first planes are operands, the
// others results.
struct WideUnit {
  const AttentionSizes& s;
  AttentionUnit unit;
  DType dtype;
  float* free;  // what comes next

  int64_t group() const { return s.heads / s.kv_heads; }
  int64_t heads(bool of_queries) const { return of_queries ? group() : 1; }
  int64_t rows(bool of_queries) const { return of_queries ? s.queries : s.keys; }
  AttentionSizes sizes() const {
    AttentionSizes one = s;
    one.batch = 1, one.heads = group(), one.kv_heads = 1;
    return one;
  }
  AttentionMask mask(AttentionMask m) const {
    const int64_t at = m.at(unit.batch, unit.head * group(), 0);
    if (m.p) m.p = static_cast<const char*>(m.p) + at * static_cast<int64_t>(size_of(m.dtype));
    return m;
  }
  int64_t stats() const { return (unit.batch * s.heads + unit.head * group()) * s.queries * 2; }

  AttentionPlane<float> room(bool wanted, bool of_queries, int64_t width) {
    const int64_t head = rows(of_queries) * width;
    const AttentionPlane<float> to{wanted ? free : nullptr, 0, head, width};
    free += part(heads(of_queries) * head);
    return to;
  }
  AttentionPlane<const float> widen(const AttentionPlane<const uint16_t>& x, bool of_queries,
                                    int64_t width) {
    const AttentionPlane<float> to = room(true, of_queries, width);
    each(of_queries, [&](int64_t h, int64_t h0, int64_t r) {
      half_to_float(dtype, x.at(unit.batch, h0 + h, r), to.at(0, h, r), width);
    });
    return {to.p, to.batch, to.head, to.row};
  }
  void narrow(const AttentionPlane<float>& x, bool of_queries, int64_t width,
              const AttentionPlane<uint16_t>& to) const {
    if (!x.p) return;
    each(of_queries, [&](int64_t h, int64_t h0, int64_t r) {
      float_to_half(dtype, x.at(0, h, r), to.at(unit.batch, h0 + h, r), width);
    });
  }
  template <class Body>  // body(head of the unit, its first head in all, row)
  void each(bool of_queries, Body&& body) const {
    const int64_t all = heads(of_queries);
    for (int64_t h = 0; h < all; ++h)
      for (int64_t r = 0; r < rows(of_queries); ++r) body(h, unit.head * all, r);
  }
  static int64_t floats(const AttentionSizes& s, bool backward) {
    const WideUnit unit{s, {}, DType::kF32, nullptr};
    int64_t n = 0;
    for (const bool of_queries : {true, false})
      for (const int64_t width : {s.width, s.v_width})
        n += static_cast<int64_t>(part(unit.heads(of_queries) * unit.rows(of_queries) * width));
    return backward ? 2 * n : n;
  }
};

// Cuts one thread's scratch memory; from a null base the result only tells the size, in floats.
size_t cut(const AttentionSizes& s, bool backward, bool half, float* base, AttentionScratch* w) {
  const int64_t ld = stride_of(s), rows = backward ? block_of(s) : 8;
  size_t used = 0;
  const auto take = [&](float*& p, int64_t count) {
    p = base ? base + used : nullptr;
    used += part(count);
  };
  take(w->kt, s.width * ld);
  take(w->vt, backward ? s.v_width * ld : 0);
  take(w->k, backward ? s.keys * s.width : 0);
  take(w->v, backward ? 0 : s.keys * s.v_width);
  take(w->q, backward ? rows * s.width : 0);
  take(w->dy, backward ? rows * s.v_width : 0);
  take(w->scores, rows * ld);
  take(w->dscores, backward ? rows * ld : 0);
  take(w->mask, 8 * ld);
  take(w->wide, half ? WideUnit::floats(s, backward) : 0);
  return used;
}

// body(unit, the unit after it, scratch) for every batch and key head.
template <class Body>
void for_units(const AttentionSizes& s, bool backward, bool half, int threads, void* workspace,
               Body&& body) {
  const int64_t units = s.units(), pieces = std::min<int64_t>(threads, units);
  AttentionScratch none;
  const size_t each = cut(s, backward, half, nullptr, &none);
  parallel_for(threads, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      AttentionScratch w;
      cut(s, backward, half, static_cast<float*>(workspace) + static_cast<size_t>(p) * each, &w);
      const int64_t end = units * (p + 1) / pieces;
      const auto unit = [&](int64_t u) -> AttentionUnit {
        return u < end ? AttentionUnit{u / s.kv_heads, u % s.kv_heads} : AttentionUnit{};
      };
      for (int64_t u = units * p / pieces; u < end; ++u) body(unit(u), unit(u + 1), w);
    }
  });
}

size_t workspace(const AttentionSizes& s, bool backward, DType dtype) {
  AttentionScratch none;
  return cut(s, backward, is_half(dtype), nullptr, &none) * sizeof(float);
}

}  // namespace

size_t attention_forward_workspace(const AttentionSizes& s, DType dtype) {
  return workspace(s, false, dtype);
}
size_t attention_backward_workspace(const AttentionSizes& s, DType dtype) {
  return workspace(s, true, dtype);
}

void attention_forward(const AttentionForward<float>& a, int threads, void* workspace) {
  const int64_t ld = stride_of(a.s);
  for_units(a.s, false, false, threads, workspace,
            [&](AttentionUnit unit, AttentionUnit next, const AttentionScratch& w) {
              HWY_DYNAMIC_DISPATCH(forward_unit)(a, unit, next, w, ld);
            });
}

void attention_backward(const AttentionBackward<float>& a, int threads, void* workspace) {
  const int64_t ld = stride_of(a.s), block = block_of(a.s);
  for_units(a.s, true, false, threads, workspace,
            [&](AttentionUnit unit, AttentionUnit next, const AttentionScratch& w) {
              HWY_DYNAMIC_DISPATCH(backward_unit)(a, unit, next, w, ld, block);
            });
}

void attention_forward(const AttentionForward<uint16_t>& a, DType dtype, int threads,
                       void* workspace) {
  const AttentionSizes& s = a.s;
  const int64_t ld = stride_of(s);
  for_units(s, false, true, threads, workspace,
            [&](AttentionUnit unit, AttentionUnit, const AttentionScratch& w) {
              WideUnit wide{s, unit, dtype, w.wide};
              AttentionForward<float> one;
              one.s = wide.sizes();
              one.q = wide.widen(a.q, true, s.width), one.k = wide.widen(a.k, false, s.width);
              one.v = wide.widen(a.v, false, s.v_width), one.mask = wide.mask(a.mask);
              one.y = wide.room(true, true, s.v_width);
              if (a.stats) one.stats = a.stats + wide.stats();
              HWY_DYNAMIC_DISPATCH(forward_unit)(one, {0, 0}, {}, w, ld);
              wide.narrow(one.y, true, s.v_width, a.y);
            });
}

void attention_backward(const AttentionBackward<uint16_t>& a, DType dtype, int threads,
                        void* workspace) {
  const AttentionSizes& s = a.s;
  const int64_t ld = stride_of(s), block = block_of(s);
  for_units(s, true, true, threads, workspace,
            [&](AttentionUnit unit, AttentionUnit, const AttentionScratch& w) {
              WideUnit wide{s, unit, dtype, w.wide};
              AttentionBackward<float> one;
              one.s = wide.sizes();
              one.q = wide.widen(a.q, true, s.width), one.k = wide.widen(a.k, false, s.width);
              one.v = wide.widen(a.v, false, s.v_width), one.y = wide.widen(a.y, true, s.v_width);
              one.dy = wide.widen(a.dy, true, s.v_width), one.mask = wide.mask(a.mask);
              one.stats = a.stats + wide.stats();
              one.dq = wide.room(a.dq.p, true, s.width), one.dk = wide.room(a.dk.p, false, s.width);
              one.dv = wide.room(a.dv.p, false, s.v_width);
              HWY_DYNAMIC_DISPATCH(backward_unit)(one, {0, 0}, {}, w, ld, block);
              wide.narrow(one.dq, true, s.width, a.dq), wide.narrow(one.dk, false, s.width, a.dk);
              wide.narrow(one.dv, false, s.v_width, a.dv);
            });
}

}  // namespace ortrain::ops
#endif
