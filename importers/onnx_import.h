// Importer: ModelProto (the skeleton of onnx_index.h) -> Graph. Internal to importers/.
//
// Names are resolved here and nowhere later. Functions and branches with a known condition are
// inlined; other bodies lie flat in the graph (graph/structure.h), their tensors are parameters
// like others. Problems are collected over the whole model and thrown as one Error(kUnsupported);
// those of a branch that may not be taken are told when it is.
#pragma once

#include <onnx/onnx-ml.pb.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "importers/onnx.h"
#include "importers/onnx_tensor.h"

namespace ortrain {

// Where the file keeps a float tensor of the graph: what the export needs to write it back.
struct TensorSlot {
  enum class Where : uint8_t {
    kTensor,  // TensorProto number `site`
    kFloats,  // value_floats of a Constant node: message number `site`
    kNode,    // nowhere yet: node `site` becomes an initializer
    kInput,   // nowhere yet: input `input` of node `site` gets an initializer of its own
  };
  std::string name;
  Where where = Where::kTensor;
  int site = -1;
  int input = -1;
  DType dtype = DType::kUndefined;
  Dims dims;
  // The tensor that stands for this one in the file too, until they differ: once one of the two has
  // a new value, both are written.
  std::string split_from = {};
  bool resized = false;  // written whole: the file has another shape
};

// `copy` is `original` (transposed): one parameter in the graph, two tensors in the file.
struct TensorTie {
  std::string copy, original;
  bool transposed = false;
};

// The last layer before `output` got another number of classes.
struct HeadReset {
  std::string output;
  int64_t was = 0, classes = 0;  // 0: there is none
  bool convolution = false;
  std::set<std::string> tensors;  // weight and bias
  std::set<std::string> values;   // what is computed from them
  // Makes the description of an output or of another value fit; false when nothing changes.
  bool apply(onnx::ValueInfoProto& info) const;
  // Makes the model what an export makes of it, but for the data.
  void apply(onnx::GraphProto& graph, const std::vector<TensorSlot>& slots) const;
  static void resize_input(onnx::ValueInfoProto& info, const Dims& dims);
  std::string text() const;
};

class TorchNotes;

class Importer {
 public:
  Importer(const onnx::ModelProto& model, const FileIndex& index, const FileBytes& file,
           DataFiles& external, const OpTable& ops, const ImportOptions& options);
  void run();
  Graph graph;
  std::vector<TensorSlot> slots;
  std::vector<TensorTie> ties;
  HeadReset head;
  std::vector<std::string> notes;

 private:
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
  // What a name stands for. kTensor with id kNone: an optional function input that was left out.
  struct Named {
    enum class Kind : uint8_t {
      kTensor,
      kPoison,    // its producer had a problem that is already listed
      kUnusable,  // index into reasons_: a problem only if something reads it
    };
    Kind kind = Kind::kTensor;
    ValueId id = kNone;
    size_t index = 0;
  };
  // Names visible in a graph, a branch or a function body.
  struct Scope {
    const Scope* outer = nullptr;
    const Scope* caller = nullptr;  // of a function body
    const onnx::FunctionProto* function = nullptr;
    std::string prefix;  // of value names and origins
    const std::map<std::string, int>* opsets = nullptr;
    std::map<std::string, const onnx::AttributeProto*> attributes;  // of a function call
    int depth = 0;
    ValueId token = kNone;  // of the innermost loop body around
    std::unordered_map<std::string, Named> names;
    bool is_main() const { return depth == 0; }
  };
  struct StateUse {
    NodeId node;
    int input;
    int site;  // of the NodeProto, -1 inside functions and branches
  };

  // onnx_import.cc: graphs and plain nodes
  void add_inputs(Scope& s);
  void add_initializers(const onnx::GraphProto& g, Scope& s);
  void add_outputs(Scope& s);
  void add_nodes(const Nodes& nodes, Scope& s);
  void add_node(const onnx::NodeProto& p, int index, Scope& s);
  void add_op(const onnx::NodeProto& p, const std::string& origin, Scope& s);
  bool add_untied(const onnx::NodeProto& p, Scope& s);
  bool add_filled(const onnx::NodeProto& p, Scope& s);
  ValueId replaceable_input(const onnx::NodeProto& p, const Scope& s) const;
  void become_tensor(const onnx::NodeProto& p, HostTensor t, Scope& s);
  std::vector<int> order(const Nodes& nodes) const;
  const Named* find(const Scope& s, const std::string& name) const;
  Named read(const Scope& s, const std::string& name, const std::string& reader) const;
  const onnx::FunctionProto* function_of(const Scope& s) const;  // null outside of functions
  void define(Scope& s, const std::string& name, Named what);
  void define_value(Scope& s, const std::string& name, ValueId v);
  void poison(const onnx::NodeProto& p, Scope& s);
  void problem(const std::string& what, const std::string& origin);
  int opset(const Scope& s, const std::string& domain) const;
  void throw_problems() const;
  std::string unique_name(const std::string& wanted);
  void settle_states();
  void settle_constants();

