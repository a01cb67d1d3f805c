// The index of an ONNX file: where every tensor's data lies, and the file without that data.
//
// The wire format is walked once. Tensor payloads stay in the file and are described by a
// TensorSite; the rest ("skeleton") is small and goes through protobuf. In the skeleton every
// TensorProto carries the number of its site in raw_data, every NodeProto and AttributeProto in
// doc_string (site_of reads it back). Refuses nesting deeper than `max_depth` messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ortrain {

struct ByteRange {
  size_t begin = 0, end = 0;
};

// A run of one data field of a tensor: packed or raw bytes in [begin, end), or, when not packed,
// complete fields (tag and value, one element each).
struct DataChunk {
  uint32_t field = 0;
  bool packed = false;
  size_t field_begin = 0;  // of the (first) tag
  size_t begin = 0, end = 0;
};

struct TensorSite {
  std::vector<DataChunk> data;
  std::vector<ByteRange> external;  // external_data entries, tag included
  bool is_external = false;         // data_location is EXTERNAL
  size_t end = 0;                   // of the message
  int prefix = -1;                  // its own length prefix
};
// A node, or an attribute that has floats.
struct MessageSite {
  size_t begin = 0, payload = 0, end = 0;  // begin is the tag's
  int parent = -1;                         // length prefix of the enclosing message
  int prefix = -1;
  std::vector<DataChunk> data;  // AttributeProto.floats
};
// A length prefix; the export changes it when something inside grows or shrinks.
struct LengthPrefix {
  size_t at = 0, size = 0;
  uint64_t value = 0;
  int parent = -1;
};

struct FileIndex {
  std::string skeleton;
  std::vector<TensorSite> tensors;
  std::vector<MessageSite> messages;
  std::vector<LengthPrefix> prefixes;
  std::vector<ByteRange> metadata;  // ModelProto.metadata_props entries, tag included
};

enum class RootKind : uint8_t { kModel, kTensor };
FileIndex index_file(std::span<const std::byte> file, RootKind root, int max_depth);

// The number that the index left in a string field; -1 when it left none.
int site_of(std::string_view tag);

}  // namespace ortrain
