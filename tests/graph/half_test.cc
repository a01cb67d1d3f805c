// Array conversions of 16-bit floats against the scalar ones: every f16 and bf16 number, f32
// numbers around every rounding border, any length; tf32 against its definition.
#include "graph/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace ortrain {
namespace {

uint16_t scalar(DType d, float v) { return d == DType::kF16 ? float_to_f16(v) : float_to_bf16(v); }
float scalar(DType d, uint16_t v) { return d == DType::kF16 ? f16_to_float(v) : bf16_to_float(v); }
bool same(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<float> numbers() {
  std::vector<float> x;
  for (uint32_t h = 0; h < 65536; h += 7)
    for (int32_t near : {-1, 0, 1})  // around numbers of both types and the middles between them
      for (uint32_t base : {h << 16, (h << 16) + 0x8000u,
                            std::bit_cast<uint32_t>(f16_to_float(static_cast<uint16_t>(h)))})
        x.push_back(std::bit_cast<float>(base + static_cast<uint32_t>(near)));
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int i = 0; i < 20000; ++i)  // f16 denormals and their borders
    x.push_back(std::ldexp(static_cast<float>(random() % 8192), -26) * (i % 2 ? 1.f : -1.f));
  for (float big : {65504.f, 65519.99f, 65520.f, 65536.f, 3.3895e38f, 3.4e38f,
                    std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()})
    x.push_back(big), x.push_back(-big);
  return x;
}

class Half : public testing::TestWithParam<DType> {};

TEST_P(Half, ToFloatIsTheScalarConversion) {
  std::vector<uint16_t> h(65536);
  for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<uint16_t>(i);
  std::vector<float> f(h.size());
  half_to_float(GetParam(), h.data(), f.data(), 65536);
  for (size_t i = 0; i < h.size(); ++i)
    ASSERT_TRUE(same(f[i], scalar(GetParam(), h[i]))) << i << ": " << f[i];
}

TEST_P(Half, FromFloatIsTheScalarConversion) {
  const std::vector<float> x = numbers();
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> h(x.size());
  std::vector<float> rounded(x.size());
  float_to_half(GetParam(), x.data(), h.data(), n);
  round_to_half(GetParam(), x.data(), rounded.data(), n);
  for (size_t i = 0; i < x.size(); ++i) {
    const float want = scalar(GetParam(), scalar(GetParam(), x[i]));
    ASSERT_TRUE(same(scalar(GetParam(), h[i]), want)) << x[i];
    ASSERT_TRUE(same(rounded[i], want)) << x[i];
  }
}

TEST_P(Half, AnyLengthWritesNoFurther) {
  const std::vector<float> x(40, 1.5f);
  for (int64_t n = 0; n <= 33; ++n) {
    std::vector<uint16_t> h(40, 0xabcd);
    float_to_half(GetParam(), x.data(), h.data(), n);
    for (int64_t i = 0; i < 40; ++i)
      ASSERT_EQ(h[static_cast<size_t>(i)], i < n ? scalar(GetParam(), 1.5f) : 0xabcd);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Half, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& i) { return std::string(name_of(i.param)); });

TEST(Tf32, NearestEvenOfTenBits) {
  const std::vector<float> x = numbers();
  std::vector<float> y(x.size());
  round_to_tf32(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) {
      ASSERT_TRUE(same(x[i], y[i]));
      continue;
    }
    // Units of 2^(e-10) around |x| in [2^e, 2^(e+1)), or of the denormals' 2^-136.
    int e = 0;
    std::frexp(x[i], &e);
    const double unit = std::ldexp(1.0, std::max(e - 11, -136));
    const double want = std::nearbyint(static_cast<double>(x[i]) / unit) * unit;
    const bool over = std::fabs(want) > std::numeric_limits<float>::max();
    ASSERT_EQ(static_cast<double>(y[i]), over ? std::copysign(INFINITY, x[i]) : want) << x[i];
  }
}

}  // namespace
}  // namespace ortrain
