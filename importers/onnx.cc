// Opens and parses a model (onnx.h): index, protobuf, import, structure hash.
#include "importers/onnx.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "graph/fnv.h"
#include "importers/onnx_file.h"

namespace ortrain {
namespace {

// Leaves in the message only what belongs to the structure.
class Strip {
 public:
  Strip(const FileIndex& index, const FileBytes& file) : index_(index), file_(file) {}
  void graph(onnx::GraphProto& g) const {
    g.clear_value_info();
    g.clear_doc_string();
    g.clear_metadata_props();
    for (auto& n : *g.mutable_node()) node(n);
    for (auto& t : *g.mutable_initializer()) tensor(t);
    for (auto& t : *g.mutable_sparse_initializer()) sparse(t);
  }
  void node(onnx::NodeProto& n) const {
    n.clear_doc_string();
    n.clear_metadata_props();
    for (auto& a : *n.mutable_attribute()) {
      a.clear_doc_string();
      if (n.op_type() == "Constant" && a.name() == "value_floats") a.clear_floats();
      if (a.has_t()) tensor(*a.mutable_t());
      if (a.has_g()) graph(*a.mutable_g());
      if (a.has_sparse_tensor()) sparse(*a.mutable_sparse_tensor());
      for (auto& t : *a.mutable_tensors()) tensor(t);
      for (auto& g : *a.mutable_graphs()) graph(g);
      for (auto& t : *a.mutable_sparse_tensors()) sparse(t);
    }
  }

 private:
  // Integers stay part of the structure (they are shapes and axes), as a hash of their bytes.
  void tensor(onnx::TensorProto& t) const {
    const int site = site_of(t.raw_data());
    t.clear_raw_data();
    t.clear_external_data();
    t.clear_data_location();
    t.clear_metadata_props();
    if (is_float(dtype_from_onnx(t.data_type())) || site < 0 ||
        static_cast<size_t>(site) >= index_.tensors.size())
      return;
    uint64_t h = kFnvBasis;
    for (const DataChunk& c : index_.tensors[static_cast<size_t>(site)].data)
      h = fnv1a(file_.bytes.data() + c.begin, c.end - c.begin, h);
    t.set_raw_data(&h, sizeof h);
  }
  void sparse(onnx::SparseTensorProto& t) const {
    tensor(*t.mutable_values());
    tensor(*t.mutable_indices());
  }
  const FileIndex& index_;
  const FileBytes& file_;
};

// Makes the message what an export makes of the file: tensors without a place of their own (slots
// kNode and kInput) become initializers.
void settle_slots(onnx::GraphProto& g, const std::vector<TensorSlot>& slots) {
  std::map<int, std::vector<const TensorSlot*>> by_site;
  for (const TensorSlot& s : slots)
    if (s.where == TensorSlot::Where::kNode || s.where == TensorSlot::Where::kInput)
      by_site[s.site].push_back(&s);
  if (by_site.empty()) return;
  int kept = 0;
  for (int i = 0; i < g.node_size(); ++i) {
    const auto it = by_site.find(site_of(g.node(i).doc_string()));
    bool stays = true;
    if (it != by_site.end()) {
      for (const TensorSlot* s : it->second) {
        auto& t = *g.add_initializer();
        t.set_name(s->name);
        t.set_data_type(dtype_to_onnx(s->dtype));
        for (int64_t d : s->dims) t.add_dims(d);
        stays = s->where == TensorSlot::Where::kInput;
        if (stays) *g.mutable_node(i)->mutable_input(s->input) = s->name;
      }
    }
    if (stays) g.mutable_node()->SwapElements(kept++, i);
  }
  g.mutable_node()->DeleteSubrange(kept, g.node_size() - kept);
}

std::string structure_hash(onnx::ModelProto& m, const FileIndex& index, const FileBytes& file,
                           const std::vector<TensorSlot>& slots) {
  const Strip strip(index, file);
  uint64_t h = kFnvBasis;
  const auto add = [&](const google::protobuf::MessageLite& message) {
    std::string bytes;
    {
      google::protobuf::io::StringOutputStream stream(&bytes);
      google::protobuf::io::CodedOutputStream out(&stream);
      out.SetSerializationDeterministic(true);
      message.SerializePartialToCodedStream(&out);
    }
    h = fnv1a(bytes.data(), bytes.size(), h);
  };
  settle_slots(*m.mutable_graph(), slots);
  strip.graph(*m.mutable_graph());
  auto& initializers = *m.mutable_graph()->mutable_initializer();  // in any order
  std::sort(initializers.pointer_begin(), initializers.pointer_end(),
            [](const auto* a, const auto* b) { return a->name() < b->name(); });
  add(m.graph());
  for (auto& f : *m.mutable_functions()) {
    f.clear_doc_string();
    for (auto& n : *f.mutable_node()) strip.node(n);
    add(f);
  }
  for (const auto& o : m.opset_import()) add(o);
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, h >>= 4) text[static_cast<size_t>(i)] = "0123456789abcdef"[h & 15];
  return text;
}

}  // namespace

