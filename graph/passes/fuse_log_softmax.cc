// fuse_log_softmax: Log(Softmax(x)) becomes LogSoftmax(x), which stays finite where a probability
// is below the smallest number: a cross entropy that a file spells out so has a gradient for logits
// any distance apart. Other users of the probabilities keep them.
#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {

int fuse_log_softmax(Graph& g, PassContext&) {
  int places = 0;
  for (NodeId n : g.topo()) {
    const Node& log = g.node(n);
    if (!log.op || log.op->ew != Ew::kLog) continue;
    const Node* softmax = producer(g, log.inputs[0], "Softmax");
    if (!softmax) continue;
    const Attrs attrs = softmax->attrs;
    const ValueId x = softmax->inputs[0], y = log.outputs[0];
    Builder b(g, log.origin + "|log_softmax");
    g.replace_uses(y, b.op("LogSoftmax", {b.wrap(x)}, attrs).id());
    ++places;
  }
  return places;
}

}  // namespace ortrain
