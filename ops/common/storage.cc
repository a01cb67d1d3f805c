// See storage.h.
#include "ops/common/storage.h"

#include <limits>
#include <type_traits>

namespace ortrain::ops {
namespace {

template <class T>
constexpr bool kSmallFloat = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class T>
T element(double v) {
  if constexpr (kSmallFloat<T>) {
    return T(static_cast<float>(v));
  } else if constexpr (std::is_same_v<T, bool>) {
    return v != 0;
  } else if constexpr (std::is_integral_v<T>) {
    if (v != v) return 0;
    constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double high = static_cast<double>(std::numeric_limits<T>::max());
    if (v <= low) return std::numeric_limits<T>::min();
    if (v >= high) return std::numeric_limits<T>::max();
    return static_cast<T>(v);
  } else {
    return static_cast<T>(v);
  }
}

}  // namespace

StorageTable::StorageTable(DType dtype) {
  for (size_t i = 0; i < value.size(); ++i)
    value[i] = storage_to_double(dtype, static_cast<uint8_t>(i));
}

void load_run(DType dtype, const void* from, int64_t at, int64_t n, double* out) {
  if (is_storage(dtype)) {
    const auto* bytes = static_cast<const uint8_t*>(from) + at;
    for (int64_t i = 0; i < n; ++i) out[i] = storage_to_double(dtype, bytes[i]);
    return;
  }
  dispatch(dtype, [&]<class T>() {
    const T* x = static_cast<const T*>(from) + at;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kSmallFloat<T>)
        out[i] = static_cast<double>(static_cast<float>(x[i]));
      else
        out[i] = static_cast<double>(x[i]);
    }
  });
}

void store_run(DType dtype, const double* in, int64_t n, void* to, int64_t at,
               const StoreRule& rule) {
  if (is_storage(dtype)) {
    auto* bytes = static_cast<uint8_t*>(to) + at;
    for (int64_t i = 0; i < n; ++i)
      bytes[i] = double_to_storage(dtype, in[i], rule.saturate, rule.round);
    return;
  }
  dispatch(dtype, [&]<class T>() {
    T* y = static_cast<T*>(to) + at;
    for (int64_t i = 0; i < n; ++i) y[i] = element<T>(in[i]);
  });
}

}  // namespace ortrain::ops
