// fuse_attention: softmax(scale q k^T + mask) v, as exporters write it, becomes ortrain.Attention;
// the ONNX Attention operator comes to the same by its decomposition.
//
// Taken: the scale before (on q, k or both) or after the first product; any number of added masks;
// Where with -inf, or with a finite fill when the condition is constant; the test for NaN behind
// the softmax. A constant mask that is the causal triangle becomes an attribute. Refuses
// probabilities that something else reads, and dropout between softmax and v. Then
// attention_layout.cc takes the transposes around the op away.
#include <cmath>

#include "graph/error.h"
#include "graph/passes/attention_layout.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr double kHidden = -1e4;  // a score this far below the row's maximum has probability 0

bool is(const Node* n, std::string_view op) { return n && n->op->name == op; }
bool is_ew(const Node* n, Ew code) { return n && n->op->ew == code; }

// What hides keys: an added float tensor or a bool one.
struct Masks {
  std::vector<std::pair<ValueId, double>> added;  // value, factor
  std::vector<std::pair<ValueId, bool>> visible;  // condition, true: as it is, false: negated
  bool causal = false;
};

enum class Triangle : uint8_t { kNo, kCausal, kAll };
// Whether a constant mask [..., T, S] shows exactly the keys s <= t of query t, or all.
template <class Seen>
Triangle triangle(const Shape& scores, const Dims& dims, Seen&& seen) {
  const int64_t t = scores[scores.rank() - 2].value(), s = scores[scores.rank() - 1].value();
  const int64_t count = element_count(dims);
  bool all = true;
  for (int64_t i = 0; i < count && all; ++i) all = seen(i);
  if (all) return Triangle::kAll;
  if (dims.size() < 2 || dims[dims.size() - 2] != t || dims.back() != s) return Triangle::kNo;
  for (int64_t i = 0; i < count; ++i)
    if (seen(i) != (i % s <= i / s % t)) return Triangle::kNo;
  return Triangle::kCausal;
}

// Notes an added mask; constant triangles become facts.
bool add_mask(const Graph& g, ValueId m, double factor, const Shape& scores, Masks& out) {
  if (g.value(m).shape.rank() > scores.rank()) return false;
  if (const HostTensor* t = constant(g, m)) {
    bool binary = true;
    for (int64_t i = 0; i < t->count() && binary; ++i)
      binary = t->as_double(i) == 0 || t->as_double(i) * factor < -1e30;
    const Triangle kind =
        binary ? triangle(scores, t->dims(), [&](int64_t i) { return t->as_double(i) == 0; })
               : Triangle::kNo;
    out.causal |= kind == Triangle::kCausal;
    if (kind != Triangle::kNo) return true;
  }
  out.added.emplace_back(m, factor);
  return true;
}

// Where(condition, scores, fill) or, `negated`, Where(condition, fill, scores).
bool add_condition(const Graph& g, ValueId c, bool negated, double fill, const Shape& scores,
                   Masks& out) {
  if (g.value(c).shape.rank() > scores.rank()) return false;
  if (const HostTensor* t = constant(g, c)) {
    const auto seen = [&](int64_t i) { return (t->as_int(i) != 0) != negated; };
    const Triangle kind = triangle(scores, t->dims(), seen);
    out.causal |= kind == Triangle::kCausal;
    if (kind != Triangle::kNo) return fill <= kHidden;
  }
  // A row that sees nothing: only -inf means the same here.
  if (!std::isinf(fill)) return false;
  out.visible.emplace_back(c, !negated);
  return true;
}

struct Scores {
  ValueId product = kNone;  // the MatMul's output
  double factor = 1;
  Masks masks;
};

