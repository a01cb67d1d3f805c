// fuse_gelu: x/2 (1 + erf(x / sqrt 2)) and its tanh approximation, spelled out in basic operators,
// become ortrain.GeluErf and ortrain.GeluTanh. The product may be written in any order, the numbers
// may lie anywhere in it. Refuses numbers that differ by more than rounding in the type computed in
// (f64 keeps a file's f32 constants as they are) and inner values that are read elsewhere.
#include <cmath>
#include <vector>

#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// Equal but for the rounding of two or three numbers that are multiplied.
bool near(double a, double b, DType type) {
  const double eps = type == DType::kF64 ? 0x1p-52 : 0x1p-23;
  return std::abs(a - b) <= 2 * eps * std::abs(b);
}

// The factors of a product: its values and the number they are multiplied by. Inner products are
// opened when nothing else reads them.
struct Product {
  std::vector<ValueId> values;
  double number = 1;
};
void open(const Graph& g, ValueId v, bool root, Product& p, int depth = 0) {
  const Node* n = producer(g, v);
  if (const auto c = number(g, v)) {
    p.number *= *c;
    return;
  }
  const bool mul = n && n->op->ew == Ew::kMul, div = n && n->op->ew == Ew::kDiv;
  if ((mul || div) && n->inputs.size() == 2 && (root || single_use(g, v)) && depth < 8) {
    if (mul) {
      open(g, n->inputs[0], false, p, depth + 1);
      open(g, n->inputs[1], false, p, depth + 1);
      return;
    }
    if (const auto c = number(g, n->inputs[1]); c && *c != 0) {
      p.number /= *c;
      open(g, n->inputs[0], false, p, depth + 1);
      return;
    }
  }
  p.values.push_back(v);
}

// u of 1 + f(u), f the operator with this code; kNone for anything else.
ValueId one_plus(const Graph& g, ValueId v, Ew f) {
  const Node* n = producer(g, v);
  if (!n || n->op->ew != Ew::kAdd || n->inputs.size() != 2 || !single_use(g, v)) return kNone;
  for (const size_t side : {0u, 1u}) {
    if (number(g, n->inputs[side]) != 1.0) continue;
    const ValueId inner = n->inputs[1 - side];
    const Node* call = producer(g, inner);
    if (call && call->op->ew == f && single_use(g, inner)) return call->inputs[0];
  }
  return kNone;
}

// Whether v = x^3 * c; gives c.
std::optional<double> cube(const Graph& g, ValueId v, ValueId x) {
  Product p;
  open(g, v, true, p);
  int power = 0;
  for (ValueId f : p.values) {
    const Node* n = producer(g, f);
    if (f == x) {
      ++power;
    } else if (n && n->op->ew == Ew::kPow && n->inputs[0] == x) {
      const auto e = number(g, n->inputs[1]);
      if (e != 2.0 && e != 3.0) return std::nullopt;
      power += static_cast<int>(*e);
    } else if (n && n->op->ew == Ew::kMul && n->inputs == std::vector<ValueId>{x, x}) {
      power += 2;
    } else {
      return std::nullopt;
    }
  }
  return power == 3 ? std::optional(p.number) : std::nullopt;
}

// u = sqrt(2/pi) (x + 0.044715 x^3)
bool tanh_argument(const Graph& g, ValueId u, ValueId x) {
  double factor = 1;
  while (through_scale(g, u, factor)) {
  }
  const Node* sum = producer(g, u);
  if (!sum || sum->op->ew != Ew::kAdd || sum->inputs.size() != 2) return false;
  const DType type = g.value(x).dtype;
  if (!near(factor, std::sqrt(2 / M_PI), type)) return false;
  for (const size_t side : {0u, 1u}) {
    if (sum->inputs[side] != x) continue;
    const auto c = cube(g, sum->inputs[1 - side], x);
    if (c && near(*c, 0.044715, type)) return true;
  }
  return false;
}

const char* gelu_of(const Graph& g, ValueId root, ValueId& x) {
  Product p;
  open(g, root, true, p);
  if (p.values.size() != 2 || !near(p.number, 0.5, g.value(root).dtype)) return nullptr;
  for (const size_t side : {0u, 1u}) {
    x = p.values[1 - side];
    if (ValueId u = one_plus(g, p.values[side], Ew::kErf); u != kNone) {
      double factor = 1;
      while (u != x && through_scale(g, u, factor)) {
      }
      if (u == x && near(factor, std::sqrt(0.5), g.value(x).dtype)) return "ortrain.GeluErf";
    }
    if (const ValueId u = one_plus(g, p.values[side], Ew::kTanh);
        u != kNone && tanh_argument(g, u, x))
      return "ortrain.GeluTanh";
  }
  return nullptr;
}

}  // namespace

int fuse_gelu(Graph& g, PassContext&) {
  int places = 0;
  std::vector<NodeId> order = g.topo();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {  // the outermost product first
    const Node& n = g.node(*it);
    if (!n.op || (n.op->ew != Ew::kMul && n.op->ew != Ew::kDiv)) continue;
    const ValueId y = n.outputs[0];
    if (g.value(y).uses.empty() && !is_graph_result(g, y)) continue;  // inside one already taken
    ValueId x = kNone;
    const char* name = gelu_of(g, y, x);
    if (!name || !(g.value(x).shape == g.value(y).shape)) continue;
    Builder b(g, n.origin + "|gelu");
    g.replace_uses(y, b.unary(name, b.wrap(x)).id());
    ++places;
  }
  return places;
}

}  // namespace ortrain
