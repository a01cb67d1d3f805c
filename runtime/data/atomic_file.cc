// Temporary file, fsync, rename, fsync of the folder.
#include "runtime/data/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "graph/error.h"

namespace ortrain::data {
namespace {
std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}
// Two writers of one process (threads) must not share a temporary name.
std::atomic<uint64_t> next_id{0};
}  // namespace

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temporary_(cat(path, ".tmp-", ::getpid(), "-", next_id++)) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0)
    fail(ErrorCode::kIo, "cannot write '", path_, "': creating '", temporary_,
         "': ", std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail_io(const char* what, int reason) {
  fail(ErrorCode::kIo, "cannot write '", path_, "': ", what, " after ", written_,
       " bytes: ", std::strerror(reason), "; the file that was there before, if any, is untouched");
}

void AtomicFile::write(const void* data, size_t bytes) {
  ORTRAIN_CHECK(fd_ >= 0, "write after commit: " + path_);
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    // Linux writes at most 2^31 - 4096 bytes per call.
    const ssize_t n = ::write(fd_, p, std::min<size_t>(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("write failed", n < 0 ? errno : ENOSPC);
    p += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  ORTRAIN_CHECK(fd_ >= 0, "second commit: " + path_);
  if (::fsync(fd_) != 0) fail_io("fsync failed", errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    fail_io("close or rename failed", reason);
  }
  sync_folder(folder_of(path_));
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(ErrorCode::kIo, "cannot open folder '", folder, "': ", std::strerror(errno));
  // Some network file systems refuse to sync a folder (EINVAL); their renames are already durable.
  const int rc = ::fsync(fd);
  const int reason = errno;
  ::close(fd);
  if (rc != 0 && reason != EINVAL)
    fail(ErrorCode::kIo, "cannot sync folder '", folder, "': ", std::strerror(reason));
}

}  // namespace ortrain::data
