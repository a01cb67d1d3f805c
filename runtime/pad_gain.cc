// See pad_gain.h.
#include "runtime/pad_gain.h"

#include <algorithm>
#include <cstdio>

#include "graph/op_def.h"
#include "runtime/evaluate.h"
#include "runtime/step_memory.h"

namespace ortrain {

PadGain pad_gain(const Graph& source, StepSpec spec, int64_t multiple, const SelectOptions& select,
                 bool measure) {
  PadGain gain;
  StepMemory memory(select);
  CompileOptions options;
  options.evaluate = make_evaluator();
  options.memory = &memory;
  spec.recompute = {};
  for (const bool padded : {false, true}) {
    spec.pad_multiple = padded ? multiple : 0;
    CompileResult r = compile(source, spec, options);
    if (padded)
      for (const PassNote& n : r.notes)
        if (n.pass == "pad_dims") gain.did = n.did;
    memory.lower(r.graph);
    double &ms = padded ? gain.after_ms : gain.before_ms,
           &gflop = padded ? gain.after_gflop : gain.before_gflop;
    for (NodeId n : r.graph.topo()) {
      const Node& x = r.graph.node(n);
      if (x.op->flops) gflop += x.op->flops(r.graph, x) / 1e9;
      if (measure && !x.op->view) ms += memory.cost(r.graph, n).ms;
    }
  }
  return gain;
}

std::string pad_gain_text(const PadGain& gain) {
  const auto percent = [](double before, double after) {
    return before > 0 ? 100 * (after / before - 1) : 0;
  };
  char text[160];
  std::snprintf(text, sizeof text, "%.3f instead of %.3f GFLOP per step (%+.1f %%)",
                gain.after_gflop, gain.before_gflop, percent(gain.before_gflop, gain.after_gflop));
  std::string out = gain.did + "; " + text;
  if (gain.before_ms > 0) {
    std::snprintf(text, sizeof text, ", %.2f ms instead of %.2f ms predicted (%+.1f %%: %s)",
                  gain.after_ms, gain.before_ms, percent(gain.before_ms, gain.after_ms),
                  gain.after_ms < gain.before_ms ? "faster" : "slower");
    out += text;
  }
  return out;
}

}  // namespace ortrain
