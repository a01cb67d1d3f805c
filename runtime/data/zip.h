// The directory of a zip file: where each entry's bytes lie. Inflates one entry.
//
// Own code rather than minizip, because Debian 12's minizip does not read the zip64 fields of the
// central directory (entries above 4 GiB), and because stored entries are to be viewed in place.
// Promises: every offset and size is checked against the file before use; nothing is allocated
// beyond the names. Data before the zip (self-extracting files) is allowed. Refuses (kData):
// encrypted, multi-disk, duplicate or overlapping entries, methods other than stored and deflated,
// inflated sizes that deflate cannot reach. Format: PKWARE APPNOTE.TXT 6.3.3, 4.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/tensor.h"

namespace ortrain::data {

struct ZipEntry {
  std::string name;
  bool deflated = false;
  uint32_t crc = 0;                    // CRC-32 of the inflated bytes
  uint64_t size = 0;                   // inflated
  std::span<const std::byte> payload;  // in the file; of `size` bytes if stored
};

// `where` opens every message.
std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> bytes,
                                         const std::string& where);

// The inflated bytes of a deflated entry as u8[size]. Errors: kData for damaged data, kMemory when
// the size exceeds the machine's memory.
HostTensor inflate_entry(const ZipEntry& entry, const std::string& where);

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace ortrain::data
