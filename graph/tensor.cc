// HostTensor's storage and element access.
#include "graph/tensor.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "graph/error.h"

namespace ortrain {
namespace {
template <class T>
double to_double(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<double>(static_cast<float>(v));
  else
    return static_cast<double>(v);
}
template <class T>
T from_double(double v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return T(static_cast<float>(v));
  else if constexpr (std::is_same_v<T, bool>)
    return v != 0;
  else
    return static_cast<T>(v);
}
}  // namespace

void no_compute_type(DType dtype) {
  check_failed(__FILE__, __LINE__, "a compute type", cat("nothing computes in ", name_of(dtype)));
}

int64_t element_count(std::span<const int64_t> dims) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t count = 1;
  bool empty = false;
  for (int64_t d : dims) {
    if (d < 0) fail(ErrorCode::kShape, "negative dimension ", d);
    if (d == 0) empty = true;
    if (d > 1 && count > kLimit / d) fail(ErrorCode::kShape, "tensor too large to address");
    count *= d > 0 ? d : 1;
  }
  return empty ? 0 : count;
}

HostTensor::HostTensor(DType dtype, Dims dims) : dtype_(dtype), dims_(std::move(dims)) {
  count_ = element_count(dims_);
  if (static_cast<uint64_t>(count_) > (uint64_t{1} << 62) / (size_of(dtype_) + 1))
    fail(ErrorCode::kMemory, "a tensor of ", count_, " elements cannot be addressed");
  // calloc: pages of a large tensor that nobody writes cost no memory (initial moments).
  owned_.reset(static_cast<std::byte*>(std::calloc(bytes() + 64, 1)));
  if (!owned_) fail(ErrorCode::kMemory, "cannot allocate ", bytes(), " bytes");
  data_ = reinterpret_cast<const void*>((reinterpret_cast<uintptr_t>(owned_.get()) + 63) / 64 * 64);
}

HostTensor HostTensor::view(DType dtype, Dims dims, const void* data) {
  HostTensor t;
  t.dtype_ = dtype;
  t.dims_ = std::move(dims);
  t.count_ = element_count(t.dims_);
  t.data_ = data;
  return t;
}

HostTensor HostTensor::ints(const std::vector<int64_t>& values) {
  return from<int64_t>({static_cast<int64_t>(values.size())}, values);
}

HostTensor HostTensor::scalar_of(DType dtype, double value) {
  HostTensor t(dtype, {});
  t.set_double(0, value);
  return t;
}

HostTensor HostTensor::clone() const {
  HostTensor t(dtype_, dims_);
  t.fill_from(data_, bytes());
  return t;
}

HostTensor HostTensor::share() const { return view(dtype_, dims_, data_); }

HostTensor HostTensor::cast(DType to) const {
  HostTensor out(to, dims_);
  if (is_storage(dtype_) || is_storage(to)) {
    for (int64_t i = 0; i < count_; ++i) out.set_double(i, as_double(i));
    return out;
  }
  dispatch(dtype_, [&]<class From>() {
    const From* in = data<From>();
    dispatch(to, [&]<class To>() {
      To* o = out.mutable_data<To>();
      for (int64_t i = 0; i < count_; ++i) {
        if constexpr (std::is_integral_v<From> && std::is_integral_v<To>)
          o[i] = static_cast<To>(in[i]);
        else
          o[i] = from_double<To>(to_double(in[i]));
      }
    });
  });
  return out;
}

void* HostTensor::mutable_raw() {
  ORTRAIN_CHECK(owned_ != nullptr, "writing to a view");
  return const_cast<void*>(data_);
}

double HostTensor::as_double(int64_t i) const {
  if (is_storage(dtype_)) return storage_to_double(dtype_, data<uint8_t>()[i]);
  return dispatch(dtype_, [&]<class T>() { return to_double(data<T>()[i]); });
}

int64_t HostTensor::as_int(int64_t i) const {
  if (is_storage(dtype_)) {
    const double v = as_double(i);
    return std::isfinite(v) && std::abs(v) < 0x1p63 ? static_cast<int64_t>(v) : 0;
  }
  return dispatch(dtype_, [&]<class T>() -> int64_t {
    if constexpr (std::is_integral_v<T>)
      return static_cast<int64_t>(data<T>()[i]);
    else
      return static_cast<int64_t>(to_double(data<T>()[i]));
  });
}

std::vector<int64_t> HostTensor::as_ints() const {
  std::vector<int64_t> out(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) out[static_cast<size_t>(i)] = as_int(i);
  return out;
}

void HostTensor::set_double(int64_t i, double value) {
  if (is_storage(dtype_)) {
    mutable_data<uint8_t>()[i] = double_to_storage(dtype_, value);
    return;
  }
  dispatch(dtype_, [&]<class T>() { mutable_data<T>()[i] = from_double<T>(value); });
}

void HostTensor::reshape(Dims dims) {
  ORTRAIN_CHECK(element_count(dims) == count_, "reshape changes the element count");
  dims_ = std::move(dims);
}

void HostTensor::fill_from(const void* data, size_t n) {
  ORTRAIN_CHECK(n == bytes(), "value count does not match the shape");
  if (n) std::memcpy(mutable_raw(), data, n);
}

}  // namespace ortrain
