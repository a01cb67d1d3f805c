// Graph: the one intermediate representation. Values and Nodes live in vectors and are named by
// dense int ids.
//
// Promises: a value has one producer and an exact use list (I1); erased nodes keep their id and are
// skipped by topo(). Everything about a training step is in here: forward, loss, backward,
// optimizer, and the state updates it ends with. Refuses: name-based lookup after import (names are
// for people and for files); shape arithmetic while training. Reading order for the rest: op_def.h
// (what an operator is), builder.h (how passes add nodes), pipeline.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/attrs.h"
#include "graph/shape.h"
#include "graph/tensor.h"

namespace ortrain {

struct OpDef;
class OpTable;

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr int32_t kNone = -1;

// Where a value comes from. kParam: a float tensor that the file carries as data. kState: what a
// step reads and replaces (BN statistics, moments, step counter). kConst: known now and never
// changed.
enum class Source : uint8_t { kNode, kInput, kParam, kState, kConst };

struct Value {
  DType dtype = DType::kUndefined;
  Shape shape;
  bool typed = false;  // dtype and shape are valid (after inference)
  Source source = Source::kNode;
  NodeId producer = kNone;  // kNode only
  int output_index = 0;
  std::vector<NodeId> uses;  // one entry per use: a node that reads the value twice is listed twice
  std::string name;          // from the file, or made up by a pass; may be empty
  int32_t tensor = kNone;    // kConst: contents; kParam, kState: initial contents (Graph::tensor)
  bool has_ints = false;     // `ints` holds the contents, elementwise, of a small integer tensor
  std::vector<Dim> ints;     // (carries shapes through Shape -> Gather -> Concat -> Reshape)
};

struct Node {
  const OpDef* op = nullptr;     // null once erased
  std::vector<ValueId> inputs;   // kNone = optional input left out
  std::vector<ValueId> outputs;  // kNone = optional output not wanted
  Attrs attrs;
  std::string
      origin;  // source node's name and type, then the passes that made this one: "conv1|autodiff"
  int device = 0;
  int stream = 0;
};

// What is known about a parameter beyond its value. Decided by attach_loss, printed by inspect.
struct ParamInfo {
  bool trainable = false;
  std::string reason;         // why, in words
  std::vector<int64_t> perm;  // the layout pass may keep a parameter transposed: physical axis i is
                              // logical axis perm[i]; empty = as in the file
};

// At the end of a step `state` takes the contents of `next` (same dtype and shape). Parameters and
// states alike.
struct StateUpdate {
  ValueId state = kNone;
  ValueId next = kNone;
};

enum class Stage : uint8_t { kImported, kInferred, kDifferentiated, kPlaced, kScheduled };
std::string_view name_of(Stage stage);

class Graph {
 public:
  explicit Graph(const OpTable& ops) : ops_(&ops) {}
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  // A copy whose constants and initial values are views into this graph, which must outlive it.
  Graph share() const;

  const OpTable& ops() const { return *ops_; }
  Stage stage = Stage::kImported;
  std::string name;

  // Sources
  // -------------------------------------------------------------------------------------------------
  ValueId add_input(std::string name, DType dtype, Shape shape);
  ValueId add_const(HostTensor contents, std::string name = {});
  ValueId add_param(HostTensor initial, std::string name);
  ValueId add_state(HostTensor initial, std::string name);
  // Turns an existing source into another kind (a parameter into a constant, a constant into a
  // state, ...).
  void set_source(ValueId v, Source source);

