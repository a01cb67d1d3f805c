// A file that appears complete or not at all.
//
// Bytes go to a temporary file in the same folder; commit() makes them durable (fsync), renames the
// file into place and syncs the folder. Without commit() the temporary file is removed and what was
// there before is untouched. Every failure is Error kIo with the path, the reason and the bytes
// written so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ortrain::data {

class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t offset() const { return written_; }  // bytes written so far
  void commit();

 private:
  [[noreturn]] void fail_io(const char* what, int reason);
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Makes the entries of a folder (renames, new files) durable.
void sync_folder(const std::string& folder);

}  // namespace ortrain::data