OnnxFile::OnnxFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
OnnxFile::~OnnxFile() = default;
const Graph& OnnxFile::graph() const {
  state_->external.copies().restore();
  return state_->trains ? *state_->trains : *state_->graph;
}
void OnnxFile::release_copies() const { state_->external.copies().release(); }
void OnnxFile::replace_graph(Graph graph, std::string note) {
  state_->trains = std::make_unique<Graph>(std::move(graph));
  state_->notes.push_back(std::move(note));
}
const std::map<std::string, std::string>& OnnxFile::metadata() const { return state_->metadata; }
const std::string& OnnxFile::hash() const { return state_->hash; }
const std::vector<std::string>& OnnxFile::problems() const { return state_->notes; }
const std::string& OnnxFile::path() const { return state_->path; }
const ImportOptions& OnnxFile::options() const { return state_->options; }

void OnnxFile::drop_pages(const HostTensor& tensor) const {
  if (tensor.owns()) return;
  const auto* p = static_cast<const std::byte*>(tensor.raw());
  const auto drop = [&](const MappedFile& m) {
    const std::span<const std::byte> all = m.bytes();
    if (std::less<>()(p, all.data()) || !std::less<>()(p, all.data() + all.size())) return;
    const auto begin = static_cast<size_t>(p - all.data());
    m.drop(begin, std::min(begin + tensor.bytes(), all.size()));
  };
  drop(state_->mapping);
  state_->external.each(drop);
}

std::unique_ptr<OnnxFile> OnnxFile::load(std::unique_ptr<State> state, const OpTable& ops,
                                         const ImportOptions& options) {
  State& s = *state;
  if (s.file.bytes.empty()) fail(ErrorCode::kModel, "the file is empty");
  s.index = index_file(s.file.bytes, RootKind::kModel, options.max_depth);
  s.mapping.drop(0, s.mapping.bytes().size());
  onnx::ModelProto model;
  if (s.index.skeleton.size() > (size_t{1} << 31) - 1)
    fail(ErrorCode::kModel, "the model has more than 2 GB beside its tensors");
  if (!model.ParsePartialFromString(s.index.skeleton))
    fail(ErrorCode::kModel, "not an ONNX model, or nested too deeply");
  std::string().swap(s.index.skeleton);
  Importer importer(model, s.index, s.file, s.external, ops, options);
  importer.run();
  s.graph = std::make_unique<Graph>(std::move(importer.graph));
  s.slots = std::move(importer.slots);
  s.ties = std::move(importer.ties);
  s.head = std::move(importer.head);
  s.options = options;
  s.notes = std::move(importer.notes);
  for (const auto& e : model.metadata_props()) s.metadata[e.key()] = e.value();
  if (s.head.classes > 0) s.head.apply(*model.mutable_graph(), s.slots);
  s.hash = structure_hash(model, s.index, s.file, s.slots);
  return std::unique_ptr<OnnxFile>(new OnnxFile(std::move(state)));
}

std::unique_ptr<OnnxFile> OnnxFile::open(const std::string& path, const OpTable& ops,
                                         const ImportOptions& options) {
  auto state = std::make_unique<State>(path, folder_of(path));
  state->mapping = MappedFile(path);
  state->file = {state->mapping.bytes(), &state->mapping};
  try {
    return load(std::move(state), ops, options);
  } catch (const Error& e) {
    throw e.within(path);
  }
}

std::unique_ptr<OnnxFile> OnnxFile::parse(std::span<const std::byte> bytes,
                                          const std::string& folder, const OpTable& ops,
                                          const ImportOptions& options) {
  auto state = std::make_unique<State>("", folder);
  state->memory.assign(bytes.begin(), bytes.end());
  state->file = {state->memory, nullptr};
  return load(std::move(state), ops, options);
}

}  // namespace ortrain
