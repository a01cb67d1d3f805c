// Element loops over unaligned memory; memcpy of one element compiles to one load.
#include "runtime/data/convert.h"

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "graph/error.h"
#include "graph/tensor.h"

namespace ortrain::data {
namespace {
template <class T>
constexpr bool kHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class T>
T load(const std::byte* p) {
  if constexpr (std::is_same_v<T, bool>) {
    return std::to_integer<int>(*p) != 0;
  } else {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
}

bool wide_integer(DType d) { return d == DType::kI32 || d == DType::kI64; }
bool is_signed(DType d) { return d >= DType::kI64 && d <= DType::kI8; }

// Does every value of `from` (an integer or bool) exist in the integer dtype `to`?
bool widens(DType from, DType to) {
  if (from == DType::kBool) return true;
  if (is_signed(from) && !is_signed(to)) return false;
  const bool gains_sign = !is_signed(from) && is_signed(to);
  return gains_sign ? size_of(to) > size_of(from) : size_of(to) >= size_of(from);
}

template <class From, class To>
std::optional<int64_t> convert_as(const std::byte* in, std::byte* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i, in += sizeof(From), out += sizeof(To)) {
    const From v = load<From>(in);
    To converted;
    if constexpr (std::is_same_v<From, bool>) {
      converted = static_cast<To>(v ? 1 : 0);
    } else if constexpr (std::is_integral_v<From>) {
      if (!std::in_range<To>(v)) return i;
      converted = static_cast<To>(v);
    } else if constexpr (kHalf<From>) {
      converted = static_cast<To>(static_cast<float>(v));
    } else {
      converted = static_cast<To>(v);
    }
    std::memcpy(out, &converted, sizeof converted);
  }
  return std::nullopt;
}
}  // namespace

Conversion conversion(DType from, DType to) {
  if (from == to) return Conversion::kNone;
  if ((is_integer(from) || from == DType::kBool) && is_integer(to)) {
    if (widens(from, to)) return Conversion::kExact;
    return wide_integer(to) ? Conversion::kChecked : Conversion::kRefused;
  }
  if (from == DType::kF64 && to == DType::kF32) return Conversion::kRounded;
  const bool half = from == DType::kF16 || from == DType::kBF16;
  if (half && (to == DType::kF32 || to == DType::kF64)) return Conversion::kExact;
  if (from == DType::kF32 && to == DType::kF64) return Conversion::kExact;
  return Conversion::kRefused;
}

std::optional<int64_t> convert(DType from, const std::byte* in, DType to, std::byte* out,
                               int64_t count) {
  return dispatch(from, [&]<class From>() {
    return dispatch(to, [&]<class To>() -> std::optional<int64_t> {
      constexpr bool integers =
          std::is_integral_v<From> && std::is_integral_v<To> && !std::is_same_v<To, bool>;
      constexpr bool floats = !std::is_integral_v<From> && std::is_floating_point_v<To>;
      if constexpr (integers || floats) {
        return convert_as<From, To>(in, out, count);
      } else {
        ORTRAIN_CHECK(false, cat("conversion from ", name_of(from), " to ", name_of(to)));
        return std::nullopt;
      }
    });
  });
}

int64_t integer_at(DType dtype, const std::byte* data, int64_t index) {
  return dispatch(dtype, [&]<class T>() -> int64_t {
    if constexpr (std::is_integral_v<T>) {
      const T v = load<T>(data + static_cast<size_t>(index) * sizeof(T));
      if constexpr (std::is_same_v<T, bool>) {
        return v ? 1 : 0;
      } else {
        return std::in_range<int64_t>(v) ? static_cast<int64_t>(v)
                                         : std::numeric_limits<int64_t>::max();
      }
    } else {
      ORTRAIN_CHECK(false, cat("integer_at of ", name_of(dtype)));
      return 0;
    }
  });
}

}  // namespace ortrain::data
