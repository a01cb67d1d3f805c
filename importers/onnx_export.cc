// OnnxFile::export_model (onnx.h): the original file's bytes with edits.
//
// A tensor with raw, packed or external data is replaced in place; other encodings are written
// anew, and the length prefixes around them adjusted. Order on disk, so that at every instant
// either the old or the new model is whole: new data files under fresh names, then the model (the
// commit), then the data files move to their own names by way of hard links.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "graph/error.h"
#include "importers/onnx_file.h"
#include "importers/wire.h"

namespace ortrain {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;  // elements converted at a time
constexpr size_t kCopy = size_t{4} << 20;     // bytes copied at a time

// Bytes [begin, end) of the original are replaced by `text`, or by the elements of `tensor`.
struct Edit {
  size_t begin = 0, end = 0;
  std::string text = {};
  const HostTensor* tensor = nullptr;
  DType dtype = DType::kUndefined;
  size_t size() const {
    return tensor ? static_cast<size_t>(tensor->count()) * size_of(dtype) : text.size();
  }
};

void write_elements(AtomicFile& out, const HostTensor& t, DType dtype) {
  std::string piece;
  for (int64_t at = 0; at < t.count(); at += kPiece) {
    piece.clear();
    append_elements(t, dtype, at, std::min(kPiece, t.count() - at), piece);
    out.write(piece);
  }
}

// The original with `edits`, which must be sorted and must not overlap.
void write_edited(AtomicFile& out, const FileBytes& file, const std::vector<Edit>& edits) {
  size_t at = 0;
  const auto copy_to = [&](size_t end) {
    ORTRAIN_CHECK(end >= at && end <= file.bytes.size(), "edits of the export overlap");
    while (at < end) {
      const size_t n = std::min(kCopy, end - at);
      out.write(file.bytes.subspan(at, n));
      if (file.mapping && n == kCopy) file.mapping->drop(at, at + n);
      at += n;
    }
  };
  for (const Edit& e : edits) {
    copy_to(e.begin);
    if (e.tensor)
      write_elements(out, *e.tensor, e.dtype);
    else
      out.write(e.text);
    at = e.end;
  }
  copy_to(file.bytes.size());
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Without the ".new1" that an export which was cut off may have left in the model.
std::string settled_name(const std::string& location) {
  const size_t dot = location.rfind(".new");
  if (dot == std::string::npos || dot == 0 || dot + 4 == location.size() ||
      location.find_first_not_of("0123456789", dot + 4) != std::string::npos)
    return location;
  return location.substr(0, dot);
}

// Whether the bytes of a file contain a name.
bool mentions(const std::string& path, const std::string& name) {
  if (!exists(path)) return false;
  const MappedFile file(path);
  const std::span<const std::byte> b = file.bytes();
  return std::string_view(reinterpret_cast<const char*>(b.data()), b.size()).find(name) !=
         std::string_view::npos;
}

// Where a data file of the old model goes beside the new one (see onnx.h).
std::string new_location(const std::string& old, const std::string& source,
                         const std::string& target) {
  const std::string location = settled_name(old);
  if (source == target) return location;
  if (!source.empty() && location.compare(0, source.size(), source) == 0)
    return target + location.substr(source.size());
  const size_t name = location.find_last_of('/') + 1;
  return location.substr(0, name) + target + "." + location.substr(name);
}

void make_folders(const std::string& folder, const std::string& location) {
  for (size_t slash = location.find('/'); slash != std::string::npos;
       slash = location.find('/', slash + 1)) {
    const std::string path = folder + location.substr(0, slash);
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
      fail(ErrorCode::kIo, "cannot make folder '", path, "': ", std::strerror(errno));
  }
}

// A tensor whose data lies in a data file, with its value (null = unchanged).
struct ExternalTensor {
  int site = -1;
  size_t old_offset = 0, bytes = 0;
  std::vector<std::pair<std::string, std::string>> others;  // entries beyond the usual three
  bool checksum = false;
  DType dtype = DType::kUndefined;
  const HostTensor* value = nullptr;
  size_t offset = 0;  // in the new data file
  size_t old_end() const { return old_offset + bytes; }
};
struct DataFile {
  std::string location;   // final
  std::string temporary;  // until the model has been committed; = location when that is free
  std::string left_over;  // the old model's, under a temporary name of an export that was cut off
  std::vector<ExternalTensor> tensors;
};

class Export {
 public:
  Export(const FileBytes& file, const FileIndex& index, DataFiles& external,
         const std::vector<TensorSlot>& slots, const HeadReset& head, const std::string& source)
      : file_(file),
        index_(index),
        external_(external),
        slots_(slots),
        head_(head),
        source_(source) {}

  void run(const std::string& path, const OnnxFile::ValueOf& value,
           const std::map<std::string, std::string>& metadata) {
    std::map<int, std::pair<const TensorSlot*, const HostTensor*>> external_values;  // by site
    for (const TensorSlot& s : slots_) {
      const HostTensor* v = value ? value(s.name) : nullptr;
      if (!v) continue;
      check(s, *v);
      if (s.where == TensorSlot::Where::kTensor && s.resized)
        rewrite(s, *v);
      else if (s.where == TensorSlot::Where::kTensor &&
               index_.tensors[static_cast<size_t>(s.site)].is_external)
        external_values[s.site] = {&s, v};
      else
        replace(s, *v);
    }
    if (head_.classes > 0) edit_shapes();
    edit_nodes();
    if (!nodes_.empty()) edit_version();
    edit_metadata(metadata);
    for (size_t i = 0; i < index_.tensors.size(); ++i) {
      if (!index_.tensors[i].is_external || rewritten_.count(static_cast<int>(i))) continue;
      const auto it = external_values.find(static_cast<int>(i));
      if (it == external_values.end())
        add_external(static_cast<int>(i), nullptr, nullptr);
      else
        add_external(static_cast<int>(i), it->second.first, it->second.second);
    }

    const std::string folder = folder_of(path) + "/";
    bool moved = false;
    try {
      for (auto& [location, d] : data_) {
        d.location = new_location(location, base_name(source_), base_name(path));
        make_folders(folder, d.location);
        // A name that starts with the model's own is used by no other model.
        const bool own = d.location.compare(0, base_name(path).size(), base_name(path)) == 0;
        d.temporary = d.location;
        for (int i = 1; exists(folder + d.temporary); ++i) {
          d.temporary = cat(d.location, ".new", i);
          if (own && !mentions(path, d.temporary)) break;
        }
        if (location != d.location && folder_of(source_) == folder_of(path) &&
            base_name(source_) == base_name(path))
          d.left_over = location;
        moved = moved || d.temporary != d.location;
        write_data(folder + d.temporary, location, d);
      }
      write_model(path, true);
    } catch (const Error&) {  // the old model stands; take away what it does not know
      for (const auto& [location, d] : data_)
        if (!d.temporary.empty()) ::unlink((folder + d.temporary).c_str());
      throw;
    }
    if (moved && settle_names(folder)) {
      write_model(path, false);
      for (const auto& [location, d] : data_) {
        if (d.temporary != d.location) ::unlink((folder + d.temporary).c_str());
        if (!d.left_over.empty()) ::unlink((folder + d.left_over).c_str());
      }
    }
  }

 private:
  static void check(const TensorSlot& s, const HostTensor& v) {
    if (v.dims() != s.dims) {
      const auto text = [](const Dims& dims) { return Shape(dims).str(); };
      fail(ErrorCode::kShape, "export of '", s.name, "': its value has shape ", text(v.dims()),
           ", the file has ", text(s.dims));
    }
    if (!is_float(v.dtype()))
      fail(ErrorCode::kShape, "export of '", s.name, "': its value is ", name_of(v.dtype()),
           ", the file has ", name_of(s.dtype));
  }

  void edit(Edit e, int prefix) {
    if (prefix >= 0)
      growth_[prefix] += static_cast<int64_t>(e.size()) - static_cast<int64_t>(e.end - e.begin);
    edits_.push_back(std::move(e));
  }

  // Replaces complete fields by `text`, put where the first of them was.
  void replace_fields(const std::vector<ByteRange>& old, const std::string& text, size_t end,
                      int prefix) {
    for (size_t i = 0; i < old.size(); ++i)
      edit({.begin = old[i].begin, .end = old[i].end, .text = i == 0 ? text : ""}, prefix);
    if (old.empty()) edit({.begin = end, .end = end, .text = text}, prefix);
  }

  // Data of one field: in place when it is one packed run of the right size, else anew.
  void replace_data(const std::vector<DataChunk>& data, uint32_t field, size_t end, int prefix,
                    const HostTensor& v, DType dtype) {
    const size_t bytes = static_cast<size_t>(v.count()) * size_of(dtype);
    std::vector<ByteRange> old;
    const DataChunk* packed = nullptr;
    for (const DataChunk& c : data) {
      if (c.field != field) continue;
      old.push_back({c.field_begin, c.end});
      if (c.packed && c.end - c.begin == bytes && field != 5) packed = &c;
    }
    if (old.size() == 1 && packed) {
      edit({.begin = packed->begin, .end = packed->end, .tensor = &v, .dtype = dtype}, prefix);
      return;
    }
    std::string payload, text;
    append_elements(v, dtype, 0, v.count(), payload);
    if (field == 5) {  // f16 and bf16 bits as varints
      std::string varints;
      for (size_t i = 0; i + 1 < payload.size(); i += 2) {
        uint16_t bits = 0;
        std::memcpy(&bits, payload.data() + i, 2);
        wire::put_varint(varints, bits);
      }
      payload = std::move(varints);
    }
    if (!payload.empty()) wire::put_bytes(text, field, payload);
    replace_fields(old, text, end, prefix);
  }

  void replace(const TensorSlot& s, const HostTensor& v) {
    if (s.where == TensorSlot::Where::kTensor) {
      const TensorSite& site = index_.tensors[static_cast<size_t>(s.site)];
      uint32_t field = s.dtype == DType::kF32 ? 4 : s.dtype == DType::kF64 ? 10 : 5;
      for (const DataChunk& c : site.data)
        if (c.field == 9) field = 9;
      replace_data(site.data, field, site.end, site.prefix, v, s.dtype);
    } else if (s.where == TensorSlot::Where::kFloats) {
      const MessageSite& m = index_.messages[static_cast<size_t>(s.site)];
      replace_data(m.data, 7, m.end, m.prefix, v, s.dtype);
    } else {
      nodes_[s.site].push_back({&s, &v});
    }
  }

  // The whole tensor anew, data in the model file: its shape changes.
  void rewrite(const TensorSlot& s, const HostTensor& v) {
    const TensorSite& site = index_.tensors[static_cast<size_t>(s.site)];
    const LengthPrefix& p = index_.prefixes[static_cast<size_t>(site.prefix)];
    const HostTensor converted = v.dtype() == s.dtype ? v.share() : v.cast(s.dtype);
    edit({.begin = p.at + p.size, .end = site.end, .text = write_tensor(s.name, converted)},
         site.prefix);
    rewritten_.insert(s.site);
  }

  // Inputs, outputs and notes of shapes in the graph that a reset head has changed.
  void edit_shapes() {
    if (index_.messages.empty()) return;
    int graph = index_.messages[0].parent;
    while (index_.prefixes[static_cast<size_t>(graph)].parent >= 0)
      graph = index_.prefixes[static_cast<size_t>(graph)].parent;
    const LengthPrefix& p = index_.prefixes[static_cast<size_t>(graph)];
    wire::Reader reader(file_.bytes.data(), p.at + p.size, p.at + p.size + p.value);
    wire::Field f;
    while (reader.next(f)) {
      if (f.number < 11 || f.number > 13 || f.type != wire::kBytes) continue;
      onnx::ValueInfoProto info;
      if (!info.ParsePartialFromArray(file_.bytes.data() + f.payload,
                                      static_cast<int>(f.end - f.payload)))
        continue;
      const bool tensor = head_.tensors.count(info.name()) > 0;
      std::string text;
      if (f.number == 13 && (tensor || head_.values.count(info.name()))) {
        // A note of an old shape: left out.
      } else if (f.number == 11 && tensor) {
        for (const TensorSlot& s : slots_)
          if (s.name == info.name()) HeadReset::resize_input(info, s.dims);
        wire::put_bytes(text, f.number, info.SerializePartialAsString());
      } else if (f.number == 12 && head_.apply(info)) {
        wire::put_bytes(text, f.number, info.SerializePartialAsString());
      } else {
        continue;
      }
      edit({.begin = f.begin, .end = f.end, .text = text}, graph);
    }
  }

  // Tensors without a place of their own in the file get an initializer next to their node.
  void edit_nodes() {
    for (const auto& [site, changes] : nodes_) {
      const MessageSite& m = index_.messages[static_cast<size_t>(site)];
      std::string text, initializers;
      for (const auto& [slot, v] : changes) {
        const HostTensor converted = v->dtype() == slot->dtype ? v->share() : v->cast(slot->dtype);
        wire::put_bytes(initializers, 5, write_tensor(slot->name, converted));
      }
      if (changes[0].first->where == TensorSlot::Where::kInput) {
        onnx::NodeProto node;
        if (!node.ParsePartialFromArray(file_.bytes.data() + m.payload,
                                        static_cast<int>(m.end - m.payload)))
          fail(ErrorCode::kModel, "export: node at byte ", m.begin, " is malformed");
        for (const auto& [slot, v] : changes) *node.mutable_input(slot->input) = slot->name;
        wire::put_bytes(text, 1, node.SerializePartialAsString());
      }
      edit({.begin = m.begin, .end = m.end, .text = text + initializers}, m.parent);
    }
  }

  // Before IR 4 every initializer must also be a graph input; the new ones are none.
  void edit_version() {
    wire::Reader reader(file_.bytes.data(), 0, file_.bytes.size());
    wire::Field f;
    std::string four;
    wire::put_tag(four, 1, wire::kVarint);
    wire::put_varint(four, 4);
    while (reader.next(f))
      if (f.number == 1 && f.type == wire::kVarint && f.value < 4)
        edit({.begin = f.begin, .end = f.end, .text = four}, -1);
  }

  void edit_metadata(const std::map<std::string, std::string>& metadata) {
    if (metadata.empty()) return;
    for (const ByteRange& r : index_.metadata) {
      wire::Reader reader(file_.bytes.data(), r.begin, r.end);
      wire::Field outer, f;
      reader.next(outer);
      std::string key;
      wire::Reader inner(file_.bytes.data(), outer.payload, outer.end);
      while (inner.next(f))
        if (f.number == 1 && f.type == wire::kBytes)
          key.assign(reinterpret_cast<const char*>(file_.bytes.data()) + f.payload,
                     f.end - f.payload);
      if (metadata.count(key)) edit({.begin = r.begin, .end = r.end}, -1);
    }
    std::string added;
    for (const auto& [key, value] : metadata) {
      std::string entry;
      wire::put_bytes(entry, 1, key);
      wire::put_bytes(entry, 2, value);
      wire::put_bytes(added, 14, entry);
    }
    edit({.begin = file_.bytes.size(), .end = file_.bytes.size(), .text = added}, -1);
  }

  void add_external(int number, const TensorSlot* slot, const HostTensor* value) {
    const TensorSite& site = index_.tensors[static_cast<size_t>(number)];
    std::string location;
    ExternalTensor t{.site = number, .value = value};
    std::optional<size_t> length;
    for (const ByteRange& r : site.external) {
      wire::Reader reader(file_.bytes.data(), r.begin, r.end);
      wire::Field f;
      onnx::StringStringEntryProto e;
      if (!reader.next(f) || !e.ParsePartialFromArray(file_.bytes.data() + f.payload,
                                                      static_cast<int>(f.end - f.payload)))
        continue;
      if (e.key() == "location")
        location = e.value();
      else if (e.key() == "offset")
        t.old_offset = std::strtoull(e.value().c_str(), nullptr, 10);
      else if (e.key() == "length")
        length = std::strtoull(e.value().c_str(), nullptr, 10);
      else if (e.key() == "checksum" && value)
        t.checksum = true;  // of the old bytes: left out
      else
        t.others.push_back({e.key(), e.value()});
    }
    const size_t size = external_.open(location, "export").bytes().size();
    t.old_offset = std::min(t.old_offset, size);
    t.bytes = std::min(length.value_or(size), size - t.old_offset);
    if (slot) {  // checked when it was read
      t.dtype = slot->dtype;
      t.bytes = static_cast<size_t>(value->count()) * size_of(slot->dtype);
    }
    data_[location].tensors.push_back(std::move(t));
  }

  // The old data file with new contents. Tensors that share bytes but no longer values move to the
  // end of the file, where each gets a place of its own.
  void write_data(const std::string& path, const std::string& location, DataFile& d) {
    const MappedFile& old = *external_.find(location);
    const size_t size = old.bytes().size();
    std::stable_sort(d.tensors.begin(), d.tensors.end(),
                     [](const auto& a, const auto& b) { return a.old_offset < b.old_offset; });
    std::vector<Edit> inside, behind;
    size_t covered = 0, length = size;
    const ExternalTensor* last = nullptr;
    for (ExternalTensor& t : d.tensors) {
      t.offset = t.old_offset;
      if (!t.value || t.bytes == 0) continue;
      if (last && same_data(*last, t)) continue;
      if (t.old_offset < covered || shared_unchanged(d, t)) {
        const size_t start = (length + 63) / 64 * 64;
        behind.push_back({.begin = size, .end = size, .text = std::string(start - length, '\0')});
        behind.push_back({.begin = size, .end = size, .tensor = t.value, .dtype = t.dtype});
        t.offset = start;
        length = start + t.bytes;
        continue;
      }
      covered = t.old_end();
      last = &t;
      inside.push_back(
          {.begin = t.old_offset, .end = covered, .tensor = t.value, .dtype = t.dtype});
    }
    inside.insert(inside.end(), behind.begin(), behind.end());
    AtomicFile out(path);
    write_edited(out, {old.bytes(), &old}, inside);
    out.commit();
  }

  static bool same_data(const ExternalTensor& a, const ExternalTensor& b) {
    return a.old_offset == b.old_offset && a.bytes == b.bytes && a.dtype == b.dtype &&
           a.value->dtype() == b.value->dtype() && a.value->bytes() == b.value->bytes() &&
           std::memcmp(a.value->raw(), b.value->raw(), a.value->bytes()) == 0;
  }

  // Whether a tensor that keeps its value shares bytes with `t`.
  static bool shared_unchanged(const DataFile& d, const ExternalTensor& t) {
    return std::any_of(d.tensors.begin(), d.tensors.end(), [&](const ExternalTensor& u) {
      return !u.value && u.bytes > 0 && u.old_offset < t.old_end() && t.old_offset < u.old_end();
    });
  }

  // The model file; external data under its temporary or its final names.
  void write_model(const std::string& path, bool temporary) {
    const std::vector<Edit> kept = edits_;
    const std::map<int, int64_t> kept_growth = growth_;
    for (const auto& [location, d] : data_)
      for (const ExternalTensor& t : d.tensors)
        edit_external(t, location, temporary ? d.temporary : d.location);
    // Length prefixes, innermost first: an inner one has the higher number.
    for (auto it = growth_.rbegin(); it != growth_.rend(); ++it) {
      if (it->second == 0) continue;
      const LengthPrefix& p = index_.prefixes[static_cast<size_t>(it->first)];
      Edit e{.begin = p.at, .end = p.at + p.size};
      wire::put_varint(e.text, p.value + static_cast<uint64_t>(it->second));
      const int64_t delta =
          it->second + static_cast<int64_t>(e.text.size()) - static_cast<int64_t>(p.size);
      if (p.parent >= 0) growth_[p.parent] += delta;
      edits_.push_back(std::move(e));
    }
    std::stable_sort(edits_.begin(), edits_.end(),
                     [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
    AtomicFile out(path);
    write_edited(out, file_, edits_);
    out.commit();
    edits_ = kept;
    growth_ = kept_growth;
  }

  // Rewrites the external_data entries of a tensor when its place or name has changed, or when a
  // checksum of the old bytes must go.
  void edit_external(const ExternalTensor& t, const std::string& old_location,
                     const std::string& location) {
    if (t.offset == t.old_offset && location == old_location && !t.checksum) return;
    const TensorSite& site = index_.tensors[static_cast<size_t>(t.site)];
    std::string text;
    const auto put = [&](const std::string& key, const std::string& value) {
      std::string entry;
      wire::put_bytes(entry, 1, key);
      wire::put_bytes(entry, 2, value);
      wire::put_bytes(text, 13, entry);
    };
    put("location", location);
    put("offset", std::to_string(t.offset));
    put("length", std::to_string(t.bytes));
    for (const auto& [key, value] : t.others) put(key, value);
    replace_fields(site.external, text, site.end, site.prefix);
  }

  // Gives the new data files their own names while the committed model still reads them under the
  // temporary ones. False where the file system has no hard links: the names then stay.
  bool settle_names(const std::string& folder) const {
    for (const auto& [location, d] : data_) {
      if (d.temporary == d.location) continue;
      const std::string from = folder + d.temporary, to = folder + d.location;
      const std::string link = from + ".link";
      ::unlink(link.c_str());
      if (::link(from.c_str(), link.c_str()) != 0) return false;
      if (::rename(link.c_str(), to.c_str()) != 0)
        fail(ErrorCode::kIo, "cannot replace '", to, "': ", std::strerror(errno));
    }
    return true;
  }

  const FileBytes& file_;
  const FileIndex& index_;
  DataFiles& external_;
  const std::vector<TensorSlot>& slots_;
  const HeadReset& head_;
  const std::string& source_;
  std::set<int> rewritten_;  // sites
  std::vector<Edit> edits_;
  std::map<int, int64_t> growth_;  // of length prefixes
  std::map<int, std::vector<std::pair<const TensorSlot*, const HostTensor*>>> nodes_;
  std::map<std::string, DataFile> data_;  // by the old location
};

}  // namespace

namespace {

HostTensor transposed(const HostTensor& t) {
  const int64_t rows = t.dims()[0], columns = t.dims()[1];
  HostTensor out(t.dtype(), {columns, rows});
  const size_t size = size_of(t.dtype());
  const auto* from = static_cast<const std::byte*>(t.raw());
  auto* to = static_cast<std::byte*>(out.mutable_raw());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(to + static_cast<size_t>(c * rows + r) * size,
                  from + static_cast<size_t>(r * columns + c) * size, size);
  return out;
}

}  // namespace

void OnnxFile::export_model(const std::string& path, const ValueOf& value,
                            const std::map<std::string, std::string>& extra_metadata) const {
  State& s = *state_;  // data files may be opened
  std::map<std::string, const HostTensor*> values;
  std::map<std::string, bool> changed;  // by the tensor that the file has for several
  for (const TensorSlot& slot : s.slots) {
    const HostTensor* v = value ? value(slot.name) : nullptr;
    values[slot.name] = v;
    if (v) changed[slot.split_from.empty() ? slot.name : slot.split_from] = true;
  }
  for (const TensorSlot& slot : s.slots)
    if (!values[slot.name] && (slot.resized || changed.contains(slot.split_from))) {
      s.external.copies().restore();
      values[slot.name] = s.graph->tensor(s.graph->find(slot.name));
    }
  std::vector<HostTensor> turned;
  turned.reserve(s.ties.size());
  for (const TensorTie& t : s.ties) {
    const HostTensor* v = values[t.original];
    if (v && t.transposed) v = &turned.emplace_back(transposed(*v));
    values[t.copy] = v;
  }
  std::map<std::string, std::string> metadata = extra_metadata;
  if (s.head.classes > 0) metadata["ortrain.head"] = s.head.text();
  Export(s.file, s.index, s.external, s.slots, s.head, s.path)
      .run(
          path, [&](const std::string& name) { return values[name]; }, metadata);
}

}  // namespace ortrain
