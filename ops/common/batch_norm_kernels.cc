// See batch_norm_kernels.h. Bytes per element, f32: forward reads x twice and writes y (12),
// backward reads dy and x twice and writes dx (20); the relu mask is recomputed from x.
#include "ops/common/batch_norm_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/half.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

// One norm: `rows` samples of each of `c` channels; (outer, inner) sample offsets when the channel
// is not last: element (n, ch, i) lies at (n * c + ch) * inner + i.
struct Norm {
  int64_t rows, c, inner;
  bool training, residual, unbiased;  // unbiased: what running_var moves towards
  double epsilon, momentum;
  double low, high;  // the fused relu clips to [low, high]
  int threads;
};

Norm norm_of(const KernelQuery& q, const Dims& x) {
  Norm b;
  const Attrs& a = q.attrs;
  const size_t channel = a.i("channels_last", 0) || x.size() == 2 ? x.size() - 1 : 1;
  b.c = x[channel];
  b.inner = 1;
  for (size_t i = channel + 1; i < x.size(); ++i) b.inner *= x[i];
  b.rows = b.c == 0 ? 0 : element_count(x) / b.c;
  b.training = a.i("training_mode", 0) != 0;
  b.unbiased = a.i("unbiased", 0) != 0;
  b.epsilon = a.f("epsilon", 1e-5), b.momentum = a.f("momentum", 0.9);
  constexpr double inf = std::numeric_limits<double>::infinity();
  const bool relu = a.i("relu", 0) != 0;
  b.low = relu ? 0 : -inf;
  b.high = relu ? a.f("relu_max", inf) : inf;
  b.threads = q.threads;
  b.residual = false;
  return b;
}

double get(const void* p, DType d, int64_t i) {
  switch (d) {
    case DType::kF64: return static_cast<const double*>(p)[i];
    case DType::kF16: return static_cast<float>(static_cast<const f16*>(p)[i]);
    case DType::kBF16: return static_cast<float>(static_cast<const bf16*>(p)[i]);
    default: return static_cast<const float*>(p)[i];
  }
}
void put(void* p, DType d, int64_t i, double v) {
  switch (d) {
    case DType::kF64: static_cast<double*>(p)[i] = v; return;
    case DType::kF16: static_cast<f16*>(p)[i] = f16(static_cast<float>(v)); return;
    case DType::kBF16: static_cast<bf16*>(p)[i] = bf16(static_cast<float>(v)); return;
    default: static_cast<float*>(p)[i] = static_cast<float>(v);
  }
}

// Per-channel inputs and outputs, of any float type.
struct Channel {
  const KernelQuery q;
  double in(const KernelArgs& a, size_t i, int64_t c) const {
    return get(a.in[i], q.in[i].dtype, c);
  }
  void out(const KernelArgs& a, size_t i, int64_t c, double v) const {
    if (q.has_out(i)) put(a.out[i], q.out[i].dtype, c, v);
  }
  // Outputs 1 to 4 of the forward op; returns 1 / sqrt(var + epsilon).
  double statistics(const KernelArgs& a, const Norm& b, int64_t c, double mean, double var) const {
    const double unbiased = b.unbiased && b.rows > 1
                                ? static_cast<double>(b.rows) / static_cast<double>(b.rows - 1)
                                : 1;
    const double keep = b.training ? b.momentum : 1;
    if (q.has_out(1)) out(a, 1, c, in(a, 3, c) * keep + mean * (1 - keep));
    if (q.has_out(2)) out(a, 2, c, in(a, 4, c) * keep + var * unbiased * (1 - keep));
    const double invstd = 1 / std::sqrt(var + b.epsilon);
    out(a, 3, c, mean);
    out(a, 4, c, invstd);
    return invstd;
  }
};

double clip(const Norm& b, double v) { return v < b.low ? b.low : v > b.high ? b.high : v; }
bool open(const Norm& b, double v) { return !(v <= b.low) && !(v >= b.high); }

}  // namespace

