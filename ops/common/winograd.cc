// Winograd F(2x2, 3x3) with Highway: see winograd.h. y = A'[(G g G') . (B' d B)]A with
// B' = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1], G = [1 0 0; h h h; h -h h; 0 0 1], h = 1/2,
// A' = [1 1 1 0; 0 1 -1 -1] (Lavin and Gray, 2015). Gradient of the weight:
// dg = G'[(B' d B) . (A dy A')]G.
#include "ops/common/winograd.h"

#include <algorithm>
#include <cstring>

#include "runtime/kernel.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/winograd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef ORTRAIN_WINOGRAD_SHARED
#define ORTRAIN_WINOGRAD_SHARED
namespace ortrain::ops::wino {

constexpr int64_t kBlockBytes = 1500 << 10;  // of transformed tiles; L2 holds 2 MiB
constexpr int64_t kPanel = 64;               // widest panel of output channels
inline int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

// A block of tiles: elements per transformed tile row, per each of the 16 matrices, and tiles.
struct Block {
  int64_t tiles, in_row, in_matrix, out_matrix;
};
inline Block block_of(const Winograd& s) {
  Block b;
  b.in_row = round_up(s.cin, 16) + 16;
  const int64_t fit = kBlockBytes / (16 * 4 * (b.in_row + kPanel));
  const int64_t most = std::clamp<int64_t>(fit, 12, 96),
                own = (s.tiles() + s.threads - 1) / s.threads;
  const int64_t blocks = (own + most - 1) / most;
  b.tiles = round_up((own + blocks - 1) / blocks, 6);
  b.in_matrix = b.tiles * b.in_row + 48;  // no multiple of a page: 16 streams would share a set
  b.out_matrix = b.tiles * kPanel + 48;
  return b;
}
inline int64_t per_thread(const Winograd& s, const Block& b) {
  return 16 * (b.in_matrix + b.out_matrix) + b.in_row;
}
// Elements from one of the 16 matrices [cin, cout] to the next.
inline int64_t weight_matrix(const Winograd& s) { return s.cin * round_up(s.cout, kPanel) + 48; }
// Workspace of one thread's part of the weight gradient: block, sums, bias sums in double.
inline int64_t per_thread_sums(const Winograd& s, const Block& b) {
  return round_up(per_thread(s, b), 16) + 16 * weight_matrix(s) + 2 * round_up(s.cout, kPanel);
}

// Where tile t lies.
struct At {
  int64_t n, y, x;  // image, first output row and column
};
inline At at(const Winograd& s, int64_t t) {
  const int64_t tw = (s.ow + 1) / 2, th = (s.oh + 1) / 2;
  return {t / (tw * th), t / tw % th * 2, t % tw * 2};
}
}  // namespace ortrain::ops::wino
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace ortrain::ops::wino;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kRows = 6;
constexpr int kVecs = HWY_MAX_BYTES >= 64 && HWY_TARGET <= HWY_AVX3 ? 4 : 2;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(D())); }
HWY_INLINE V get(const float* p, int64_t left) {
  const D d;
  if (left >= lanes()) return hn::LoadU(d, p);
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  for (int64_t i = 0; i < left; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
}
HWY_INLINE void put(V v, float* p, int64_t left) {
  const D d;
  if (left >= lanes()) return hn::StoreU(v, d, p);
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < left; ++i) p[i] = buffer[i];
}

