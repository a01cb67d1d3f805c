// Reads the end record, the central directory and each local header, in this order.
#include "runtime/data/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "graph/error.h"
#include "runtime/data/stored_array.h"

namespace ortrain::data {
namespace {
constexpr uint32_t kIn64 = 0xffffffffu;  // "see the zip64 extra field"
constexpr size_t kLocal = 30, kCentral = 46, kEnd = 22, kEnd64 = 56, kLocator64 = 20;
constexpr size_t kMaxComment = 65535;
constexpr uint64_t kMaxRatio = 1032;  // deflate cannot do better

// Little-endian fields of a range already known to be long enough.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t at(size_t offset, size_t width) const {
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i)
      value |= std::to_integer<uint64_t>(bytes_[offset + i]) << (8 * i);
    return value;
  }
  uint16_t u16(size_t offset) const { return static_cast<uint16_t>(at(offset, 2)); }
  uint32_t u32(size_t offset) const { return static_cast<uint32_t>(at(offset, 4)); }
  uint64_t u64(size_t offset) const { return at(offset, 8); }
  bool signature(std::string_view text) const {
    return std::memcmp(bytes_.data(), text.data(), 4) == 0;
  }

 private:
  std::span<const std::byte> bytes_;
};

struct Directory {
  std::span<const std::byte> records;
  uint64_t entries = 0;
  uint64_t prefix = 0;  // bytes before the zip; stored offsets do not count them
};

// Offset of the end record: the last one whose comment reaches exactly to the end of the file.
std::optional<size_t> find_end(std::span<const std::byte> bytes) {
  if (bytes.size() < kEnd) return std::nullopt;
  const size_t last = bytes.size() - kEnd;
  const size_t first = last > kMaxComment ? last - kMaxComment : 0;
  for (size_t at = last + 1; at-- > first;) {
    const Fields f(bytes.subspan(at, kEnd));
    if (f.signature("PK\x05\x06") && f.u16(20) == last - at) return at;
  }
  return std::nullopt;
}

Directory find_directory(std::span<const std::byte> bytes, const std::string& where) {
  const std::optional<size_t> end = find_end(bytes);
  if (!end)
    fail(ErrorCode::kData, where, ": not a zip file, or its end is cut off (", bytes.size(),
         " bytes); expected what np.savez writes");
  const Fields f(bytes.subspan(*end, kEnd));
  uint64_t entries = f.u16(10), size = f.u32(12), offset = f.u32(16);
  bool one_disk = f.u16(4) == f.u16(6) && f.u16(8) == f.u16(10);
  uint64_t directory_end = *end;
  const bool zip64 = *end >= kLocator64 + kEnd64 &&
                     Fields(bytes.subspan(*end - kLocator64, 4)).signature("PK\x06\x07");
  if (zip64) {
    directory_end = *end - kLocator64 - kEnd64;
    const Fields f64(bytes.subspan(directory_end, kEnd64));
    if (!f64.signature("PK\x06\x06"))
      fail(ErrorCode::kData, where, ": malformed zip: the zip64 end record is missing");
    one_disk = f64.u32(16) == f64.u32(20) && f64.u64(24) == f64.u64(32);
    entries = f64.u64(32);
    size = f64.u64(40);
    offset = f64.u64(48);
  }
  if (!one_disk) fail(ErrorCode::kData, where, ": a zip split over several files");
  if (size > directory_end || offset > directory_end - size)
    fail(ErrorCode::kData, where, ": malformed zip: a directory of ", size, " bytes at offset ",
         offset, ", expected to end before offset ", directory_end);
  if (entries > size / kCentral)
    fail(ErrorCode::kData, where, ": malformed zip: ", entries, " entries in a directory of ", size,
         " bytes");
  const uint64_t start = directory_end - size;
  return {bytes.subspan(start, size), entries, start - offset};
}

struct Sizes {
  uint64_t size, compressed, offset;
};

