// Products with a packed right side against plain sums in double: tails of rows, columns and depth,
// both orders of the right side, and rows that do not depend on how they are shared out.
#include "ops/common/packed_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "graph/half.h"

namespace ortrain::ops {
namespace {

struct Buffer {  // aligned as a workspace is
  explicit Buffer(size_t bytes) : p(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  ~Buffer() { std::free(p); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* p;
};

std::vector<float> random(size_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> out(count);
  for (float& x : out) x = value(bits);
  return out;
}

template <class T>
std::vector<float> multiply(const PackedSizes& s, int64_t m, const std::vector<T>& a,
                            const std::vector<T>& b, int64_t rows_at_once) {
  Buffer right(packed_right_bytes(s)), work(packed_workspace(s, rows_at_once));
  const int64_t panels = packed_panels(s), half = panels / 2;
  pack_right(s, b.data(), half, panels, right.p);
  pack_right(s, b.data(), 0, half, right.p);
  std::vector<float> c(static_cast<size_t>(m * s.n) + 1, -7.f);
  for (int64_t i = 0; i < m; i += rows_at_once)
    multiply_packed(s, std::min(rows_at_once, m - i), a.data() + i * s.k, right.p,
                    c.data() + i * s.n, work.p);
  EXPECT_EQ(c.back(), -7.f) << "written beyond the end";
  // Column by column: the same bits, and with a bias to begin with.
  Buffer column_work(packed_columns_workspace(s, m));
  std::vector<float> d(c.size(), -7.f);
  for (const auto& [first, last] : {std::pair(half, panels), std::pair<int64_t, int64_t>(0, half)})
    multiply_columns(s, m, a.data(), b.data(), first, last, d.data(), column_work.p);
  EXPECT_EQ(c, d) << "columns of their own";
  const std::vector<float> bias = random(static_cast<size_t>(s.n), 3);
  std::vector<float> with(c.size(), -7.f);
  multiply_columns(s, m, a.data(), b.data(), 0, panels, d.data(), column_work.p, bias.data());
  for (int64_t i = 0; i < m; i += rows_at_once)
    multiply_packed(s, std::min(rows_at_once, m - i), a.data() + i * s.k, right.p,
                    with.data() + i * s.n, work.p, bias.data());
  EXPECT_EQ(d, with) << "with a bias";
  for (int64_t i = 0; i < m * s.n; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(d[at], c[at] + bias[static_cast<size_t>(i % s.n)], 1e-5 * (1 + std::abs(c[at])));
  }
  return c;
}

void expect_sums(const PackedSizes& s, int64_t m, const std::vector<float>& a,
                 const std::vector<float>& b, const std::vector<float>& c) {
  double worst = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l)
        sum += double{a[static_cast<size_t>(i * s.k + l)]} *
               double{b[static_cast<size_t>(s.trans_b ? j * s.k + l : l * s.n + j)]};
      worst = std::max(worst, std::abs(sum - c[static_cast<size_t>(i * s.n + j)]));
    }
  EXPECT_LE(worst, 4e-7 * static_cast<double>(s.k) + 1e-7);
}

TEST(PackedProduct, MatchesSumsInDouble) {
  if (!packed_product_available()) GTEST_SKIP() << "needs AVX-512";
  for (const int64_t m : {1, 3, 4, 14, 15, 29})
    for (const int64_t n : {1, 16, 17, 32, 70})
      for (const int64_t k : {1, 3, 5, 64, 255, 600})
        for (const bool trans : {false, true}) {
          SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n << " trans " << trans);
          const PackedSizes s{n, k, trans};
          const auto a = random(static_cast<size_t>(m * k), 1);
          const auto b = random(static_cast<size_t>(k * n), 2);
          const auto c = multiply(s, m, a, b, m);
          expect_sums(s, m, a, b, c);
          EXPECT_EQ(c, multiply(s, m, a, b, 2)) << "rows depend on how they are shared out";
        }
}

// Products of bf16 numbers are exact in f32: the sums alone may differ.
TEST(PackedProduct, Bf16MatchesSumsInDouble) {
  if (!packed_product_available(true)) GTEST_SKIP() << "needs AVX-512 BF16";
  const auto rounded = [](std::vector<float>& x) {
    std::vector<uint16_t> half(x.size());
    const auto n = static_cast<int64_t>(x.size());
    float_to_half(DType::kBF16, x.data(), half.data(), n);
    half_to_float(DType::kBF16, half.data(), x.data(), n);
    return half;
  };
  for (const int64_t m : {1, 3, 4, 14, 15, 29})
    for (const int64_t n : {1, 16, 17, 32, 70})
      for (const int64_t k : {1, 2, 3, 5, 10, 64, 255, 1201, 1202})
        for (const bool trans : {false, true}) {
          SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n << " trans " << trans);
          const PackedSizes s{n, k, trans, true};
          auto a = random(static_cast<size_t>(m * k), 1), b = random(static_cast<size_t>(k * n), 2);
          const auto half_a = rounded(a), half_b = rounded(b);
          const auto c = multiply(s, m, half_a, half_b, m);
          expect_sums(s, m, a, b, c);
          EXPECT_EQ(c, multiply(s, m, half_a, half_b, 2)) << "rows depend on how they are shared";
        }
}

}  // namespace
}  // namespace ortrain::ops
