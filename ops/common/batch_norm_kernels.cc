// See batch_norm_kernels.h. Bytes per element, f32: forward reads x twice and writes y (12),
// backward reads dy and x twice and writes dx (20), or each once where a slice of the channels fits
// a core's cache (8 and 12); the relu mask is recomputed from x.
#include "ops/common/batch_norm_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/half.h"
#include "ops/common/batch_norm_simd.h"
#include "ops/common/ref.h"

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

// --- channels-last f32 and 16-bit floats --------------------------------------------------------
// All arithmetic in double: memory sets the pace, and the sign of a value near zero, which decides
// what a relu lets through, comes out as the inputs determine it, the same forward and backward.
namespace {

// How a kernel goes over its tensors. By slices: each thread takes channels, a slice at a time
// whose rows fit the second-level cache, and makes both passes over it, so that memory delivers it
// once. By rows: each thread takes rows, with sums of its own, once per pass. Few or odd channels
// make short loops: `fold` rows are then taken as one row of fold * c channels (`wide`), with the
// per-channel factors repeated; rows that do not divide are done singly at the end.
struct Ways {
  Norm b;
  DType dtype;
  int64_t fold = 1, wide, rows;  // rows: whole folded ones
  int64_t slices = 0;            // 0: by rows
  int pieces;                    // of rows, each with two rows of sums

  static constexpr int64_t kSliceBytes = 512 << 10;  // of the 1 to 2 MiB that a core has
  static constexpr int64_t kRun = 1024;     // bytes of a row that are worth a jump to the next
  static constexpr int64_t kGrain = 16384;  // numbers that are worth a thread

  // `tensors`: how many of them the second pass reads again.
  Ways(const Norm& norm, DType d, int64_t tensors) : b(norm), dtype(d) {
    const int64_t c = std::max<int64_t>(1, b.c);
    for (const int64_t unit : {32, 16, 8}) {
      if (fold > 1) break;
      int64_t f = unit / std::gcd(c, unit);
      while (f * c < 64) f *= 2;
      if (f * c <= 1024 && f * 8 <= b.rows) fold = f;
    }
    wide = fold * c, rows = b.rows / fold;
    const int64_t most = std::clamp<int64_t>(b.rows * c / kGrain, 1, b.threads);
    pieces = static_cast<int>(std::clamp<int64_t>(rows, 1, most));
    const int64_t size = static_cast<int64_t>(size_of(d));
    const int64_t width = kSliceBytes / std::max<int64_t>(1, b.rows * tensors * size);
    if (width * size < kRun || c * size < kRun * most) return;
    slices = most * ((c + most * width - 1) / (most * width));
  }
  int64_t slice(int64_t i) const { return i == slices ? b.c : b.c * i / slices / 16 * 16; }

  // Workspace: rows of `wide` doubles: 5 shared, then 2 sums per piece.
  size_t bytes() const {
    return static_cast<size_t>(wide) * static_cast<size_t>(2 * pieces + 5) * sizeof(double);
  }
  double* row(void* w, int64_t i) const { return static_cast<double*>(w) + i * wide; }
  double* sums(void* w, int64_t piece) const { return row(w, 5 + 2 * piece); }
  // Repeats the first c entries over the folded row.
  void repeat(std::initializer_list<double*> factors) const {
    for (double* p : factors)
      for (int64_t i = b.c; i < wide; ++i) p[i] = p[i - b.c];
  }

  // `first(rows, element offset, channel, s, q)` adds to the sums of its rows' channels from
  // `channel` on; `between(begin, end)` gets channels whose sums are complete, in sums(w, 0) and
  // the row after it; `second(rows, element offset, channel)`. Either pass may be left out.
  template <class First, class Between, class Second>
  void run(void* w, bool sum, bool apply, First&& first, Between&& between, Second&& second) const {
    double *s = sums(w, 0), *q = s + wide;
    if (slices > 0)
      return parallel_for(b.threads, slices, std::max<int64_t>(1, slices / pieces),
                          [&](int64_t begin, int64_t end) {
                            for (int64_t i = begin; i < end; ++i) {
                              const int64_t c = slice(i), n = slice(i + 1) - c;
                              const NormRows all{dtype, b.rows, b.c, n};
                              std::fill(s + c, s + c + n, 0.0), std::fill(q + c, q + c + n, 0.0);
                              if (sum) first(all, c, c, s + c, q + c);
                              between(c, c + n);
                              if (apply) second(all, c, c);
                            }
                          });
    const int64_t rest = b.rows - rows * fold;
    const NormRows single{dtype, rest, b.c, b.c};
    const auto whole = [&](int64_t begin, int64_t end) {
      return NormRows{dtype, end - begin, wide, wide};
    };
    if (sum) {
      each([&](int64_t piece, int64_t begin, int64_t end) {
        double* own = sums(w, piece);
        std::fill(own, own + 2 * wide, 0.0);
        first(whole(begin, end), begin * wide, 0, own, own + wide);
      });
      if (rest > 0) first(single, rows * wide, 0, s, q);
      for (int64_t piece = 1; piece < pieces; ++piece)
        for (int64_t i = 0; i < 2 * wide; ++i) s[i] += sums(w, piece)[i];
      for (int64_t i = b.c; i < wide; ++i) s[i % b.c] += s[i], q[i % b.c] += q[i];
    }
    between(0, b.c);
    if (!apply) return;
    each([&](int64_t, int64_t begin, int64_t end) { second(whole(begin, end), begin * wide, 0); });
    if (rest > 0) second(single, rows * wide, 0);
  }

