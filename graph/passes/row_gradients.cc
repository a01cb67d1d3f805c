// See row_gradients.h.
#include "graph/passes/row_gradients.h"

#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {

std::optional<RowGradient> row_gradient(Graph& g, ValueId grad) {
  const Node* n = producer(g, grad, "ortrain.GatherGrad");
  if (!n || g.value(grad).uses.size() > 1) return std::nullopt;
  const Shape &table = g.value(grad).shape, &indices = g.value(n->inputs[1]).shape;
  if (!table.is_const() || !indices.is_const() ||
      normalize_axis(n->attrs.i("axis", 0), table.rank()) != 0 ||
      2 * indices.count().value() > table[0].value() || table.count().value() == 0)
    return std::nullopt;
  Builder b(g, n->origin);
  const std::vector<Expr> out =
      b.ops("ortrain.GatherGradRows", {b.wrap(n->inputs[0]), b.wrap(n->inputs[1])},
            {{"dims", table.values()}}, 2);
  return RowGradient{out[0].id(), out[1].id()};
}

Expr add_gradient(Expr base, Expr x) {
  Builder& b = base.builder();
  const auto rows = row_gradient(b.graph(), x.id());
  if (!rows) return base + x;
  return b.op("ortrain.AddRows", {base, b.wrap(rows->rows), b.wrap(rows->slots)});
}

ValueId merge_row_gradients(Graph& g, ValueId grad) {
  const Node* sum = producer(g, grad);
  if (!sum || sum->op->ew != Ew::kAdd || sum->inputs.size() != 2) return grad;
  const Shape& shape = g.value(grad).shape;
  for (const size_t side : {size_t{1}, size_t{0}}) {
    const ValueId base = sum->inputs[1 - side], x = sum->inputs[side];
    if (base == x || g.value(base).shape != shape) continue;
    Builder b(g, sum->origin);
    const auto rows = row_gradient(g, x);
    if (!rows) continue;
    const ValueId merged = merge_row_gradients(g, base);
    return b.op("ortrain.AddRows", {b.wrap(merged), b.wrap(rows->rows), b.wrap(rows->slots)}).id();
  }
  return grad;
}

}  // namespace ortrain
