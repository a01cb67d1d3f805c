// Files of the importer: read-only mappings, the check that a path stays inside the model's folder,
// and a writer whose result appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ortrain {

// A regular file mapped for reading. Pages are dropped again with drop(); the kernel keeps them
// cached. Throws Error(kIo) when the file cannot be read.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Takes the pages of bytes [begin, end) out of this process's memory; they stay readable.
  void drop(size_t begin, size_t end) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Folder of a path, "." when it names none.
std::string folder_of(const std::string& path);

// The real path of `location` (as a model file gives it) below `folder`, symbolic links resolved.
// Throws Error(kModel) when it is empty, absolute, has "..", leads outside or is not a regular
// file; `what` names the tensor in messages.
std::string confined_path(const std::string& folder, const std::string& location,
                          const std::string& what);

// Writes beside the target and renames on commit(). Without commit() nothing changes on disk.
// Throws Error(kIo) naming the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  uint64_t size() const { return written_; }
  void commit();  // fsync, rename, fsync of the folder

 private:
  void flush();
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::string buffer_;
};

}  // namespace ortrain
