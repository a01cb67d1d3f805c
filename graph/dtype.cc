// Tables behind dtype.h and the binary16 conversions (IEEE 754-2008, round to nearest even).
#include "graph/dtype.h"

#include <array>

namespace ortrain {
namespace {
struct Entry {
  std::string_view name;
  size_t size;
};
constexpr std::array<Entry, 14> kTable{{{"undefined", 0},
                                        {"f64", 8},
                                        {"f32", 4},
                                        {"f16", 2},
                                        {"bf16", 2},
                                        {"i64", 8},
                                        {"i32", 4},
                                        {"i16", 2},
                                        {"i8", 1},
                                        {"u64", 8},
                                        {"u32", 4},
                                        {"u16", 2},
                                        {"u8", 1},
                                        {"bool", 1}}};
}  // namespace

size_t size_of(DType dtype) { return kTable[static_cast<size_t>(dtype)].size; }
std::string_view name_of(DType dtype) { return kTable[static_cast<size_t>(dtype)].name; }
std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kTable.size(); ++i)
    if (kTable[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

float f16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t float_to_f16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace ortrain
