// Where values first stopped being finite: runs a plan once more, node by node, and describes the
// first node that made a NaN (or an infinity that became one) out of finite inputs, with what its
// inputs held there and what to do about it.
//
// Promises: no parameter and no state changes, but those of a window of micro-batches. Infinities
// that the model or the data hold on purpose (masks) are no finding; NaN in them is.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/executor.h"

namespace ortrain {

struct BadNode {
  std::string op;    // of the step found
  std::string text;  // one paragraph
};

// `inputs` as Executor::run(). Nothing when all values are finite.
std::optional<BadNode> find_bad_node(Executor& executor, const ParamStore* store,
                                     std::span<const void* const> inputs, bool scaled_loss = false);

}  // namespace ortrain
