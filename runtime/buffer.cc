// Anonymous mappings with huge pages; the limits of the machine and of the container.
#include "runtime/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "graph/error.h"

namespace ortrain {
namespace {
constexpr size_t kHuge = size_t{2} << 20;

size_t read_number(const char* path) {
  std::FILE* f = std::fopen(path, "r");
  if (f == nullptr) return 0;
  unsigned long long n = 0;
  const bool ok = std::fscanf(f, "%llu", &n) == 1;  // "max" is no number: no limit
  std::fclose(f);
  return ok ? static_cast<size_t>(n) : 0;
}
}  // namespace

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (const size_t limit = memory_limit(); limit > 0 && bytes > limit)
    fail(ErrorCode::kMemory, bytes, " bytes (", bytes >> 20, " MiB) are needed, the machine has ",
         limit >> 20, " MiB");
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const bool huge = bytes >= kHuge;
  const size_t rounded = align_up(bytes, page);
  map_bytes_ = rounded + (huge ? kHuge : 0);
  map_ = map_bytes_ < bytes ? MAP_FAILED  // overflow
                            : mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    fail(ErrorCode::kMemory, "cannot allocate ", bytes, " bytes (", bytes >> 20, " MiB) of memory");
  }
  data_ = static_cast<std::byte*>(map_);
  if (!huge) return;
  // Give back the ends beyond a 2 MB-aligned start.
  const uintptr_t start = reinterpret_cast<uintptr_t>(map_);
  const size_t lead = align_up(start, kHuge) - start;
  if (lead) munmap(map_, lead);
  const size_t tail = kHuge - lead;
  data_ += lead;
  if (tail) munmap(data_ + rounded, tail);
  map_ = data_;
  map_bytes_ = rounded;
  madvise(data_, rounded, MADV_HUGEPAGE);  // best effort
}

Buffer::~Buffer() {
  if (map_) munmap(map_, map_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      map_(std::exchange(other.map_, nullptr)),
      map_bytes_(std::exchange(other.map_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  return *this;
}

void Buffer::prefault() {
  // Clearing pages is what a first step waits for longest (a virtual machine fetches each from its
  // host), so all threads take part.
  // Small pieces: one that the host has to find took 0.27 s of 32 MiB while the next took 6 ms.
  constexpr size_t kPiece = 2 * kHuge;
  const size_t pieces = (map_bytes_ + kPiece - 1) / kPiece;
#pragma omp parallel for schedule(dynamic) if (pieces > 1)
  for (size_t i = 0; i < pieces; ++i) {
    std::byte* begin = data_ + i * kPiece;
    const size_t bytes = std::min(kPiece, map_bytes_ - i * kPiece);
#ifdef MADV_POPULATE_WRITE
    if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) continue;
#endif
    for (size_t k = 0; k < bytes; k += 4096) {
      volatile std::byte* p = begin + k;
      *p = *p;
    }
  }
}

size_t memory_limit() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  size_t limit = pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (const size_t n = read_number(path); n > 0) limit = limit ? std::min(limit, n) : n;
  return limit;
}

}  // namespace ortrain
