// Element types, their names and sizes, and the two 16-bit float formats as storage types.
//
// Names are ONNX's short forms: f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool.
// f16 and bf16 convert with round-to-nearest-even; NaN stays NaN, overflow becomes infinity.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ortrain {

enum class DType : uint8_t {
  kUndefined,
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// Bytes per element; 0 for kUndefined.
size_t size_of(DType dtype);
// "f32", "i64", "bool", ...; "undefined".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
constexpr bool is_float(DType d) {
  return d == DType::kF64 || d == DType::kF32 || d == DType::kF16 || d == DType::kBF16;
}
constexpr bool is_integer(DType d) { return d >= DType::kI64 && d <= DType::kU8; }

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t float_to_bf16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float v) : bits(float_to_f16(v)) {}
  explicit operator float() const { return f16_to_float(bits); }
};
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float v) : bits(float_to_bf16(v)) {}
  explicit operator float() const { return bf16_to_float(bits); }
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kI16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::kU64;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kU32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kU16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace ortrain
