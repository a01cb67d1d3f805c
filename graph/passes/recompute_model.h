// A training step reduced to what recomputation needs: which node makes and reads which memory, how
// many bytes, how long it runs. Answers "what would this sequence of nodes and second runs cost?"
// in microseconds, without touching the graph.
//
// A value stands for all views of it. A sequence has every node once and any number of copies of
// any node; a reader gets what was made last before it. Bytes follow runtime/storage.h (views, in
// place, updates straight into the state), so that `peak` is the lower bound of the arena that
// runtime/memplan.h then plans.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/pipeline.h"

namespace ortrain {

class RecomputeModel {
 public:
  using Cost = std::function<MemoryModel::Cost(NodeId)>;
  // g is scheduled; `loss` ends the forward pass.
  RecomputeModel(const Graph& g, ValueId loss, const Cost& cost);

  struct Item {
    int node = 0;        // position in the graph's order
    bool copy = false;   // a second run of that node
    uint64_t makes = 0;  // of a copy: the outputs that are read from it, see bit()
  };
  using Sequence = std::vector<Item>;
  static uint64_t bit(size_t output) { return uint64_t{1} << (output < 63 ? output : 63); }

  struct Outcome {
    bool valid = true;  // nothing is read before it is there, no state after it was overwritten
    size_t peak = 0;
    double over = 0;  // sum over the steps of the bytes above `target`
    double ms = 0;    // of what runs twice
    int copies = 0;
  };
  struct Memory {  // a value with its views
    size_t bytes = 0;
    int producer = -1;           // position; -1 = source
    bool kept = false;           // read behind the last step
    bool droppable = false;      // may be made again
    bool saved = false;          // backward reads what forward made
    std::vector<int> uses = {};  // positions that read it
  };
  struct Step {
    std::vector<int> reads, makes;             // values; makes[i] = -1: no output i
    std::vector<std::pair<int, int>> inplace;  // (made, read)
    std::vector<int> writers;    // positions of the nodes that overwrite what it reads
    std::vector<bool> optional;  // per output
    size_t workspace = 0;
    double ms = 0;
    bool view = false;
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Memory>& values() const { return values_; }
  int forward() const { return forward_; }  // nodes of the forward pass
  double step_ms() const { return step_ms_; }
  // The step as it is.
  Sequence base() const;
  // Each dropped value is made again once, right before its first reader in backward, and stays.
  Sequence with_dropped(const std::vector<char>& dropped);
  // A copy writes output i of its node: where it is read, must be or is small.
  bool written(const Item& copy, size_t output) const;

  Outcome run(const Sequence& sequence, size_t target);
  // Of the last run, without what nobody reads.
  Sequence needed(const Sequence& sequence) const;
  // No order and no recomputation gets below what one node needs: its bytes and position.
  std::pair<size_t, int> bound() const;

  int value_of(ValueId v) const { return root_[static_cast<size_t>(v)]; }

 private:
  struct Instance {
    int value, last;  // last: index in the sequence of the last reader; -1 = none
    int reads;
    bool copy;
  };

  void build(const Graph& g, ValueId loss, const Cost& cost);
  void find_droppable();
  bool resolve(const Sequence& sequence);
  void find_dead(const Sequence& sequence);
  void make_again(int value, const std::vector<char>& dropped, Sequence& out);
  void postpone(int writer, Sequence& out);

  std::vector<int> root_;  // per ValueId, -1 = not in the arena
  std::vector<Memory> values_;
  std::vector<Step> steps_;
  int forward_ = 0;
  double step_ms_ = 0;
  // Of the last run, per item: where its reads and its instances begin.
  std::vector<Instance> instances_;
  std::vector<int> reads_, reads_at_, made_at_, current_, taken_;
  std::vector<char> alive_, done_;
  // Of with_dropped().
  std::vector<char> again_;  // per value
  std::vector<char> late_;   // per node: a state update put off behind a copy that reads the state
  std::vector<int> at_;      // per node: its place, -1 = not yet
  std::vector<int> stack_;
};

}  // namespace ortrain
