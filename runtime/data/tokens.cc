// See tokens.h.
#include "runtime/data/tokens.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "graph/error.h"

namespace ortrain::data {
namespace {

class WindowRows : public RowSource {
 public:
  WindowRows(const StoredArray& tokens, int64_t window, int64_t stride, int64_t offset)
      : tokens_(tokens), window_(window), stride_(stride), offset_(offset) {}
  void read(const RowRequest& row, std::byte* out) const override {
    const size_t size = size_of(tokens_.dtype);
    std::memcpy(out, tokens_.data + static_cast<size_t>(row.sample * stride_ + offset_) * size,
                static_cast<size_t>(window_) * size);
  }
  std::vector<const StoredArray*> parts() const override { return {&tokens_}; }

 private:
  const StoredArray& tokens_;
  const int64_t window_, stride_, offset_;
};

Dataset windows(const std::string& path, ArrayFile file, const OpenOptions& options) {
  const ArraySpec* input = nullptr;
  for (const ArraySpec& s : options.inputs) {
    if (!is_integer(s.dtype) || s.dims.size() != 2 || s.name == "labels") continue;
    if (input)
      fail(ErrorCode::kData, "'", path, "': the model has two inputs that tokens could be for, '",
           input->name, "' and '", s.name, "'; give arrays for one of them");
    input = &s;
  }
  if (!input && !options.inputs.empty())
    fail(ErrorCode::kData, "'", path,
         "' holds tokens; the model has no integer input [batch, length]");
  const int64_t built_in = input ? input->dims[1] : -1;
  int64_t window = options.window > 0 ? options.window : built_in;
  if (window < 1)
    fail(ErrorCode::kUsage, "'", path,
         "' holds tokens and the model takes any length; say --window N");
  if (built_in > 0 && window != built_in)
    fail(ErrorCode::kUsage, "--window ", window, ", but input '", input->name, "' takes ",
         built_in);
  const int64_t stride = options.stride > 0 ? options.stride : window;
  const int64_t n = file.arrays[0].count;
  if (n < window + 1)
    fail(ErrorCode::kData, "'", path, "' holds ", n, " tokens; a window of ", window, " needs ",
         window + 1);
  const int64_t samples = (n - window - 1) / stride + 1;
  Dataset out = Dataset::empty(path);
  Dataset base = Dataset::empty(path);
  base.add(std::move(file));
  const StoredArray& tokens = *base.find(base.names()[0]);
  const DType dtype = tokens.dtype;
  out.keep(std::move(base), true);
  out.add_rows(input ? input->name : "tokens", dtype, {samples, window},
               std::make_unique<WindowRows>(tokens, window, stride, 0));
  out.add_rows("labels", dtype, {samples, window},
               std::make_unique<WindowRows>(tokens, window, stride, 1));
  return out;
}

// Where a byte of a text lies, for people.
std::string position(std::string_view text, size_t at) {
  const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const size_t start = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  return cat("line ", line + 1, ", byte ",
             at - (start == std::string_view::npos ? 0 : start + 1) + 1);
}

}  // namespace

bool next_character(std::string_view text, size_t& at, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  const int more = first < 0x80    ? 0
                   : first >= 0xf0 ? 3
                   : first >= 0xe0 ? 2
                   : first >= 0xc2 ? 1
                                   : -1;
  if (more < 0 || first > 0xf4 || at + static_cast<size_t>(more) >= text.size()) return false;
  code = more == 0 ? first : first & (0x3fu >> more);
  for (int i = 1; i <= more; ++i) {
    const uint8_t b = byte(at + static_cast<size_t>(i));
    if ((b & 0xc0) != 0x80) return false;
    code = code << 6 | (b & 0x3fu);
  }
  static constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  at += static_cast<size_t>(more) + 1;
  return true;
}

Dataset open_tokens(const std::string& path, const OpenOptions& options) {
  ArrayFile file;
  file.file = MappedFile(path);
  StoredArray tokens;
  tokens.name = "token";
  const size_t size = file.file.size(), each = size_of(options.token);
  if (size % each)
    fail(ErrorCode::kData, "'", path, "': ", size, " bytes are no whole number of ",
         name_of(options.token), " tokens (--tokens)");
  tokens.data = file.file.bytes().data();
  set_extent(tokens, options.token, {static_cast<int64_t>(size / each)}, size, "'" + path + "'");
  file.arrays.push_back(std::move(tokens));
  return windows(path, std::move(file), options);
}

Dataset open_text(const std::string& path, const OpenOptions& options) {
  ArrayFile file;
  file.file = MappedFile(path);
  const std::string_view text(reinterpret_cast<const char*>(file.file.bytes().data()),
                              file.file.size());
  const auto known = options.vocabularies.find("text");
  const bool has = known != options.vocabularies.end();
  StoredArray tokens;
  tokens.name = "character";
  if (options.text == "bytes" || (options.text.empty() && !has)) {
    tokens.name = "byte";
    tokens.data = file.file.bytes().data();
    set_extent(tokens, DType::kU8, {static_cast<int64_t>(text.size())}, text.size(), path);
    file.arrays.push_back(std::move(tokens));
    return windows(path, std::move(file), options);
  }
  std::map<uint32_t, uint32_t> number;
  if (has) {
    for (const std::string& word : known->second) {
      size_t at = 0;
      uint32_t code = 0;
      if (!word.empty() && next_character(word, at, code) && at == word.size())
        number.emplace(code, static_cast<uint32_t>(number.size()));
    }
  }
  std::vector<uint32_t> codes;
  for (size_t at = 0; at < text.size();) {
    uint32_t code = 0;
    const size_t start = at;
    if (!next_character(text, at, code))
      fail(ErrorCode::kData, "'", path, "', ", position(text, start),
           ": expected UTF-8, got the byte ", static_cast<int>(static_cast<uint8_t>(text[start])),
           "; convert the file, or --text bytes");
    if (has && !number.contains(code))
      fail(ErrorCode::kData, "'", path, "', ", position(text, start), ": '",
           text.substr(start, at - start), "' is not among the ", number.size(),
           " characters of this model");
    codes.push_back(code);
  }
  Vocabularies words;
  if (!has) {
    for (const uint32_t code : std::set<uint32_t>(codes.begin(), codes.end()))
      number.emplace(code, static_cast<uint32_t>(number.size()));
    std::vector<std::string> list(number.size());
    for (size_t at = 0; at < text.size();) {
      uint32_t code = 0;
      const size_t start = at;
      next_character(text, at, code);
      std::string& word = list[number.at(code)];
      if (word.empty()) word = std::string(text.substr(start, at - start));
    }
    words["text"] = std::move(list);
  } else {
    words["text"] = known->second;
  }
  tokens.owned = allocate(DType::kU32, {static_cast<int64_t>(codes.size())}, "'" + path + "'");
  for (size_t i = 0; i < codes.size(); ++i)
    tokens.owned.mutable_data<uint32_t>()[i] = number.at(codes[i]);
  tokens.data = static_cast<const std::byte*>(tokens.owned.raw());
  set_extent(tokens, DType::kU32, {static_cast<int64_t>(codes.size())}, 4 * codes.size(), path);
  file.arrays.push_back(std::move(tokens));
  Dataset out = windows(path, std::move(file), options);
  out.vocabularies = std::move(words);
  return out;
}

}  // namespace ortrain::data
