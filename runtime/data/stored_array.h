// An array as it lies in a file: a named, row-major block of bytes, and the file it lies in.
//
// The bytes are a view of the mapping where possible, else of memory owned here (inflated, byte
// order or axis order changed). They need not be aligned for the dtype: numpy's zip files rarely
// are. tensor() gives an aligned HostTensor; row gathering (loader.h) copies bytes and never cares.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "graph/tensor.h"
#include "runtime/data/mapped_file.h"

namespace ortrain::data {

class RowSource;

struct StoredArray {
  std::string name;
  DType dtype = DType::kUndefined;
  Dims dims;
  const std::byte* data = nullptr;
  int64_t count = 0;  // product of dims
  HostTensor owned;   // backs `data` where the file's bytes could not be used as they are
  const RowSource* rows = nullptr;  // makes the rows (row_source.h); `data` is null then

  size_t bytes() const { return static_cast<size_t>(count) * size_of(dtype); }
  bool aligned() const { return !rows && reinterpret_cast<uintptr_t>(data) % size_of(dtype) == 0; }
  // A view of the bytes where aligned (valid as long as the file), else an owning copy; rows that
  // are made are all made, for epoch 0.
  HostTensor tensor() const;
};

// One opened file; the arrays view `file`.
struct ArrayFile {
  MappedFile file;
  std::vector<StoredArray> arrays;              // in file order
  std::map<std::string, std::string> metadata;  // safetensors only

  const StoredArray* find(const std::string& name) const;
};

// Sets dtype, dims and count after checking that dims and dtype give exactly `payload` bytes; no
// allocation happens before. Refuses (kData, message starting with `where`) any other size.
void set_extent(StoredArray& array, DType dtype, Dims dims, size_t payload,
                const std::string& where);
// Refuses bool bytes other than 0 and 1: reading them as bool would be undefined.
void check_bools(const StoredArray& array, const std::string& where);

// An owning, zero-filled tensor. Error kMemory ("where: ... hint") where it exceeds the machine's
// memory: with overcommit the allocation itself would succeed and the process be killed later.
HostTensor allocate(DType dtype, Dims dims, const std::string& where, const char* hint = "");

// "f32[320,1,8,8]"; -1 prints as "?".
std::string describe(DType dtype, const Dims& dims);
std::string describe_dims(const Dims& dims);

}  // namespace ortrain::data
