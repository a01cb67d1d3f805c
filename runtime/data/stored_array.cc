// Size checks shared by the readers, and the step from file bytes to an aligned tensor.
#include "runtime/data/stored_array.h"

#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "graph/error.h"
#include "runtime/data/row_source.h"

namespace ortrain::data {

HostTensor StoredArray::tensor() const {
  if (aligned()) return HostTensor::view(dtype, dims, data);
  HostTensor copy = allocate(dtype, dims, cat("array '", name, "'"));
  if (rows) {
    auto* out = static_cast<std::byte*>(copy.mutable_raw());
    const int64_t n = dims.empty() ? 0 : dims[0];
    for (int64_t i = 0; i < n; ++i)
      rows->read({i, 0}, out + static_cast<size_t>(i) * (bytes() / static_cast<size_t>(n)));
    return copy;
  }
  if (count > 0) std::memcpy(copy.mutable_raw(), data, bytes());
  return copy;
}

HostTensor allocate(DType dtype, Dims dims, const std::string& where, const char* hint) {
  const auto machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  double bytes = static_cast<double>(size_of(dtype));
  for (const int64_t d : dims) bytes *= static_cast<double>(d);
  try {
    if (bytes <= static_cast<double>(machine)) return HostTensor(dtype, dims);
  } catch (const std::bad_alloc&) {
  }
  fail(ErrorCode::kMemory, where, ": no memory for ", describe(dtype, dims), ", the machine has ",
       machine, " bytes", hint);
}

const StoredArray* ArrayFile::find(const std::string& name) const {
  for (const StoredArray& array : arrays)
    if (array.name == name) return &array;
  return nullptr;
}

void set_extent(StoredArray& array, DType dtype, Dims dims, size_t payload,
                const std::string& where) {
  int64_t count = 0;
  try {
    count = element_count(dims);
  } catch (const Error& e) {
    fail(ErrorCode::kData, where, ": shape ", describe_dims(dims), ": ", e.what());
  }
  // Compared in elements, because count * size may not fit in 64 bits.
  const size_t elements = payload / size_of(dtype);
  if (static_cast<size_t>(count) != elements || payload % size_of(dtype) != 0) {
    fail(ErrorCode::kData, where, ": shape ", describe_dims(dims), " of ", name_of(dtype),
         " expects ", count, " x ", size_of(dtype), " bytes, got ", payload, " bytes");
  }
  array.dtype = dtype;
  array.dims = std::move(dims);
  array.count = count;
}

void check_bools(const StoredArray& array, const std::string& where) {
  if (array.dtype != DType::kBool) return;
  for (int64_t i = 0; i < array.count; ++i) {
    const auto value = static_cast<unsigned>(array.data[i]);
    if (value > 1)
      fail(ErrorCode::kData, where, ": bool element ", i, " has the byte ", value,
           "; expected 0 or 1");
  }
}

std::string describe_dims(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) out += ',';
    out += dims[i] == -1 ? std::string("?") : std::to_string(dims[i]);
  }
  return out + "]";
}

std::string describe(DType dtype, const Dims& dims) {
  return std::string(name_of(dtype)) + describe_dims(dims);
}

}  // namespace ortrain::data
