// ortrain.Linear by our own product (packed_product.h): see linear_kernels.h.
//
// The library's inner_product loses to the stored order of the weight, [N,K], where few rows of x
// share the cost of turning it, and where rows lie a multiple of 4 KiB apart. Measured on 2 cores
// of Zen 4, f32, GFLOP/s of the library and of this kernel (M x N x K): 64 x 512 x 784 138 and 178,
// 64 x 512 x 512 89 and 176, 1024 x 256 x 1024 157 and 194, 1024 x 768 x 3072 166 and 197;
// elsewhere they are equal (1024 x 256 x 256 198 and 201) or the library is faster (1024 x 3072 x
// 768 215 and 199). On Intel the library was faster nearly everywhere (docs/performance.md, "What
// holds each model back").
#include "ops/common/isa.h"
#include "ops/common/linear_kernels.h"
#include "ops/common/onednn.h"
#include "ops/common/packed_product.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kFewRows = 128;
constexpr int64_t kDeep = 1024;       // inner numbers
constexpr int64_t kRowsAtOnce = 252;  // of x, packed together: 18 register tiles

struct Panels {
  int64_t m = 0;
  PackedSizes s;
  int threads = 1;
  bool bias = false;

  bool by_columns() const { return m <= kFewRows; }
  int64_t rows_at_once() const { return std::min(kRowsAtOnce, (m + threads - 1) / threads); }
  size_t each() const {  // bytes of one thread
    return by_columns() ? packed_columns_workspace(s, m) : packed_workspace(s, rows_at_once());
  }
  size_t shared() const { return by_columns() ? 0 : packed_right_bytes(s); }

  void operator()(const KernelArgs& a) const {
    const float *x = a.x<float>(0), *w = a.x<float>(1), *b = bias ? a.x<float>(2) : nullptr;
    float* y = a.y<float>(0);
    auto* space = static_cast<std::byte*>(a.workspace);
    const auto own = [&](int64_t piece) {
      return space + shared() + static_cast<size_t>(piece) * each();
    };
    const int64_t panels = packed_panels(s);
    if (by_columns()) {
      const int64_t pieces = std::min<int64_t>(threads, panels);
      return parallel_for(threads, pieces, 1, [&](int64_t p, int64_t last) {
        for (; p < last; ++p)
          multiply_columns(s, m, x, w, panels * p / pieces, panels * (p + 1) / pieces, y, own(p),
                           b);
      });
    }
    parallel_for(threads, panels, 1,
                 [&](int64_t first, int64_t last) { pack_right(s, w, first, last, space); });
    const int64_t pieces = std::min<int64_t>(threads, m);
    parallel_for(threads, pieces, 1, [&](int64_t p, int64_t last) {
      for (; p < last; ++p) {
        const int64_t begin = m * p / pieces, end = m * (p + 1) / pieces;
        const int64_t parts = (end - begin + rows_at_once() - 1) / rows_at_once();
        for (int64_t i = 0; i < parts; ++i) {
          const int64_t r0 = begin + (end - begin) * i / parts;
          const int64_t r1 = begin + (end - begin) * (i + 1) / parts;
          multiply_packed(s, r1 - r0, x + r0 * s.k, space, y + r0 * s.n, own(p), b);
        }
      }
    });
  }
};

Panels panels_of(const KernelQuery& q) {
  const int64_t k = q.in[0].dims.back();
  return {k == 0 ? 0 : element_count(q.in[0].dims) / k,
          {q.out[0].dims.back(), k, q.attrs.i("trans_b", 0) != 0},
          q.threads,
          q.has_in(2)};
}

}  // namespace

std::string panels_linear_reject(const KernelQuery& q) {
  if (std::string why = onednn::reject_not_f32(q); !why.empty()) return why;
  if (!packed_product_available() || !made_by_amd())
    return "the library's product is faster on this CPU";
  const Panels p = panels_of(q);
  if (!p.s.trans_b) return "takes a weight stored [N,K]";
  if (p.s.n < 64 || p.s.k < 64 || p.m < 8) return "a small product: the library's is as fast";
  return p.m > kFewRows && p.s.k < kDeep ? "many rows, few inner numbers: the library's is as fast"
                                         : "";
}

Kernel panels_linear(const KernelQuery& q) {
  const Panels p = panels_of(q);
  return {p.shared() + p.each() * static_cast<size_t>(q.threads), p};
}

}  // namespace ortrain::ops
