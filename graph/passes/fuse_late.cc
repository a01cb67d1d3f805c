// fuse_late: chains of elementwise nodes become one ortrain.FusedElementwise each, over forward,
// backward and optimizer alike, so that their intermediate results never reach memory.
//
// What an operator computes comes from its record (OpDef::ew); composite elementwise operators
// (decompose into coded ones) are taken apart first. Nodes join in topological order: a node joins
// the groups of its producers when shape and class agree, no cycle would arise, the program stays
// small, and no group with several big inputs would have to wait for a value that is made much
// later (its inputs would stay alive longer than the result would).
#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "graph/ew.h"
#include "graph/half.h"
#include "graph/passes/passes.h"

namespace ortrain {
namespace {

constexpr std::string_view kFused = "ortrain.FusedElementwise";
constexpr size_t kMaxInstructions = 32, kMaxInputs = 12, kMaxOutputs = 4;

// What the node is made of; on 16-bit floats computed in f32 inside and rounded once, as its own
// kernel would.
std::vector<Expr> parts_of(Graph& g, NodeId n) {
  const DType type = g.value(g.node(n).outputs[0]).dtype;
  if (!is_half(type)) {
    Decompose d{Builder(g, g.node(n).origin), n};
    return g.node(n).op->decompose(d);
  }
  Builder b(g, g.node(n).origin);
  std::vector<ValueId> inputs = g.node(n).inputs;
  for (ValueId& v : inputs)
    if (v != kNone && g.value(v).dtype == type) v = b.cast(b.wrap(v), DType::kF32).id();
  const NodeId twin =
      g.add_node(*g.node(n).op, inputs, Attrs(g.node(n).attrs), 1, std::string(b.origin()));
  g.infer(twin);
  Decompose d{Builder(g, b.origin()), twin};
  std::vector<Expr> results = g.node(twin).op->decompose(d);
  for (Expr& e : results)
    if (e) e = b.cast(b.wrap(e.id()), type);
  return results;
}

// Replaces composite elementwise nodes by coded ones. A trial that meets anything else is undone.
int take_apart(Graph& g) {
  int done = 0;
  std::vector<NodeId> work = g.topo();
  std::reverse(work.begin(), work.end());
  while (!work.empty()) {
    const NodeId n = work.back();
    work.pop_back();
    const OpDef* op = g.node(n).op;
    if (!op || op->ew != Ew::kNone || !op->decompose || op->random || op->view) continue;
    if (g.node(n).outputs.size() != 1 || g.node(n).outputs[0] == kNone) continue;
    const ValueId y = g.node(n).outputs[0];
    const NodeId first = g.node_count();
    const std::vector<Expr> results = parts_of(g, n);
    bool elementwise = results.size() == 1 && results[0] && results[0].id() != y &&
                       g.value(results[0].id()).dtype == g.value(y).dtype &&
                       g.value(results[0].id()).shape == g.value(y).shape;
    for (NodeId m = first; m < g.node_count(); ++m) {
      const OpDef* part = g.node(m).op;
      if (part == op) continue;  // the f32 twin that parts_of took apart
      elementwise &= part && !part->view && (part->ew != Ew::kNone || part->decompose);
    }
    if (!elementwise) {
      for (NodeId m = g.node_count(); m-- > first;) g.erase_if_dead(m);
      continue;
    }
    g.replace_uses(y, results[0].id());
    g.erase_if_dead(n);
    for (NodeId m = g.node_count(); m-- > first;)
      if (g.node(m).op != op || !g.erase_if_dead(m)) work.push_back(m);
    ++done;
  }
  return done;
}

class Fuser {
 public:
  Fuser(Graph& g, bool keep_flags) : g_(g), order_(g.topo()), keep_flags_(keep_flags) {
    const size_t n = static_cast<size_t>(g.node_count());
    group_.assign(n, -1);
    position_.assign(n, 0);
    for (size_t i = 0; i < order_.size(); ++i)
      position_[static_cast<size_t>(order_[i])] = static_cast<int>(i);
    kept_.assign(static_cast<size_t>(g.value_count()), 0);
    for (ValueId v : g.outputs()) kept_[static_cast<size_t>(v)] = 1;
    for (const StateUpdate& u : g.updates()) kept_[static_cast<size_t>(u.next)] = 1;
  }

