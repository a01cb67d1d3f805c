// recompute: values that backward reads much later are given up and made again, by copies of the
// nodes that made them, right before they are needed, as often as the budget asks for.
//
// Promises: bits do not change, since a copy is the same operator on the same operands (random
// numbers come from counters, running statistics are updated by the original only); the planned
// arena is at most RecomputeSpec::arena_bytes wherever the search finds a sequence that fits, and
// the smallest that it found otherwise (the caller compares). `bound` is what one node needs for
// itself: no order and no recomputation gets below it. See recompute_search.h for what is tried.
// Mode sqrt: about sqrt(n) segments, no search.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/passes/recompute_rewrite.h"
#include "graph/passes/recompute_search.h"

namespace ortrain {
namespace {

// Without a runtime: 50 GFLOP/s and 10 GB/s.
MemoryModel::Cost guess(const Graph& g, NodeId n) {
  const Node& x = g.node(n);
  double bytes = 0;
  for (const auto* list : {&x.inputs, &x.outputs})
    for (ValueId v : *list)
      if (v != kNone && g.value(v).shape.is_const())
        bytes += static_cast<double>(element_count(g.value(v).shape.values())) *
                 static_cast<double>(size_of(g.value(v).dtype));
  return {(x.op->flops ? x.op->flops(g, x) : 0) / 50e6 + bytes / 10e6, 0};
}

std::string percent(double part, double whole) {
  return whole > 0 ? cat(static_cast<int>(std::lround(100 * part / whole)), " %") : "0 %";
}

}  // namespace

void pass_recompute(Graph& g, PassContext& ctx) {
  const RecomputeSpec& spec = ctx.spec.recompute;
  if (g.outputs().empty() || (spec.mode == "auto" && spec.arena_bytes == 0)) return;
  if (ctx.memory) ctx.memory->lower(g);
  const auto cost = [&](NodeId n) { return ctx.memory ? ctx.memory->cost(g, n) : guess(g, n); };
  RecomputeReport& report = ctx.recompute;
  if (ctx.memory) {
    report.arena_before = report.arena_after = ctx.memory->arena_bytes(g);
    if (spec.mode == "auto" && report.arena_before <= spec.arena_bytes) return;
  }
  RecomputeModel model(g, g.outputs()[0], cost);
  report.step_ms = model.step_ms();
  const auto [bound, largest] = model.bound();
  report.bound = bound;
  if (bound > 0) report.bound_node = g.describe(g.order[static_cast<size_t>(largest)]);
  if (!ctx.memory) {
    report.arena_before = report.arena_after = model.run(model.base(), 0).peak;
    if (spec.mode == "auto" && report.arena_before <= spec.arena_bytes) return;
  }
  if (model.forward() < 2) return;
  // The arena exactly as it will be planned.
  const auto planned = [&](const RecomputeModel::Sequence& sequence) {
    if (!ctx.memory) return model.run(sequence, 0).peak;
    Graph trial = g.share();
    apply_recompute(trial, model, sequence);
    return ctx.memory->arena_bytes(trial);
  };
  RecomputeModel::Sequence best;
  if (spec.mode == "sqrt") {
    const int segments = static_cast<int>(std::lround(std::sqrt(model.forward())));
    best = in_segments(model, std::max(segments, 1));
    model.run(best, 0);
    best = model.needed(best);
    report.arena_after = planned(best);
  } else {
    best = find_sequence(model, spec.arena_bytes, planned);
    const size_t arena = planned(best);
    if (arena >= report.arena_before) return;
    report.arena_after = arena;
  }
  const RecomputeModel::Outcome outcome = model.run(best, 0);
  apply_recompute(g, model, best);
  report.extra_ms = std::max(outcome.ms, 0.0);
  report.copies = outcome.copies;
  ctx.did =
      cat(outcome.copies, " nodes run again: arena ", report.arena_before, " -> ",
          report.arena_after, " bytes, predicted time +", percent(report.extra_ms, report.step_ms));
}

}  // namespace ortrain