// Walks from the softmax's input down to the product of q and k.
std::optional<Scores> scores_of(const Graph& g, ValueId v) {
  const Shape shape = g.value(v).shape;
  Scores out;
  for (;;) {
    if (!single_use(g, v) || !(g.value(v).shape == shape)) return std::nullopt;
    const Node* n = producer(g, v);
    if (is(n, "MatMul")) {
      out.product = v;
      return out;
    }
    if (through_scale(g, v, out.factor)) continue;
    if (is_ew(n, Ew::kAdd) && n->inputs.size() == 2) {
      // The branch that leads to a product; the other is the mask.
      const auto leads = [&](ValueId x) {
        double ignored = 1;
        while (through_scale(g, x, ignored)) {
        }
        const Node* p = producer(g, x);
        return g.value(x).shape == shape &&
               (is(p, "MatMul") || is_ew(p, Ew::kAdd) || is(p, "Where"));
      };
      const bool first = leads(n->inputs[0]), second = leads(n->inputs[1]);
      const auto product = [&](ValueId x) {
        double ignored = 1;
        while (through_scale(g, x, ignored)) {
        }
        return is(producer(g, x), "MatMul");
      };
      if (!first && !second) return std::nullopt;
      const size_t side =
          first && (!second || product(n->inputs[0]) || !product(n->inputs[1])) ? 0 : 1;
      if (!add_mask(g, n->inputs[1 - side], out.factor, shape, out.masks)) return std::nullopt;
      v = n->inputs[side];
      continue;
    }
    if (is(n, "Where")) {
      const auto yes = uniform(g, n->inputs[1]), no = uniform(g, n->inputs[2]);
      if (yes.has_value() == no.has_value()) return std::nullopt;
      const double fill = yes ? *yes : *no;
      if (!add_condition(g, n->inputs[0], yes.has_value(), fill * out.factor, shape, out.masks))
        return std::nullopt;
      v = n->inputs[yes ? 2 : 1];
      continue;
    }
    return std::nullopt;
  }
}

// From the probabilities to the product with v; `guard` when NaN becomes 0 on the way.
ValueId product_after(const Graph& g, ValueId p, bool& guard) {
  const std::vector<NodeId> uses = g.value(p).uses;
  if (is_graph_result(g, p)) return kNone;
  if (uses.size() == 2) {
    for (const size_t which : {0u, 1u}) {
      const Node &test = g.node(uses[which]), &choose = g.node(uses[1 - which]);
      if (test.op->ew != Ew::kIsNan || choose.op->name != "Where") continue;
      if (choose.inputs[0] != test.outputs[0] || choose.inputs[2] != p) continue;
      if (uniform(g, choose.inputs[1]) != 0.0 || !single_use(g, test.outputs[0])) continue;
      guard = true;
      return product_after(g, choose.outputs[0], guard);
    }
    return kNone;
  }
  if (uses.size() != 1) return kNone;
  const Node& n = g.node(uses[0]);
  if (n.op->name != "MatMul" || n.inputs[0] != p || n.attrs.i("trans_a", 0)) return kNone;
  return n.outputs[0];
}

// k [.., S, D] from the right operand of the first product, [.., D, S].
Expr keys_from(Builder& b, ValueId v, double& factor, bool transposed_already) {
  const Graph& g = b.graph();
  while (through_scale(g, v, factor)) {
  }
  if (transposed_already) return b.wrap(v);
  const Shape shape = g.value(v).shape;
  const int rank = shape.rank();
  if (const Node* t = producer(g, v, "Transpose")) {
    const std::vector<int64_t> perm = t->attrs.ints("perm");
    ValueId x = t->inputs[0];
    if (perm == std::vector<int64_t>{0, 1, 3, 2} || perm == std::vector<int64_t>{0, 2, 1}) {
      while (through_scale(g, x, factor)) {
      }
      return b.wrap(x);
    }
    if (perm == std::vector<int64_t>{0, 2, 3, 1}) return b.transpose(b.wrap(x), {0, 2, 1, 3});
  }
  // [B,H,S,D] -> [BH,S,D] -> [BH,D,S] -> [B,H,D,S]
  if (const Node* outer = producer(g, v, "Reshape"); outer && rank == 4) {
    const Node* t = producer(g, outer->inputs[0], "Transpose");
    const Node* inner = t && t->attrs.ints("perm") == std::vector<int64_t>{0, 2, 1}
                            ? producer(g, t->inputs[0], "Reshape")
                            : nullptr;
    if (inner) {
      ValueId x = inner->inputs[0];
      const Shape& s = g.value(x).shape;
      const Shape& m = g.value(t->inputs[0]).shape;
      if (s.rank() == 4 && s[0] == shape[0] && s[1] == shape[1] && s[2] == shape[3] &&
          s[3] == shape[2] && m[1] == s[2] && m[2] == s[3]) {
        while (through_scale(g, x, factor)) {
        }
        return b.wrap(x);
      }
    }
  }
  return b.swap_last_two(b.wrap(v));
}

