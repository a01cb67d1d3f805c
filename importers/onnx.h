// OnnxFile: a parsed ONNX model, its forward graph, and the way back into a file.
//
// Promises: weights are held once (views into the mapped file where aligned, copies that can be
// given back elsewhere); the export changes
// only what it is given, byte for byte, and either appears whole or not at all. Refuses: opset
// below 7, what no operator record covers (all problems at once, with node names), external data
// outside the model's folder. Malformed files give Error(kModel), never a crash.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/op_def.h"

namespace ortrain {

struct ImportOptions {
  int max_depth = 64;  // of nested messages in the file, of function calls and of branches
  // Equal scales, biases or statistics that an exporter merged behind Identity nodes, or into one
  // input of several nodes, become tensors of their own again (only where all elements are equal).
  bool untie = true;
  // "off"; "auto": the head's copy of an embedding table is the table again; "A=B,...": tensor B is
  // A (equal contents, or transposed ones). Tied tensors are one parameter, written to both places.
  std::string tie = "off";
  // "OUTPUT=CLASSES": the last layer before that output starts anew, with so many classes.
  std::string reset_head = "";
  uint64_t seed = 0;  // of its values
  bool operator==(const ImportOptions&) const = default;
};

class OnnxFile {
 public:
  // Throws Error(kIo), Error(kModel) or Error(kUnsupported); messages begin with the path.
  static std::unique_ptr<OnnxFile> open(const std::string& path, const OpTable& ops,
                                        const ImportOptions& options = {});
  // From memory (copied). `folder` is where external data may lie; "" = nowhere.
  static std::unique_ptr<OnnxFile> parse(std::span<const std::byte> bytes,
                                         const std::string& folder, const OpTable& ops,
                                         const ImportOptions& options = {});
  ~OnnxFile();
  OnnxFile(const OnnxFile&) = delete;
  OnnxFile& operator=(const OnnxFile&) = delete;

  // Stage::kImported; typed are only inputs and tensors, which may be views into the file. Fetches
  // released copies back.
  const Graph& graph() const;
  // Trains `graph`, made from graph(), in its place; the file and its export stay as they are.
  void replace_graph(Graph graph, std::string note);
  const std::map<std::string, std::string>& metadata() const;  // metadata_props
  // Of the structure: nodes, names, shapes and integer tensors, but not float tensors, metadata or
  // where the data lies. 16 hex digits; the same before and after an export.
  const std::string& hash() const;
  // What the importer decided and the user should know, one sentence each.
  const std::vector<std::string>& problems() const;
  const std::string& path() const;
  const ImportOptions& options() const;  // as it was opened
  // Takes the pages of a tensor that is a view into the file (or its data files) out of this
  // process's memory, once it has been copied elsewhere; it stays readable. Nothing for others.
  void drop_pages(const HostTensor& tensor) const;
  // Gives back the memory of float tensors that had to be copied, being unaligned in the file.
  // Until the next call of graph() the contents of the graph's tensors, and of graphs made from it,
  // must not be read; the export does not need them.
  void release_copies() const;

  // Writes the same model to `path` with new values for float tensors: `value(name)` is asked once
  // per float tensor of the file (initializers, and Constant nodes under their output's name) and
  // may return null to keep it. Values have the tensor's shape and the file's dtype or f32/f64, and
  // are converted to the file's dtype. Everything else is preserved byte for byte. `extra_metadata`
  // is added or replaced. External data is written beside the new model: a data file called after
  // the old model is called after the new one, others get the new model's name in front, unless
  // source and target have the same file name. Throws Error(kIo); then the old files still stand.
  using ValueOf = std::function<const HostTensor*(const std::string& name)>;
  void export_model(const std::string& path, const ValueOf& value,
                    const std::map<std::string, std::string>& extra_metadata = {}) const;

 private:
  struct State;
  explicit OnnxFile(std::unique_ptr<State> state);
  static std::unique_ptr<OnnxFile> load(std::unique_ptr<State> state, const OpTable& ops,
                                        const ImportOptions& options);
  std::unique_ptr<State> state_;
};

}  // namespace ortrain