  // onnx_repair.cc: what exporters break
  void repair();
  std::string separate_name(const TorchNotes& torch, const onnx::NodeProto& node,
                            const std::string& merged, const std::string& fallback);
  void separate_merged(const TorchNotes& torch);
  void tell_separated();
  void tie(ValueId original, ValueId copy, bool transposed);
  void find_twins(bool join);
  void tie_named(const std::string& text);
  void tell_folded(const TorchNotes& torch);

  void reset_head(const std::string& asked, uint64_t seed);  // onnx_head.cc

  // onnx_values.cc: tensors, constants, attributes
  Named add_tensor(const onnx::TensorProto& t, const std::string& name, bool exported);
  bool add_constant(const onnx::NodeProto& p, const std::string& origin, Scope& s);
  ValueId add_source(HostTensor t, const std::string& name, bool may_train);
  Named unusable(const std::string& reason);
  const onnx::AttributeProto* resolve(const onnx::AttributeProto& a, const Scope& s) const;
  // False when a problem was added.
  bool read_attributes(const onnx::NodeProto& p, const std::string& origin, const Scope& s,
                       Attrs& out);

  // onnx_inline.cc: functions, branches, loops
  const onnx::FunctionProto* find_function(const onnx::NodeProto& p) const;
  void inline_function(const onnx::NodeProto& p, const onnx::FunctionProto& f,
                       const std::string& origin, Scope& s);
  void add_if(const onnx::NodeProto& p, const std::string& origin, Scope& s);
  // onnx_flex.cc; false: there are no modifiers to inline
  bool add_flex_attention(const onnx::NodeProto& p, const std::string& origin, Scope& s);
  void add_loop(const onnx::NodeProto& p, const std::string& origin, Scope& s);
  const onnx::GraphProto* body_graph(const onnx::NodeProto& p, const char* name,
                                     const std::string& shown) const;
  std::optional<std::vector<ValueId>> read_inputs(const onnx::NodeProto& p,
                                                  const std::string& origin, Scope& s);
  std::optional<std::vector<ValueId>> add_body(const onnx::GraphProto& g, Scope& body,
                                               const std::string& origin, const std::string& shown);
  std::vector<ValueId> add_branch(const onnx::GraphProto& g, const std::string& origin,
                                  const std::string& shown, Scope& s);
  Scope inner_scope(const Scope& s, const std::string& origin) const;
  void define_outputs(const onnx::NodeProto& p, NodeId n, Scope& s);
  bool has_record(const char* op, const std::string& origin);

  const onnx::ModelProto& model_;
  const FileIndex& index_;
  const FileBytes& file_;
  DataFiles& external_;
  const OpTable& ops_;
  const ImportOptions options_;
  std::map<std::string, int> opsets_;
  std::map<std::string, const onnx::FunctionProto*> functions_;  // by domain:name:overload
  std::map<const onnx::FunctionProto*, std::map<std::string, int>> function_opsets_;
  std::unordered_map<const onnx::NodeProto*, ValueId> function_constants_;
  std::unordered_map<std::string, int> reads_;         // of names by nodes of the main graph
  std::unordered_map<std::string, int> weight_reads_;  // of them, where a record has a weight
  int64_t filled_ = 0;                                 // elements of filled weights so far
  std::set<std::string> output_names_, source_names_;
  std::vector<std::string> reasons_;
  std::map<std::string, std::vector<std::string>> merged_;     // tensor -> those it stood for
  std::unordered_map<NodeId, const onnx::NodeProto*> protos_;  // of the main graph's plain nodes
  std::set<std::string> node_names_;                           // of all outputs of its nodes
  std::vector<StateUse> state_uses_;
  std::vector<std::pair<std::string, std::vector<std::string>>> problems_;  // text -> node names
  int64_t nodes_seen_ = 0, name_bytes_ = 0;
};

std::string full_op_name(const std::string& domain, const std::string& op);
// "'a', 'b', 'c' and 12 more"
std::string list_names(const std::vector<std::string>& names, size_t most);
bool all_elements_equal(const HostTensor& t);
// Whether the operator's record has a weight or running statistics at input i.
bool takes_weight(const OpDef& def, int i);

}  // namespace ortrain
