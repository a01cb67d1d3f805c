// Helpers of rewrite.h: looking at nodes, folding constants, decomposing in place.
#include "graph/rewrite.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/structure.h"

namespace ortrain {

const Node* producer(const Graph& g, ValueId v) {
  if (v == kNone || g.value(v).producer == kNone) return nullptr;
  return &g.node(g.value(v).producer);
}

const Node* producer(const Graph& g, ValueId v, std::string_view op) {
  const Node* n = producer(g, v);
  return n && n->op->name == op && g.value(v).output_index == 0 ? n : nullptr;
}

const HostTensor* constant(const Graph& g, ValueId v) {
  return v != kNone && g.value(v).source == Source::kConst ? g.tensor(v) : nullptr;
}

std::optional<double> uniform_contents(const HostTensor& t) {
  if (t.count() == 0) return std::nullopt;
  const double first = t.as_double(0);
  for (int64_t i = 1; i < t.count(); ++i)
    if (!(t.as_double(i) == first)) return std::nullopt;
  return first;
}

std::optional<double> uniform(const Graph& g, ValueId v) {
  const HostTensor* t = constant(g, v);
  return t ? uniform_contents(*t) : std::nullopt;
}

std::optional<double> number(const Graph& g, ValueId v) {
  const HostTensor* t = constant(g, v);
  if (!t || t->count() != 1 || !is_float(t->dtype())) return std::nullopt;
  return t->as_double(0);
}

bool through_scale(const Graph& g, ValueId& v, double& factor) {
  const Node* n = producer(g, v);
  if (!n || n->inputs.size() != 2) return false;
  if (n->op->ew != Ew::kMul && n->op->ew != Ew::kDiv) return false;
  const bool divides = n->op->ew == Ew::kDiv;
  for (size_t side = 0; side < (divides ? 1u : 2u); ++side) {
    const auto c = number(g, n->inputs[1 - side]);
    const ValueId x = n->inputs[side];
    if (!c || *c == 0 || !(g.value(x).shape == g.value(v).shape)) continue;
    factor *= divides ? 1 / *c : *c;
    v = x;
    return true;
  }
  return false;
}

bool is_graph_result(const Graph& g, ValueId v) {
  return std::count(g.outputs().begin(), g.outputs().end(), v) > 0 ||
         std::any_of(g.updates().begin(), g.updates().end(),
                     [v](const StateUpdate& u) { return u.next == v; });
}

bool single_use(const Graph& g, ValueId v) {
  return g.value(v).uses.size() == 1 && !is_graph_result(g, v);
}

ValueId input(const Node& n, size_t i) { return i < n.inputs.size() ? n.inputs[i] : kNone; }

bool free_view(const Graph& g, const Node& n) {
  return n.op->view && (n.op->name != kGateOp || g.stage >= Stage::kDifferentiated);
}

namespace {

constexpr int64_t kFoldLimit = int64_t{1} << 22;  // elements that one folded node may produce
constexpr int64_t kSmall = 4096;                  // elements that never matter

// Contents carried by inference as a tensor, when all are numbers.
std::optional<HostTensor> carried(const Value& x) {
  if (!x.has_ints || !x.shape.is_const()) return std::nullopt;
  if (!std::all_of(x.ints.begin(), x.ints.end(), [](const Dim& d) { return d.is_const(); }))
    return std::nullopt;
  HostTensor t(x.dtype, x.shape.values());
  ORTRAIN_CHECK(t.count() == static_cast<int64_t>(x.ints.size()), "carried contents do not fit");
  for (int64_t i = 0; i < t.count(); ++i) {
    const int64_t value = x.ints[static_cast<size_t>(i)].value();
    dispatch(x.dtype, [&]<class T>() {
      if constexpr (std::is_arithmetic_v<T>)
        t.mutable_data<T>()[i] = static_cast<T>(value);
      else
        t.set_double(i, static_cast<double>(value));
    });
  }
  return t;
}

bool may_evaluate(const Graph& g, const Node& x, int64_t max_growth) {
  if (!x.op->fold || x.op->random || x.inputs.empty()) return false;
  int64_t in = 0, out = 0;
  for (ValueId v : x.inputs) {
    if (v == kNone) continue;
    if (!constant(g, v)) return false;
    in += constant(g, v)->count();
  }
  for (ValueId v : x.outputs) {
    if (v == kNone) continue;
    if (!g.value(v).typed || !g.value(v).shape.is_const()) return false;
    out += element_count(g.value(v).shape.values());
  }
  return out <= kFoldLimit && (max_growth == 0 || out <= kSmall || out <= in * max_growth);
}

}  // namespace

bool try_fold(Graph& g, NodeId n, const Evaluate& evaluate, int64_t max_growth) {
  const std::vector<ValueId> outputs = g.node(n).outputs;
  for (ValueId v : outputs) {
    if (v == kNone || (g.value(v).uses.empty() && !is_graph_result(g, v))) continue;
    if (auto t = carried(g.value(v))) {
      const std::string name = g.value(v).name;
      g.replace_uses(v, g.add_const(std::move(*t), name));
    }
  }
  if (g.erase_if_dead(n)) return true;
  if (!evaluate || !may_evaluate(g, g.node(n), max_growth)) return false;
  std::vector<HostTensor> results;
  if (!evaluate(g, n, results)) return false;
  ORTRAIN_CHECK(results.size() >= outputs.size(), "evaluation gave too few outputs");
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNone) continue;
    const Value& x = g.value(outputs[i]);
    ORTRAIN_CHECK(results[i].dtype() == x.dtype && Shape(results[i].dims()) == x.shape,
                  "evaluation of " + g.describe(n) + " gave another type than inferred");
    const std::string name = x.name;
    g.replace_uses(outputs[i], g.add_const(std::move(results[i]), name));
  }
  return g.erase_if_dead(n);
}

void decompose_node(Graph& g, NodeId n, std::string_view why) {
  ORTRAIN_CHECK(g.node(n).op->decompose, "no decomposition of " + g.describe(n));
  Decompose d{Builder(g, cat(g.node(n).origin, "|", why)), n};
  const std::vector<Expr> results = g.node(n).op->decompose(d);
  const std::vector<ValueId> outputs = g.node(n).outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNone) continue;
    ORTRAIN_CHECK(i < results.size() && results[i],
                  cat("decomposition of ", g.describe(n), " lacks output ", i));
    const Value &old = g.value(outputs[i]), &now = g.value(results[i].id());
    ORTRAIN_CHECK(!old.typed || (old.dtype == now.dtype && old.shape == now.shape),
                  cat("decomposition of ", g.describe(n), " gives ", name_of(now.dtype),
                      now.shape.str(), " for ", name_of(old.dtype), old.shape.str()));
    g.replace_uses(outputs[i], results[i].id());
  }
  g.erase_if_dead(n);
}

void decompose_kernelless(Graph& g, std::string_view why) {
  for (bool again = true; again;) {
    again = false;
    for (NodeId n : g.topo()) {
      const OpDef& op = *g.node(n).op;
      if (!op.kernels.empty() || op.view || !op.decompose || !op.grad.empty()) continue;
      decompose_node(g, n, why);
      again = true;
    }
  }
}

}  // namespace ortrain
