// What the perf mode (tests/ops/perf_test.cc) runs: per operator one or more uses at a size that
// training meets, f32, some MB or some hundred MFLOP each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/op_def.h"

namespace ortrain::test {

struct PerfEntry {
  std::string op, label;
  Example use;
  double flops = 0;  // of forward, where the records do not count them
};
// Elementwise operators have no line of their own: an entry is made from their first example.
std::vector<PerfEntry> perf_table();
// Operators that are not measured, with the reason.
const std::map<std::string, std::string>& perf_skips();

}  // namespace ortrain::test