// c[R, N lanes] (+)= a b: a's element (i, k) at i * a_row + k * a_k, b's rows at k * b_row.
struct Strides {
  int64_t a_row, a_k, b_row, c_row;
};
template <int R, int N, bool kAdd>
HWY_INLINE void micro(const Strides& s, int64_t depth, const float* HWY_RESTRICT a,
                      const float* HWY_RESTRICT b, float* HWY_RESTRICT c) {
  const D d;
  const int64_t step = lanes();
  V acc[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[i][j] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    V row[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) row[j] = hn::LoadU(d, b + j * step);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const V v = hn::Set(d, a[i * s.a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) acc[i][j] = hn::MulAdd(v, row[j], acc[i][j]);
    }
    a += s.a_k, b += s.b_row;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      float* to = c + i * s.c_row + j * step;
      hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, to), acc[i][j]) : acc[i][j], d, to);
    }
}
template <int N, bool kAdd>
HWY_INLINE void rows_of(const Strides& s, int64_t rows, int64_t depth, const float* a,
                        const float* b, float* c) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    micro<kRows, N, kAdd>(s, depth, a + i * s.a_row, b, c + i * s.c_row);
  a += i * s.a_row, c += i * s.c_row;
  switch (rows - i) {
    case 1: return micro<1, N, kAdd>(s, depth, a, b, c);
    case 2: return micro<2, N, kAdd>(s, depth, a, b, c);
    case 3: return micro<3, N, kAdd>(s, depth, a, b, c);
    case 4: return micro<4, N, kAdd>(s, depth, a, b, c);
    case 5: return micro<5, N, kAdd>(s, depth, a, b, c);
    default: return;
  }
}
template <bool kAdd>
HWY_NOINLINE void product(const Strides& s, int64_t rows, int vecs, int64_t depth, const float* a,
                          const float* b, float* c) {
  switch (vecs) {
    case 1: return rows_of<1, kAdd>(s, rows, depth, a, b, c);
    case 2: return rows_of<2, kAdd>(s, rows, depth, a, b, c);
#if HWY_MAX_BYTES >= 64
    case 3: return rows_of<3, kAdd>(s, rows, depth, a, b, c);
    default: return rows_of<4, kAdd>(s, rows, depth, a, b, c);
#else
    default: return;
#endif
  }
}

// out[e] = B' d B of the 16 pixels `in`, cin channels.
HWY_INLINE void input_tile(const float* const* in, int64_t channels, float* out, int64_t matrix) {
  for (int64_t c = 0; c < channels; c += lanes()) {
    const int64_t left = channels - c;
    V t[4][4];
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      const V d0 = get(in[j] + c, left), d1 = get(in[4 + j] + c, left);
      const V d2 = get(in[8 + j] + c, left), d3 = get(in[12 + j] + c, left);
      t[0][j] = hn::Sub(d0, d2), t[1][j] = hn::Add(d1, d2);
      t[2][j] = hn::Sub(d2, d1), t[3][j] = hn::Sub(d1, d3);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
      float* to = out + 4 * i * matrix + c;  // rows are padded to whole vectors
      hn::StoreU(hn::Sub(t[i][0], t[i][2]), D(), to);
      hn::StoreU(hn::Add(t[i][1], t[i][2]), D(), to + matrix);
      hn::StoreU(hn::Sub(t[i][2], t[i][1]), D(), to + 2 * matrix);
      hn::StoreU(hn::Sub(t[i][1], t[i][3]), D(), to + 3 * matrix);
    }
  }
}
// Transforms tiles [first, first + count) of x.
HWY_INLINE void input_block(const Winograd& s, const Block& b, const float* x, const float* zeros,
                            int64_t first, int64_t count, float* out) {
  for (int64_t t = 0; t < count; ++t) {
    const At p = at(s, first + t);
    const float* in[16];
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t y = p.y - s.top + i, xx = p.x - s.left + j;
        const bool inside = y >= 0 && y < s.h && xx >= 0 && xx < s.w;
        in[4 * i + j] = inside ? x + ((p.n * s.h + y) * s.w + xx) * s.cin : zeros;
      }
    input_tile(in, s.cin, out + t * b.in_row, b.in_matrix);
  }
}

