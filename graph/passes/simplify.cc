// simplify: removes what computes nothing new, over forward, backward and optimizer together.
//
// Common subexpressions, dead code, neutral elements, pairs that cancel, Expand where broadcasting
// does the same, constants that have become foldable. Every rule keeps values equal bit for bit
// (x + 0 may turn -0 into 0 or keep it). What an operator is comes from its record (ew, view,
// random); only Cast, Transpose and Expand are known by name.
#include <algorithm>
#include <unordered_map>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr size_t kMergedBytes = size_t{1} << 16;  // constants up to here are compared

class Simplifier {
 public:
  Simplifier(Graph& g, const Evaluate& evaluate, int64_t max_growth)
      : g_(g), evaluate_(evaluate), max_growth_(max_growth) {}

  void run() {
    for (int round = 0; round < 8; ++round) {
      changes_ = 0;
      for (NodeId n : g_.topo())
        if (g_.node(n).op) visit(n);
      changes_ += merge_equal();
      changes_ += g_.erase_dead();
      if (changes_ == 0) break;
    }
  }

 private:
  bool same_type(ValueId a, ValueId b) const {
    const Value &x = g_.value(a), &y = g_.value(b);
    return x.dtype == y.dtype && x.shape == y.shape;
  }
  // What makes a state's next value must stay a node of its own.
  bool is_next(ValueId v) const {
    return std::any_of(g_.updates().begin(), g_.updates().end(),
                       [v](const StateUpdate& u) { return u.next == v; });
  }

  // Uses of the node's output become uses of v.
  bool replace(NodeId n, ValueId v) {
    const ValueId y = g_.node(n).outputs[0];
    if (is_next(y)) return false;
    ORTRAIN_CHECK(same_type(y, v), "simplify changes a type at " + g_.describe(n));
    g_.replace_uses(y, v);
    g_.erase_if_dead(n);
    ++changes_;
    return true;
  }
  Builder builder(NodeId n) { return Builder(g_, g_.node(n).origin + "|simplify"); }

  void visit(NodeId n) {
    const Node& x = g_.node(n);
    if (x.outputs.empty() || x.outputs[0] == kNone) return;
    if (!is_next(x.outputs[0]) && try_fold(g_, n, evaluate_, max_growth_)) {
      ++changes_;
      return;
    }
    if (x.outputs.size() > 1) return;
    if (free_view(g_, x) && view(n)) return;
    if (x.op->name == "Expand" && same_type(x.outputs[0], x.inputs[0]) && replace(n, x.inputs[0]))
      return;
    if (x.op->name == "Transpose" && transpose(n)) return;
    if (x.op->ew != Ew::kNone && (neutral(n) || unspread(n))) return;
  }

  // Views reinterpret dense row-major memory, so a chain of them is one Reshape.
  bool view(NodeId n) {
    const Node& x = g_.node(n);
    if (same_type(x.inputs[0], x.outputs[0])) return replace(n, x.inputs[0]);
    const Node* inner = producer(g_, x.inputs[0]);
    if (inner && inner->op->name == "Transpose") return batched_transpose(n, *inner);
    if (!inner || !free_view(g_, *inner) || inner->outputs.size() != 1) return false;
    const ValueId source = inner->inputs[0];
    if (g_.value(source).dtype != g_.value(x.outputs[0]).dtype) return false;
    if (same_type(source, x.outputs[0])) return replace(n, source);
    if (!g_.value(x.outputs[0]).shape.is_const()) return false;
    Builder b = builder(n);
    const Dims dims = g_.value(x.outputs[0]).shape.values();
    return replace(n, b.reshape(b.wrap(source), dims).id());
  }

  // [a,b,m,n] viewed as [a*b,m,n], transposed behind axis 0, viewed as [a,b,n,m]: one Transpose.
  bool batched_transpose(NodeId n, const Node& t) {
    const Node* merge = producer(g_, t.inputs[0]);
    if (!merge || !free_view(g_, *merge) || merge->outputs.size() != 1) return false;
    const ValueId source = merge->inputs[0], y = g_.node(n).outputs[0];
    const Shape from = g_.value(source).shape, mid = g_.value(t.inputs[0]).shape,
                to = g_.value(y).shape;
    const std::vector<int64_t> inner = perm(t);
    const int extra = from.rank() - mid.rank();
    if (extra <= 0 || to.rank() != from.rank() || inner[0] != 0) return false;
    if (g_.value(source).dtype != g_.value(y).dtype) return false;
    std::vector<int64_t> outer;
    Dim batch = 1;
    for (int i = 0; i <= extra; ++i) {
      batch = batch * from[i];
      outer.push_back(i);
      if (!(to[i] == from[i])) return false;
    }
    if (!(batch == mid[0])) return false;
    for (int i = 1; i < mid.rank(); ++i) {
      if (!(from[extra + i] == mid[i])) return false;
      const int64_t axis = inner[static_cast<size_t>(i)];
      if (!(to[extra + i] == mid[static_cast<int>(axis)])) return false;
      outer.push_back(extra + axis);
    }
    Builder b = builder(n);
    return replace(n, b.transpose(b.wrap(source), outer).id());
  }

