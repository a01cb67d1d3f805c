// Tables behind dtype.h, the binary16 conversions (IEEE 754-2008, round to nearest even) and the
// codecs of the storage types.
#include "graph/dtype.h"

#include <array>
#include <limits>

namespace ortrain {
namespace {
struct Entry {
  std::string_view name;
  size_t size;
};
constexpr std::array<Entry, 24> kTable{
    {{"undefined", 0},  {"f64", 8},    {"f32", 4},        {"f16", 2},    {"bf16", 2},
     {"i64", 8},        {"i32", 4},    {"i16", 2},        {"i8", 1},     {"u64", 8},
     {"u32", 4},        {"u16", 2},    {"u8", 1},         {"bool", 1},   {"f8e4m3fn", 1},
     {"f8e4m3fnuz", 1}, {"f8e5m2", 1}, {"f8e5m2fnuz", 1}, {"f8e8m0", 1}, {"f4e2m1", 1},
     {"i4", 1},         {"u4", 1},     {"i2", 1},         {"u2", 1}}};

// A small float: sign, exponent, mantissa. Codes above `last` (without the sign) are infinity and
// NaN; fnuz types have one NaN, 0x80, and no negative zero.
struct Format {
  int mantissa, lowest;   // bits; exponent of the smallest normal number
  uint8_t sign;           // its bit
  uint8_t last;           // code of the largest finite number
  uint8_t infinity, nan;  // what overflow and NaN become; fnuz: without a sign
  bool fnuz;
};
constexpr Format format_of(DType d) {
  switch (d) {
    case DType::kF8E4M3FN: return {3, -6, 0x80, 0x7e, 0x7f, 0x7f, false};
    case DType::kF8E4M3FNUZ: return {3, -7, 0x80, 0x7f, 0x80, 0x80, true};
    case DType::kF8E5M2: return {2, -14, 0x80, 0x7b, 0x7c, 0x7e, false};
    case DType::kF8E5M2FNUZ: return {2, -15, 0x80, 0x7f, 0x80, 0x80, true};
    default: return {1, 0, 0x08, 0x07, 0x07, 0x08, false};  // f4e2m1
  }
}

constexpr double power_of_two(int e) {  // normal doubles only
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + e) << 52);
}

constexpr double decode(DType d, uint8_t bits) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  if (d == DType::kF8E8M0) return bits == 0xff ? nan : power_of_two(bits - 127);
  const Format f = format_of(d);
  if (f.fnuz && bits == 0x80) return nan;
  const int code = bits & (f.sign - 1), field = code >> f.mantissa;
  const int fraction = code & ((1 << f.mantissa) - 1);
  if (code > f.last) {
    if (d == DType::kF8E5M2 && code == f.infinity)
      return bits & f.sign ? -std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::infinity();
    return nan;
  }
  const double size =
      field == 0 ? fraction * power_of_two(f.lowest - f.mantissa)
                 : (fraction + (1 << f.mantissa)) * power_of_two(f.lowest + field - 1 - f.mantissa);
  return bits & f.sign ? -size : size;
}

constexpr std::array<double, 256> decode_all(DType d) {
  std::array<double, 256> all{};
  for (int i = 0; i < 256; ++i) all[static_cast<size_t>(i)] = decode(d, static_cast<uint8_t>(i));
  return all;
}
constexpr std::array<std::array<double, 256>, 6> kDecoded{
    decode_all(DType::kF8E4M3FN),   decode_all(DType::kF8E4M3FNUZ), decode_all(DType::kF8E5M2),
    decode_all(DType::kF8E5M2FNUZ), decode_all(DType::kF8E8M0),     decode_all(DType::kF4E2M1)};

