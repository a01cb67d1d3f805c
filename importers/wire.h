// The protobuf wire format, read in place from hostile bytes and written into strings.
//
// Why by hand: tensor data is left where it lies in the mapped file (no copy through protobuf), and
// the export edits bytes of the original file, so that everything it does not change stays as it
// is. Every read is bounded; what does not fit throws Error(kModel) with the byte offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ortrain::wire {

enum Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message. Offsets count from the start of the file.
struct Field {
  uint32_t number = 0;
  Type type = kVarint;
  size_t begin = 0;      // of the tag
  size_t length_at = 0;  // kBytes: of the length prefix
  size_t payload = 0;    // first byte of the value
  size_t end = 0;        // one past the value
  uint64_t value = 0;    // kVarint: the number
};

class Reader {
 public:
  // Reads the message in bytes [begin, end) of the file that starts at `base`.
  Reader(const std::byte* base, size_t begin, size_t end) : base_(base), at_(begin), end_(end) {}
  bool next(Field& field);  // false at the end of the message
  size_t at() const { return at_; }
  uint64_t varint();  // also for packed varints
  bool done() const { return at_ == end_; }

 private:
  const std::byte* base_;
  size_t at_, end_;
};

size_t varint_size(uint64_t value);
void put_varint(std::string& out, uint64_t value);
void put_tag(std::string& out, uint32_t number, Type type);
void put_bytes(std::string& out, uint32_t number, std::string_view bytes);

}  // namespace ortrain::wire
