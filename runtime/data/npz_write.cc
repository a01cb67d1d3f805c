// The .npz writer: a zip of stored entries, always with zip64 size fields (as numpy writes them),
// so that there is one form for every size; payloads are placed at multiples of 64, which makes our
// own files zero-copy to read. Layout: PKWARE APPNOTE.TXT 6.3.3, sections 4.3.7 (local header),
// 4.3.12 (central directory), 4.3.14 to 4.3.16 (end records).
#include <set>

#include "graph/error.h"
#include "runtime/data/atomic_file.h"
#include "runtime/data/npy.h"
#include "runtime/data/npz.h"
#include "runtime/data/zip.h"

namespace ortrain::data {
namespace {
constexpr uint32_t kInZip64 = 0xffffffffu;  // "see the zip64 extra field"
constexpr uint16_t kVersion = 45;           // the first one with zip64
constexpr uint16_t kDate = 0x21;            // 1980-01-01: same arrays, same bytes
constexpr size_t kLocalHeader = 30, kLocalExtra = 20;
constexpr size_t kMaxName = 60000;

struct Le {  // little-endian fields appended to a string
  std::string out;
  template <class T>
  Le& put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
      out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
    return *this;
  }
  Le& u16(uint16_t v) { return put(v); }
  Le& u32(uint32_t v) { return put(v); }
  Le& u64(uint64_t v) { return put(v); }
};

struct Written {
  std::string name;
  uint32_t crc;
  uint64_t size, offset;
};

std::string local_header(const Written& w) {
  Le h;
  h.u32(0x04034b50).u16(kVersion).u16(0x800).u16(0).u16(0).u16(kDate).u32(w.crc);  // flag: UTF-8
  h.u32(kInZip64).u32(kInZip64).u16(static_cast<uint16_t>(w.name.size())).u16(kLocalExtra);
  h.out += w.name;
  h.u16(1).u16(16).u64(w.size).u64(w.size);
  return h.out;
}

std::string central_record(const Written& w) {
  Le h;
  h.u32(0x02014b50).u16(kVersion | 3 << 8).u16(kVersion).u16(0x800).u16(0).u16(0).u16(kDate);
  h.u32(w.crc).u32(kInZip64).u32(kInZip64).u16(static_cast<uint16_t>(w.name.size())).u16(28);
  h.u16(0).u16(0).u16(0).u32(0644u << 16).u32(kInZip64);
  h.out += w.name;
  h.u16(1).u16(24).u64(w.size).u64(w.size).u64(w.offset);
  return h.out;
}

std::string end_records(uint64_t entries, uint64_t start, uint64_t size) {
  Le h;
  h.u32(0x06064b50).u64(44).u16(kVersion | 3 << 8).u16(kVersion).u32(0).u32(0);
  h.u64(entries).u64(entries).u64(size).u64(start);
  h.u32(0x07064b50).u32(0).u64(start + size).u32(1);
  h.u32(0x06054b50).u16(0).u16(0).u16(0xffff).u16(0xffff).u32(kInZip64).u32(kInZip64).u16(0);
  return h.out;
}

// The tensor in the numpy type that holds all its values, where its own has none.
HostTensor for_numpy(const HostTensor& t) {
  const DType d = t.dtype();
  if (d == DType::kBF16 || is_storage_float(d)) return t.cast(DType::kF32);
  if (d == DType::kI4 || d == DType::kI2) return t.cast(DType::kI8);
  if (d == DType::kU4 || d == DType::kU2) return t.cast(DType::kU8);
  return t.share();
}

Written write_entry(AtomicFile& file, const std::string& name, const HostTensor& tensor) {
  const HostTensor t = for_numpy(tensor);
  Written w{name + ".npy", 0, 0, file.offset()};
  const std::string header =
      npy_header(t.dtype(), t.dims(), w.offset + kLocalHeader + w.name.size() + kLocalExtra);
  w.size = header.size() + t.bytes();
  w.crc = crc32_of({static_cast<const std::byte*>(t.raw()), t.bytes()},
                   crc32_of(std::as_bytes(std::span(header))));
  file.write(local_header(w));
  file.write(header);
  file.write(t.raw(), t.bytes());
  return w;
}
}  // namespace

void write_npz(const std::string& path, std::span<const NpzEntry> entries) {
  std::set<std::string> names;
  for (const NpzEntry& e : entries) {
    if (!names.insert(e.name).second)
      fail(ErrorCode::kData, path, ": two arrays are named '", e.name, "'");
    if (e.name.size() > kMaxName || e.name.find('\0') != std::string::npos || e.name.empty())
      fail(ErrorCode::kData, path, ": an array name must have 1 to ", kMaxName,
           " bytes and no NUL, got ", e.name.size(), " bytes");
  }
  AtomicFile file(path);
  std::vector<Written> written;
  for (const NpzEntry& e : entries) written.push_back(write_entry(file, e.name, e.tensor));
  const uint64_t start = file.offset();
  for (const Written& w : written) file.write(central_record(w));
  file.write(end_records(written.size(), start, file.offset() - start));
  file.commit();
}

void write_npz(const std::string& path, std::initializer_list<NpzEntry> entries) {
  write_npz(path, std::span<const NpzEntry>(entries.begin(), entries.size()));
}

void write_npy(const std::string& path, const HostTensor& tensor) {
  const HostTensor t = for_numpy(tensor);
  AtomicFile file(path);
  file.write(npy_header(t.dtype(), t.dims(), 0));
  file.write(t.raw(), t.bytes());
  file.commit();
}

}  // namespace ortrain::data
