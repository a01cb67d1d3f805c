// Reader and writer of the safetensors format (https://github.com/huggingface/safetensors).
//
// Layout: u64 little-endian header length N, N bytes of JSON, then the tensors' bytes back to back.
// Promises: tensors are views of the mapped file; offsets are checked to tile the data section with
// no overlap and no hole, as the format asks. The writer streams from the callers' pointers to a
// temporary file and renames it into place (atomic_file.h); Python's `safetensors` opens the
// result. Refuses (kData): headers over 100 MB, nesting, duplicate keys, dtypes other than F64 F32
// F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/stored_array.h"

namespace ortrain::data {

ArrayFile open_safetensors(const std::string& path);

struct SafetensorsContent {
  std::vector<StoredArray> arrays;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};
// The same from memory; `where` opens every message and the arrays view `bytes`.
SafetensorsContent read_safetensors(std::span<const std::byte> bytes, const std::string& where);

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Dims dims;
  const void* data;  // row-major, element_count(dims) elements
};

// Tensors are laid out by falling element size, then in the given order; the data section starts at
// a multiple of 64. Errors: kIo; kData for duplicate or reserved ("__metadata__") names.
void write_safetensors(const std::string& path, std::span<const SafetensorsEntry> entries,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace ortrain::data
