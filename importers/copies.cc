// One anonymous mapping per copy. See copies.h.
#include "importers/copies.h"

#include <sys/mman.h>

#include <cstring>

#include "graph/error.h"

namespace ortrain {

Copies::~Copies() {
  for (const Copy& c : copies_) ::munmap(c.data, c.from.size());
}

void Copies::fill(const Copy& c) {
  std::memcpy(c.data, c.from.data(), c.from.size());
  const auto begin = static_cast<size_t>(c.from.data() - c.file->bytes().data());
  c.file->drop(begin, begin + c.from.size());
}

const std::byte* Copies::add(std::span<const std::byte> bytes, const MappedFile& file) {
  ORTRAIN_CHECK(!released_, "copies are added to a file whose copies were given back");
  void* p =
      ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(ErrorCode::kMemory, "cannot allocate ", bytes.size(), " bytes");
  copies_.push_back({static_cast<std::byte*>(p), bytes, &file});
  fill(copies_.back());
  return copies_.back().data;
}

void Copies::release() {
  if (released_) return;
  released_ = true;
  for (const Copy& c : copies_) {
    ::madvise(c.data, c.from.size(), MADV_DONTNEED);
    ::mprotect(c.data, c.from.size(), PROT_NONE);
  }
}

void Copies::restore() {
  if (!released_) return;
  for (const Copy& c : copies_) {
    if (::mprotect(c.data, c.from.size(), PROT_READ | PROT_WRITE) != 0)
      fail(ErrorCode::kMemory, "cannot get back ", c.from.size(), " bytes");
    fill(c);
  }
  released_ = false;
}

}  // namespace ortrain
