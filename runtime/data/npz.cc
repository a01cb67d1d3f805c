// Zip reading through minizip over a span of memory; numpy writes zip64 extra fields in its local
// headers, which minizip skips for us. minizip is trusted with the structure of the zip only: every
// offset and size it reports is checked against the file before use.
#include "runtime/data/npz.h"

#include <minizip/unzip.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "graph/error.h"
#include "runtime/data/npy.h"

namespace ortrain::data {
namespace {
constexpr size_t kCentralEntry = 46;  // bytes of the smallest central directory record
constexpr uint64_t kMaxRatio = 1032;  // deflate cannot do better
constexpr uint64_t kCrcLimit = 32u << 20;
constexpr size_t kMaxName = 4096;

// minizip's file functions over memory.
struct Memory {
  std::span<const std::byte> bytes;
  uint64_t at = 0;
};
voidpf mem_open(voidpf opaque, const void*, int) { return opaque; }
uLong mem_read(voidpf, voidpf stream, void* out, uLong size) {
  auto& m = *static_cast<Memory*>(stream);
  const uint64_t n = std::min<uint64_t>(size, m.bytes.size() - m.at);
  if (n > 0) std::memcpy(out, m.bytes.data() + m.at, n);
  m.at += n;
  return static_cast<uLong>(n);
}
uLong mem_write(voidpf, voidpf, const void*, uLong) { return 0; }
ZPOS64_T mem_tell(voidpf, voidpf stream) { return static_cast<Memory*>(stream)->at; }
long mem_seek(voidpf, voidpf stream, ZPOS64_T offset, int origin) {
  auto& m = *static_cast<Memory*>(stream);
  const uint64_t base = origin == ZLIB_FILEFUNC_SEEK_SET   ? 0
                        : origin == ZLIB_FILEFUNC_SEEK_CUR ? m.at
                                                           : m.bytes.size();
  if (offset > m.bytes.size() - base) return -1;
  m.at = base + offset;
  return 0;
}
int mem_close(voidpf, voidpf) { return 0; }
int mem_error(voidpf, voidpf) { return 0; }

uint64_t physical_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

struct Unzip {
  explicit Unzip(std::span<const std::byte> bytes) : memory{bytes} {
    zlib_filefunc64_def f{mem_open, mem_read,  mem_write, mem_tell,
                          mem_seek, mem_close, mem_error, &memory};
    file = unzOpen2_64("memory", &f);
  }
  ~Unzip() {
    if (file) unzClose(file);
  }
  Unzip(const Unzip&) = delete;
  Unzip& operator=(const Unzip&) = delete;
  Memory memory;
  unzFile file = nullptr;
};

struct Entry {
  std::string name;  // with ".npy"
  unz_file_info64 info{};
  uint64_t offset = 0;  // of the payload
};

// Reads name, sizes and payload offset of minizip's current entry.
Entry read_entry(Unzip& zip, int64_t index, const std::string& where) {
  Entry e;
  std::string name(kMaxName, '\0');
  if (unzGetCurrentFileInfo64(zip.file, &e.info, name.data(), kMaxName, nullptr, 0, nullptr, 0) !=
      UNZ_OK)
    fail(ErrorCode::kData, where, ": malformed zip: central directory record ", index);
  if (e.info.size_filename >= kMaxName)
    fail(ErrorCode::kData, where, ": entry ", index, " has a name of ", e.info.size_filename,
         " bytes; expected fewer than ", kMaxName);
  name.resize(e.info.size_filename);
  if (name.find('\0') != std::string::npos)
    fail(ErrorCode::kData, where, ": entry ", index, " has a NUL byte in its name");
  e.name = std::move(name);
  const std::string at = cat(where, ", entry '", e.name, "'");
  if (e.info.flag & 1) fail(ErrorCode::kData, at, ": encrypted; expected a plain entry");
  if (!e.name.ends_with(".npy") || e.name.size() == 4)
    fail(ErrorCode::kData, at, ": expected only entries named NAME.npy, as np.savez writes them");
  if (e.info.compression_method != 0 && e.info.compression_method != Z_DEFLATED)
    fail(ErrorCode::kData, at, ": compression method ", e.info.compression_method,
         "; expected 0 (stored) or 8 (deflated), as np.savez and np.savez_compressed write");
  int method = 0, level = 0;
  if (unzOpenCurrentFile2(zip.file, &method, &level, 1) != UNZ_OK)
    fail(ErrorCode::kData, at, ": malformed zip: the local header does not match the directory");
  e.offset = unzGetCurrentFileZStreamPos64(zip.file);
  unzCloseCurrentFile(zip.file);
  const uint64_t size = zip.memory.bytes.size();
  if (e.offset > size || e.info.compressed_size > size - e.offset)
    fail(ErrorCode::kData, at, ": ", e.info.compressed_size, " bytes at offset ", e.offset,
         " pass the end of the file (", size, " bytes)");
  if (e.info.compression_method == 0 && e.info.compressed_size != e.info.uncompressed_size)
    fail(ErrorCode::kData, at, ": stored entry with two sizes, ", e.info.compressed_size, " and ",
         e.info.uncompressed_size);
  return e;
}

std::span<const std::byte> stored(Unzip& zip, const Entry& e, bool check_crc,
                                  const std::string& at) {
  const auto bytes = zip.memory.bytes.subspan(e.offset, e.info.uncompressed_size);
  if (check_crc && bytes.size() <= kCrcLimit) {
    const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    if (crc != e.info.crc)
      fail(ErrorCode::kData, at, ": checksum mismatch (CRC-32 expected ", e.info.crc, ", got ", crc,
           "): the file is damaged");
  }
  return bytes;
}

HostTensor inflated(Unzip& zip, const Entry& e, bool check_crc, const std::string& at) {
  const uint64_t size = e.info.uncompressed_size;
  if (size / kMaxRatio > e.info.compressed_size)
    fail(ErrorCode::kData, at, ": claims to inflate from ", e.info.compressed_size, " to ", size,
         " bytes; deflate cannot exceed ", kMaxRatio, ":1");
  const char* hint = "; save it with np.savez (not compressed), which is memory-mapped";
  if (size > physical_memory())
    fail(ErrorCode::kMemory, at, ": inflates to ", size, " bytes, the machine has ",
         physical_memory(), hint);
  HostTensor out;
  try {
    out = HostTensor(DType::kU8, {static_cast<int64_t>(size)});
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kMemory, at, ": no memory for ", size, " inflated bytes", hint);
  }
  if (unzOpenCurrentFile(zip.file) != UNZ_OK)
    fail(ErrorCode::kData, at, ": malformed zip: cannot start inflating");
  auto* p = static_cast<std::byte*>(out.mutable_raw());
  uint64_t done = 0;
  int got = 0;
  while (done < size) {
    const auto chunk = static_cast<unsigned>(std::min<uint64_t>(size - done, 1u << 30));
    got = unzReadCurrentFile(zip.file, p + done, chunk);
    if (got <= 0) break;
    done += static_cast<uint64_t>(got);
  }
  const int closed = unzCloseCurrentFile(zip.file);
  if (done != size)
    fail(ErrorCode::kData, at, ": the compressed data is damaged: expected ", size,
         " inflated bytes, got ", done, got < 0 ? cat(" (zlib error ", got, ")") : std::string());
  if (check_crc && closed == UNZ_CRCERROR)
    fail(ErrorCode::kData, at, ": checksum mismatch after inflating: the file is damaged");
  return out;
}

// One payload may not serve several entries: that is how small files claim to be huge ones.
void check_disjoint(std::vector<Entry> entries, const std::string& where) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i - 1].offset + entries[i - 1].info.compressed_size > entries[i].offset)
      fail(ErrorCode::kData, where, ": entries '", entries[i - 1].name, "' and '", entries[i].name,
           "' overlap");
}
}  // namespace

