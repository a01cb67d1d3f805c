// Field numbers: tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto.
#include "runtime/cli/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "graph/error.h"

namespace ortrain::cli {
namespace {

// --- protobuf's wire format
void varint(std::string& out, uint64_t v) {
  for (; v >= 128; v >>= 7) out += static_cast<char>(v | 128);
  out += static_cast<char>(v);
}
template <class T>
void fixed(std::string& out, T v) {  // little-endian, as every machine we build for
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put_int(std::string& out, int field, int64_t v) {
  varint(out, static_cast<uint64_t>(field) << 3);
  varint(out, static_cast<uint64_t>(v));
}
void put_double(std::string& out, int field, double v) {
  varint(out, static_cast<uint64_t>(field) << 3 | 1);
  fixed(out, v);
}
void put_float(std::string& out, int field, float v) {
  varint(out, static_cast<uint64_t>(field) << 3 | 5);
  fixed(out, v);
}
void put_bytes(std::string& out, int field, const std::string& v) {
  varint(out, static_cast<uint64_t>(field) << 3 | 2);
  varint(out, v.size());
  out += v;
}
void put_doubles(std::string& out, int field, const std::vector<double>& v) {
  std::string packed;
  for (const double x : v) fixed(packed, x);
  put_bytes(out, field, packed);
}

// The mask of TFRecord files: a checksum of data that holds checksums is a bad one.
uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }
uint32_t crc32c(const std::string& s) {
  return cli::crc32c({reinterpret_cast<const uint8_t*>(s.data()), s.size()});
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Ends of buckets: ..., -1.1e-12, 0, 1e-12, 1.1e-12, ...: each 10 % wider, as TensorFlow's own.
const std::vector<double>& limits() {
  static const std::vector<double> all = [] {
    std::vector<double> positive;
    for (double v = 1e-12; v < 1e20; v *= 1.1) positive.push_back(v);
    std::vector<double> out;
    for (auto it = positive.rbegin(); it != positive.rend(); ++it) out.push_back(-*it);
    out.push_back(0);
    out.insert(out.end(), positive.begin(), positive.end());
    out.push_back(1.7e308);
    return out;
  }();
  return all;
}

}  // namespace

uint32_t crc32c(std::span<const uint8_t> bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t c = ~0u;
  for (const uint8_t b : bytes) c = table[(c ^ b) & 255] ^ c >> 8;
  return ~c;
}

EventFile::EventFile(const std::string& folder, int64_t step) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  path_ = (std::filesystem::path(folder) /
           cat("events.out.tfevents.", static_cast<int64_t>(wall_time()), ".", host, ".", getpid()))
              .string();
  file_ = std::fopen(path_.c_str(), "wb");
  if (!file_) fail(ErrorCode::kIo, "cannot write ", path_, ": ", std::strerror(errno));
  std::string event;
  put_double(event, 1, wall_time());
  put_bytes(event, 3, "brain.Event:2");
  record(event);
  if (step == 0) return;
  std::string start, session;  // SessionLog.START: what other files say of this step and later goes
  put_int(session, 1, 1);
  put_double(start, 1, wall_time());
  put_int(start, 2, step + 1);
  put_bytes(start, 7, session);
  record(start);
}

EventFile::~EventFile() {
  if (file_) std::fclose(file_);
}

void EventFile::record(const std::string& event) {
  std::string header, out;
  fixed(header, static_cast<uint64_t>(event.size()));
  out = header;
  fixed(out, masked(crc32c(header)));
  out += event;
  fixed(out, masked(crc32c(event)));
  if (std::fwrite(out.data(), 1, out.size(), file_) != out.size())
    fail(ErrorCode::kIo, "cannot write ", path_, ": ", std::strerror(errno));
}

void EventFile::summary(int64_t step, const std::string& value) {
  std::string event, list;
  put_bytes(list, 1, value);
  put_double(event, 1, wall_time());
  put_int(event, 2, step);
  put_bytes(event, 5, list);
  record(event);
}

void EventFile::scalar(const std::string& tag, int64_t step, double v) {
  std::string value;
  put_bytes(value, 1, tag);
  put_float(value, 2, static_cast<float>(v));
  summary(step, value);
}

void EventFile::histogram(const std::string& tag, int64_t step, std::span<const float> values) {
  const std::vector<double>& ends = limits();
  std::vector<double> counts(ends.size(), 0), used_ends, used;
  double low = INFINITY, high = -INFINITY, sum = 0, squares = 0, count = 0;
  for (const float x : values) {
    if (!std::isfinite(x)) continue;
    const double v = x;
    low = std::min(low, v), high = std::max(high, v);
    sum += v, squares += v * v, count += 1;
    ++counts[static_cast<size_t>(std::upper_bound(ends.begin(), ends.end() - 1, v) - ends.begin())];
  }
  if (count == 0) return;
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool edge = i + 1 < counts.size() && counts[i + 1] > 0;  // where a full bucket begins
    if (counts[i] > 0 || edge) used_ends.push_back(ends[i]), used.push_back(counts[i]);
  }
  std::string histogram, value;
  put_double(histogram, 1, low);
  put_double(histogram, 2, high);
  put_double(histogram, 3, count);
  put_double(histogram, 4, sum);
  put_double(histogram, 5, squares);
  put_doubles(histogram, 6, used_ends);
  put_doubles(histogram, 7, used);
  put_bytes(value, 1, tag);
  put_bytes(value, 5, histogram);
  summary(step, value);
}

void EventFile::picture(const std::string& tag, int64_t step, int width, int height, int channels,
                        const std::string& png) {
  std::string image, value;
  put_int(image, 1, height);
  put_int(image, 2, width);
  put_int(image, 3, channels);
  put_bytes(image, 4, png);
  put_bytes(value, 1, tag);
  put_bytes(value, 4, image);
  summary(step, value);
}

void EventFile::text(const std::string& tag, int64_t step, const std::string& markdown) {
  std::string tensor, shape, plugin, metadata, value;
  put_int(tensor, 1, 7);  // DT_STRING
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, markdown);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  summary(step, value);
}

void EventFile::flush() {
  if (std::fflush(file_) != 0)
    fail(ErrorCode::kIo, "cannot write ", path_, ": ", std::strerror(errno));
}

}  // namespace ortrain::cli
