// Tile functions in plain C++ for each class, generated from ew_eval; element type conversions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "graph/half.h"
#include "ops/common/ew_engine.h"
#include "ops/common/ew_scalar.h"

namespace ortrain::ops {

namespace {

template <Ew code, class T>
void tile(const EwCall& call) {
  const T* a = static_cast<const T*>(call.x[0]);
  const T* b = static_cast<const T*>(call.x[1]);
  const T* c = static_cast<const T*>(call.x[2]);
  T* y = static_cast<T*>(call.y);
  const int64_t sa = call.step[0], sb = call.step[1], sc = call.step[2];
  for (int64_t i = 0; i < call.n; ++i) y[i] = ew_eval<code, T>(a[i * sa], b[i * sb], c[i * sc]);
}

template <class T, size_t... codes>
EwTable make_table(std::index_sequence<codes...>) {
  EwTable table;
  const auto set = [&]<size_t code>() {
    if constexpr (ew_defined<static_cast<Ew>(code), T>())
      table.fn[code] = tile<static_cast<Ew>(code), T>;
  };
  (set.template operator()<codes>(), ...);
  return table;
}

template <class T>
const EwTable& table_of() {
  static const EwTable table =
      make_table<T>(std::make_index_sequence<static_cast<size_t>(Ew::kCount)>());
  return table;
}

// The arithmetic type behind an element type: float for the 16-bit floats.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float, T>;

template <class To, class From>
To convert(From from) {
  if constexpr (std::is_same_v<From, f16> || std::is_same_v<From, bf16>) {
    return convert<To>(static_cast<float>(from));
  } else if constexpr (std::is_same_v<To, f16> || std::is_same_v<To, bf16>) {
    return To(static_cast<float>(from));
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (from != from) return 0;
    // The limits as From, rounded away from zero where inexact; both ends compare strictly.
    constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From high = static_cast<From>(std::numeric_limits<To>::max());
    if (from <= low) return std::numeric_limits<To>::min();
    if (from >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

template <class From, class To>
void convert_tile(const void* from, int64_t step, void* to, int64_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) y[i] = convert<To>(x[i * step]);
}

// f16 and bf16 as whole arrays; other steps one by one.
template <class Half>
void load_half(const void* from, int64_t step, void* to, int64_t n) {
  if (step == 1)
    half_to_float(dtype_of<Half>, from, static_cast<float*>(to), n);
  else
    convert_tile<Half, float>(from, step, to, n);
}
template <class Half>
void store_half(const void* from, int64_t step, void* to, int64_t n) {
  if (step == 1)
    float_to_half(dtype_of<Half>, static_cast<const float*>(from), to, n);
  else
    convert_tile<float, Half>(from, step, to, n);
}

template <class F>
EwConvert for_class(DType cls, F&& f) {
  switch (cls) {
    case DType::kF64: return f.template operator()<double>();
    case DType::kI64: return f.template operator()<int64_t>();
    case DType::kU64: return f.template operator()<uint64_t>();
    default: return f.template operator()<float>();
  }
}

}  // namespace

const EwTable& ew_ref_table(DType cls) {
  switch (cls) {
    case DType::kF64: return table_of<double>();
    case DType::kI64: return table_of<int64_t>();
    case DType::kU64: return table_of<uint64_t>();
    default: return table_of<float>();
  }
}

EwConvert ew_load(DType from, DType cls) {
  if (from == DType::kUndefined) from = DType::kF32;  // an absent input: nobody calls it
  if (cls == DType::kF32 && from == DType::kF16) return load_half<f16>;
  if (cls == DType::kF32 && from == DType::kBF16) return load_half<bf16>;
  return dispatch(from, [&]<class From>() {
    return for_class(cls, []<class Cls>() -> EwConvert { return convert_tile<From, Cls>; });
  });
}

EwConvert ew_store(DType cls, DType to) {
  if (cls == DType::kF32 && to == DType::kF16) return store_half<f16>;
  if (cls == DType::kF32 && to == DType::kBF16) return store_half<bf16>;
  return dispatch(to, [&]<class To>() {
    return for_class(cls, []<class Cls>() -> EwConvert { return convert_tile<Cls, To>; });
  });
}

DType ew_class(Ew code, const std::vector<TensorDesc>& in, const std::vector<TensorDesc>& out) {
  const DType result = out.empty() ? DType::kUndefined : out[0].dtype;
  if (code == Ew::kCast || code == Ew::kIdentity || code == Ew::kToBool) {
    const DType x = in[0].dtype;
    if (x == DType::kF64 || result == DType::kF64) return DType::kF64;
    if (is_float(x) || is_float(result)) return DType::kF32;
    return x == DType::kU64 ? DType::kU64 : DType::kI64;
  }
  bool f64 = false, real = false, u64 = false, integer = false;
  for (size_t i = code == Ew::kWhere ? 1 : 0; i < in.size(); ++i) {
    if (!in[i].present()) continue;
    const DType d = in[i].dtype;
    f64 |= d == DType::kF64;
    real |= is_float(d);
    u64 |= d == DType::kU64;
    integer |= is_integer(d);
  }
  if (real && is_integer(result)) return DType::kF64;  // integer base, float exponent
  if (f64) return DType::kF64;
  if (real) return DType::kF32;
  if (u64) return DType::kU64;
  return integer ? DType::kI64 : DType::kF32;  // truth values only: the vector kernels take them
}

}  // namespace ortrain::ops