std::vector<StoredArray> read_npz(std::span<const std::byte> bytes, const std::string& where,
                                  bool check_crc) {
  Unzip zip(bytes);
  unz_global_info64 global{};
  if (!zip.file || unzGetGlobalInfo64(zip.file, &global) != UNZ_OK)
    fail(ErrorCode::kData, where, ": not a zip file, or its end is cut off (", bytes.size(),
         " bytes); expected what np.savez writes");
  if (global.number_entry > bytes.size() / kCentralEntry)
    fail(ErrorCode::kData, where, ": claims ", global.number_entry, " entries in ", bytes.size(),
         " bytes");
  const auto count = static_cast<int64_t>(global.number_entry);
  std::vector<Entry> entries;
  std::set<std::string> names;
  for (int64_t i = 0; i < count; ++i) {
    if ((i == 0 ? unzGoToFirstFile(zip.file) : unzGoToNextFile(zip.file)) != UNZ_OK)
      fail(ErrorCode::kData, where, ": malformed zip: central directory record ", i, " of ", count);
    entries.push_back(read_entry(zip, i, where));
    if (!names.insert(entries.back().name).second)
      fail(ErrorCode::kData, where, ": two entries are named '", entries.back().name, "'");
  }
  check_disjoint(entries, where);

  std::vector<StoredArray> arrays;
  for (int64_t i = 0; i < count; ++i) {
    const Entry& e = entries[static_cast<size_t>(i)];
    const std::string at = cat(where, ", entry '", e.name, "'");
    if ((i == 0 ? unzGoToFirstFile(zip.file) : unzGoToNextFile(zip.file)) != UNZ_OK)
      fail(ErrorCode::kData, at, ": malformed zip");
    const std::string name = e.name.substr(0, e.name.size() - 4);
    if (e.info.compression_method == 0) {
      arrays.push_back(parse_npy(stored(zip, e, check_crc, at), name, at));
      continue;
    }
    HostTensor buffer = inflated(zip, e, check_crc, at);
    StoredArray array =
        parse_npy({buffer.data<std::byte>(), static_cast<size_t>(buffer.count())}, name, at);
    if (!array.owned.owns()) array.owned = std::move(buffer);
    arrays.push_back(std::move(array));
  }
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
