// Plan: a compiled graph as a flat list of prepared kernels and planned addresses. Everything that
// can fail fails here, before step 1.
//
// A plan holds no names that the loop needs and no pointer into the graph: the graph may go once
// the plan is made. Persistent values lie in the ParamStore, the rest at offsets of one arena that
// plans may share (they run one at a time). Graph inputs are bound to the caller's memory per run.
// peak bytes = arena + store, which is what is allocated, to the byte.
#pragma once

#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/kernel.h"
#include "runtime/param_store.h"
#include "runtime/select.h"

namespace ortrain {

// Where a tensor lies.
struct Place {
  enum class Kind : uint8_t { kAbsent, kArena, kFixed, kInput };
  Kind kind = Kind::kAbsent;
  size_t offset = 0;                 // kArena: bytes; kInput: number of the graph input
  const std::byte* fixed = nullptr;  // kFixed: in the store
};

struct PlanTensor {
  std::string name;
  DType dtype = DType::kUndefined;
  Dims dims;
  Place place;
  size_t bytes() const { return static_cast<size_t>(element_count(dims)) * size_of(dtype); }
};

struct PlanStep {
  Kernel kernel;
  std::vector<Place> in;
  std::vector<PlanTensor> out;
  size_t workspace = 0;  // offset in the arena, when kernel.workspace > 0
  // For people and for profiles.
  std::string node;  // Graph::describe
  std::string op, chosen;
  bool again = false;  // a copy that pass recompute made
  double flops = 0;
  size_t bytes = 0;  // read and written
};

struct PlanCopy {
  Place from, to;
  size_t bytes = 0;
};

// What lies in the arena when: `bytes` at `offset` from step `first` to step `last`, both
// inclusive. For people; values that take over the memory of another (in place, views) have blocks
// of their own.
struct PlanBlock {
  std::string name;  // of the value
  size_t offset = 0, bytes = 0;
  int first = 0, last = 0;
  bool scratch = false;  // workspace of a kernel; else a value
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<PlanCopy> copies;             // after the steps, in order
  std::vector<PlanTensor> inputs, outputs;  // an input that nothing reads has place kAbsent
  std::vector<PlanBlock> blocks;
  size_t arena_bytes = 0;
  // Facts, printed by summary().
  size_t arena_lower_bound = 0, workspace_bytes = 0;  // largest workspace
  std::string arena_order;
  int views = 0, in_place = 0, direct_updates = 0;
  double flops = 0;
  std::vector<std::string> kernels;              // explain lines, one per node
  size_t params = 0, states = 0, constants = 0;  // bytes in the store when this plan was made

  int output(std::string_view name) const;  // index, -1 when there is none
  size_t peak_bytes() const { return arena_bytes + params + states + constants; }
};

// Makes the plan of a compiled graph whose shapes are numbers. Adds what the store lacks. Nodes
// that no kernel accepts are decomposed first, in g itself.
Plan make_plan(Graph& g, ParamStore& store, const SelectOptions& options,
               const ParamStore::Copied& copied = {});

// "2.1 MiB parameters + 4.2 MiB states + ... = 10.9 MiB", then how the arena was planned.
std::string memory_text(const Plan& plan);
// "10.9 MiB" and the like.
std::string bytes_text(size_t bytes);

// The memory that plans share: reserve() for each, then allocate() once.
class Arena {
 public:
  void reserve(size_t bytes) { want_ = bytes > want_ ? bytes : want_; }
  void allocate();
  std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return buffer_.bytes(); }

 private:
  size_t want_ = 0;
  Buffer buffer_;
};

}  // namespace ortrain