  void run() {
    for (NodeId n : order_)
      if (eligible(n)) place(n);
    for (size_t k = 0; k < groups_.size(); ++k)
      if (groups_[k].nodes.size() > 1) emit(groups_[k]);
  }
  std::string summary() const {
    return made_ == 0 ? "" : cat(fused_, " elementwise nodes into ", made_);
  }

 private:
  struct Group {
    std::vector<NodeId> nodes;  // in topological order; empty once merged into another
    DType cls = DType::kUndefined;
    Shape shape;
    int first = 0, last = 0;  // positions
  };

  // The float type a node computes in; kUndefined for truth values only. nullopt: not fusable.
  std::optional<DType> class_of(NodeId n) const {
    const Node& x = g_.node(n);
    DType cls = DType::kUndefined;
    const auto fits = [&](ValueId v) {
      DType d = g_.value(v).dtype;
      if (d == DType::kBool) return true;
      if (is_half(d)) d = DType::kF32;
      if (d != DType::kF32 && d != DType::kF64) return false;
      if (cls != DType::kUndefined && cls != d) return false;
      cls = d;
      return true;
    };
    const size_t reads = ew_arity(x.op->ew) == 1 ? 1 : x.inputs.size();
    for (size_t i = 0; i < reads && i < x.inputs.size(); ++i)
      if (x.inputs[i] == kNone || !fits(x.inputs[i])) return std::nullopt;
    if (!fits(x.outputs[0])) return std::nullopt;
    return cls;
  }

  bool eligible(NodeId n) const {
    const Node& x = g_.node(n);
    if (!x.op || x.op->ew == Ew::kNone || x.op->view || x.op->random) return false;
    if (x.outputs.size() != 1 || x.outputs[0] == kNone || x.inputs.empty()) return false;
    const Value& y = g_.value(x.outputs[0]);
    if (!y.typed || !y.shape.is_const() || element_count(y.shape.values()) == 0) return false;
    if (keep_flags_ && y.dtype == DType::kBool && y.shape.values().empty()) return false;
    return class_of(n).has_value();
  }

  void place(NodeId n) {
    const Node& x = g_.node(n);
    int mine = static_cast<int>(groups_.size());
    const int at = position_[static_cast<size_t>(n)];
    groups_.push_back({{n}, *class_of(n), g_.value(x.outputs[0]).shape, at, at});
    group_[static_cast<size_t>(n)] = mine;
    for (ValueId v : x.inputs) {
      if (v == kNone || g_.value(v).producer == kNone) continue;
      const int other = group_[static_cast<size_t>(g_.value(v).producer)];
      if (other >= 0 && other != mine && may_merge(other, mine)) merge(other, mine), mine = other;
    }
  }

  bool may_merge(int into, int from) {
    const Group &a = groups_[static_cast<size_t>(into)], &b = groups_[static_cast<size_t>(from)];
    if (!(a.shape == b.shape)) return false;
    if (a.cls != b.cls && a.cls != DType::kUndefined && b.cls != DType::kUndefined) return false;
    Group both = joined(a, b);
    const auto [inputs, outputs] = borders(both);
    if (both.nodes.size() > kMaxInstructions || inputs.size() > kMaxInputs ||
        outputs.size() > kMaxOutputs)
      return false;
    if (instructions(both) > kMaxInstructions) return false;
    if (keeps_alive(a, b)) return false;
    return !reaches(into, from) && !reaches(from, into);
  }

  static Group joined(const Group& a, const Group& b) {
    Group g = a;
    g.nodes.insert(g.nodes.end(), b.nodes.begin(), b.nodes.end());
    if (g.cls == DType::kUndefined) g.cls = b.cls;
    g.first = std::min(a.first, b.first);
    g.last = std::max(a.last, b.last);
    return g;
  }
  void merge(int into, int from) {
    Group& a = groups_[static_cast<size_t>(into)];
    Group& b = groups_[static_cast<size_t>(from)];
    for (NodeId n : b.nodes) group_[static_cast<size_t>(n)] = into;
    a = joined(a, b);
    std::sort(a.nodes.begin(), a.nodes.end(), [&](NodeId x, NodeId y) {
      return position_[static_cast<size_t>(x)] < position_[static_cast<size_t>(y)];
    });
    b.nodes.clear();
  }

