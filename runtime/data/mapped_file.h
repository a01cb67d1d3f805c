// A file mapped read-only into memory.
//
// Promises: the bytes stay at one address for the life of the object, also when it is moved;
// nothing is read before it is touched. Refuses (Error kIo): missing files, folders, devices. The
// file must not be shortened while it is mapped: the kernel would answer a read with SIGBUS.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ortrain::data {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ortrain::data
