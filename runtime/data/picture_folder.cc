// Listing and reading the files of a picture folder; see picture_rows.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <map>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/picture_rows.h"

namespace ortrain::data {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of one file
constexpr int64_t kHeadBytes = 128 << 10;         // enough for a header behind EXIF data

struct Closed {
  int fd;
  ~Closed() { ::close(fd); }
};

// The file's first `most` bytes, read (not mapped: it may be shortened while we look at it).
void read_picture_file(const std::string& path, std::vector<std::byte>& out,
                       const PictureFile* seen, int64_t most = kMostBytes) {
  const Closed file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0)
    fail(ErrorCode::kIo, "picture '", path, "': ", std::strerror(errno), "; it was there before");
  struct stat s = {};
  if (::fstat(file.fd, &s) != 0 || !S_ISREG(s.st_mode))
    fail(ErrorCode::kIo, "picture '", path, "': expected a file");
  const int64_t changed = s.st_mtim.tv_sec * int64_t{1000000000} + s.st_mtim.tv_nsec;
  if (s.st_size > kMostBytes)
    fail(ErrorCode::kData, "picture '", path, "': ", static_cast<int64_t>(s.st_size),
         " bytes; expected at most ", kMostBytes);
  if (seen && (seen->size != s.st_size || seen->changed_ns != changed))
    fail(ErrorCode::kData, "picture '", path, "': it changed since it was listed (", seen->size,
         " bytes then, ", static_cast<int64_t>(s.st_size), " now)");
  out.resize(static_cast<size_t>(std::min<int64_t>(s.st_size, most)));
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::read(file.fd, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(ErrorCode::kIo, "picture '", path, "': read ", done, " of ", out.size(), " bytes");
    done += static_cast<size_t>(n);
  }
}

bool picture_name(const fs::path& path) {
  std::string e = path.extension().string();
  std::transform(e.begin(), e.end(), e.begin(), [](unsigned char c) { return std::tolower(c); });
  return e == ".jpg" || e == ".jpeg" || e == ".jpe" || e == ".png" || e == ".webp";
}
bool hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

struct Listing {
  std::vector<PictureFile> files;
  std::map<std::string, int64_t> classes;  // first folders and how many pictures each has
  int64_t others = 0;                      // files that are not pictures by their names
  std::string other;
};

Listing list_files(const std::string& root) {
  Listing out;
  std::error_code ec;
  fs::recursive_directory_iterator it(root, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    const fs::path& path = it->path();
    if (hidden(path)) {
      it.disable_recursion_pending();
      continue;
    }
    const std::string key = path.lexically_relative(root).generic_string();
    const size_t slash = key.find('/');
    std::error_code odd;
    if (it->is_directory(odd)) {
      if (slash == std::string::npos) out.classes.try_emplace(key, 0);
    } else if (!picture_name(path)) {
      if (out.others++ == 0) out.other = key;
    } else {
      if (slash != std::string::npos) ++out.classes[key.substr(0, slash)];
      PictureFile f;
      f.path = path.string();
      f.key = key;
      out.files.push_back(std::move(f));
    }
  }
  if (ec) fail(ErrorCode::kIo, "cannot read folder '", root, "': ", ec.message());
  std::sort(out.files.begin(), out.files.end(),
            [](const PictureFile& a, const PictureFile& b) { return a.key < b.key; });
  return out;
}

std::string some(const std::vector<std::string>& list) {
  std::string out;
  for (size_t i = 0; i < list.size() && i < 8; ++i) out += cat(i ? ", " : "", "'", list[i], "'");
  return list.size() > 8 ? cat(out, " and ", list.size() - 8, " more") : out;
}