// Round to nearest even on the bits of the double, so that there is one rounding only.
uint8_t encode(const Format& f, double value, bool saturate) {
  const uint64_t u = std::bit_cast<uint64_t>(value), size = u & ~(uint64_t{1} << 63);
  const uint8_t sign = u >> 63 ? f.sign : uint8_t{0};
  const bool f4 = f.sign == 0x08;
  if (size > 0x7ff0000000000000ull) return f.fnuz || f4 ? f.nan : f.nan | sign;
  const int exponent = static_cast<int>(size >> 52) - 1023;
  const uint64_t mantissa = (size & 0xfffffffffffffull) | uint64_t{1} << 52;
  const int shift = 52 - f.mantissa + (exponent < f.lowest ? f.lowest - exponent : 0);
  uint64_t code = 0;
  if (exponent > 64) {
    code = 0xff;
  } else if (shift <= 53) {
    const uint64_t half = uint64_t{1} << (shift - 1);
    const uint64_t rounded = (mantissa + half - 1 + ((mantissa >> shift) & 1)) >> shift;
    code = exponent < f.lowest
               ? rounded
               : (static_cast<uint64_t>(exponent - f.lowest) << f.mantissa) + rounded;
  }
  if (code > f.last) {
    if (saturate || f4) return f.last | sign;
    return f.fnuz ? f.nan : f.infinity | sign;
  }
  if (f.fnuz && code == 0) return 0;
  return static_cast<uint8_t>(code) | sign;
}

// The sign is ignored. Saturated, infinity is the largest value and 0 the smallest; else both are
// NaN (the table of ONNX Cast).
uint8_t encode_e8m0(double value, bool saturate, E8M0Round round) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value)) & 0x7fffffffu;
  const uint32_t fraction = bits & 0x7fffffu;
  uint32_t exponent = bits >> 23;
  if (bits > 0x7f800000u) return 0xff;
  if (exponent == 0xff) return saturate ? 0xfe : 0xff;
  if (bits == 0) return saturate ? 0 : 0xff;
  // The midpoint goes up: the exponent below has an odd last digit in the reference's reading.
  const bool up = round == E8M0Round::kUp ? fraction > 0
                  : round == E8M0Round::kNearest
                      ? fraction > 0x400000u || (fraction == 0x400000u && exponent > 0)
                      : false;
  if (up && !(saturate && exponent == 0xfe)) ++exponent;
  return static_cast<uint8_t>(exponent);
}

int64_t truncated(double v) {
  if (v != v) return 0;
  if (v <= -0x1p63) return std::numeric_limits<int64_t>::min();
  if (v >= 0x1p63) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(v);
}
}  // namespace

size_t size_of(DType dtype) { return kTable[static_cast<size_t>(dtype)].size; }
std::string_view name_of(DType dtype) { return kTable[static_cast<size_t>(dtype)].name; }
std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kTable.size(); ++i)
    if (kTable[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

double storage_to_double(DType dtype, uint8_t bits) {
  switch (dtype) {
    case DType::kI4: return (bits & 15) - ((bits & 8) << 1);
    case DType::kU4: return bits & 15;
    case DType::kI2: return (bits & 3) - ((bits & 2) << 1);
    case DType::kU2: return bits & 3;
    default:
      return kDecoded[static_cast<size_t>(dtype) - static_cast<size_t>(DType::kF8E4M3FN)][bits];
  }
}

uint8_t double_to_storage(DType dtype, double value, bool saturate, E8M0Round round) {
  switch (dtype) {
    case DType::kI4: return static_cast<uint8_t>(((truncated(value) & 15) ^ 8) - 8);
    case DType::kU4: return static_cast<uint8_t>(truncated(value) & 15);
    case DType::kI2: return static_cast<uint8_t>(((truncated(value) & 3) ^ 2) - 2);
    case DType::kU2: return static_cast<uint8_t>(truncated(value) & 3);
    case DType::kF8E8M0: return encode_e8m0(value, saturate, round);
    default: return encode(format_of(dtype), value, saturate);
  }
}

IntRange int_range(DType dtype) {
  switch (dtype) {
    case DType::kI16: return {-32768, 32767};
    case DType::kU16: return {0, 65535};
    case DType::kI8: return {-128, 127};
    case DType::kU8: return {0, 255};
    case DType::kI4: return {-8, 7};
    case DType::kU4: return {0, 15};
    case DType::kI2: return {-2, 1};
    case DType::kU2: return {0, 3};
    default: return {};
  }
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
