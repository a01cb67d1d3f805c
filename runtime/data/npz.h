// Reader and writer of numpy's .npz (a zip of .npy files) and .npy files.
//
// Promises: stored entries are viewed in the mapped file without reading them, deflated ones are
// inflated into owned memory. Hostile bytes give Error kData that names file, entry, expected and
// got: sizes are checked before allocation, entries may not overlap, and an entry may not claim to
// inflate to more than deflate can (1032:1) or than the machine has.
// Stored entries of up to 32 MiB are checked against their CRC; larger ones are not read at
// opening. Refuses: encrypted entries, other compression methods, entries not named *.npy, see
// npy.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "graph/tensor.h"
#include "runtime/data/stored_array.h"

namespace ortrain::data {

ArrayFile open_npz(const std::string& path);
// The array is called `name`.
ArrayFile open_npy(const std::string& path, const std::string& name);

// The same from memory; `where` opens every message and the results view `bytes`.
std::vector<StoredArray> read_npz(std::span<const std::byte> bytes, const std::string& where,
                                  bool check_crc = true);

struct NpzEntry {
  std::string name;  // without ".npy"
  const HostTensor& tensor;
};

// Stored (not deflated), payloads at multiples of 64, written atomically. bf16 becomes f32.
// Errors: kIo; kData for two entries of one name or a name with NUL or over 60,000 bytes.
void write_npz(const std::string& path, std::span<const NpzEntry> entries);
void write_npz(const std::string& path, std::initializer_list<NpzEntry> entries);
void write_npy(const std::string& path, const HostTensor& tensor);

}  // namespace ortrain::data