// y = A' m A + bias of tiles [first, first + count), output channels [j, j + width).
HWY_INLINE void output_block(const Winograd& s, const Block& b, const float* m, int64_t first,
                             int64_t count, int64_t j, int64_t width, const float* bias, float* y) {
  const D d;
  const int64_t step = lanes();
  for (int64_t t = 0; t < count; ++t) {
    const At p = at(s, first + t);
    float* to = y + ((p.n * s.oh + p.y) * s.ow + p.x) * s.cout + j;
    const bool right = p.x + 1 < s.ow, below = p.y + 1 < s.oh;
    for (int64_t c = 0; c < width; c += step) {
      const float* from = m + t * kPanel + c;
      const int64_t left = width - c;
      V r[2][4];
#pragma GCC unroll 8
      for (int k = 0; k < 4; ++k) {
        const V m0 = hn::LoadU(d, from + k * b.out_matrix);
        const V m1 = hn::LoadU(d, from + (4 + k) * b.out_matrix);
        const V m2 = hn::LoadU(d, from + (8 + k) * b.out_matrix);
        const V m3 = hn::LoadU(d, from + (12 + k) * b.out_matrix);
        const V sum = hn::Add(m1, m2), diff = hn::Sub(m1, m2);
        r[0][k] = hn::Add(m0, sum), r[1][k] = hn::Sub(diff, m3);
      }
      const V shift = bias ? get(bias + j + c, left) : hn::Zero(d);
      for (int64_t i = 0; i < 1 + below; ++i) {
        float* row = to + i * s.ow * s.cout + c;
        const V sum = hn::Add(r[i][1], r[i][2]), diff = hn::Sub(r[i][1], r[i][2]);
        put(hn::Add(hn::Add(r[i][0], sum), shift), row, left);
        if (right) put(hn::Add(hn::Sub(diff, r[i][3]), shift), row + s.cout, left);
      }
    }
  }
}

// u[e][panel][cin][width] = G g G'; lines: pairs (panel, input channel).
HWY_INLINE void weight_lines(const Winograd& s, const float* weight, bool back, int64_t begin,
                             int64_t end, float* u) {
  const D d;
  const int64_t step = lanes(), panel = kVecs * step, padded = round_up(s.cout, step);
  const int64_t matrix = weight_matrix(s);
  const V half = hn::Set(d, 0.5f);
  for (int64_t line = begin; line < end; ++line) {
    const int64_t j0 = line / s.cin * panel, k = line % s.cin;
    const int64_t width = std::min(panel, padded - j0);
    for (int64_t j = j0; j < j0 + width; j += step) {
      HWY_ALIGN float g[9][HWY_MAX_BYTES / sizeof(float)] = {};
      for (int64_t l = 0; l < std::min(step, s.cout - j); ++l) {
        const float* from = weight + (back ? k * s.cout + j + l : (j + l) * s.cin + k) * 9;
        for (int i = 0; i < 9; ++i) g[back ? 8 - i : i][l] = from[i];
      }
      V t[4][3];
      for (int i = 0; i < 3; ++i) {
        const V g0 = hn::Load(d, g[i]), g1 = hn::Load(d, g[3 + i]), g2 = hn::Load(d, g[6 + i]);
        const V sum = hn::Add(g0, g2);
        t[0][i] = g0, t[1][i] = hn::Mul(half, hn::Add(sum, g1));
        t[2][i] = hn::Mul(half, hn::Sub(sum, g1)), t[3][i] = g2;
      }
      float* to = u + j0 * s.cin + k * width + (j - j0);
      for (int i = 0; i < 4; ++i, to += 4 * matrix) {
        const V sum = hn::Add(t[i][0], t[i][2]);
        hn::StoreU(t[i][0], d, to);
        hn::StoreU(hn::Mul(half, hn::Add(sum, t[i][1])), d, to + matrix);
        hn::StoreU(hn::Mul(half, hn::Sub(sum, t[i][1])), d, to + 2 * matrix);
        hn::StoreU(t[i][2], d, to + 3 * matrix);
      }
    }
  }
}

void transform_weight(const Winograd& s, const float* weight, bool back, float* u) {
  const int64_t panels = (s.cout + kVecs * lanes() - 1) / (kVecs * lanes());
  parallel_for(s.threads, panels * s.cin, 1,
               [&](int64_t begin, int64_t end) { weight_lines(s, weight, back, begin, end, u); });
}

