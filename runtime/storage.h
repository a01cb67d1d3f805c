// Decides which values of a graph share memory: views, in-place operators, state updates written
// straight into the state. A pure function of (graph, order); plan.cc turns it into addresses.
//
// Time: node at index i of the order runs at i; with N nodes, N = contents that would be
// overwritten are saved, N+1 = the remaining state updates are copied, N+2 = the caller reads the
// outputs. Promises (I5, I8): nobody reads memory after another value was written to it.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"
#include "runtime/memplan.h"

namespace ortrain {

struct Home {
  enum class Kind : uint8_t { kNowhere, kArena, kStored, kConst, kInput };
  Kind kind = Kind::kNowhere;
  int index = -1;  // kArena: interval; kStored, kConst: the source's ValueId; kInput: input number
};

struct CopyAtEnd {
  Home from, to;
  size_t bytes = 0;
};

struct Storage {
  std::vector<Home> home;           // per value; what is used for nodes' inputs and outputs
  std::vector<Home> output_home;    // per graph output
  std::vector<Interval> intervals;  // of the arena
  std::vector<CopyAtEnd> copies;    // in order
  int in_place = 0;                 // outputs that overwrite an input
  int direct_updates = 0;           // updates that need no copy
};

Storage assign_storage(const Graph& g, std::span<const NodeId> order);

}  // namespace ortrain
