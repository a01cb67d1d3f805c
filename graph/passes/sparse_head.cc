// sparse_head: the product that makes the logits of a cross entropy, forward and backward, for the
// positions that count alone; those with ignore_index are left out before it.
//
// Linear -> (views) -> ortrain.CrossEntropy with class indices becomes ortrain.ValidRows,
// ortrain.LinearRows and the cross entropy of compact logits. How many positions count is known in
// each step only; memory is that of all. Loss and gradients are the same sums without their zeros:
// equal to the bit with kernels that add in order. Left alone, with the reason in the note: classes
// not on the last axis, probabilities as labels, logits that something else reads, few classes.
#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr int64_t kFewClasses = 16;

struct Head {
  ValueId linear = kNone;  // what ortrain.Linear gives
  std::string why;         // else: why not
};

Head head_of(const Graph& g, const Node& loss) {
  const ValueId logits = loss.inputs[0];
  const Shape& x = g.value(logits).shape;
  if (is_float(g.value(loss.inputs[1]).dtype)) return {kNone, "labels are probabilities"};
  const int axis = normalize_axis(loss.attrs.i("axis", 1), x.rank());
  if (axis + 1 != x.rank()) return {kNone, "classes are not on the last axis"};
  if (!x.is_const() || x.count().value() == 0) return {kNone, "no known sizes"};
  if (x[axis].value() < kFewClasses) return {kNone, "few classes"};
  ValueId v = logits;
  for (;;) {
    if (!single_use(g, v)) return {kNone, "something else reads the logits"};
    const Node* n = producer(g, v);
    if (!n) return {kNone, "logits are no product with a weight"};
    if (n->op->name == "ortrain.Linear") return {v, {}};
    const Shape& from = g.value(n->inputs[0]).shape;
    if (!free_view(g, *n) || from.rank() < 1 || !(from[from.rank() - 1] == x[axis]))
      return {kNone, "logits are no product with a weight"};
    v = n->inputs[0];
  }
}

}  // namespace

void pass_sparse_head(Graph& g, PassContext& ctx) {
  int made = 0;
  std::string why;
  for (NodeId n : g.topo()) {
    if (g.node(n).op->name != "ortrain.CrossEntropy" || input(g.node(n), 3) != kNone) continue;
    const Head head = head_of(g, g.node(n));
    if (head.linear == kNone) {
      why += cat(why.empty() ? "" : ", ", head.why);
      continue;
    }
    const Node linear = *producer(g, head.linear), loss = g.node(n);
    Builder b(g, linear.origin + "|sparse_head");
    const Expr rows = b.op("ortrain.ValidRows", {b.wrap(loss.inputs[1])},
                           {{"ignore_index", loss.attrs.i("ignore_index", -100)}});
    const Expr y =
        b.op("ortrain.LinearRows",
             {b.wrap(linear.inputs[0]), b.wrap(linear.inputs[1]), b.wrap(input(linear, 2)), rows},
             {{"trans_b", linear.attrs.i("trans_b", 0)}});
    g.set_input(n, 0, y.id());
    g.set_input(n, 3, rows.id());
    g.node(n).attrs.set("axis", int64_t{1});
    g.infer(n);
    ++made;
  }
  g.erase_dead();
  if (made > 0)
    ctx.did = cat(made, made == 1 ? " head" : " heads", " for the positions that count");
  if (!why.empty()) ctx.did += cat(made > 0 ? "; " : "", "kept whole: ", why);
}

}  // namespace ortrain
