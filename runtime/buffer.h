// Buffer: one large, zero-filled block of memory for arenas and batches.
//
// Promises: 64-byte aligned (in fact page-aligned; 2 MB-aligned with huge pages from 2 MB on) and,
// once prefault() has run, resident, so that no step takes a page fault. Throws Error(kMemory)
// when the machine has not got it. Move-only.
#pragma once

#include <cstddef>

namespace ortrain {

inline constexpr size_t kAlign = 64;
constexpr size_t align_up(size_t bytes, size_t to = kAlign) { return (bytes + to - 1) / to * to; }

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as asked for
  // Makes every page resident and writable; contents stay.
  void prefault();

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  void* map_ = nullptr;  // what to unmap
  size_t map_bytes_ = 0;
};

// Bytes of physical memory this process may use (machine and cgroup limits); 0 when unknown.
size_t memory_limit();

}  // namespace ortrain
