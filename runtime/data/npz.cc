// The reader: zip entries (zip.h) parsed as numpy arrays (npy.h).
#include "runtime/data/npz.h"

#include <utility>

#include "graph/error.h"
#include "runtime/data/npy.h"
#include "runtime/data/zip.h"

namespace ortrain::data {
namespace {
constexpr size_t kCrcLimit = 32u << 20;

void check_crc32(std::span<const std::byte> bytes, uint32_t expected, const std::string& where) {
  const uint32_t got = crc32_of(bytes);
  if (got != expected)
    fail(ErrorCode::kData, where, ": checksum mismatch (CRC-32 expected ", expected, ", got ", got,
         "): the file is damaged");
}

StoredArray read_entry(const ZipEntry& entry, const std::string& where, bool check_crc) {
  if (!entry.name.ends_with(".npy") || entry.name.size() == 4)
    fail(ErrorCode::kData, where,
         ": expected only entries named NAME.npy, as np.savez writes them");
  const std::string name = entry.name.substr(0, entry.name.size() - 4);
  if (!entry.deflated) {
    if (check_crc && entry.size <= kCrcLimit) check_crc32(entry.payload, entry.crc, where);
    return parse_npy(entry.payload, name, where);
  }
  HostTensor buffer = inflate_entry(entry, where);
  const std::span bytes(buffer.data<std::byte>(), entry.size);
  if (check_crc) check_crc32(bytes, entry.crc, where);
  StoredArray array = parse_npy(bytes, name, where);
  if (!array.owned.owns()) array.owned = std::move(buffer);
  return array;
}
}  // namespace

std::vector<StoredArray> read_npz(std::span<const std::byte> bytes, const std::string& where,
                                  bool check_crc) {
  std::vector<StoredArray> arrays;
  for (const ZipEntry& entry : read_zip_directory(bytes, where))
    arrays.push_back(read_entry(entry, cat(where, ", entry '", entry.name, "'"), check_crc));
  return arrays;
}

ArrayFile open_npz(const std::string& path) {
  ArrayFile out;
  out.file = MappedFile(path);
  out.arrays = read_npz(out.file.bytes(), path);
  return out;
}

ArrayFile open_npy(const std::string& path, const std::string& name) {
  ArrayFile out;
  out.file = MappedFile(path);
  out.arrays.push_back(parse_npy(out.file.bytes(), name, path));
  return out;
}

}  // namespace ortrain::data
