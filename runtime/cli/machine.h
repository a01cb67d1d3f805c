// What this machine is and what it can do at best: for profiles, reports and run.json.
#pragma once

#include <cstdint>
#include <string>

#include "graph/op_def.h"
#include "runtime/profile.h"

namespace ortrain::cli {

struct Machine {
  std::string host, cpu, system, simd;  // "Linux 6.1.0 x86_64", "avx512 ..."
  int cores = 0;                        // usable
  uint64_t memory = 0;                  // bytes, or the container's limit
};
Machine this_machine();

// Measured now, about 0.3 s: an f32 product of 1024 x 1024 matrices by the kernel that training
// would take, and a copy of memory that no cache holds, both by `select.threads` threads.
MachinePeak measure_peak(const OpTable& ops, const SelectOptions& select);

// Bytes of this process in memory now, and the most there ever were.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace ortrain::cli
