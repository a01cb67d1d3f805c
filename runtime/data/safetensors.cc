// The JSON header is parsed with a callback that bounds its depth and sees duplicate keys; then
// every tensor's range is checked before anything is viewed.
#include "runtime/data/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "graph/error.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::data {
namespace {
using json = nlohmann::json;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 64;
constexpr const char* kMetadata = "__metadata__";
constexpr std::pair<const char*, DType> kDtypes[] = {
    {"F64", DType::kF64},  {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
    {"I64", DType::kI64},  {"I32", DType::kI32}, {"I16", DType::kI16}, {"I8", DType::kI8},
    {"U64", DType::kU64},  {"U32", DType::kU32}, {"U16", DType::kU16}, {"U8", DType::kU8},
    {"BOOL", DType::kBool}};

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 120)) out += c >= 32 && c < 127 ? c : '?';
  return text.size() > 120 ? out + "..." : out;
}

// {name: {dtype, shape: [..], data_offsets: [..]}} is three levels deep.
json parse_header(std::string_view text, const std::string& where) {
  constexpr int kMaxDepth = 3;
  std::set<std::string> names, fields;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth)
      fail(ErrorCode::kData, where, ": header nested deeper than ", kMaxDepth, " levels");
    if (event == json::parse_event_t::object_start && depth == 1) fields.clear();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!(depth == 1 ? names : fields).insert(key).second)
        fail(ErrorCode::kData, where, ": the header names '", printable(key), "' twice");
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& e) {
    fail(ErrorCode::kData, where, ": the header is not valid JSON: ", printable(e.what()));
  }
}

uint64_t unsigned_of(const json& value, const char* what, const std::string& at) {
  if (!value.is_number_unsigned())
    fail(ErrorCode::kData, at, ": ", what, " expected a non-negative integer");
  return value.get<uint64_t>();
}

struct Range {
  uint64_t begin, end;
};

StoredArray parse_tensor(const std::string& name, const json& info,
                         std::span<const std::byte> section, Range& range, const std::string& at) {
  if (!info.is_object()) fail(ErrorCode::kData, at, ": expected an object in the header");
  const auto field = [&](const char* key) -> const json& {
    const auto it = info.find(key);
    if (it == info.end()) fail(ErrorCode::kData, at, ": '", key, "' is missing in the header");
    return *it;
  };
  const json& type = field("dtype");
  const std::string type_name = type.is_string() ? type.get<std::string>() : "";
  std::optional<DType> dtype;
  std::string known;
  for (const auto& [text, d] : kDtypes) {
    if (type_name == text) dtype = d;
    known += cat(" ", text);
  }
  if (!dtype)
    fail(ErrorCode::kData, at, ": dtype '", printable(type_name),
         "' is not supported; supported:", known);

  const json& shape = field("shape");
  if (!shape.is_array() || shape.size() > kMaxRank)
    fail(ErrorCode::kData, at, ": shape expected an array of at most ", kMaxRank, " integers");
  Dims dims;
  for (const json& d : shape) {
    const uint64_t value = unsigned_of(d, "shape", at);
    if (value > uint64_t{1} << 62) fail(ErrorCode::kData, at, ": dimension ", value, " too large");
    dims.push_back(static_cast<int64_t>(value));
  }
  const json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    fail(ErrorCode::kData, at, ": data_offsets expected two integers");
  range = {unsigned_of(offsets[0], "data_offsets", at),
           unsigned_of(offsets[1], "data_offsets", at)};
  if (range.begin > range.end || range.end > section.size())
    fail(ErrorCode::kData, at, ": data_offsets [", range.begin, ",", range.end,
         "] expected within the ", section.size(), " bytes of the data section");
  StoredArray array;
  array.name = name;
  set_extent(array, *dtype, std::move(dims), range.end - range.begin, at);
  array.data = section.data() + range.begin;
  check_bools(array, at);
  return array;
}
}  // namespace

SafetensorsContent read_safetensors(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < 8)
    fail(ErrorCode::kData, where, ": not a safetensors file: expected at least 8 bytes, got ",
         bytes.size());
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (length > kMaxHeader)
    fail(ErrorCode::kData, where, ": not a safetensors file: header of ", length,
         " bytes, expected at most ", kMaxHeader);
  if (length > bytes.size() - 8)
    fail(ErrorCode::kData, where, ": truncated: header of ", length, " bytes, the file has ",
         bytes.size() - 8, " after its length");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  const json header = parse_header(text, where);
  if (!header.is_object()) fail(ErrorCode::kData, where, ": the header is not a JSON object");

  const auto section = bytes.subspan(8 + length);
  SafetensorsContent out;
  std::vector<std::pair<Range, StoredArray>> tensors;
  for (const auto& [name, info] : header.items()) {
    if (name == kMetadata) {
      if (!info.is_object()) fail(ErrorCode::kData, where, ": __metadata__ is not an object");
      for (const auto& [key, value] : info.items()) {
        if (!value.is_string())
          fail(ErrorCode::kData, where, ": __metadata__ '", printable(key), "' is not a string");
        out.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    Range range{};
    StoredArray array =
        parse_tensor(name, info, section, range, cat(where, ", tensor '", printable(name), "'"));
    tensors.emplace_back(range, std::move(array));
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  uint64_t expected = 0;
  for (auto& [range, array] : tensors) {
    if (range.begin != expected)
      fail(ErrorCode::kData, where, ", tensor '", printable(array.name), "': starts at ",
           range.begin, ", expected ", expected,
           range.begin < expected ? " (overlaps the one before)" : " (a hole before it)");
    expected = range.end;
    out.arrays.push_back(std::move(array));
  }
  if (expected != section.size())
    fail(ErrorCode::kData, where, ": the tensors cover ", expected, " of the ", section.size(),
         " bytes of the data section");
  return out;
}

ArrayFile open_safetensors(const std::string& path) {
  ArrayFile out;
  out.file = MappedFile(path);
  SafetensorsContent content = read_safetensors(out.file.bytes(), path);
  out.arrays = std::move(content.arrays);
  out.metadata = std::move(content.metadata);
  return out;
}

void write_safetensors(const std::string& path, std::span<const SafetensorsEntry> entries,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const SafetensorsEntry*> order;
  std::set<std::string> names;
  for (const SafetensorsEntry& e : entries) {
    if (e.name == kMetadata || !names.insert(e.name).second)
      fail(ErrorCode::kData, path, ": tensor name '", printable(e.name),
           "' is reserved or given twice");
    order.push_back(&e);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->dtype) > size_of(b->dtype);
  });
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t at = 0;
  for (const SafetensorsEntry* e : order) {
    const uint64_t bytes = static_cast<uint64_t>(element_count(e->dims)) * size_of(e->dtype);
    const char* type = nullptr;
    for (const auto& [name, d] : kDtypes)
      if (d == e->dtype) type = name;
    ORTRAIN_CHECK(type != nullptr, "dtype of " + e->name);
    header[e->name] = {{"dtype", type}, {"shape", e->dims}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& e) {
    fail(ErrorCode::kData, path, ": a name or metadata value is not UTF-8: ", printable(e.what()));
  }
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  AtomicFile file(path);
  file.write(length);
  file.write(text);
  for (const SafetensorsEntry* e : order)
    file.write(e->data, static_cast<size_t>(element_count(e->dims)) * size_of(e->dtype));
  file.commit();
}

}  // namespace ortrain::data