 private:
  template <class F>
  void each(F&& f) const {
    parallel_for(b.threads, pieces, 1, [&](int64_t piece, int64_t last) {
      for (; piece < last; ++piece) f(piece, rows * piece / pieces, rows * (piece + 1) / pieces);
    });
  }
};

// Element i of a tensor; null stays null.
void* element(const void* p, DType d, int64_t i) {
  const auto* bytes = static_cast<const char*>(p);
  return p ? const_cast<char*>(bytes + i * static_cast<int64_t>(size_of(d))) : nullptr;
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
  return q.in[0].count() == 0 ? "empty tensor" : "";
}

Kernel batch_norm_nhwc(const KernelQuery& q) {
  Norm b = norm_of(q, q.in[0].dims);
  b.residual = q.has_in(5);
  const Ways ways(b, q.in[0].dtype, 1);
  return {ways.bytes(), [b, ways, ch = Channel{q}, d = q.in[0].dtype](const KernelArgs& a) {
            void* w = a.workspace;
            const void *x = a.in[0], *z = b.residual ? a.in[5] : nullptr;
            double *mean = ways.row(w, 0), *scale = ways.row(w, 1), *bias = ways.row(w, 2);
            double* first = ways.row(w, 3);  // what x is shifted by
            const double *s = ways.sums(w, 0), *sq = s + ways.wide;
            if (b.training) {
              for (int64_t c = 0; c < b.c; ++c) first[c] = get(x, d, c);
              ways.repeat({first});
            }
            ways.run(
                w, b.training, true,
                [&](const NormRows& n, int64_t at, int64_t c, double* sum, double* squares) {
                  norm_sums(n, element(x, d, at), first + c, sum, squares);
                },
                [&](int64_t begin, int64_t end) {
                  for (int64_t c = begin; c < end; ++c) {
                    double m = ch.in(a, 3, c), var = ch.in(a, 4, c);
                    if (b.training) {
                      const double n = static_cast<double>(b.rows), shift = s[c] / n;
                      m = first[c] + shift;
                      var = std::max(0.0, sq[c] / n - shift * shift);
                    }
                    mean[c] = m;
                    scale[c] = ch.in(a, 1, c) * ch.statistics(a, b, c, m, var);
                    bias[c] = ch.in(a, 2, c);
                  }
                  if (end - begin == b.c) ways.repeat({mean, scale, bias});
                },
                [&](const NormRows& n, int64_t at, int64_t c) {
                  norm_apply(n, element(x, d, at), element(z, d, at), element(a.out[0], d, at),
                             {mean + c, scale + c, bias + c, static_cast<float>(b.low),
                              static_cast<float>(b.high)});
                });
          }};
}

Kernel batch_norm_grad_nhwc(const KernelQuery& q) {
  Norm b = norm_of(q, q.in[0].dims);
  b.residual = q.has_in(6);
  const Ways ways(b, q.in[0].dtype, 2);
  const size_t own_dz = b.residual && !q.has_out(3) ? q.in[0].bytes() : 0;
  return {ways.bytes() + own_dz, [b, ways, own_dz, ch = Channel{q}, want_dx = q.has_out(0),
                                  d = q.in[0].dtype](const KernelArgs& a) {
            void* w = a.workspace;
            const void *dy = a.in[0], *x = a.in[1], *y = b.residual ? a.in[6] : nullptr;
            double *mean = ways.row(w, 0), *scale = ways.row(w, 1), *bias = ways.row(w, 2);
            double *slope = ways.row(w, 3), *shift = ways.row(w, 4);
            const double *s = ways.sums(w, 0), *product = s + ways.wide;
            void* dz = nullptr;  // what the relu lets through of dy: exact
            if (b.residual) dz = own_dz ? static_cast<std::byte*>(w) + ways.bytes() : a.out[3];
            for (int64_t c = 0; c < b.c; ++c) {
              mean[c] = ch.in(a, 3, c);
              scale[c] = ch.in(a, 2, c) * ch.in(a, 4, c);
              bias[c] = ch.in(a, 5, c);
            }
            ways.repeat({mean, scale, bias});
            const auto factors = [&](int64_t c, bool clipped) {
              constexpr float inf = std::numeric_limits<float>::infinity();
              return NormFactors{mean + c, scale + c, bias + c,
                                 clipped ? static_cast<float>(b.low) : -inf,
                                 clipped ? static_cast<float>(b.high) : inf};
            };
            ways.run(
                w, true, want_dx,
                [&](const NormRows& n, int64_t at, int64_t c, double* sum, double* products) {
                  norm_grad_sums(n, element(dy, d, at), element(x, d, at), element(y, d, at),
                                 element(dz, d, at), factors(c, true), sum, products);
                },
                [&](int64_t begin, int64_t end) {
                  const double n = static_cast<double>(b.rows);
                  for (int64_t c = begin; c < end; ++c) {
                    const double invstd = ch.in(a, 4, c);
                    ch.out(a, 1, c, product[c] * invstd);
                    ch.out(a, 2, c, s[c]);
                    slope[c] = b.training ? -scale[c] * invstd * invstd * product[c] / n : 0;
                    shift[c] = b.training ? -scale[c] * s[c] / n : 0;
                  }
                  if (end - begin == b.c) ways.repeat({slope, shift});
                },
                [&](const NormRows& n, int64_t at, int64_t c) {
                  norm_grad_input(n, element(dz ? dz : dy, d, at), element(x, d, at),
                                  element(a.out[0], d, at), factors(c, !b.residual), slope + c,
                                  shift + c);
                });
          }};
}

}  // namespace ortrain::ops
