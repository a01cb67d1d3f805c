// HostTensor: a dense row-major array in host memory, owning (64-byte aligned) or a view of memory
// that outlives it.
//
// Promises: dims are >= 0 and the byte size has been checked against overflow. Move-only; clone()
// copies. Used for constants, initial parameters, data batches and results; training itself runs on
// planned arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "graph/dtype.h"

namespace ortrain {

using Dims = std::vector<int64_t>;

// Product of dims. Throws Error(kShape) on a negative dim or when the product passes 2^62.
int64_t element_count(std::span<const int64_t> dims);

class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, Dims dims);  // owning, zero-filled
  // A view; `data` must stay valid for the life of this object and be aligned for the dtype.
  static HostTensor view(DType dtype, Dims dims, const void* data);
  template <class T>
  static HostTensor of(Dims dims, std::initializer_list<T> values) {
    return from<T>(std::move(dims), std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static HostTensor from(Dims dims, std::span<const T> values) {
    HostTensor t(dtype_of<T>, std::move(dims));
    t.fill_from(values.data(), values.size() * sizeof(T));
    return t;
  }
  template <class T>
  static HostTensor scalar(T value) {
    return of<T>({}, {value});
  }
  static HostTensor ints(const std::vector<int64_t>& values);  // 1-D i64
  // One element of any numeric dtype, rounded from a double.
  static HostTensor scalar_of(DType dtype, double value);

  HostTensor clone() const;         // owning copy
  HostTensor share() const;         // a view of this tensor's memory
  HostTensor cast(DType to) const;  // owning copy, C++ conversion rules; to bool: != 0

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t count() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * size_of(dtype_); }
  bool owns() const { return owned_ != nullptr; }
  const void* raw() const { return data_; }
  void* mutable_raw();  // owning tensors only
  template <class T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* mutable_data() {
    return static_cast<T*>(mutable_raw());
  }
  double as_double(int64_t i) const;         // element i of any numeric dtype
  int64_t as_int(int64_t i) const;           // element i; floats truncate
  std::vector<int64_t> as_ints() const;      // all elements
  void set_double(int64_t i, double value);  // owning tensors only
  void reshape(Dims dims);                   // same count

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  void fill_from(const void* data, size_t bytes);
  DType dtype_ = DType::kUndefined;
  Dims dims_;
  int64_t count_ = 0;
  const void* data_ = nullptr;
  std::unique_ptr<std::byte[], Free> owned_;  // data_ is its first address aligned to 64
};

[[noreturn]] void no_compute_type(DType dtype);  // aborts

// Calls f.template operator()<T>() for the C++ type of dtype; f16/bf16 give the storage structs.
// Storage types have no C++ type: Graph::infer keeps them away from what dispatches.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f.template operator()<double>();
    case DType::kF16: return f.template operator()<f16>();
    case DType::kBF16: return f.template operator()<bf16>();
    case DType::kI64: return f.template operator()<int64_t>();
    case DType::kI32: return f.template operator()<int32_t>();
    case DType::kI16: return f.template operator()<int16_t>();
    case DType::kI8: return f.template operator()<int8_t>();
    case DType::kU64: return f.template operator()<uint64_t>();
    case DType::kU32: return f.template operator()<uint32_t>();
    case DType::kU16: return f.template operator()<uint16_t>();
    case DType::kU8: return f.template operator()<uint8_t>();
    case DType::kBool: return f.template operator()<bool>();
    default:
      if (dtype != DType::kF32) no_compute_type(dtype);
      return f.template operator()<float>();
  }
}

}  // namespace ortrain