// --- reference ----------------------------------------------------------------------------------
Kernel batch_norm_ref(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    Norm b = norm_of(q, q.in[0].dims);
    b.residual = q.has_in(5);
    out.run = [b, ch = Channel{q}](const KernelArgs& a) {
      const auto at = [&](int64_t c, int64_t r) {
        return (r / b.inner * b.c + c) * b.inner + r % b.inner;
      };
      parallel_for(b.threads, b.c, 1, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          double mean = ch.in(a, 3, c), var = ch.in(a, 4, c);
          if (b.training) {
            mean = var = 0;
            for (int64_t r = 0; r < b.rows; ++r) mean += load(a.x<T>(0)[at(c, r)]);
            mean /= static_cast<double>(std::max<int64_t>(1, b.rows));
            for (int64_t r = 0; r < b.rows; ++r) {
              const double d = load(a.x<T>(0)[at(c, r)]) - mean;
              var += d * d;
            }
            var /= static_cast<double>(std::max<int64_t>(1, b.rows));
          }
          const double scale = ch.in(a, 1, c) * ch.statistics(a, b, c, mean, var);
          const double bias = ch.in(a, 2, c);
          for (int64_t r = 0; r < b.rows; ++r) {
            double v = (load(a.x<T>(0)[at(c, r)]) - mean) * scale + bias;
            if (b.residual) v += load(a.x<T>(5)[at(c, r)]);
            a.y<T>(0)[at(c, r)] = store<T>(clip(b, v));
          }
        }
      });
    };
  });
  return out;
}

// Inputs dy, x, scale, mean, invstd, bias, y?; outputs dx, dscale, dbias, dz?.
Kernel batch_norm_grad_ref(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    Norm b = norm_of(q, q.in[0].dims);
    b.residual = q.has_in(6);
    out.run = [b, ch = Channel{q}, want_dx = q.has_out(0),
               want_dz = q.has_out(3)](const KernelArgs& a) {
      const auto at = [&](int64_t c, int64_t r) {
        return (r / b.inner * b.c + c) * b.inner + r % b.inner;
      };
      parallel_for(b.threads, b.c, 1, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          const double mean = ch.in(a, 3, c), invstd = ch.in(a, 4, c);
          const double scale = ch.in(a, 2, c) * invstd, bias = ch.in(a, 5, c);
          const auto masked = [&](int64_t i) {
            const double v =
                b.residual ? load(a.x<T>(6)[i]) : (load(a.x<T>(1)[i]) - mean) * scale + bias;
            return open(b, v) ? load(a.x<T>(0)[i]) : 0.0;
          };
          double sum = 0, product = 0;
          for (int64_t r = 0; r < b.rows; ++r) {
            const int64_t i = at(c, r);
            sum += masked(i);
            product += masked(i) * (load(a.x<T>(1)[i]) - mean);
          }
          ch.out(a, 1, c, product * invstd);
          ch.out(a, 2, c, sum);
          const double n = static_cast<double>(std::max<int64_t>(1, b.rows));
          const double shift = b.training ? sum / n : 0;
          const double slope = b.training ? product / n * invstd * invstd : 0;
          for (int64_t r = 0; r < b.rows; ++r) {
            const int64_t i = at(c, r);
            const double g = masked(i);
            if (want_dz) a.y<T>(3)[i] = store<T>(g);
            if (want_dx)
              a.y<T>(0)[i] = store<T>(scale * (g - shift - slope * (load(a.x<T>(1)[i]) - mean)));
          }
        }
      });
    };
  });
  return out;
}

// --- channels-last f32 and 16-bit floats
// ---------------------------------------------------------------------------- All arithmetic in
// double: memory sets the pace, and the sign of a value near zero, which decides what a relu lets
// through, comes out as the inputs determine it, the same forward and backward. 16-bit numbers are
// widened and rounded a tile at a time.
namespace {

constexpr int64_t kTile = 4096;  // numbers; a multiple of four rows where rows are short
struct Tile {
  alignas(64) float v[kTile];
};

// A tensor of f32 or 16-bit floats, seen as f32.
struct Numbers {
  void* p;
  DType dtype;
  bool half() const { return is_half(dtype); }
  char* at(int64_t i) const {
    return static_cast<char*>(p) + i * static_cast<int64_t>(size_of(dtype));
  }
  // n numbers from i on: in place, or in `tile`.
  float* read(int64_t i, int64_t n, Tile& tile) const {
    if (!p) return nullptr;
    if (!half()) return static_cast<float*>(p) + i;
    half_to_float(dtype, at(i), tile.v, n);
    return tile.v;
  }
  float* place(int64_t i, Tile& tile) const {  // where n numbers to be written shall be
    return !p ? nullptr : half() ? tile.v : static_cast<float*>(p) + i;
  }
  void write(int64_t i, int64_t n, const Tile& tile) const {
    if (p && half()) float_to_half(dtype, tile.v, at(i), n);
  }
};
Numbers numbers(const void* p, DType dtype) { return {const_cast<void*>(p), dtype}; }

// Calls f(offset, rows) for pieces of `rows` rows that fit a tile; all at once where none is
// needed.
template <class F>
void in_tiles(DType dtype, int64_t at, int64_t rows, int64_t c, F&& f) {
  int64_t step = is_half(dtype) ? kTile / c : rows;
  if (step >= 4 && step < rows) step -= step % 4;
  for (int64_t r = 0; r < rows; r += step) f(at + r * c, std::min(step, rows - r));
}

// s[c] += sum of x - k, q[c] += sum of (x - k)^2 over `rows` rows.
ORTRAIN_SIMD void sum_rows(const float* x, const double* k, int64_t rows, int64_t c, double* s,
                           double* q) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float *x0 = x + r * c, *x1 = x0 + c, *x2 = x1 + c, *x3 = x2 + c;
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) {
      const double d0 = static_cast<double>(x0[i]) - k[i], d1 = static_cast<double>(x1[i]) - k[i];
      const double d2 = static_cast<double>(x2[i]) - k[i], d3 = static_cast<double>(x3[i]) - k[i];
      s[i] += (d0 + d1) + (d2 + d3);
      q[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) {
      const double d = static_cast<double>(x[r * c + i]) - k[i];
      s[i] += d;
      q[i] += d * d;
    }
  }
}

