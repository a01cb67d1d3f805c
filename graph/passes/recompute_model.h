// A training step reduced to what recomputation needs: which node makes and reads which memory, how
// many bytes, how long it runs. Answers "what would the step cost if these values were dropped
// after the forward pass and made again where backward first reads them?" in microseconds, without
// touching the graph.
//
// A value stands for all views of it. A dropped value is made again once, by copies of its producer
// and, where its inputs are dropped too, of theirs; it then lives to its last use. Bytes follow
// runtime/storage.h (views, in place, updates straight into the state), so that `peak` is the lower
// bound of the arena that runtime/memplan.h then plans.
#pragma once

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
    int node = 0;       // position in the graph's order
    bool copy = false;  // a second run of that node
  };
  struct Outcome {
    size_t peak = 0;
    double over = 0;  // sum over the steps of the bytes above `target`
    double ms = 0;    // of what runs twice
    int copies = 0;
  };
  struct Candidate {
    int value = 0;       // index of `dropped`
    bool saved = false;  // backward reads it
    size_t bytes = 0;
    int made = 0, last_forward_use = 0;  // positions
  };

  // Per value: dropped or not. Values that nothing in backward reads start dropped: they come again
  // only where a dropped one needs them.
  std::vector<char> nothing_dropped() const;
  const std::vector<Candidate>& candidates() const { return candidates_; }
  int forward() const { return forward_; }  // nodes of the forward pass
  double step_ms() const { return step_ms_; }

  Outcome run(const std::vector<char>& dropped, size_t target);
  // Of the last run: the step in order. A copy makes output i of its node when `wanted`.
  std::vector<Item> items() const;
  bool wanted(int node, size_t output, const std::vector<char>& dropped) const;
  // What a read of v means: the copy where v was dropped and the reader runs in backward.
  int value_of(ValueId v) const { return root_[static_cast<size_t>(v)]; }
  bool droppable(int value) const { return values_[static_cast<size_t>(value)].droppable; }

 private:
  struct Memory {  // a value with its views
    size_t bytes = 0;
    int producer = -1;  // position; -1 = source
    bool droppable = false, saved = false, kept = false;
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
  struct Placed {
    int node;
    bool copy, alive, moved;
    size_t reads;  // where its reads begin in reads_
  };

  void build(const Graph& g, ValueId loss, const Cost& cost);
  void find_droppable(const Graph& g);
  void arrange(const std::vector<char>& dropped);
  void make_again(int value, const std::vector<char>& dropped);
  void postpone(int writer);
  void place(int node, bool copy, const std::vector<char>& dropped);
  void drop_unread();
  int instance(int value, bool copy) const { return 2 * value + copy; }

  std::vector<int> root_;  // per ValueId, -1 = not in the arena
  std::vector<Memory> values_;
  std::vector<Step> steps_;
  std::vector<Candidate> candidates_;
  int forward_ = 0;
  double step_ms_ = 0;
  // Of the last run.
  std::vector<Placed> placed_;
  std::vector<int> reads_;   // instances
  std::vector<char> again_;  // per value
  std::vector<char> late_;   // per node: a state update put off behind a copy that reads the state
  std::vector<int> at_;      // per node: its place, -1 = not yet
  std::vector<int> count_, last_, stack_;
};

}  // namespace ortrain