// Replaces the sizes that the record leaves to its zip64 extra field (id 1).
bool read_zip64(std::span<const std::byte> extra, Sizes& s) {
  if (s.size != kIn64 && s.compressed != kIn64 && s.offset != kIn64) return true;
  while (extra.size() >= 4) {
    const Fields f(extra);
    const size_t length = f.u16(2);
    if (length > extra.size() - 4) return false;
    if (f.u16(0) == 1) {
      size_t at = 4;
      for (uint64_t* value : {&s.size, &s.compressed, &s.offset}) {
        if (*value != kIn64) continue;
        if (at + 8 > 4 + length) return false;
        *value = f.u64(at);
        at += 8;
      }
      return true;
    }
    extra = extra.subspan(4 + length);
  }
  return false;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The payload behind the local header, which must agree with the directory on name and method.
std::span<const std::byte> find_payload(std::span<const std::byte> bytes, uint64_t prefix,
                                        const Sizes& s, std::string_view name, uint16_t method,
                                        const std::string& at) {
  const uint64_t room = bytes.size() - prefix;
  if (s.offset > room || room - s.offset < kLocal)
    fail(ErrorCode::kData, at, ": malformed zip: its header at offset ", s.offset,
         " passes the end of the file (", bytes.size(), " bytes)");
  const auto rest = bytes.subspan(prefix + s.offset);
  const Fields f(rest);
  const size_t header = kLocal + f.u16(26) + f.u16(28);
  const bool fits = header <= rest.size();
  if (!f.signature("PK\x03\x04") || !fits || f.u16(8) != method ||
      text_of(rest.subspan(kLocal, f.u16(26))) != name)
    fail(ErrorCode::kData, at, ": malformed zip: its header at offset ", s.offset,
         " does not match the directory");
  if (s.compressed > rest.size() - header)
    fail(ErrorCode::kData, at, ": ", s.compressed, " bytes at offset ", prefix + s.offset + header,
         " pass the end of the file (", bytes.size(), " bytes)");
  return rest.subspan(header, s.compressed);
}

// Parses the record at the front of `records` and removes it.
ZipEntry take_entry(std::span<const std::byte> bytes, std::span<const std::byte>& records,
                    uint64_t prefix, const std::string& where) {
  if (records.size() < kCentral || !Fields(records).signature("PK\x01\x02"))
    fail(ErrorCode::kData, where, ": malformed zip: a damaged directory record");
  const Fields f(records);
  const uint16_t flags = f.u16(8), method = f.u16(10);
  const size_t name_size = f.u16(28), extra_size = f.u16(30);
  const size_t length = kCentral + name_size + extra_size + f.u16(32);
  if (length > records.size())
    fail(ErrorCode::kData, where, ": malformed zip: a directory record passes the directory");
  ZipEntry e;
  e.name = text_of(records.subspan(kCentral, name_size));
  if (e.name.find('\0') != std::string::npos)
    fail(ErrorCode::kData, where, ": an entry has a NUL byte in its name");
  const std::string at = cat(where, ", entry '", e.name, "'");
  if (flags & 1) fail(ErrorCode::kData, at, ": encrypted; expected a plain entry");
  if (method != 0 && method != Z_DEFLATED)
    fail(ErrorCode::kData, at, ": compression method ", method,
         "; expected 0 (stored) or 8 (deflated), as np.savez and np.savez_compressed write");
  Sizes s{f.u32(24), f.u32(20), f.u32(42)};
  if (!read_zip64(records.subspan(kCentral + name_size, extra_size), s))
    fail(ErrorCode::kData, at, ": malformed zip: its zip64 sizes are missing");
  e.deflated = method == Z_DEFLATED;
  e.crc = f.u32(16);
  e.size = s.size;
  if (!e.deflated && s.size != s.compressed)
    fail(ErrorCode::kData, at, ": stored entry with two sizes, ", s.compressed, " and ", s.size);
  if (e.deflated && s.size / kMaxRatio > s.compressed)
    fail(ErrorCode::kData, at, ": claims to inflate from ", s.compressed, " to ", s.size,
         " bytes; deflate cannot exceed ", kMaxRatio, ":1");
  e.payload = find_payload(bytes, prefix, s, e.name, method, at);
  records = records.subspan(length);
  return e;
}

// One payload may not serve several entries: that is how small files claim to be huge ones.
void check_disjoint(std::span<const ZipEntry> entries, const std::string& where) {
  std::vector<const ZipEntry*> order;
  std::set<std::string_view> names;
  for (const ZipEntry& e : entries) {
    if (!names.insert(e.name).second)
      fail(ErrorCode::kData, where, ": two entries are named '", e.name, "'");
    order.push_back(&e);
  }
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return a->payload.data() < b->payload.data(); });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->payload.data() + order[i - 1]->payload.size() > order[i]->payload.data())
      fail(ErrorCode::kData, where, ": entries '", order[i - 1]->name, "' and '", order[i]->name,
           "' overlap");
}
}  // namespace

std::vector<ZipEntry> read_zip_directory(std::span<const std::byte> bytes,
                                         const std::string& where) {
  Directory directory = find_directory(bytes, where);
  std::vector<ZipEntry> entries;
  for (uint64_t i = 0; i < directory.entries; ++i)
    entries.push_back(take_entry(bytes, directory.records, directory.prefix, where));
  if (!directory.records.empty())
    fail(ErrorCode::kData, where, ": malformed zip: ", directory.records.size(),
         " bytes after the last of ", directory.entries, " directory records");
  check_disjoint(entries, where);
  return entries;
}

HostTensor inflate_entry(const ZipEntry& entry, const std::string& where) {
  HostTensor out = allocate(DType::kU8, {static_cast<int64_t>(entry.size)}, where + ": inflating",
                            "; save it with np.savez (not compressed), which is memory-mapped");
  z_stream z{};
  if (inflateInit2(&z, -15) != Z_OK)  // no zlib header
    fail(ErrorCode::kMemory, where, ": no memory for zlib");
  // zlib counts in 32 bits: both sides are fed in pieces.
  constexpr size_t kPiece = 1u << 30;
  auto in = entry.payload;
  auto* const begin = out.mutable_data<uint8_t>();
  uint8_t* at = begin;
  uint8_t* const end = begin + entry.size;
  uint8_t surplus = 0;  // takes a first byte too many, so that it is noticed
  int rc = Z_OK;
  while (rc == Z_OK) {
    const size_t feed = std::min(in.size(), kPiece);
    const auto room = std::min(static_cast<size_t>(end - at), kPiece);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    z.avail_in = static_cast<uInt>(feed);
    z.next_out = room ? at : &surplus;
    z.avail_out = room ? static_cast<uInt>(room) : 1;
    rc = inflate(&z, Z_NO_FLUSH);
    in = in.subspan(feed - z.avail_in);
    if (room) at += room - z.avail_out;
    if (!room && z.avail_out == 0) rc = Z_BUF_ERROR;
  }
  inflateEnd(&z);
  if (rc != Z_STREAM_END || at != end)
    fail(ErrorCode::kData, where, ": the compressed data is damaged: expected ", entry.size,
         " inflated bytes, got ", rc == Z_BUF_ERROR && at == end ? "more than " : "",
         static_cast<uint64_t>(at - begin));
  return out;
}

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before) {
  if (bytes.empty()) return before;  // zlib answers a null pointer with the initial value
  return static_cast<uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace ortrain::data
