// Bounded reading and plain writing of the protobuf wire format.
#include "importers/wire.h"

#include "graph/error.h"

namespace ortrain::wire {

uint64_t Reader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ >= end_) fail(ErrorCode::kModel, "the file is cut short at byte ", at_);
    const auto b = static_cast<uint8_t>(base_[at_++]);
    if (shift < 64) value |= static_cast<uint64_t>(b & 0x7f) << shift;
    if (b < 0x80) return value;
  }
  fail(ErrorCode::kModel, "not an ONNX file: a number of more than 10 bytes at byte ", at_);
}

bool Reader::next(Field& f) {
  if (at_ >= end_) return false;
  f.begin = at_;
  const uint64_t tag = varint();
  f.number = static_cast<uint32_t>(tag >> 3);
  if (tag > 0xffffffffu || f.number == 0)
    fail(ErrorCode::kModel, "not an ONNX file: no field starts at byte ", f.begin);
  f.type = static_cast<Type>(tag & 7);
  f.length_at = f.payload = at_;
  uint64_t size = 0;
  switch (f.type) {
    case kVarint:
      f.value = varint();
      f.end = at_;
      return true;
    case kFixed64: size = 8; break;
    case kFixed32: size = 4; break;
    case kBytes:
      size = varint();
      f.payload = at_;
      break;
    default:
      fail(ErrorCode::kModel, "not an ONNX file: field ", f.number, " at byte ", f.begin,
           " has wire type ", static_cast<int>(tag & 7));
  }
  if (size > end_ - at_)
    fail(ErrorCode::kModel, "the file is cut short: field ", f.number, " at byte ", f.begin,
         " needs ", size, " bytes, ", end_ - at_, " are left");
  at_ += static_cast<size_t>(size);
  f.end = at_;
  return true;
}

size_t varint_size(uint64_t value) {
  size_t n = 1;
  while (value >= 0x80) value >>= 7, ++n;
  return n;
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(0x80 | (value & 0x7f));
  out += static_cast<char>(value);
}

void put_tag(std::string& out, uint32_t number, Type type) {
  put_varint(out, static_cast<uint64_t>(number) << 3 | type);
}

void put_bytes(std::string& out, uint32_t number, std::string_view bytes) {
  put_tag(out, number, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace ortrain::wire
