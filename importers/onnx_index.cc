// The walk behind onnx_index.h. Field numbers are those of onnx-ml.proto.
#include "importers/onnx_index.h"

#include <cstring>

#include "graph/error.h"
#include "importers/wire.h"

namespace ortrain {
namespace {

enum class Kind : uint8_t {
  kNone,
  kDrop,
  kModel,
  kTraining,
  kFunction,
  kGraph,
  kNode,
  kAttribute,
  kSparse,
  kTensor
};

// What a length-delimited field of a message holds; kNone = copied as it is.
Kind child(Kind kind, uint32_t field) {
  switch (kind) {
    case Kind::kModel:
      return field == 7    ? Kind::kGraph
             : field == 20 ? Kind::kTraining
             : field == 25 ? Kind::kFunction
                           : Kind::kNone;
    case Kind::kTraining: return field <= 2 ? Kind::kGraph : Kind::kNone;
    case Kind::kFunction:
      return field == 7    ? Kind::kNode
             : field == 11 ? Kind::kAttribute
             : field == 8  ? Kind::kDrop  // doc_string
                           : Kind::kNone;
    case Kind::kGraph:
      return field == 1    ? Kind::kNode
             : field == 5  ? Kind::kTensor
             : field == 15 ? Kind::kSparse
             : field == 10 ? Kind::kDrop  // doc_string
                           : Kind::kNone;
    case Kind::kNode:
      return field == 5 ? Kind::kAttribute : field == 6 ? Kind::kDrop : Kind::kNone;  // doc_string
    case Kind::kAttribute:
      return field == 5 || field == 10    ? Kind::kTensor
             : field == 6 || field == 11  ? Kind::kGraph
             : field == 22 || field == 23 ? Kind::kSparse
             : field == 13                ? Kind::kDrop  // doc_string
                                          : Kind::kNone;
    case Kind::kSparse: return field <= 2 ? Kind::kTensor : Kind::kNone;
    default: return Kind::kNone;
  }
}

bool is_tensor_data(uint32_t field) {
  return (field >= 4 && field <= 7) || (field >= 9 && field <= 11);
}

std::string site_tag(size_t number) {
  std::string s(8, '\0');
  const uint64_t n = number;
  std::memcpy(s.data(), &n, 8);
  return s;
}

class Indexer {
 public:
  Indexer(std::span<const std::byte> file, int max_depth) : file_(file), max_depth_(max_depth) {}
  FileIndex out;

  void message(Kind kind, const wire::Field& at, int parent, int prefix, int depth,
               std::string& skeleton) {
    if (depth > max_depth_)
      fail(ErrorCode::kModel, "messages are nested deeper than ", max_depth_, " at byte ",
           at.begin);
    size_t site = 0;
    if (kind == Kind::kTensor) {
      site = out.tensors.size();
      out.tensors.push_back({.end = at.end, .prefix = prefix});
    } else if (kind == Kind::kNode || kind == Kind::kAttribute) {
      site = out.messages.size();
      out.messages.push_back({at.begin, at.payload, at.end, parent, prefix, {}});
    }
    wire::Reader reader(file_.data(), at.payload, at.end);
    wire::Field f;
    while (reader.next(f)) {
      if (kind == Kind::kTensor && is_tensor_data(f.number)) {
        add_data(out.tensors[site].data, f, f.number == 9 || f.number == 6);
        continue;
      }
      if (kind == Kind::kTensor && f.number == 12) continue;  // doc_string
      if (kind == Kind::kTensor && f.number == 13)
        out.tensors[site].external.push_back({f.begin, f.end});
      if (kind == Kind::kTensor && f.number == 14 && f.type == wire::kVarint)
        out.tensors[site].is_external = f.value == 1;
      if (kind == Kind::kAttribute && f.number == 7) add_data(out.messages[site].data, f, false);
      if (kind == Kind::kModel && f.number == 14) out.metadata.push_back({f.begin, f.end});
      if (kind == Kind::kNode && f.number == 9 && !wanted_note(f)) continue;
      const Kind inner = f.type == wire::kBytes ? child(kind, f.number) : Kind::kNone;
      if (inner == Kind::kDrop) continue;
      if (inner == Kind::kNone) {
        copy(f.begin, f.end, skeleton);
        continue;
      }
      const int own = static_cast<int>(out.prefixes.size());
      out.prefixes.push_back({f.length_at, f.payload - f.length_at, f.end - f.payload, prefix});
      std::string text;
      message(inner, f, prefix, own, depth + 1, text);
      wire::put_bytes(skeleton, f.number, text);
    }
    if (kind == Kind::kTensor) wire::put_bytes(skeleton, 9, site_tag(site));
    if (kind == Kind::kNode) wire::put_bytes(skeleton, 6, site_tag(site));
    if (kind == Kind::kAttribute) wire::put_bytes(skeleton, 13, site_tag(site));
  }

 private:
  // Of the notes that PyTorch's exporter leaves at each node, those that onnx_torch.h reads.
  bool wanted_note(const wire::Field& f) const {
    const std::string_view text(
        reinterpret_cast<const char*>(file_.data()) + f.payload,
        f.type == wire::kBytes ? std::min<size_t>(f.end - f.payload, 48) : 0);
    return text.find("pkg.torch.onnx.fx_node") != text.npos ||
           text.find("rewriter.rule_name") != text.npos;
  }
  void copy(size_t begin, size_t end, std::string& to) const {
    to.append(reinterpret_cast<const char*>(file_.data()) + begin, end - begin);
  }
  static void add_data(std::vector<DataChunk>& data, const wire::Field& f, bool last_wins) {
    const bool packed = f.type == wire::kBytes;
    if (last_wins)
      std::erase_if(data, [&](const DataChunk& c) { return c.field == f.number; });
    else if (!packed && !data.empty() && !data.back().packed && data.back().field == f.number &&
             data.back().end == f.begin) {
      data.back().end = f.end;
      return;
    }
    data.push_back({f.number, packed, f.begin, packed ? f.payload : f.begin, f.end});
  }

  std::span<const std::byte> file_;
  int max_depth_;
};

}  // namespace

FileIndex index_file(std::span<const std::byte> file, RootKind root, int max_depth) {
  Indexer indexer(file, max_depth);
  const wire::Field all{.end = file.size()};
  indexer.message(root == RootKind::kModel ? Kind::kModel : Kind::kTensor, all, -1, -1, 0,
                  indexer.out.skeleton);
  return std::move(indexer.out);
}

int site_of(std::string_view tag) {
  uint64_t n = 0;
  if (tag.size() != 8) return -1;
  std::memcpy(&n, tag.data(), 8);
  return static_cast<int>(n);
}

}  // namespace ortrain
