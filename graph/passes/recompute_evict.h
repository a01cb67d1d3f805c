// One run through a step under a hard cap of bytes: where the next node does not fit, a value that
// is there is given up; where a value is read that is not, it is made again, and what it needs
// before, as often as it takes. After Kirisame et al., "Dynamic Tensor Rematerialization" (2021),
// with the step known ahead: the next use replaces staleness.
//
// Promises: the sequence found is valid and within the cap as RecomputeModel::run counts it, give
// or take what is read by nobody in the end; nullopt where the rule at hand finds none. Time is
// linear in the length of the sequence times the number of values, and bounded.
#pragma once

#include <optional>

#include "graph/passes/recompute_model.h"

namespace ortrain {

// A value's worth: time to make it again ^ time / (bytes ^ bytes * time to its next use ^ wait);
// the least goes first. With `count`, time is the number of nodes: the result then depends on no
// measurement.
struct EvictRule {
  double time = 1, bytes = 1, wait = 1;
  bool count = false;
};

std::optional<RecomputeModel::Sequence> evict_until_fits(const RecomputeModel& model, size_t cap,
                                                         const EvictRule& rule);

}  // namespace ortrain