void forward(const Winograd& s, const float* x, const float* u, const float* bias, float* y,
             float* space) {
  const Block b = block_of(s);
  const int64_t step = lanes(), panel = kVecs * step, padded = round_up(s.cout, step);
  parallel_for(s.threads, s.threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      float* v = space + piece * per_thread(s, b);
      float* m = v + 16 * b.in_matrix;
      float* zeros = m + 16 * b.out_matrix;
      std::memset(zeros, 0, static_cast<size_t>(s.cin) * sizeof(float));
      const int64_t last = s.tiles() * (piece + 1) / s.threads;
      for (int64_t t = s.tiles() * piece / s.threads; t < last; t += b.tiles) {
        const int64_t count = std::min(b.tiles, last - t);
        input_block(s, b, x, zeros, t, count, v);
        for (int64_t j = 0; j < s.cout; j += panel) {
          const int64_t width = std::min(panel, padded - j);
          for (int64_t e = 0; e < 16; ++e)
            product<false>({b.in_row, 1, width, kPanel}, count, static_cast<int>(width / step),
                           s.cin, v + e * b.in_matrix, u + e * weight_matrix(s) + j * s.cin,
                           m + e * b.out_matrix);
          output_block(s, b, m, t, count, j, std::min(panel, s.cout - j), bias, y);
        }
      }
    }
  });
}

// m[e] = A dy A' of tiles [first, first + count), channels [j, j + width); their sum into `bias`.
HWY_INLINE void gradient_block(const Winograd& s, const Block& b, const float* dy, int64_t first,
                               int64_t count, int64_t j, int64_t width, float* m, double* bias) {
  const D d;
  const int64_t step = lanes();
  for (int64_t c = 0; c < width; c += step) {
    const int64_t left = width - c;
    V total = hn::Zero(d);
    for (int64_t t = 0; t < count; ++t) {
      const At p = at(s, first + t);
      const float* from = dy + ((p.n * s.oh + p.y) * s.ow + p.x) * s.cout + j + c;
      const bool right = p.x + 1 < s.ow, below = p.y + 1 < s.oh;
      const int64_t row = s.ow * s.cout;
      const V y00 = get(from, left), y01 = right ? get(from + s.cout, left) : hn::Zero(d);
      const V y10 = below ? get(from + row, left) : hn::Zero(d);
      const V y11 = right && below ? get(from + row + s.cout, left) : hn::Zero(d);
      const V a[4][2] = {{y00, y01},
                         {hn::Add(y00, y10), hn::Add(y01, y11)},
                         {hn::Sub(y00, y10), hn::Sub(y01, y11)},
                         {hn::Neg(y10), hn::Neg(y11)}};
      float* to = m + t * kPanel + c;
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i, to += 4 * b.out_matrix) {
        const V sum = hn::Add(a[i][0], a[i][1]);
        hn::StoreU(a[i][0], d, to);
        hn::StoreU(sum, d, to + b.out_matrix);
        hn::StoreU(hn::Sub(a[i][0], a[i][1]), d, to + 2 * b.out_matrix);
        hn::StoreU(hn::Neg(a[i][1]), d, to + 3 * b.out_matrix);
        if (i == 1) total = hn::Add(total, sum);
      }
    }
    HWY_ALIGN float sums[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(total, d, sums);
    for (int64_t l = 0; l < step; ++l) bias[j + c + l] += static_cast<double>(sums[l]);
  }
}

// dw[o, c] = G' u G of lines (vector of output channels o, input channel c); u[e][cin][padded
// cout], one per thread, added in their order.
HWY_INLINE void weight_back(const Winograd& s, const float* u, int64_t stride, int64_t begin,
                            int64_t end, float* dw) {
  const D d;
  const int64_t step = lanes(), matrix = weight_matrix(s), padded = round_up(s.cout, step);
  const V half = hn::Set(d, 0.5f);
  for (int64_t line = begin; line < end; ++line) {
    const int64_t j = line / s.cin * step, k = line % s.cin;
    V t[3][4];
    for (int i = 0; i < 4; ++i) {
      V r[4];
      for (int e = 0; e < 4; ++e) {
        const float* from = u + (4 * e + i) * matrix + k * padded + j;
        r[e] = hn::LoadU(d, from);
        for (int64_t p = 1; p < s.threads; ++p)
          r[e] = hn::Add(r[e], hn::LoadU(d, from + p * stride));
      }
      const V sum = hn::Mul(half, hn::Add(r[1], r[2]));
      t[0][i] = hn::Add(r[0], sum), t[1][i] = hn::Mul(half, hn::Sub(r[1], r[2]));
      t[2][i] = hn::Add(sum, r[3]);
    }
    HWY_ALIGN float g[9][HWY_MAX_BYTES / sizeof(float)];
    for (int i = 0; i < 3; ++i) {
      const V sum = hn::Mul(half, hn::Add(t[i][1], t[i][2]));
      hn::Store(hn::Add(t[i][0], sum), d, g[3 * i]);
      hn::Store(hn::Mul(half, hn::Sub(t[i][1], t[i][2])), d, g[3 * i + 1]);
      hn::Store(hn::Add(sum, t[i][3]), d, g[3 * i + 2]);
    }
    for (int64_t l = 0; l < std::min(step, s.cout - j); ++l)
      for (int i = 0; i < 9; ++i) dw[((j + l) * s.cin + k) * 9 + i] = g[i][l];
  }
}