// Numbers the classes and gives each file its label.
void label_files(const std::string& root, const Listing& listing,
                 const std::vector<std::string>* known, PictureFolder& out,
                 std::vector<std::string>& notes, bool strict) {
  for (const auto& [name, count] : listing.classes) out.classes.push_back(name);
  if (known) {
    for (const std::string& name : out.classes)
      if (std::find(known->begin(), known->end(), name) == known->end())
        fail(ErrorCode::kData, "folder '", root, "/", name, "': '", name,
             "' is no class of this model; expected ", some(*known));
    out.classes = *known;
  }
  for (const auto& [name, count] : listing.classes) {
    if (count > 0) continue;
    const std::string text = cat("class folder '", root, "/", name, "' holds no picture");
    if (strict) fail(ErrorCode::kData, text, "; expected at least one (--strict)");
    notes.push_back(text + "; the class keeps its number");
  }
  std::map<std::string, int64_t> number;
  for (size_t i = 0; i < out.classes.size(); ++i) number[out.classes[i]] = static_cast<int64_t>(i);
  for (PictureFile& f : out.files) {
    const size_t slash = f.key.find('/');
    if (slash == std::string::npos)
      fail(ErrorCode::kData, "picture '", f.path, "' lies beside the class folders (",
           some(out.classes), "); expected every picture in the folder of its class");
    f.label = number.at(f.key.substr(0, slash));
  }
}

}  // namespace

bool holds_pictures(const std::string& root) {
  std::error_code ec;
  for (fs::recursive_directory_iterator it(root, ec), end; !ec && it != end; it.increment(ec))
    if (!hidden(it->path()) && picture_name(it->path())) return true;
  return false;
}

PictureFolder list_pictures(const std::string& root, const std::vector<std::string>* known,
                            Skips& skips, bool strict, std::vector<std::string>& notes) {
  Listing listing = list_files(root);
  if (listing.files.empty())
    fail(ErrorCode::kData, "folder '", root, "' holds no picture (.jpg, .jpeg, .png, .webp)");
  if (listing.others > 0)
    notes.push_back(cat(listing.others, " files of '", root, "' are no pictures by their names: '",
                        listing.other, "'", listing.others > 1 ? ", ..." : ""));
  // Every header is looked at: what is no picture is left out before the run starts.
  const auto n = static_cast<int64_t>(listing.files.size());
  std::vector<std::string> problems(listing.files.size());
  std::vector<PictureHead> heads(listing.files.size());
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t i = 0; i < n; ++i) {
    PictureFile& f = listing.files[static_cast<size_t>(i)];
    try {
      struct stat s = {};
      if (::stat(f.path.c_str(), &s) != 0)
        fail(ErrorCode::kIo, "picture '", f.path, "': ", std::strerror(errno));
      f.size = s.st_size;
      f.changed_ns = s.st_mtim.tv_sec * int64_t{1000000000} + s.st_mtim.tv_nsec;
      thread_local std::vector<std::byte> bytes;
      read_picture_file(f.path, bytes, &f, kHeadBytes);
      heads[static_cast<size_t>(i)] = read_picture_head(bytes, cat("picture '", f.path, "'"));
    } catch (const Error& e) {
      problems[static_cast<size_t>(i)] = e.what();
    }
  }
  PictureFolder out;
  std::string first_problem;
  for (size_t i = 0; i < listing.files.size(); ++i) {
    if (!problems[i].empty()) {
      if (strict) fail(ErrorCode::kData, problems[i], " (--strict)");
      skips.add(problems[i]);
      continue;
    }
    if (out.files.empty()) out.first = heads[i];
    out.same_size &= heads[i].height == out.first.height && heads[i].width == out.first.width;
    out.files.push_back(std::move(listing.files[i]));
  }
  if (out.files.empty())
    fail(ErrorCode::kData, "folder '", root, "': none of its ", n, " pictures can be read; ",
         problems[0]);
  if (!listing.classes.empty()) label_files(root, listing, known, out, notes, strict);
  return out;
}

Pixels pixels_of_files(std::vector<PictureFile> files) {
  return [files = std::move(files)](int64_t sample, const DecodeOptions& options) {
    const PictureFile& file = files[static_cast<size_t>(sample)];
    thread_local std::vector<std::byte> bytes;
    read_picture_file(file.path, bytes, &file);
    return decode_picture(bytes, options, cat("picture '", file.path, "'"));
  };
}

}  // namespace ortrain::data
