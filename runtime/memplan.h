// Offline memory planning: lifetimes in, offsets out. A pure function of its input.
//
// Promises: two intervals whose lifetimes touch never overlap in memory unless one is declared an
// alias of the other; offsets are 64-byte aligned; peak <= sum of sizes; equal input gives equal
// output. Several placement orders are tried and the best is kept; `lower_bound` is the largest sum
// of bytes live at one time, which no plan can beat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ortrain {

struct Interval {
  size_t bytes = 0;
  int first = 0, last = 0;  // steps, both inclusive
  int alias_of = -1;  // index of an interval whose memory this one shares (chains are followed)
};

struct MemPlan {
  std::vector<size_t> offsets;  // per interval
  size_t peak = 0;
  size_t lower_bound = 0;
  std::string order;  // the placement order that won
};

MemPlan plan_memory(std::span<const Interval> intervals);

}  // namespace ortrain
