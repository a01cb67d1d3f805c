// The .npy header is a Python dict literal with three known keys; this file holds the small parser
// for it, the dtype table and the conversion of Fortran order and big-endian payloads.
#include "runtime/data/npy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "graph/error.h"

namespace ortrain::data {
namespace {
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 64 * 1024;  // numpy itself stops at 10,000 by default
constexpr size_t kMaxRank = 64;           // numpy 2's own limit
constexpr const char* kSupported =
    "supported: float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool";

struct Header {
  DType dtype = DType::kUndefined;
  bool swap = false;
  bool fortran = false;
  Dims dims;
};

std::optional<DType> dtype_of_code(std::string_view code) {
  static constexpr std::pair<std::string_view, DType> kTable[] = {
      {"f8", DType::kF64}, {"f4", DType::kF32}, {"f2", DType::kF16}, {"i8", DType::kI64},
      {"i4", DType::kI32}, {"i2", DType::kI16}, {"i1", DType::kI8},  {"u8", DType::kU64},
      {"u4", DType::kU32}, {"u2", DType::kU16}, {"u1", DType::kU8},  {"b1", DType::kBool}};
  for (const auto& [text, dtype] : kTable)
    if (text == code) return dtype;
  return std::nullopt;
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 120)) out += c >= 32 && c < 127 ? c : '?';
  return text.size() > 120 ? out + "..." : out;
}

// Parses {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Header parse() {
    expect('{');
    bool descr = false, order = false, shape = false;
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        descr = true;
        parse_descr();
      } else if (key == "fortran_order" && !order) {
        order = true;
        parse_order();
      } else if (key == "shape" && !shape) {
        shape = true;
        parse_shape();
      } else {
        bad("a second or unknown key '" + printable(key) + "'");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip();
    if (at_ != text_.size()) bad("text after the closing '}'");
    if (!descr || !order || !shape) bad("one of the keys descr, fortran_order, shape missing");
    return std::move(header_);
  }

 private:
  [[noreturn]] void bad(const std::string& what) {
    fail(ErrorCode::kData, where_, ": malformed numpy header: ", what, "; got: ", printable(text_));
  }
  void skip() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_]) ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad(std::string("expected '") + c + "' at offset " + std::to_string(at_));
  }
  bool take_word(std::string_view word) {
    skip();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
      bad("expected a quoted string at offset " + std::to_string(at_));
    const size_t begin = ++at_;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) bad("unterminated string");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  void parse_descr() {
    if (peek() == '[' || peek() == '(' || peek() == '{')
      fail(ErrorCode::kData, where_, ": structured dtype ", printable(text_.substr(at_)),
           " is not supported; save one plain array per field; ", kSupported);
    const std::string_view descr = quoted();
    const char order = descr.empty() ? '\0' : descr[0];
    const bool marked = order && std::strchr("<>|=", order);
    const std::string_view code = descr.substr(marked ? 1 : 0);
    const std::optional<DType> dtype = dtype_of_code(code);
    if (!dtype) unsupported(descr, code);
    header_.dtype = *dtype;
    header_.swap = order == '>' && size_of(*dtype) > 1;
  }
  [[noreturn]] void unsupported(std::string_view descr, std::string_view code) {
    const char kind = code.empty() ? '\0' : code[0];
    const char* what = "unknown dtype";
    if (kind == 'O') what = "object dtype (pickled Python values; never executed here)";
    if (kind == 'U' || kind == 'S' || kind == 'a') what = "string dtype";
    if (kind == 'M' || kind == 'm') what = "date or time dtype";
    if (kind == 'c') what = "complex dtype";
    if (kind == 'V') what = "void dtype (bfloat16 saved by numpy looks like this: save float32)";
    if (kind == 'f') what = "float dtype of this width";
    fail(ErrorCode::kData, where_, ": ", what, " '", printable(descr), "' is not supported; ",
         kSupported);
  }
  void parse_order() {
    if (take_word("True")) {
      header_.fortran = true;
    } else if (!take_word("False")) {
      bad("fortran_order is neither True nor False");
    }
  }
  void parse_shape() {
    expect('(');
    while (!take(')')) {
      if (header_.dims.size() == kMaxRank) bad("more than 64 axes");
      header_.dims.push_back(integer());
      if (!take(',')) {
        expect(')');
        break;
      }
    }
  }
  int64_t integer() {
    const char first = peek();
    if (first < '0' || first > '9') bad("a dimension that is not a non-negative integer");
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (value > (int64_t{1} << 58)) bad("a dimension above 2^58");
      value = value * 10 + (text_[at_] - '0');
    }
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
    return value;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  Header header_;
};