  // Nodes
  // ---------------------------------------------------------------------------------------------------
  // Adds a node with `outputs` fresh values, not typed yet. Inputs may be kNone. Order of creation
  // is free.
  NodeId add_node(const OpDef& op, std::vector<ValueId> inputs, Attrs attrs, int outputs,
                  std::string origin);
  // Asks for an output of an existing node that was kNone or beyond its list.
  ValueId add_output(NodeId n, int index);
  void set_input(NodeId n, int index, ValueId v);  // appends kNone as needed
  // Every use of `from` (nodes, graph outputs, update.next) becomes a use of `to`.
  void replace_uses(ValueId from, ValueId to);
  // Erases the node when nothing uses its outputs; returns whether it did. Does not cascade.
  bool erase_if_dead(NodeId n);
  // Erases every node that no output and no update needs; returns how many.
  int erase_dead();
  // Types the outputs of a node by its op's infer rule; errors carry the node's origin.
  void infer(NodeId n);

  // Outputs and updates
  // --------------------------------------------------------------------------------------
  void add_output(ValueId v, std::string output_name);
  void set_output(int index, ValueId v);
  void clear_outputs();
  void add_update(ValueId state, ValueId next);
  void set_update(int index, ValueId next);

  // Access
  // ----------------------------------------------------------------------------------------------------
  const Value& value(ValueId v) const { return values_[static_cast<size_t>(v)]; }
  Value& value(ValueId v) { return values_[static_cast<size_t>(v)]; }
  const Node& node(NodeId n) const { return nodes_[static_cast<size_t>(n)]; }
  Node& node(NodeId n) { return nodes_[static_cast<size_t>(n)]; }
  int value_count() const { return static_cast<int>(values_.size()); }
  int node_count() const { return static_cast<int>(nodes_.size()); }  // erased ones included
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }
  const std::vector<StateUpdate>& updates() const { return updates_; }
  // Contents of a kConst, or initial contents of a kParam/kState; null when there are none.
  const HostTensor* tensor(ValueId v) const;
  void set_tensor(ValueId v, HostTensor contents);
  // All live values of one source kind, by id.
  std::vector<ValueId> sources(Source kind) const;
  ValueId find(std::string_view name) const;  // linear; import, command line and tests only
  std::map<ValueId, ParamInfo> params;
  // The execution order that the schedule pass chose: every live node once. Empty before that pass:
  // then topo() is the order.
  std::vector<NodeId> order;

  // Live nodes, producers before users, stable: nodes that do not depend on one another keep their
  // id order. Throws Error(kModel) naming the nodes on a cycle.
  std::vector<NodeId> topo() const;

  // "Conv 'conv1' (features.0|autodiff)": how a node is named to people.
  std::string describe(NodeId n) const;
  // Name of a value for people: its name, or "%12".
  std::string describe_value(ValueId v) const;

 private:
  ValueId new_value();
  void drop_use(ValueId v, NodeId n);
  const OpTable* ops_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_, outputs_;
  std::vector<std::string> output_names_;
  std::vector<StateUpdate> updates_;
  std::vector<HostTensor> tensors_;
};

// A table with one T per value of a graph; grows on access. For facts that belong to one pass.
template <class T>
class PerValue {
 public:
  explicit PerValue(const Graph& g, T missing = T())
      : missing_(missing), data_(static_cast<size_t>(g.value_count()), missing) {}
  typename std::vector<T>::reference operator[](ValueId v) {
    if (static_cast<size_t>(v) >= data_.size()) data_.resize(static_cast<size_t>(v) + 1, missing_);
    return data_[static_cast<size_t>(v)];
  }

 private:
  T missing_;
  std::vector<T> data_;
};

// Text form: one line per value or node; print_graph and parse_graph are inverse up to ids,
// erased things and constants that nothing uses.
//   input %0:f32[B,3] "x"            param %1:f32[4,3] "w" = {1, 2, ...}      const, state alike
//   %5:f32[B,768] = MatMul(%3, %4) {transB=1} #origin
//   output %5 "y"                    update %1 <- %9
// Contents are printed up to 16 elements unless `all_contents`.
std::string print_graph(const Graph& g, bool all_contents = false);
Graph parse_graph(std::string_view text, const OpTable& ops);

// Problems of a graph against the invariants of its stage, one per line; empty when it is sound.
std::string verify(const Graph& g);

}  // namespace ortrain
