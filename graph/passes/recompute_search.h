// The search for the cheapest sequence of a step that keeps within a cap of bytes.
//
// Tried: running the step under the cap and giving up values by several rules (recompute_evict.h),
// and segment checkpointing with every number of segments (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016); what fits is then thinned out, the most expensive copies first.
// The number of attempts is bounded, whatever the size of the step.
#pragma once

#include <functional>

#include "graph/passes/recompute_model.h"

namespace ortrain {

// Everything goes but what forward needs across one of the borders between `segments` stretches of
// equal saved bytes, and but the last stretch, whose backward follows at once.
RecomputeModel::Sequence in_segments(RecomputeModel& model, int segments);

// The cheapest sequence found whose arena, as `planned` says, is at most `limit`; the one with the
// smallest arena when none is.
RecomputeModel::Sequence find_sequence(
    RecomputeModel& model, size_t limit,
    const std::function<size_t(const RecomputeModel::Sequence&)>& planned);

}  // namespace ortrain
