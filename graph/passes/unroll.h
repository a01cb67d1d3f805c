// Unroll: the walk of pass infer. It types and folds what the outputs need, producers first, and
// dissolves structural operators (structure.h) on the way, where every size is already a number.
//
// If with a known condition becomes its branch, before the other branch is looked at; on run-time
// data both branches are computed and chosen from with Where. Loop, Scan and SequenceMap become
// copies of their bodies, each typed and folded before the next is made, so that conditions that
// count fold as they go. Sequences and optionals become lists of values kept here. Refuses, with
// the node and what is not known: trip counts, positions and lengths that depend on data, branches
// of different shapes, and graphs that would grow beyond kMostCopies nodes.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/pipeline.h"
#include "graph/structure.h"

namespace ortrain {

class Unroll {
 public:
  static constexpr int64_t kMostCopies = 200'000;  // nodes that all bodies together may become
  static constexpr int64_t kMostLookedAt = int64_t{1} << 26;  // nodes seen while looking for bodies

  Unroll(Graph& g, PassContext& ctx);
  void run();
  int typed = 0, folded = 0, dissolved = 0;

 private:
  // A sequence (or optional, with 0 or 1 items) as a list of values. An item may be a list itself.
  struct List {
    bool optional = false;
    std::vector<ValueId> items;
    ValueId split = kNone;  // not cut yet: `split` along `axis`, in pieces of `piece` or `sizes`
    std::vector<int64_t> sizes;  // empty: all have `piece`
    int64_t piece = 1, axis = 0;
    bool squeeze = false;
  };
  struct Body {
    NodeId params = kNone;      // the ortrain.Body node
    int token = 0;              // position of its output 0 among the owner's inputs
    std::vector<NodeId> slice;  // what depends on params and is needed, producers first
    int64_t cost() const { return static_cast<int64_t>(slice.size()) + 1; }
  };
  using Handler = void (Unroll::*)(NodeId);
  static Handler handler(const OpDef& op);

  // unroll.cc: the walk
  bool done(NodeId n) const;
  void mark_done(NodeId n);
  int eager(NodeId n) const;  // inputs that must be known before the node is looked at
  void need(NodeId n);
  void need_input(NodeId n, int i);
  void process(NodeId n);
  void throw_problems() const;  // of all nodes at once
  void erase(NodeId n);         // and what only it needed
  void replace(ValueId from, ValueId to);
  void split_outputs();
  // Why the contents of v are not known now, as half a sentence.
  std::string cause(ValueId v) const;
  [[noreturn]] void refuse(NodeId n, const std::string& why) const;
  const HostTensor* known(NodeId n, int i) const;  // constant contents of input i, else null
  std::optional<int64_t> position(NodeId n, int i, const char* what) const;
  ValueId input(NodeId n, int i) const;
  bool wanted(NodeId n, int output) const;
  const List* list(ValueId v) const;

  // unroll_body.cc: bodies
  int token_of(NodeId n) const;
  Body body_of(NodeId n, const std::vector<bool>& use);  // the results that are used
  void charge(NodeId n, int64_t nodes);
  // Another copy of the body with `args` for its inputs; its results become inputs base, base + 1,
  // ... of n, visited. `use` says which.
  void iterate(NodeId n, const Body& body, const std::vector<ValueId>& args, int64_t i, int base,
               ValueId active, const std::vector<bool>& use);
  ValueId keep(std::vector<ValueId> values);
  ValueId stacked(NodeId n, std::vector<ValueId> pieces, int64_t axis, bool backwards);
  ValueId empty_stack(NodeId n, ValueId piece, int64_t axis);
  std::vector<ValueId> cut(NodeId n, ValueId x, int64_t axis);
  void loop(NodeId n);
  void scan(NodeId n);
  std::vector<ValueId> scan_once(NodeId n, const Body& body, std::vector<ValueId> states,
                                 const std::vector<ValueId>& xs, const std::vector<int64_t>& axes,
                                 const std::vector<bool>& use);
  void per_iteration(NodeId n);
  void missing(NodeId n);

  // unroll_branch.cc: run-time conditions
  void branch(NodeId n);
  // One value of two, by a condition of one element; same types, or a refusal naming `what`.
  ValueId select(NodeId n, ValueId condition, ValueId a, ValueId b, const std::string& what);
  ValueId scalar(NodeId n, ValueId condition);  // the condition without axes
  ValueId gate(ValueId v, ValueId active, const std::string& origin);
  void gate_node(NodeId n);
  void gate_branch(NodeId n, int begin, int end, ValueId active);
  void refuse_states(NodeId n, NodeId inner) const;

  // unroll_sequence.cc: sequences and optionals
  ValueId new_list(List list, const std::string& origin);
  const std::vector<ValueId>& items(NodeId n, ValueId sequence);
  int64_t count(NodeId n, const List& q, const char* what) const;
  ValueId item(NodeId n, const List& q, int64_t index);
  void give(NodeId n, List list);
  const List& need_list(NodeId n, int i) const;
  void sequence_construct(NodeId n);
  void sequence_empty(NodeId n);
  void sequence_at(NodeId n);
  void sequence_insert(NodeId n);
  void sequence_erase(NodeId n);
  void sequence_length(NodeId n);
  void split_to_sequence(NodeId n);
  void concat_from_sequence(NodeId n);
  void sequence_map(NodeId n);
  void optional(NodeId n);
  void optional_get(NodeId n);
  void optional_has(NodeId n);

  Graph& g_;
  PassContext& ctx_;
  const bool training_;
  std::vector<char> done_;
  std::unordered_map<ValueId, List> lists_;
  int64_t copied_ = 0, listed_ = 0, looked_at_ = 0;
  std::vector<Error> problems_;
  std::unordered_set<ValueId> failed_;  // what could not be typed, and what depends on it
  int inside_ = 0;                      // structural nodes being dissolved
};

}  // namespace ortrain
