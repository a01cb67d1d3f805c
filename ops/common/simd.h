// Loops that the compiler vectorises, compiled for several instruction sets and chosen at run time.
//
// ORTRAIN_SIMD before a non-template function gives it clones for AVX-512, AVX2+FMA and the
// baseline (x86-64; elsewhere the baseline has SIMD already). Everything it calls must be inline
// and in sight. The math functions below are branch free polynomials for such loops; errors are
// given in units in the last place (ulp), measured over their whole range.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORTRAIN_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ORTRAIN_SIMD
#endif

namespace ortrain::ops {

// e^r for |r| <= ln(2) / 2: the minimax polynomial of Cephes' expf (S. L. Moshier).
[[gnu::always_inline]] inline float exp_reduced_f32(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}

// e^x, 1.3 ulp; 0 below -87.33 (no subnormal results), infinity above 88.72; NaN gives NaN.
// Cody-Waite reduction.
[[gnu::always_inline]] inline float exp_f32(float x) {
  const float n = (x * 1.44269504f + 12582912.f) - 12582912.f;  // nearest integer of x / ln 2
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = exp_reduced_f32(r);
  const float low = n < -126.f ? -126.f : n;
  const float c = low > 127.f ? 127.f : low;
  const float y = p * std::bit_cast<float>((static_cast<int32_t>(c) + 127) << 23);
  const float floored = x < -87.33f ? 0.f : y;
  const float capped = x > 88.72f ? std::numeric_limits<float>::infinity() : floored;
  return x != x ? x : capped;
}

// e^x for x <= 0 (or NaN), what softmax needs: the same polynomial with fewer steps around it, 1
// ulp. The nearest integer stands in the low bits of the shifted sum, where it becomes the
// exponent.
[[gnu::always_inline]] inline float exp_down_f32(float x) {
  const float c = x < -87.33f ? -87.33f : x;
  const float t = c * 1.44269504f + 12582912.f, n = t - 12582912.f;
  const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = exp_reduced_f32(r);
  const float y = p * std::bit_cast<float>((std::bit_cast<uint32_t>(t) << 23) + 0x3f800000u);
  return x < -87.33f ? 0.f : y;
}

}  // namespace ortrain::ops