// y = clip((x - mean) scale + bias (+ z), low, high).
ORTRAIN_SIMD void normalise(const float* x, const float* z, float* y, const double* mean,
                            const double* scale, const double* bias, float low, float high,
                            int64_t rows, int64_t c) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *xr = x + r * c, *zr = z ? z + r * c : nullptr;
    float* yr = y + r * c;
    if (z) {
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) {
        const double d = (static_cast<double>(xr[i]) - mean[i]) * scale[i] + bias[i];
        float v = static_cast<float>(d + static_cast<double>(zr[i]));
        v = v < low ? low : v;
        yr[i] = v > high ? high : v;
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) {
        float v = static_cast<float>((static_cast<double>(xr[i]) - mean[i]) * scale[i] + bias[i]);
        v = v < low ? low : v;
        yr[i] = v > high ? high : v;
      }
    }
  }
}

// g = dy where the relu let through; s += sum g, q += sum g (x - mean). With `y` the mask is y's
// and g goes to dz.
ORTRAIN_SIMD void grad_sums(const float* dy, const float* x, const float* y, float* dz,
                            const double* mean, const double* scale, const double* bias, float low,
                            float high, int64_t rows, int64_t c, double* s, double* q) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *dyr = dy + r * c, *xr = x + r * c;
    if (y) {
      const float* yr = y + r * c;
      float* dzr = dz + r * c;
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) {
        const float g = yr[i] <= low || yr[i] >= high ? 0.0f : dyr[i];
        dzr[i] = g;
        s[i] += static_cast<double>(g);
        q[i] += static_cast<double>(g) * (static_cast<double>(xr[i]) - mean[i]);
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) {
        const double d = static_cast<double>(xr[i]) - mean[i];
        const float v = static_cast<float>(d * scale[i] + bias[i]);
        const double g = static_cast<double>(v <= low || v >= high ? 0.0f : dyr[i]);
        s[i] += g;
        q[i] += g * d;
      }
    }
  }
}

// dx = scale g + slope (x - mean) + shift.
ORTRAIN_SIMD void grad_input(const float* dy, const float* x, float* dx, const double* mean,
                             const double* scale, const double* bias, const double* slope,
                             const double* shift, float low, float high, int64_t rows, int64_t c) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *dyr = dy + r * c, *xr = x + r * c;
    float* dxr = dx + r * c;
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) {
      const double d = static_cast<double>(xr[i]) - mean[i];
      const float v = static_cast<float>(d * scale[i] + bias[i]);
      const float g = v <= low || v >= high ? 0.0f : dyr[i];
      dxr[i] = static_cast<float>(static_cast<double>(g) * scale[i] + (d * slope[i] + shift[i]));
    }
  }
}

// Few channels make short loops, so `fold` rows are taken as one row of fold * c channels (`wide`),
// with the per-channel factors repeated; rows that do not divide are done singly at the end.
struct Folded {
  int64_t fold, wide, rows;  // rows: whole folded ones
  explicit Folded(const Norm& b)
      : fold(std::clamp<int64_t>(64 / std::max<int64_t>(1, b.c), 1, std::max<int64_t>(1, b.rows))),
        wide(fold * b.c),
        rows(b.rows / fold) {}
};

// Workspace: rows of `wide` doubles: 5 shared, then 2 sums per piece.
struct Space {
  int64_t wide;
  int pieces;
  size_t bytes() const {
    return static_cast<size_t>(wide) * static_cast<size_t>(2 * pieces + 5) * sizeof(double);
  }
  double* row(void* w, int64_t i) const { return static_cast<double*>(w) + i * wide; }
  double* sums(void* w, int64_t piece) const { return row(w, 5 + 2 * piece); }
};