  static size_t instructions(const Group& group, const Graph& g) {
    size_t count = 0;
    for (NodeId n : group.nodes) {
      const size_t inputs = g.node(n).inputs.size();
      count += ew_arity(g.node(n).op->ew) == 2 && inputs > 2 ? inputs - 1 : 1;
    }
    return count;
  }
  size_t instructions(const Group& group) const { return instructions(group, g_); }

  bool is_output(ValueId v) const {
    return static_cast<size_t>(v) < kept_.size() && kept_[static_cast<size_t>(v)];
  }

  // Values read from outside (constants of one element are inlined), values needed outside.
  std::pair<std::vector<ValueId>, std::vector<ValueId>> borders(const Group& group) const {
    const std::set<NodeId> members(group.nodes.begin(), group.nodes.end());
    std::vector<ValueId> inputs, outputs;
    for (NodeId n : group.nodes) {
      const Node& x = g_.node(n);
      const size_t reads = ew_arity(x.op->ew) == 1 ? 1 : x.inputs.size();
      for (size_t i = 0; i < reads; ++i) {
        const ValueId v = x.inputs[i];
        if (inlined(v) || members.contains(g_.value(v).producer)) continue;
        if (std::find(inputs.begin(), inputs.end(), v) == inputs.end()) inputs.push_back(v);
      }
      const ValueId y = x.outputs[0];
      bool needed = is_output(y);
      for (NodeId user : g_.value(y).uses) needed |= !members.contains(user);
      if (needed) outputs.push_back(y);
    }
    return {inputs, outputs};
  }
  bool inlined(ValueId v) const {
    const HostTensor* t = g_.value(v).source == Source::kConst ? g_.tensor(v) : nullptr;
    return t && t->count() == 1;
  }

  // Merging delays `a` until what `b` reads is there. Harmless when that is already made by then,
  // or when a has at most one big input of its own: then waiting with the input costs no more
  // memory than waiting with the result.
  bool keeps_alive(const Group& a, const Group& b) const {
    const std::set<NodeId> members(a.nodes.begin(), a.nodes.end());
    int ready = -1;
    for (ValueId v : borders(b).first) {
      const NodeId p = g_.value(v).producer;
      if (p != kNone && !members.contains(p)) ready = std::max(ready, group_end(p));
    }
    if (ready <= a.last) return false;
    int big = 0;
    for (ValueId v : borders(a).first) {
      const Value& x = g_.value(v);
      if (x.source != Source::kNode || !(x.shape == a.shape) || x.dtype == DType::kBool) continue;
      int until = -1;  // alive anyway when somebody else reads it later
      for (NodeId user : x.uses)
        if (!members.contains(user)) until = std::max(until, position_[static_cast<size_t>(user)]);
      big += until < ready && !is_output(v);
    }
    return big > 1;
  }
  int group_end(NodeId n) const {
    const int k = group_[static_cast<size_t>(n)];
    return k < 0 ? position_[static_cast<size_t>(n)] : groups_[static_cast<size_t>(k)].last;
  }

  // Whether a path leads from group `from` to group `to` through a node outside both, groups taken
  // as wholes.
  bool reaches(int from, int to) const {
    const Group& source = groups_[static_cast<size_t>(from)];
    std::set<int> seen_groups;
    std::set<NodeId> seen;
    std::vector<NodeId> work;
    bool direct = true;
    bool found = false;
    const auto look = [&](NodeId user) {
      for (ValueId v : g_.node(user).inputs) {
        if (v == kNone || g_.value(v).producer == kNone) continue;
        const NodeId p = g_.value(v).producer;
        const int k = group_[static_cast<size_t>(p)];
        if (k == to) continue;
        if (k == from) {
          found |= !direct;
          continue;
        }
        if (group_end(p) < source.first) continue;
        if (k >= 0 ? seen_groups.insert(k).second : seen.insert(p).second) work.push_back(p);
      }
    };
    for (NodeId n : groups_[static_cast<size_t>(to)].nodes) look(n);
    direct = false;
    while (!work.empty() && !found) {
      const NodeId n = work.back();
      work.pop_back();
      const int k = group_[static_cast<size_t>(n)];
      if (k < 0)
        look(n);
      else
        for (NodeId m : groups_[static_cast<size_t>(k)].nodes) look(m);
    }
    return found;
  }