  bool transpose(NodeId n) {
    const Node& x = g_.node(n);
    const std::vector<int64_t> outer = perm(x);
    const Node* inner = producer(g_, x.inputs[0], "Transpose");
    std::vector<int64_t> both = outer;
    if (inner) {
      const std::vector<int64_t> first = perm(*inner);
      for (size_t i = 0; i < outer.size(); ++i) both[i] = first[static_cast<size_t>(outer[i])];
    }
    const ValueId source = inner ? inner->inputs[0] : x.inputs[0];
    if (std::is_sorted(both.begin(), both.end())) return replace(n, source);
    if (!inner) return false;
    Builder b = builder(n);
    return replace(n, b.transpose(b.wrap(source), both).id());
  }
  std::vector<int64_t> perm(const Node& x) const {
    std::vector<int64_t> p = x.attrs.ints("perm");
    const int rank = g_.value(x.inputs[0]).shape.rank();
    if (p.empty())
      for (int i = rank - 1; i >= 0; --i) p.push_back(i);
    return p;
  }

  // x*1, x/1, x+0, x-0, x*-1, -(-x), a + -b, casts that undo each other.
  bool neutral(NodeId n) {
    const Node& x = g_.node(n);
    const ValueId a = input(x, 0), b = input(x, 1), y = x.outputs[0];
    const auto number = [&](ValueId v) { return v == kNone ? std::nullopt : uniform(g_, v); };
    switch (x.op->ew) {
      case Ew::kIdentity: return replace(n, a);
      case Ew::kMul:
        if (number(b) == 1 && same_type(a, y)) return replace(n, a);
        if (number(a) == 1 && same_type(b, y)) return replace(n, b);
        if (number(b) == -1 && same_type(a, y)) return replace(n, negated(n, a));
        if (number(a) == -1 && same_type(b, y)) return replace(n, negated(n, b));
        return false;
      case Ew::kDiv:
        if (number(b) == 1 && same_type(a, y)) return replace(n, a);
        return false;
      case Ew::kAdd:
        if (number(b) == 0 && same_type(a, y)) return replace(n, a);
        if (number(a) == 0 && same_type(b, y)) return replace(n, b);
        if (const ValueId inner = under_neg(b); inner != kNone)
          return replace(n, minus(n, a, inner));
        if (const ValueId inner = under_neg(a); inner != kNone)
          return replace(n, minus(n, b, inner));
        return false;
      case Ew::kSub:
        if (number(b) == 0 && same_type(a, y)) return replace(n, a);
        return false;
      case Ew::kNeg:
        if (const ValueId inner = under_neg(a); inner != kNone) return replace(n, inner);
        return false;
      case Ew::kCast: return cast(n);
      default: return false;
    }
  }
  ValueId under_neg(ValueId v) const {
    const Node* m = v == kNone ? nullptr : producer(g_, v);
    return m && m->op->ew == Ew::kNeg ? m->inputs[0] : kNone;
  }
  ValueId negated(NodeId n, ValueId v) {
    Builder b = builder(n);
    return (-b.wrap(v)).id();
  }
  ValueId minus(NodeId n, ValueId a, ValueId c) {
    Builder b = builder(n);
    return (b.wrap(a) - b.wrap(c)).id();
  }

  // To the own type; or back from a type that holds every value of the first.
  bool cast(NodeId n) {
    const Node& x = g_.node(n);
    const ValueId y = x.outputs[0], a = x.inputs[0];
    if (same_type(a, y)) return replace(n, a);
    if (x.inputs.size() > 1) {  // the type of another tensor: known by now
      Builder b = builder(n);
      Attrs attrs = x.attrs;  // saturate, round_mode
      attrs.set("to", std::string(name_of(g_.value(y).dtype)));
      return replace(n, b.op("Cast", {b.wrap(a)}, attrs).id());
    }
    const Node* inner = producer(g_, a);
    if (!inner || inner->op->ew != Ew::kCast) return false;
    const ValueId source = inner->inputs[0];
    return same_type(source, y) && holds(g_.value(a).dtype, g_.value(source).dtype) &&
           replace(n, source);
  }
  static bool holds(DType wide, DType narrow) {
    const auto is16 = [](DType d) { return d == DType::kF16 || d == DType::kBF16; };
    if (wide == DType::kF64) return narrow == DType::kF32 || is16(narrow);
    if (wide == DType::kF32) return is16(narrow);
    if (wide == DType::kI64)
      return narrow == DType::kI32 || narrow == DType::kI16 || narrow == DType::kI8 ||
             narrow == DType::kBool;
    return false;
  }