void swap_bytes(std::byte* data, size_t count, size_t width) {
  for (size_t i = 0; i < count; ++i) std::reverse(data + i * width, data + (i + 1) * width);
}

// Fortran order: axis 0 is the fastest in `in`. Writes C order to `out`.
void to_c_order(const std::byte* in, std::byte* out, const Dims& dims, size_t width) {
  const size_t rank = dims.size();
  std::vector<size_t> stride(rank), index(rank, 0);
  size_t step = width, count = 1;
  for (size_t a = 0; a < rank; ++a) {
    stride[a] = step;
    step *= static_cast<size_t>(dims[a]);
    count *= static_cast<size_t>(dims[a]);
  }
  size_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(out + i * width, in + offset, width);
    for (size_t a = rank; a-- > 0;) {
      offset += stride[a];
      if (++index[a] < static_cast<size_t>(dims[a])) break;
      offset -= stride[a] * static_cast<size_t>(dims[a]);
      index[a] = 0;
    }
  }
}
}  // namespace

StoredArray parse_npy(std::span<const std::byte> bytes, std::string name,
                      const std::string& where) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  if (bytes.size() < 10)
    fail(ErrorCode::kData, where, ": truncated numpy array: expected at least 10 bytes, got ",
         bytes.size());
  if (std::memcmp(p, kMagic.data(), kMagic.size()) != 0)
    fail(ErrorCode::kData, where, ": not a numpy array: expected the magic \\x93NUMPY");
  const unsigned major = p[6], minor = p[7];
  if (major < 1 || major > 3 || minor != 0)
    fail(ErrorCode::kData, where, ": numpy format version ", major, ".", minor,
         "; expected 1.0, 2.0 or 3.0");
  const size_t prefix = major == 1 ? 10 : 12;
  if (bytes.size() < prefix)
    fail(ErrorCode::kData, where, ": truncated numpy array: expected at least ", prefix,
         " bytes, got ", bytes.size());
  size_t length = p[8] | size_t{p[9]} << 8;
  if (major > 1) length |= size_t{p[10]} << 16 | size_t{p[11]} << 24;
  if (length > kMaxHeader)
    fail(ErrorCode::kData, where, ": numpy header of ", length, " bytes; expected at most ",
         kMaxHeader);
  if (length > bytes.size() - prefix)
    fail(ErrorCode::kData, where, ": truncated numpy header: expected ", length, " bytes, got ",
         bytes.size() - prefix);
  const std::string_view text(reinterpret_cast<const char*>(p) + prefix, length);
  Header header = HeaderParser(text, where).parse();

  StoredArray array;
  array.name = std::move(name);
  const auto payload = bytes.subspan(prefix + length);
  set_extent(array, header.dtype, std::move(header.dims), payload.size(), where);
  array.data = payload.data();
  const bool reorder = header.fortran && array.dims.size() > 1;
  if (array.count > 0 && (header.swap || reorder)) {
    array.owned = allocate(array.dtype, array.dims, where);
    auto* out = static_cast<std::byte*>(array.owned.mutable_raw());
    if (reorder) {
      to_c_order(payload.data(), out, array.dims, size_of(array.dtype));
    } else {
      std::memcpy(out, payload.data(), array.bytes());
    }
    if (header.swap) swap_bytes(out, static_cast<size_t>(array.count), size_of(array.dtype));
    array.data = out;
  }
  check_bools(array, where);
  return array;
}

std::string npy_header(DType dtype, std::span<const int64_t> dims, uint64_t file_offset) {
  static constexpr std::pair<DType, const char*> kCodes[] = {
      {DType::kF64, "<f8"}, {DType::kF32, "<f4"}, {DType::kF16, "<f2"}, {DType::kI64, "<i8"},
      {DType::kI32, "<i4"}, {DType::kI16, "<i2"}, {DType::kI8, "|i1"},  {DType::kU64, "<u8"},
      {DType::kU32, "<u4"}, {DType::kU16, "<u2"}, {DType::kU8, "|u1"},  {DType::kBool, "|b1"}};
  std::string text;
  for (const auto& [d, code] : kCodes)
    if (d == dtype) text = cat("{'descr': '", code, "', 'fortran_order': False, 'shape': (");
  ORTRAIN_CHECK(!text.empty(), cat("no numpy dtype for ", name_of(dtype)));
  for (size_t i = 0; i < dims.size(); ++i) text += cat(i ? ", " : "", dims[i]);
  text += dims.size() == 1 ? ",), }" : "), }";
  const uint64_t unpadded = file_offset + 10 + text.size() + 1;
  text.append((64 - unpadded % 64) % 64, ' ');
  text += '\n';
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace ortrain::data
