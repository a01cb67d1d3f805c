// POSIX calls behind files.h.
#include "importers/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "graph/error.h"

namespace ortrain {
namespace {

[[noreturn]] void fail_io(const std::string& what, const std::string& path) {
  fail(ErrorCode::kIo, what, " '", path, "': ", std::strerror(errno));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string real_path(const std::string& path) {
  char* p = ::realpath(path.c_str(), nullptr);
  if (!p) return {};
  std::string out(p);
  std::free(p);
  return out;
}

constexpr size_t kBuffer = size_t{1} << 18;

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor d{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (d.fd < 0) fail_io("cannot open", path);
  struct stat info {};
  if (::fstat(d.fd, &info) != 0) fail_io("cannot read", path);
  if (!S_ISREG(info.st_mode)) fail(ErrorCode::kIo, "'", path, "' is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, d.fd, 0);
  if (p == MAP_FAILED) fail_io("cannot map", path);
  data_ = static_cast<const std::byte*>(p);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(size_t begin, size_t end) const {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  begin = (begin + page - 1) / page * page;
  end = end == size_ ? end : end / page * page;
  if (data_ && begin < end)
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string confined_path(const std::string& folder, const std::string& location,
                          const std::string& what) {
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::kModel, what, ": its external data file '", location, "' ", why,
         "; it must lie in the model's folder '", folder, "'");
  };
  if (folder.empty()) refuse("cannot be used: the model has no folder");
  if (location.empty() || location.find('\0') != std::string::npos) refuse("has no usable name");
  if (location[0] == '/') refuse("is an absolute path");
  for (size_t at = 0; at <= location.size();) {
    const size_t slash = std::min(location.find('/', at), location.size());
    if (location.compare(at, slash - at, "..") == 0) refuse("has '..' in its path");
    at = slash + 1;
  }
  const std::string root = real_path(folder);
  const std::string path = real_path(folder + "/" + location);
  if (root.empty() || path.empty())
    fail(ErrorCode::kIo, what, ": cannot open its external data file '", location,
         "' in the model's folder '", folder, "': ", std::strerror(errno));
  const std::string inside = root == "/" ? root : root + "/";
  if (path.compare(0, inside.size(), inside) != 0) refuse("leads outside through a symbolic link");
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("is not a regular file");
  return path;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  const size_t slash = path_.find_last_of('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  // One name for all, so that a killed writer leaves at most one file, which the next one takes.
  temporary_ = path_.substr(0, name) + "." + path_.substr(name) + ".tmp";
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_io("cannot write", std::exchange(temporary_, ""));
  struct stat mine {
  }, named{};
  const bool alone = ::flock(fd_, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd_, &mine) == 0 &&
                     ::stat(temporary_.c_str(), &named) == 0 && mine.st_ino == named.st_ino;
  if (!alone || ::ftruncate(fd_, 0) != 0) {
    ::close(std::exchange(fd_, -1));
    const std::string busy = std::exchange(temporary_, "");
    if (!alone) fail(ErrorCode::kIo, "another process is writing '", path_, "' ('", busy, "')");
    fail_io("cannot write", busy);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kBuffer - buffer_.size());
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), n);
    bytes = bytes.subspan(n);
    if (buffer_.size() == kBuffer) flush();
  }
}

void AtomicFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("cannot write", temporary_);
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void AtomicFile::commit() {
  flush();
  if (::fsync(fd_) != 0) fail_io("cannot write", temporary_);
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0) fail_io("cannot write", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("cannot replace", path_);
  temporary_.clear();
  const Descriptor folder{::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd < 0 || ::fsync(folder.fd) != 0) fail_io("cannot sync the folder of", path_);
}

}  // namespace ortrain
