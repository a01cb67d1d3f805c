// Element types, their names and sizes, and the two 16-bit float formats as storage types.
//
// Names are ONNX's short forms: f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool.
// f16 and bf16 convert with round-to-nearest-even; NaN stays NaN, overflow becomes infinity.
// Storage types (f8 kinds, f4, i4, u4, i2, u2) hold one element per byte in memory, packed only in
// files. Nothing computes in them: they are read, cast, quantized to and from, and written back.
// Every other operator refuses them by name (Graph::infer), and dispatch() does not know them.
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
  // Storage types. Floats: f<bits>e<exponent>m<mantissa>, as ONNX and ml_dtypes define them.
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0,
  kF4E2M1,
  kI4,
  kU4,
  kI2,
  kU2,
};

// Bytes per element in memory; 0 for kUndefined.
size_t size_of(DType dtype);
// "f32", "i64", "bool", ...; "undefined".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
constexpr bool is_float(DType d) {
  return d == DType::kF64 || d == DType::kF32 || d == DType::kF16 || d == DType::kBF16;
}
constexpr bool is_integer(DType d) { return d >= DType::kI64 && d <= DType::kU8; }
constexpr bool is_storage(DType d) { return d > DType::kBool; }
constexpr bool is_storage_int(DType d) { return d >= DType::kI4; }
constexpr bool is_storage_float(DType d) { return is_storage(d) && !is_storage_int(d); }
// Bits per element in a file.
constexpr int file_bits(DType d) { return d >= DType::kI2 ? 2 : d >= DType::kF4E2M1 ? 4 : 8; }

// The number that a byte of a storage type stands for. Signed small integers are kept with their
// sign extended; bits above the type's own are ignored.
double storage_to_double(DType dtype, uint8_t bits);
// The byte for a number. Floats round to nearest even; what lies beyond the largest finite value
// becomes that value, or with saturate = false the infinity or NaN of the type (ONNX Cast's table;
// f4 always saturates, its NaN is -0). f8e8m0 keeps the exponent only: `round` says which.
// Integers truncate and wrap (ml_dtypes); NaN gives 0.
enum class E8M0Round : uint8_t { kUp, kDown, kNearest };
uint8_t double_to_storage(DType dtype, double value, bool saturate = true,
                          E8M0Round round = E8M0Round::kUp);
// Smallest and largest value of a small integer or 8- or 16-bit integer type.
struct IntRange {
  int32_t low = 0, high = 0;
};
IntRange int_range(DType dtype);

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
