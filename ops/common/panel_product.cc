// See panel_product.h. Measured on 2 cores of Zen 4, GFLOP/s of the library, of threads with rows
// and of threads with columns of their own (M x N x K): 64 x 512 x 512 89 172 176, 196 x 512 x 2048
// 119 167 180, 256 x 512 x 512 154 183 191, 784 x 256 x 1024 140 174 161, 1024 x 768 x 3072 166 197
// -; about equal: 256 x 768 x 768 171 164 172; the library first: 3136 x 512 x 128 177 162 146,
// 1024 x 3072 x 768 215 199 -. On Intel the library was faster nearly everywhere
// (docs/performance.md, "What holds each model back").
#include "ops/common/panel_product.h"

#include <algorithm>

#include "ops/common/isa.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kFewRows = 256;
constexpr int64_t kApart = 512;       // floats: rows that share few cache sets
constexpr int64_t kRowsAtOnce = 252;  // of x, packed together: 18 register tiles

}  // namespace

std::string PanelProduct::reject() const {
  if (!packed_product_available() || !made_by_amd())
    return "the library's product is faster on this CPU";
  if (n < 64 || k < 64 || m < 8) return "a small product: the library's is as fast";
  return m > kFewRows && k % kApart ? "many rows: the library's product is as fast" : "";
}

bool PanelProduct::by_columns() const { return m <= kFewRows; }
int64_t PanelProduct::rows_at_once() const {
  return std::min(kRowsAtOnce, (m + threads - 1) / threads);
}
size_t PanelProduct::each() const {
  return by_columns() ? packed_columns_workspace(sizes(), m)
                      : packed_workspace(sizes(), rows_at_once());
}
size_t PanelProduct::shared() const { return by_columns() ? 0 : packed_right_bytes(sizes()); }
size_t PanelProduct::workspace() const { return shared() + each() * static_cast<size_t>(threads); }

void PanelProduct::operator()(const float* x, const float* w, const float* bias, float* y,
                              void* workspace) const {
  const PackedSizes s = sizes();
  auto* space = static_cast<std::byte*>(workspace);
  const auto own = [&](int64_t piece) {
    return space + shared() + static_cast<size_t>(piece) * each();
  };
  const int64_t panels = packed_panels(s);
  if (by_columns()) {
    const int64_t pieces = std::min<int64_t>(threads, panels);
    return parallel_for(threads, pieces, 1, [&](int64_t p, int64_t last) {
      for (; p < last; ++p)
        multiply_columns(s, m, x, w, panels * p / pieces, panels * (p + 1) / pieces, y, own(p),
                         bias);
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
        multiply_packed(s, r1 - r0, x + r0 * k, space, y + r0 * n, own(p), bias);
      }
    }
  });
}

}  // namespace ortrain::ops
