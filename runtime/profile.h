// Profile: what an executor's step times mean, by operator and node, against what the machine can
// do. `peak` is measured on the machine (runtime/cli/machine.h); a rate above it says that the
// bytes came from a cache, or that the operator did less than its formula.
#pragma once

#include <string>

#include "runtime/executor.h"

namespace ortrain {

// What all threads together reach in the best case; 0: not measured.
struct MachinePeak {
  double gflops = 0, gbytes = 0;  // per second; f32 product, memory read and written
};

// Tables: by operator and kernel, then the `slowest` nodes. Columns: time, share of the step,
// GF/s, GB/s, and the share of the peak: of the one of the two that allows the least.
std::string profile_text(const Executor& executor, const MachinePeak& peak = {}, int slowest = 20);

}  // namespace ortrain