  // Inputs without their Expand, constants of one value as scalars. Where the output keeps its
  // shape that is all; where it shrinks, the operator runs small and the result is expanded.
  bool unspread(NodeId n) {
    const Node& x = g_.node(n);
    const ValueId y = x.outputs[0];
    if (!g_.value(y).shape.is_const() || is_next(y)) return false;
    std::vector<ValueId> inputs = x.inputs;
    bool expand_gone = false, any = false;
    for (ValueId& v : inputs) {
      if (v == kNone) continue;
      if (const Node* e = producer(g_, v, "Expand")) {
        v = e->inputs[0];
        expand_gone = any = true;
      }
      if (g_.value(v).shape.rank() > 0 && uniform(g_, v)) {
        v = scalar_of(v);
        any = true;
      }
    }
    if (!any) return false;
    Shape shape = g_.value(inputs[0]).shape;
    for (ValueId v : inputs)
      if (v != kNone) shape = broadcast(shape, g_.value(v).shape);
    if (shape == g_.value(y).shape) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i] != x.inputs[i]) g_.set_input(n, static_cast<int>(i), inputs[i]);
      ++changes_;
      return true;
    }
    if (!expand_gone) return false;
    Builder b = builder(n);
    std::vector<Expr> args;
    for (ValueId v : inputs) args.push_back(b.wrap(v));
    const Attrs attrs = x.attrs;
    const Dims dims = g_.value(y).shape.values();
    const Expr small = b.op(x.op->name, args, attrs);
    return replace(n, b.expand(small, dims).id());
  }

  ValueId scalar_of(ValueId v) {
    HostTensor t(g_.value(v).dtype, {});
    std::copy_n(static_cast<const std::byte*>(g_.tensor(v)->raw()), t.bytes(),
                static_cast<std::byte*>(t.mutable_raw()));
    return g_.add_const(std::move(t));
  }

  // --- equal nodes and equal small constants become one
  std::string constant_key(ValueId v) const {
    const HostTensor& t = *g_.tensor(v);
    return cat(name_of(t.dtype()), g_.value(v).shape.str()) +
           std::string(static_cast<const char*>(t.raw()), t.bytes());
  }
  int merge_equal() {
    int merged = 0;
    std::unordered_map<std::string, ValueId> constants;
    for (ValueId v : g_.sources(Source::kConst)) {
      if (g_.value(v).uses.empty() || g_.tensor(v)->bytes() > kMergedBytes || g_.params.count(v))
        continue;
      const auto [it, fresh] = constants.emplace(constant_key(v), v);
      if (!fresh && !is_graph_result(g_, v)) g_.replace_uses(v, it->second), ++merged;
    }
    std::unordered_map<std::string, NodeId> seen;
    for (NodeId n : g_.topo()) {
      const Node& x = g_.node(n);
      if (x.op->random) continue;
      std::string key = x.op->name;
      for (ValueId v : x.inputs) key += cat(",", v);
      for (const auto& [name, value] : x.attrs.items()) key += attr_key(name, value);
      const auto [it, fresh] = seen.emplace(std::move(key), n);
      if (!fresh && merge(n, it->second)) ++merged;
    }
    return merged;
  }
  static std::string attr_key(const std::string& name, const AttrValue& value) {
    std::string key = cat(";", name, ":", value.index());
    const auto raw = [&key](const auto& number) {
      key.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    std::visit(
        [&]<class T>(const T& v) {
          if constexpr (std::is_arithmetic_v<T>) {
            raw(v);
          } else if constexpr (std::is_same_v<T, std::string>) {
            key += v;
          } else {
            for (const auto& item : v)
              if constexpr (std::is_arithmetic_v<std::decay_t<decltype(item)>>)
                raw(item);
              else
                key += item + '\0';
          }
        },
        value);
    return key;
  }
  bool merge(NodeId n, NodeId first) {
    for (ValueId v : g_.node(n).outputs)
      if (v != kNone && is_next(v)) return false;
    for (size_t i = 0; i < g_.node(n).outputs.size(); ++i) {
      const ValueId v = g_.node(n).outputs[i];
      if (v == kNone) continue;
      const ValueId to = g_.add_output(first, static_cast<int>(i));
      if (!g_.value(to).typed) g_.infer(first);
      g_.replace_uses(v, to);
    }
    return g_.erase_if_dead(n);
  }

  Graph& g_;
  const Evaluate& evaluate_;
  const int64_t max_growth_;
  int changes_ = 0;
};

int live_nodes(const Graph& g) {
  int count = 0;
  for (NodeId n = 0; n < g.node_count(); ++n) count += g.node(n).op != nullptr;
  return count;
}

}  // namespace

int simplify_graph(Graph& g, const Evaluate& evaluate, int64_t max_growth) {
  const int before = live_nodes(g);
  Simplifier(g, evaluate, max_growth).run();
  return before - live_nodes(g);
}

// Constants that spread a small one over more than 8 times the elements stay nodes.
void pass_simplify(Graph& g, PassContext& ctx) {
  const int before = live_nodes(g), gone = simplify_graph(g, ctx.evaluate, 8);
  ctx.did = cat(before, " nodes before, ", before - gone, " after");
}

}  // namespace ortrain