  bool read_inside(const Group& group, ValueId v) const {
    return std::any_of(g_.value(v).uses.begin(), g_.value(v).uses.end(), [&](NodeId user) {
      return std::find(group.nodes.begin(), group.nodes.end(), user) != group.nodes.end();
    });
  }

  void emit(const Group& group) {
    const auto [inputs, outputs] = borders(group);
    EwProgram program;
    std::map<ValueId, EwOperand> operand;
    for (size_t i = 0; i < inputs.size(); ++i)
      operand[inputs[i]] = EwOperand::input(static_cast<int>(i));
    const auto add = [&](Ew code, std::array<EwOperand, 3> args) {
      program.code.push_back({code, args});
      return EwOperand::temp(static_cast<int>(program.code.size()) - 1);
    };
    const auto read = [&](ValueId v) {
      return inlined(v) ? EwOperand::constant(g_.tensor(v)->as_double(0)) : operand.at(v);
    };
    std::string origin;
    for (NodeId n : group.nodes) {
      const Node& x = g_.node(n);
      const ValueId y = x.outputs[0];
      const bool needed = std::find(outputs.begin(), outputs.end(), y) != outputs.end();
      Ew code = x.op->ew;
      if (code == Ew::kCast)
        code = g_.value(y).dtype == DType::kBool && g_.value(x.inputs[0]).dtype != DType::kBool
                   ? Ew::kToBool
                   : Ew::kIdentity;
      const int arity = ew_arity(code);
      const size_t before = program.code.size();
      EwOperand result = read(x.inputs[0]);
      if (arity == 1) {
        const bool passes = code == Ew::kIdentity && !needed;
        if (!passes) result = add(code, {result});
      } else if (arity == 3) {
        result = add(code, {result, read(x.inputs[1]), read(x.inputs[2])});
      } else {
        for (size_t i = 1; i < x.inputs.size(); ++i)
          result = add(code, {result, read(x.inputs[i])});
        if (x.inputs.size() == 1) result = add(Ew::kIdentity, {result});
      }
      // What the rest of the chain reads is the 16-bit number, not what it was rounded from.
      if (const DType d = g_.value(y).dtype; is_half(d) && read_inside(group, y)) {
        const bool own = program.code.size() > before;
        if (!own && g_.value(x.inputs[0]).dtype != d) result = add(Ew::kIdentity, {result});
        if (program.code.size() > before) program.code.back().round = d;
      }
      operand[y] = result;
      origin = x.origin;
    }
    std::vector<int64_t> results;
    std::vector<std::string> types;
    for (ValueId v : outputs) {
      const EwOperand& o = operand.at(v);
      ORTRAIN_CHECK(o.kind == EwOperand::Kind::kTemp, "a fused output is not computed");
      results.push_back(o.index);
      types.emplace_back(name_of(g_.value(v).dtype));
    }
    const DType cls = group.cls == DType::kUndefined ? DType::kF32 : group.cls;
    const NodeId fused = g_.add_node(g_.ops().get(kFused), inputs,
                                     {{"program", program.text()},
                                      {"outputs", results},
                                      {"types", types},
                                      {"class", std::string(name_of(cls))},
                                      {"dims", group.shape.values()}},
                                     static_cast<int>(outputs.size()), origin + "|fuse_late");
    g_.infer(fused);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ValueId made = g_.node(fused).outputs[i];
      g_.value(made).name = g_.value(outputs[i]).name;
      g_.replace_uses(outputs[i], made);
    }
    for (size_t i = group.nodes.size(); i-- > 0;) g_.erase_if_dead(group.nodes[i]);
    fused_ += static_cast<int>(group.nodes.size());
    ++made_;
  }

  Graph& g_;
  std::vector<NodeId> order_;
  const bool keep_flags_;
  std::vector<int> position_;  // per node
  std::vector<int> group_;     // per node, -1 = none
  std::vector<Group> groups_;
  std::vector<char> kept_;  // per value: an output of the graph or the next value of a state
  int fused_ = 0, made_ = 0;
};

}  // namespace

void pass_fuse_late(Graph& g, PassContext& ctx) {
  if (!g.ops().find(kFused)) return;
  take_apart(g);
  // Under a memory budget updates go by a flag each (optimizer.cc), which must not come together.
  Fuser fuser(g, ctx.spec.recompute.budgeted());
  fuser.run();
  ctx.did = fuser.summary();
}

}  // namespace ortrain
