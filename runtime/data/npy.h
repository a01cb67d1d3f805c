// One numpy array in the .npy format (versions 1.0, 2.0, 3.0), parsed from bytes.
//
// Promises: the header and the payload size are checked before anything is allocated. Little-endian
// C-order payloads are viewed; Fortran order and big-endian ones are converted into owned memory.
// Refuses (kData): structured, object, string, date, complex and void dtypes, and extra bytes.
// Format: numpy/lib/_format_impl.py ("Format Version 1.0" ff.).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/data/stored_array.h"

namespace ortrain::data {

// `where` opens every message, e.g. "train.npz, entry 'x.npy'". The result views `bytes`.
StoredArray parse_npy(std::span<const std::byte> bytes, std::string name, const std::string& where);

// The header (magic .. newline) of a C-order array, its length padded so that a payload placed
// right after it starts at a multiple of 64 when the header itself is put at `file_offset`. bf16
// has no numpy dtype and must be widened before.
std::string npy_header(DType dtype, std::span<const int64_t> dims, uint64_t file_offset);

}  // namespace ortrain::data