int64_t row_grain(int64_t c) { return 1 + 16384 / std::max<int64_t>(1, c); }

// Repeats the first c entries over the folded row.
void repeat(double* p, const Norm& b, const Folded& f) {
  for (int64_t i = b.c; i < f.wide; ++i) p[i] = p[i - b.c];
}

// Calls `block(element offset, rows, channels, s, q)` over all rows, each thread on its own sums,
// and adds these up into the first c entries of sums(w, 0) and of the row after it.
template <class Block>
void sum_blocks(const Norm& b, const Folded& f, const Space& space, void* w, Block&& block) {
  const int64_t pieces =
      std::max<int64_t>(1, std::min<int64_t>(space.pieces, f.rows / row_grain(f.wide)));
  parallel_for(b.threads, pieces, 1, [&](int64_t piece, int64_t last) {
    for (; piece < last; ++piece) {
      double* sums = space.sums(w, piece);
      std::fill(sums, sums + 2 * f.wide, 0.0);
      const int64_t begin = f.rows * piece / pieces, end = f.rows * (piece + 1) / pieces;
      block(begin * f.wide, end - begin, f.wide, sums, sums + f.wide);
    }
  });
  double* total = space.sums(w, 0);
  if (const int64_t rest = b.rows - f.rows * f.fold; rest > 0)
    block(f.rows * f.wide, rest, b.c, total, total + f.wide);
  for (int64_t piece = 1; piece < pieces; ++piece)
    for (int64_t i = 0; i < 2 * f.wide; ++i) total[i] += space.sums(w, piece)[i];
  for (int64_t i = b.c; i < f.wide; ++i) {
    total[i % b.c] += total[i];
    total[f.wide + i % b.c] += total[f.wide + i];
  }
}

// Calls `block(element offset, rows, channels)` over all rows, on all threads.
template <class Block>
void each_block(const Norm& b, const Folded& f, Block&& block) {
  parallel_for(b.threads, f.rows, row_grain(f.wide),
               [&](int64_t begin, int64_t end) { block(begin * f.wide, end - begin, f.wide); });
  if (const int64_t rest = b.rows - f.rows * f.fold; rest > 0) block(f.rows * f.wide, rest, b.c);
}

}  // namespace

