// See half_product.h. Threads share c as a grid; each walks its part in blocks of kRows rows and as
// many of the k inner numbers as keep the right side's block in its L2 cache.
#include "ops/common/half_product.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "graph/error.h"
#include "graph/half.h"
#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kRows = 128;              // of one left block
constexpr int64_t kRightBlock = 256 << 10;  // numbers of one right block: 1 MiB
constexpr int64_t kLeastInner = 128;

struct Grid {
  int64_t rows = 1, cols = 1;
};
// The split of c over `threads` that widens least.
Grid grid_of(const Product& p, int threads) {
  Grid best;
  int64_t least = INT64_MAX;
  for (int64_t r = 1; r <= threads; ++r) {
    const int64_t c = threads / r;
    if (r * c != threads || r > p.m || c > p.n) continue;
    const int64_t cost = p.m / r + p.n / c;
    if (cost < least) least = cost, best = {r, c};
  }
  return best;
}

// Stored rows [row, row + rows) x columns [col, col + cols) of a matrix with `ld` columns.
void widen(DType dtype, const void* p, int64_t ld, int64_t row, int64_t rows, int64_t col,
           int64_t cols, float* out) {
  const auto* x = static_cast<const uint16_t*>(p) + row * ld + col;
  if (cols == ld) return half_to_float(dtype, x, out, rows * cols);
  for (int64_t r = 0; r < rows; ++r, x += ld, out += cols) half_to_float(dtype, x, out, cols);
}

int64_t align16(int64_t floats) { return (floats + 15) & ~int64_t{15}; }

struct Blocks {
  HalfProduct p;
  DType dtype, bias_dtype = DType::kUndefined, sums_dtype = DType::kUndefined;
  Grid grid;
  int64_t m, n, kc;         // most rows and columns of one part, inner numbers of one block
  int64_t rows, c_rows;     // of a left block; of the f32 results that are kept
  int64_t floats() const {  // scratch of one thread
    return align16(rows * kc) + align16(kc * n) + align16(c_rows * n) + align16(std::max(m, n));
  }

  void part(const KernelArgs& a, int64_t index) const {
    const Product& s = p.shape;
    const int64_t ri = index / grid.cols, ci = index % grid.cols;
    const int64_t m0 = s.m * ri / grid.rows, m1 = s.m * (ri + 1) / grid.rows;
    const int64_t n0 = s.n * ci / grid.cols, n1 = s.n * (ci + 1) / grid.cols, cols = n1 - n0;
    float* left = static_cast<float*>(a.workspace) + index * floats();
    float* right = left + align16(rows * kc);
    float* c = right + align16(kc * n);
    float* sums = c + align16(c_rows * n);
    const bool sum = p.sums >= 0 && (p.sums_of_a ? ci : ri) == 0;
    const int64_t summed = p.sums_of_a ? m1 - m0 : cols;
    if (sum) std::fill_n(sums, summed, 0.f);
    for (int64_t k0 = 0; k0 < s.k; k0 += kc) {
      const int64_t k = std::min(kc, s.k - k0);
      const bool last = k0 + k == s.k;
      if (s.trans_b)
        widen(dtype, a.in[p.b], s.k, n0, cols, k0, k, right);
      else
        widen(dtype, a.in[p.b], s.n, k0, k, n0, cols, right);
      if (sum && !p.sums_of_a) add_rows(right, k, cols, sums);
      for (int64_t r0 = m0; r0 < m1; r0 += rows) {
        const int64_t r = std::min(rows, m1 - r0);
        if (s.trans_a)
          widen(dtype, a.in[p.a], s.m, k0, k, r0, r, left);
        else
          widen(dtype, a.in[p.a], s.k, r0, r, k0, k, left);
        if (sum && p.sums_of_a) add_rows(left, k, r, sums + (r0 - m0));
        float* to = c_rows > rows ? c + (r0 - m0) * cols : c;
        if (k0 == 0 && p.bias >= 0) start(a, n0, cols, r, to);
        dnnl_sgemm(s.trans_a ? 'T' : 'N', s.trans_b ? 'T' : 'N', r, cols, k, 1.f, left,
                   s.trans_a ? r : k, right, s.trans_b ? k : cols,
                   k0 == 0 && p.bias < 0 ? 0.f : 1.f, to, cols);
        if (last) finish(a, r0, r, n0, cols, to);
      }
    }
    if (sum) put(sums_dtype, sums, a.out[p.sums], p.sums_of_a ? m0 : n0, summed);
  }

  // c begins as the bias of each column.
  void start(const KernelArgs& a, int64_t n0, int64_t cols, int64_t r, float* to) const {
    const void* bias = a.in[p.bias];
    if (is_half(bias_dtype))
      half_to_float(bias_dtype, static_cast<const uint16_t*>(bias) + n0, to, cols);
    else
      std::copy_n(static_cast<const float*>(bias) + n0, cols, to);
    for (int64_t i = 1; i < r; ++i) std::copy_n(to, cols, to + i * cols);
  }
  static void add_rows(const float* x, int64_t rows, int64_t cols, float* sums) {
    for (int64_t i = 0; i < rows; ++i, x += cols)
      for (int64_t j = 0; j < cols; ++j) sums[j] += x[j];
  }
  static void put(DType d, const float* from, void* to, int64_t at, int64_t n) {
    if (is_half(d))
      float_to_half(d, from, static_cast<uint16_t*>(to) + at, n);
    else
      std::copy_n(from, n, static_cast<float*>(to) + at);
  }
  void finish(const KernelArgs& a, int64_t r0, int64_t r, int64_t n0, int64_t cols,
              const float* from) const {
    const int64_t ld = p.shape.n;
    if (cols == ld) return put(dtype, from, a.out[p.c], r0 * ld, r * ld);
    for (int64_t i = 0; i < r; ++i)
      put(dtype, from + i * cols, a.out[p.c], (r0 + i) * ld + n0, cols);
  }
};