Expr mask_of(Builder& b, const Masks& masks, DType dtype, int rank) {
  Expr added, visible;
  for (const auto& [v, factor] : masks.added) {
    Expr m = b.wrap(v);
    if (factor != 1) m = m * factor;
    added = added ? added + m : m;
  }
  for (const auto& [v, as_is] : masks.visible) {
    const Expr c = as_is ? b.wrap(v) : b.unary("Not", b.wrap(v));
    visible = visible ? b.op("And", {visible, c}) : c;
  }
  if (added && visible)
    added = added + b.where(visible, b.scalar(dtype, 0), b.scalar(dtype, -INFINITY));
  Expr m = added ? added : visible;
  if (m && rank == 3 && m.rank() == 3) m = b.unsqueeze(m, {1});
  return m;
}

bool fuse(Graph& g, NodeId softmax) {
  const Node& s = g.node(softmax);
  const ValueId p = s.outputs[0], top = s.inputs[0];
  const int rank = g.value(p).shape.rank();
  if (rank < 3 || rank > 4 || !g.value(p).shape.is_const()) return false;
  if (normalize_axis(s.attrs.i("axis", -1), rank) != rank - 1 || s.attrs.i("flatten", 0))
    return false;
  bool guard = false;
  const ValueId y = product_after(g, p, guard);
  if (y == kNone) return false;
  const auto scores = scores_of(g, top);
  if (!scores) return false;
  const Node first = *producer(g, scores->product), second = *producer(g, y);
  if (first.attrs.i("trans_a", 0)) return false;
  for (ValueId v : {first.inputs[0], first.inputs[1], second.inputs[1]})
    if (g.value(v).shape.rank() != rank || !g.value(v).shape.is_const() ||
        !(g.value(v).shape[0] == g.value(p).shape[0]) ||
        (rank == 4 && !(g.value(v).shape[1] == g.value(p).shape[1])))
      return false;

  Builder b(g, s.origin + "|attention");
  double factor = scores->factor;
  ValueId q_id = first.inputs[0];
  while (through_scale(g, q_id, factor)) {
  }
  Expr q = b.wrap(q_id),
       k = keys_from(b, first.inputs[1], factor, first.attrs.i("trans_b", 0) != 0),
       v = b.wrap(second.inputs[1]);
  if (second.attrs.i("trans_b", 0)) v = b.swap_last_two(v);
  const Expr mask = mask_of(b, scores->masks, q.dtype(), rank);
  if (rank == 3) q = b.unsqueeze(q, {1}), k = b.unsqueeze(k, {1}), v = b.unsqueeze(v, {1});
  Attrs attrs{{"scale", factor}};
  if (scores->masks.causal) attrs.set("causal", int64_t{1});
  if (guard) attrs.set("guard", int64_t{1});
  Expr out = b.op("ortrain.Attention", {q, k, v, mask}, attrs);
  if (rank == 3) out = b.squeeze(out, {1});
  g.replace_uses(y, out.id());
  return true;
}

}  // namespace

int fuse_attention(Graph& g, PassContext&) {
  int places = 0;
  for (NodeId n : g.topo())
    if (g.node(n).op->name == "Attention") {
      decompose_node(g, n, "attention");
      ++places;
    }
  for (NodeId n : g.topo())
    if (g.node(n).op && g.node(n).op->name == "Softmax") places += fuse(g, n);
  if (places > 0) {
    g.erase_dead();
    absorb_attention_layout(g);
  }
  return places;
}

}  // namespace ortrain