// Data of one type, f32 or a 16-bit float; the saved statistics are f64.
std::string batch_norm_reject(const KernelQuery& q) {
  if (!q.attrs.i("channels_last", 0) && q.in[0].rank() != 2) return "takes channels-last data";
  const DType dtype = q.in[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "takes f32";
  for (const auto* list : {&q.in, &q.out})
    for (const TensorDesc& t : *list)
      if (t.present() && t.rank() > 1 && t.dtype != dtype) return "takes data of one type";
  if (is_half(dtype) && Folded(norm_of(q, q.in[0].dims)).wide > kTile)
    return "takes no more than 4096 channels of 16 bits";
  return q.in[0].count() == 0 ? "empty tensor" : "";
}

Kernel batch_norm_nhwc(const KernelQuery& q) {
  Norm b = norm_of(q, q.in[0].dims);
  b.residual = q.has_in(5);
  const Folded f(b);
  const Space space{f.wide, q.threads};
  return {
      space.bytes(), [b, f, space, ch = Channel{q}, dtype = q.in[0].dtype](const KernelArgs& a) {
        void* w = a.workspace;
        const Numbers x = numbers(a.in[0], dtype);
        const Numbers z = numbers(b.residual ? a.in[5] : nullptr, dtype);
        const Numbers y = numbers(a.out[0], dtype);
        double *mean = space.row(w, 0), *scale = space.row(w, 1), *bias = space.row(w, 2);
        double* first = space.row(w, 3);  // what x is shifted by
        if (b.training) {
          for (int64_t c = 0; c < b.c; ++c) first[c] = get(x.p, dtype, c);
          repeat(first, b, f);
          sum_blocks(b, f, space, w,
                     [&](int64_t from, int64_t all, int64_t channels, double* s, double* sq) {
                       in_tiles(dtype, from, all, channels, [&](int64_t at, int64_t rows) {
                         Tile tx;
                         sum_rows(x.read(at, rows * channels, tx), first, rows, channels, s, sq);
                       });
                     });
        }
        const double *s = space.sums(w, 0), *sq = s + f.wide;
        for (int64_t c = 0; c < b.c; ++c) {
          double m = ch.in(a, 3, c), var = ch.in(a, 4, c);
          if (b.training) {
            const double n = static_cast<double>(b.rows), d = s[c] / n;
            m = first[c] + d;
            var = std::max(0.0, sq[c] / n - d * d);
          }
          mean[c] = m;
          scale[c] = ch.in(a, 1, c) * ch.statistics(a, b, c, m, var);
          bias[c] = ch.in(a, 2, c);
        }
        for (double* p : {mean, scale, bias}) repeat(p, b, f);
        each_block(b, f, [&](int64_t from, int64_t all, int64_t channels) {
          in_tiles(dtype, from, all, channels, [&](int64_t at, int64_t rows) {
            Tile tx, tz;  // y lies in x's
            const int64_t n = rows * channels;
            normalise(x.read(at, n, tx), z.read(at, n, tz), y.place(at, tx), mean, scale, bias,
                      static_cast<float>(b.low), static_cast<float>(b.high), rows, channels);
            y.write(at, n, tx);
          });
        });
      }};
}

Kernel batch_norm_grad_nhwc(const KernelQuery& q) {
  Norm b = norm_of(q, q.in[0].dims);
  b.residual = q.has_in(6);
  const Folded f(b);
  const Space space{f.wide, q.threads};
  const size_t own_dz = b.residual && !q.has_out(3) ? q.in[0].bytes() : 0;
  return {space.bytes() + own_dz, [b, f, space, own_dz, ch = Channel{q}, want_dx = q.has_out(0),
                                   dtype = q.in[0].dtype](const KernelArgs& a) {
            void* w = a.workspace;
            const Numbers dy = numbers(a.in[0], dtype), x = numbers(a.in[1], dtype);
            const Numbers y = numbers(b.residual ? a.in[6] : nullptr, dtype);
            const Numbers dx = numbers(a.out[0], dtype);
            double *mean = space.row(w, 0), *scale = space.row(w, 1), *bias = space.row(w, 2);
            double *slope = space.row(w, 3), *shift = space.row(w, 4);
            Numbers dz = numbers(nullptr, dtype);  // what the relu lets through of dy: exact
            if (b.residual) dz.p = own_dz ? static_cast<std::byte*>(w) + space.bytes() : a.out[3];
            const float low = static_cast<float>(b.low), high = static_cast<float>(b.high);
            for (int64_t c = 0; c < b.c; ++c) {
              mean[c] = ch.in(a, 3, c);
              scale[c] = ch.in(a, 2, c) * ch.in(a, 4, c);
              bias[c] = ch.in(a, 5, c);
            }
            for (double* p : {mean, scale, bias}) repeat(p, b, f);
            sum_blocks(b, f, space, w,
                       [&](int64_t from, int64_t all, int64_t channels, double* s, double* sq) {
                         in_tiles(dtype, from, all, channels, [&](int64_t at, int64_t rows) {
                           Tile tdy, tx, ty;  // dz lies in y's
                           const int64_t n = rows * channels;
                           grad_sums(dy.read(at, n, tdy), x.read(at, n, tx), y.read(at, n, ty),
                                     dz.place(at, ty), mean, scale, bias, low, high, rows, channels,
                                     s, sq);
                           dz.write(at, n, ty);
                         });
                       });
            const double n = static_cast<double>(b.rows);
            for (int64_t c = 0; c < b.c; ++c) {
              const double sum = space.sums(w, 0)[c], product = space.sums(w, 0)[f.wide + c];
              const double invstd = ch.in(a, 4, c);
              ch.out(a, 1, c, product * invstd);
              ch.out(a, 2, c, sum);
              slope[c] = b.training ? -scale[c] * invstd * invstd * product / n : 0;
              shift[c] = b.training ? -scale[c] * sum / n : 0;
            }
            if (!want_dx) return;
            for (double* p : {slope, shift}) repeat(p, b, f);
            constexpr float inf = std::numeric_limits<float>::infinity();
            each_block(b, f, [&](int64_t from, int64_t all, int64_t channels) {
              in_tiles(dtype, from, all, channels, [&](int64_t at, int64_t rows) {
                Tile tg, tx;  // dx lies in x's
                const int64_t n = rows * channels;
                grad_input((b.residual ? dz : dy).read(at, n, tg), x.read(at, n, tx),
                           dx.place(at, tx), mean, scale, bias, slope, shift,
                           b.residual ? -inf : low, b.residual ? inf : high, rows, channels);
                dx.write(at, n, tx);
              });
            });
          }};
}

}  // namespace ortrain::ops