void gradient(const Winograd& s, const float* x, const float* dy, float* dw, float* db,
              float* space) {
  const Block b = block_of(s);
  const int64_t step = lanes(), panel = kVecs * step, padded = round_up(s.cout, step);
  const int64_t stride = per_thread_sums(s, b), sums = round_up(per_thread(s, b), 16);
  const int64_t bias_at = sums + 16 * weight_matrix(s);
  parallel_for(s.threads, s.threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      float* v = space + piece * stride;
      float* m = v + 16 * b.in_matrix;
      float* zeros = m + 16 * b.out_matrix;
      float* u = v + sums;
      auto* bias = reinterpret_cast<double*>(v + bias_at);
      std::memset(zeros, 0, static_cast<size_t>(s.cin) * sizeof(float));
      std::fill(bias, bias + padded, 0.0);
      const int64_t from = s.tiles() * piece / s.threads;
      const int64_t last = s.tiles() * (piece + 1) / s.threads;
      for (int64_t t = from; t < last; t += b.tiles) {
        const int64_t count = std::min(b.tiles, last - t);
        input_block(s, b, x, zeros, t, count, v);
        for (int64_t j = 0; j < s.cout; j += panel) {
          const auto vecs = static_cast<int>(std::min(panel, padded - j) / step);
          gradient_block(s, b, dy, t, count, j, std::min(panel, s.cout - j), m, bias);
          const Strides strides{1, b.in_row, kPanel, padded};
          for (int64_t e = 0; e < 16; ++e) {
            const float *a = v + e * b.in_matrix, *z = m + e * b.out_matrix;
            float* c = u + e * weight_matrix(s) + j;
            if (t == from)
              product<false>(strides, s.cin, vecs, count, a, z, c);
            else
              product<true>(strides, s.cin, vecs, count, a, z, c);
          }
        }
      }
    }
  });
  parallel_for(s.threads, padded / step * s.cin, 1, [&](int64_t begin, int64_t end) {
    weight_back(s, space + sums, stride, begin, end, dw);
  });
  if (!db) return;
  for (int64_t j = 0; j < s.cout; ++j) {
    double sum = 0;
    for (int64_t p = 0; p < s.threads; ++p)
      sum += reinterpret_cast<const double*>(space + p * stride + bias_at)[j];
    db[j] = static_cast<float>(sum);
  }
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(transform_weight);
HWY_EXPORT(forward);
HWY_EXPORT(gradient);

size_t winograd_workspace(const Winograd& s) {
  const wino::Block b = wino::block_of(s);
  return static_cast<size_t>(16 * wino::weight_matrix(s) + s.threads * wino::per_thread(s, b)) *
         sizeof(float);
}

void winograd(const Winograd& s, const float* x, const float* weight, bool back, const float* bias,
              float* y, void* workspace) {
  auto* u = static_cast<float*>(workspace);
  HWY_DYNAMIC_DISPATCH(transform_weight)(s, weight, back, u);
  HWY_DYNAMIC_DISPATCH(forward)(s, x, u, bias, y, u + 16 * wino::weight_matrix(s));
}

size_t winograd_weight_workspace(const Winograd& s) {
  return static_cast<size_t>(s.threads * wino::per_thread_sums(s, wino::block_of(s))) *
         sizeof(float);
}

void winograd_weight(const Winograd& s, const float* x, const float* dy, float* dw, float* db,
                     void* workspace) {
  HWY_DYNAMIC_DISPATCH(gradient)(s, x, dy, dw, db, static_cast<float*>(workspace));
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