Kernel in_blocks(const KernelQuery& q, const HalfProduct& p) {
  Blocks b;
  b.p = p;
  b.dtype = q.in[p.a].dtype;
  if (p.bias >= 0) b.bias_dtype = q.in[static_cast<size_t>(p.bias)].dtype;
  if (p.sums >= 0) b.sums_dtype = q.out[static_cast<size_t>(p.sums)].dtype;
  const Product& s = p.shape;
  const double work = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n * s.k);
  b.grid = grid_of(s, work < 4e5 ? 1 : q.threads);
  b.m = (s.m + b.grid.rows - 1) / b.grid.rows;
  b.n = (s.n + b.grid.cols - 1) / b.grid.cols;
  b.kc = std::min(s.k, std::max(kLeastInner, kRightBlock / b.n));
  if (const int64_t pieces = (s.k + b.kc - 1) / b.kc; pieces > 1)
    b.kc = ((s.k + pieces - 1) / pieces + 15) / 16 * 16;
  b.rows = std::min(b.m, kRows);
  b.c_rows = b.kc < s.k ? b.m : b.rows;
  const int64_t parts = b.grid.rows * b.grid.cols;
  return {static_cast<size_t>(parts * b.floats()) * sizeof(float), [b, parts](const KernelArgs& a) {
            parallel_for(static_cast<int>(parts), parts, 1, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) b.part(a, i);
            });
          }};
}

// total[j] += x[0, j] + ... + x[7, j].
ORTRAIN_SIMD void add_eight(const uint16_t* x, int64_t ld, int64_t cols, float* total) {
  const uint16_t *x1 = x + ld, *x2 = x1 + ld, *x3 = x2 + ld;
  const uint16_t *x4 = x3 + ld, *x5 = x4 + ld, *x6 = x5 + ld, *x7 = x6 + ld;
#pragma omp simd
  for (int64_t j = 0; j < cols; ++j)
    total[j] += ((bf16_to_float(x[j]) + bf16_to_float(x1[j])) +
                 (bf16_to_float(x2[j]) + bf16_to_float(x3[j]))) +
                ((bf16_to_float(x4[j]) + bf16_to_float(x5[j])) +
                 (bf16_to_float(x6[j]) + bf16_to_float(x7[j])));
}

// sums[j] = sum over `rows` rows of x[row, j], f32 inside; threads share the columns.
void column_sums(DType dtype, const void* x, int64_t rows, int64_t cols, DType sums_dtype,
                 void* sums, int threads) {
  constexpr int64_t kTile = 512;
  parallel_for(threads, cols, 64, [&](int64_t begin, int64_t end) {
    std::array<float, kTile> row, total;
    for (int64_t j = begin; j < end; j += kTile) {
      const int64_t n = std::min(kTile, end - j);
      std::fill_n(total.data(), n, 0.f);
      const auto* p = static_cast<const uint16_t*>(x) + j;
      int64_t i = 0;
      for (; dtype == DType::kBF16 && i + 8 <= rows; i += 8, p += 8 * cols)
        add_eight(p, cols, n, total.data());
      for (; i < rows; ++i, p += cols) {
        half_to_float(dtype, p, row.data(), n);
        Blocks::add_rows(row.data(), 1, n, total.data());
      }
      Blocks::put(sums_dtype, total.data(), sums, j, n);
    }
  });
}

}  // namespace

bool native_half(DType dtype, onednn::HalfUnits least) {
  static const std::string_view forced = [] {
    const char* e = std::getenv("ORTRAIN_HALF");
    return std::string_view(e ? e : "");
  }();
  const onednn::HalfUnits units = onednn::half_units(dtype);
  if (forced == "native") return units != onednn::HalfUnits::kNone;
  return forced != "widen" && units >= least;
}

std::string half_product_reject(const KernelQuery& q) {
  const DType dtype = q.in[0].dtype;
  if (!is_half(dtype)) return "takes 16-bit floats";
  for (const auto* list : {&q.in, &q.out})
    for (const TensorDesc& t : *list) {
      if (!t.present()) continue;
      if (t.dtype != dtype) return cat("takes ", name_of(dtype), " only, not ", name_of(t.dtype));
      if (t.count() == 0) return "empty tensor";
    }
  return {};
}

Kernel half_product(const KernelQuery& q, const HalfProduct& p) {
  const DType dtype = q.in[p.a].dtype;
  if (!native_half(dtype)) return in_blocks(q, p);
  onednn::Program program(q);
  Product shape = p.shape;
  shape.dtype = dtype;
  add_product(program, shape, onednn::in(p.a, {}), onednn::in(p.b, {}), onednn::out(p.c, {}),
              p.bias);
  if (p.sums >= 0) {  // one more pass over the operand: the library's own bias gradient is slower
    const size_t of = p.sums_of_a ? p.a : p.b, to = static_cast<size_t>(p.sums);
    program.call([dtype, of, to, k = shape.k, cols = p.sums_of_a ? shape.m : shape.n,
                  sums = q.out[to].dtype, threads = q.threads](const KernelArgs& a) {
      column_sums(dtype, a.in[of], k, cols, sums, a.out[to], threads);
    });
  }
  return std::move(program).finish();
}

}  // namespace ortrain::ops
