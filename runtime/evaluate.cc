// See evaluate.h.
#include "runtime/evaluate.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "graph/error.h"
#include "runtime/select.h"

namespace ortrain {
namespace {

bool evaluate(const Graph& g, NodeId n, std::vector<HostTensor>& outputs) {
  const Node& node = g.node(n);
  std::vector<const void*> in;
  for (ValueId v : node.inputs) {
    if (v != kNone && g.value(v).source != Source::kConst) return false;
    in.push_back(v == kNone ? nullptr : g.tensor(v)->raw());
  }
  for (ValueId v : node.outputs)
    if (v != kNone && (!g.value(v).typed || !g.value(v).shape.is_const())) return false;
  const SelectOptions options{.reference = true};
  if (!has_kernel(g, n, options)) return false;

  outputs.clear();
  std::vector<void*> out;
  for (ValueId v : node.outputs) {
    outputs.push_back(v == kNone ? HostTensor()
                                 : HostTensor(g.value(v).dtype, g.value(v).shape.values()));
    out.push_back(v == kNone ? nullptr : outputs.back().mutable_raw());
  }
  if (node.op->view) {
    if (outputs[0].bytes()) std::memcpy(out[0], in[0], outputs[0].bytes());
    return true;
  }
  in.resize(std::max(in.size(), node.op->inputs.size()), nullptr);
  out.resize(std::max(out.size(), node.op->outputs.size()), nullptr);
  const Selection s = select_kernel(g, n, options);
  const HostTensor workspace(DType::kU8, {static_cast<int64_t>(s.kernel.workspace)});
  Fault fault;
  KernelArgs args;
  args.in = in.data();
  args.out = out.data();
  args.workspace = const_cast<void*>(workspace.raw());
  args.fault = &fault;
  s.kernel.run(args);
  if (fault.raised)
    fail(ErrorCode::kModel, "index ", fault.value, " at position ", fault.position, " of ",
         g.describe(n), " is outside [", fault.low, ", ", fault.high, ")");
  return true;
}

}  // namespace

Evaluate make_evaluator() { return evaluate; }

}  // namespace ortrain
