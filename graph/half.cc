// Array conversions of 16-bit floats: see half.h. bf16 and tf32 are integer arithmetic that the
// compiler vectorises per instruction set; f16 uses F16C or AVX-512 where the CPU has them.
#include "graph/half.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORTRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define ORTRAIN_X86 1
#else
#define ORTRAIN_CLONES
#endif

namespace ortrain {
namespace {

ORTRAIN_CLONES void bf16_to_floats(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

// The upper half of the rounded bits; a NaN keeps its sign and becomes quiet.
[[gnu::always_inline]] inline uint32_t rounded_bf16(uint32_t u) {
  const uint32_t near = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
  return ((u & 0x7fffffffu) > 0x7f800000u ? quiet : near) & 0xffff0000u;
}
ORTRAIN_CLONES void floats_to_bf16(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = static_cast<uint16_t>(rounded_bf16(std::bit_cast<uint32_t>(from[i])) >> 16);
}
ORTRAIN_CLONES void round_bf16(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(rounded_bf16(std::bit_cast<uint32_t>(from[i])));
}
ORTRAIN_CLONES void round_tf32(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(from[i]);
    const uint32_t near = (u + 0xfffu + ((u >> 13) & 1u)) & 0xffffe000u;
    to[i] = std::bit_cast<float>((u & 0x7f800000u) == 0x7f800000u ? u : near);
  }
}

#ifdef ORTRAIN_X86
// The compiler's own vectors and builtins: graph/ includes the standard library only.
using Floats = float __attribute__((vector_size(32)));
using Bits = short __attribute__((vector_size(16)));
constexpr int kNearest = 8;  // nearest even, no exceptions

__attribute__((target("f16c,avx2"))) int64_t f16_to_floats_8(const uint16_t* from, float* to,
                                                             int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    Bits h;
    std::memcpy(&h, from + i, sizeof h);
    const Floats x = __builtin_ia32_vcvtph2ps256(h);
    std::memcpy(to + i, &x, sizeof x);
  }
  return i;
}
__attribute__((target("f16c,avx2"))) int64_t floats_to_f16_8(const float* from, uint16_t* to,
                                                             int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    Floats x;
    std::memcpy(&x, from + i, sizeof x);
    const Bits h = __builtin_ia32_vcvtps2ph256(x, kNearest);
    std::memcpy(to + i, &h, sizeof h);
  }
  return i;
}
__attribute__((target("f16c,avx2"))) int64_t round_f16_8(const float* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    Floats x;
    std::memcpy(&x, from + i, sizeof x);
    x = __builtin_ia32_vcvtph2ps256(__builtin_ia32_vcvtps2ph256(x, kNearest));
    std::memcpy(to + i, &x, sizeof x);
  }
  return i;
}
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx2");
  return has;
}
#else
bool has_f16c() { return false; }
int64_t f16_to_floats_8(const uint16_t*, float*, int64_t) { return 0; }
int64_t floats_to_f16_8(const float*, uint16_t*, int64_t) { return 0; }
int64_t round_f16_8(const float*, float*, int64_t) { return 0; }
#endif

}  // namespace

void half_to_float(DType dtype, const void* from, float* to, int64_t n) {
  const auto* x = static_cast<const uint16_t*>(from);
  if (dtype == DType::kBF16) return bf16_to_floats(x, to, n);
  for (int64_t i = has_f16c() ? f16_to_floats_8(x, to, n) : 0; i < n; ++i)
    to[i] = f16_to_float(x[i]);
}

void float_to_half(DType dtype, const float* from, void* to, int64_t n) {
  auto* y = static_cast<uint16_t*>(to);
  if (dtype == DType::kBF16) return floats_to_bf16(from, y, n);
  for (int64_t i = has_f16c() ? floats_to_f16_8(from, y, n) : 0; i < n; ++i)
    y[i] = float_to_f16(from[i]);
}

void round_to_half(DType dtype, const float* from, float* to, int64_t n) {
  if (dtype == DType::kBF16) return round_bf16(from, to, n);
  for (int64_t i = has_f16c() ? round_f16_8(from, to, n) : 0; i < n; ++i)
    to[i] = f16_to_float(float_to_f16(from[i]));
}

void round_to_tf32(const float* from, float* to, int64_t n) { round_tf32(from, to, n); }

}  // namespace ortrain
