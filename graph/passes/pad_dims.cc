// pad_dims: extents of products (features, channels, classes, widths of heads) rounded up to a
// multiple, by zeros that change nothing.
//
// What hangs together is found first: axes of values that one letter of a record's PadAxes joins
// are one extent, however long the chain of elementwise nodes, views and norms of channels between
// two products is. An extent that some product is faster with (a capital letter) is widened
// everywhere: parameters, inputs and results of nodes without such a record through a Pad, users
// that cannot take it through a Slice. Parameters, moments, checkpoints and exports keep their
// shapes; the gradient of a Pad is a Slice, that of a Slice a Pad, by rule.
// Promises: the same loss, gradients and norms; to the bit with kernels that add in order.
// Only in plans that compute gradients: evaluation and prediction stay as the file has them.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <numeric>

#include "graph/error.h"
#include "graph/pad_axes.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr int kMaxRank = 26;    // a letter each
using Axes = std::vector<int>;  // of a value: extent it belongs to, kNone where it stays

std::optional<PadAxes> axes_of(const Graph& g, const Node& n) {
  const PadRule rule = pad_rule(*n.op);
  const auto too_many = [&](ValueId v) { return v != kNone && g.value(v).shape.rank() > kMaxRank; };
  if (!rule.axes || n.outputs.empty() || n.outputs[0] == kNone ||
      std::any_of(n.inputs.begin(), n.inputs.end(), too_many) ||
      std::any_of(n.outputs.begin(), n.outputs.end(), too_many))
    return std::nullopt;
  return rule.axes(g, n);
}

// Axes of values as one number each, joined.
class Extents {
 public:
  explicit Extents(const Graph& g) : first_(static_cast<size_t>(g.value_count()) + 1, 0) {
    for (ValueId v = 0; v < g.value_count(); ++v)
      first_[static_cast<size_t>(v) + 1] =
          first_[static_cast<size_t>(v)] + (g.value(v).typed ? g.value(v).shape.rank() : 0);
    parent_.resize(static_cast<size_t>(first_.back()));
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int find(int x) {
    while (parent_[static_cast<size_t>(x)] != x)
      x = parent_[static_cast<size_t>(x)] =
          parent_[static_cast<size_t>(parent_[static_cast<size_t>(x)])];
    return x;
  }
  void join(int a, int b) { parent_[static_cast<size_t>(find(a))] = find(b); }
  int axis(ValueId v, size_t a) const {
    return first_[static_cast<size_t>(v)] + static_cast<int>(a);
  }

 private:
  std::vector<int> first_, parent_;
};

class Padder {
 public:
  Padder(Graph& g, int64_t multiple) : g_(g), multiple_(multiple), axes_(g) {}

  int run() {
    choose();
    if (widened_.empty()) return 0;
    for (NodeId n : g_.topo()) rewrite(n);
    return static_cast<int>(widened_.size());
  }
  std::string summary() const {
    std::string s;
    int shown = 0;
    for (const auto& [root, e] : widened_) {
      if (++shown == 9) {
        s += cat(", and ", widened_.size() - 8, " more");
        break;
      }
      s += cat(s.empty() ? "" : ", ", e.from, " -> ", e.to, " (", e.name, ")");
    }
    char more[80] = "";
    if (flops_before_ > 0)
      std::snprintf(more, sizeof more, "; these products take %.1f %% more operations forward",
                    100 * (flops_after_ / flops_before_ - 1));
    return s + more;
  }

 private:
  struct Extent {
    int64_t from, to;
    std::string name;  // the first parameter or node that has it
  };

  template <class F>  // f(value, letters) for each operand that takes part
  void operands(const Node& n, const PadAxes& p, F f) const {
    for (size_t i = 0; i < p.inputs.size() && i < n.inputs.size(); ++i)
      if (n.inputs[i] != kNone && !p.inputs[i].empty()) f(n.inputs[i], p.inputs[i]);
    for (size_t i = 0; i < p.outputs.size() && i < n.outputs.size(); ++i)
      if (n.outputs[i] != kNone && !p.outputs[i].empty()) f(n.outputs[i], p.outputs[i]);
  }

  void choose() {
    Extents extents(g_);
    std::map<NodeId, PadAxes> records;
    std::map<int, NodeId> wanted;  // by axis: the node that gains
    for (NodeId n : g_.topo()) {
      std::optional<PadAxes> p = axes_of(g_, g_.node(n));
      if (!p) continue;
      std::map<char, int> of_letter;
      operands(g_.node(n), *p, [&](ValueId v, const std::string& letters) {
        ORTRAIN_CHECK(
            static_cast<int>(letters.size()) == g_.value(v).shape.rank(),
            cat("pad_axes of ", g_.describe(n), ": '", letters, "' for ", g_.value(v).shape.str()));
        for (size_t a = 0; a < letters.size(); ++a) {
          if (letters[a] == '.') continue;
          const int axis = extents.axis(v, a);
          const auto [it, fresh] = of_letter.emplace(letters[a], axis);
          if (!fresh) extents.join(it->second, axis);
          if (std::isupper(static_cast<unsigned char>(letters[a]))) wanted.emplace(axis, n);
        }
      });
      records.emplace(n, std::move(*p));
    }
    for (const auto& [axis, node] : wanted) {
      const int root = extents.find(axis);
      if (!widened_.count(root)) widened_[root] = {0, 0, g_.node(node).origin};
    }
    for (ValueId v = 0; v < g_.value_count(); ++v) {
      const Value& x = g_.value(v);
      if (!x.typed || (x.uses.empty() && x.source != Source::kNode)) continue;
      Axes axes(static_cast<size_t>(x.shape.rank()), kNone);
      for (size_t a = 0; a < axes.size(); ++a) {
        const int root = extents.find(extents.axis(v, a));
        const auto it = widened_.find(root);
        const Dim& d = x.shape[static_cast<int>(a)];
        if (it == widened_.end() || !d.is_const()) continue;
        Extent& e = it->second;
        if (e.from == 0) e.from = d.value();
        ORTRAIN_CHECK(e.from == d.value(), "axes of different extents were joined");
        if (x.source == Source::kParam && !named_.count(root)) {
          e.name = x.name;
          named_[root] = true;
        }
        axes[a] = root;
      }
      axes_[v] = std::move(axes);
    }
    for (auto it = widened_.begin(); it != widened_.end();) {
      Extent& e = it->second;
      e.to = (e.from + multiple_ - 1) / multiple_ * multiple_;
      // An axis of extent 1 may be there to be broadcast.
      it = e.from < 2 || e.to == e.from ? widened_.erase(it) : std::next(it);
    }
    records_ = std::move(records);
  }

  bool is_widened(ValueId v, size_t a) {
    const Axes& axes = axes_[v];
    return a < axes.size() && axes[a] != kNone && widened_.count(axes[a]);
  }
  // Bit a is set where `letters` takes axis a of v and it is to be widened.
  uint32_t mask_of(ValueId v, const std::string& letters) {
    uint32_t mask = 0;
    for (size_t a = 0; a < letters.size() && a < 32; ++a)
      if (letters[a] != '.' && is_widened(v, a)) mask |= 1u << a;
    return mask;
  }
  int64_t target(ValueId v, size_t a) { return widened_.at(axes_[v][a]).to; }

  // v (of the original shape) with the axes of `mask` widened, made from the best version there is.
  ValueId form(ValueId v, uint32_t mask) {
    if (mask == 0) return v;
    const auto known = forms_.find({v, mask});
    if (known != forms_.end()) return known->second;
    uint32_t from = 0;
    ValueId best = v;
    for (auto it = forms_.lower_bound({v, 0}); it != forms_.end() && it->first.first == v; ++it)
      if ((it->first.second & ~mask) == 0) from = it->first.second, best = it->second;
    Builder b(g_, g_.describe_value(v) + "|pad_dims");
    std::vector<int64_t> pads, axes;
    for (size_t a = 0; a < axes_[v].size(); ++a)
      if ((mask & ~from) >> a & 1) {
        axes.push_back(static_cast<int64_t>(a));
        pads.push_back(target(v, a) - g_.value(v).shape[static_cast<int>(a)].value());
      }
    pads.insert(pads.begin(), axes.size(), 0);
    const ValueId made = b.op("Pad", {b.wrap(best), b.ints(pads), Expr(), b.ints(axes)}).id();
    forms_[{v, mask}] = made;
    return made;
  }

  void rewrite(NodeId n) {
    const auto it = records_.find(n);
    if (it == records_.end()) return;
    const PadAxes& p = it->second;
    uint32_t any = 0;
    operands(g_.node(n), p,
             [&](ValueId v, const std::string& letters) { any |= mask_of(v, letters); });
    if (any == 0) return;
    const PadRule rule = pad_rule(*g_.node(n).op);
    count_flops(n, flops_before_);
    if (rule.widen) {
      const ValueId y = g_.node(n).outputs[0];
      Dims dims = g_.value(y).shape.values();
      const uint32_t mask = p.outputs.empty() ? 0 : mask_of(y, p.outputs[0]);
      for (size_t a = 0; a < dims.size(); ++a)
        if (mask >> a & 1) dims[a] = target(y, a);
      rule.widen(g_, n, dims);
    }
    for (size_t i = 0; i < p.inputs.size() && i < g_.node(n).inputs.size(); ++i)
      if (const ValueId v = g_.node(n).inputs[i]; v != kNone)
        g_.set_input(n, static_cast<int>(i), form(v, mask_of(v, p.inputs[i])));
    g_.infer(n);
    count_flops(n, flops_after_);
    const std::vector<ValueId> outputs = g_.node(n).outputs;
    for (size_t i = 0; i < p.outputs.size() && i < outputs.size(); ++i)
      if (outputs[i] != kNone) give_back(n, outputs[i], mask_of(outputs[i], p.outputs[i]));
  }

  void count_flops(NodeId n, double& sum) const {
    if (g_.node(n).op->flops) sum += g_.node(n).op->flops(g_, g_.node(n));
  }

  // y is wider now: its users get the part they know, and those that can take all of it ask form().
  void give_back(NodeId n, ValueId y, uint32_t mask) {
    if (mask == 0) return;
    Builder b(g_, g_.node(n).origin + "|pad_dims");
    const Axes axes = axes_[y];
    std::vector<int64_t> at, begins, ends;
    for (size_t a = 0; a < axes.size(); ++a)
      if (mask >> a & 1) {
        at.push_back(static_cast<int64_t>(a));
        begins.push_back(0);
        ends.push_back(widened_.at(axes[a]).from);
      }
    const ValueId part = b.op("Slice", {b.wrap(y), b.ints(begins), b.ints(ends), b.ints(at)}).id();
    const NodeId slice = g_.value(part).producer;
    g_.replace_uses(y, part);
    g_.set_input(slice, 0, y);
    axes_[part] = axes;
    forms_[{part, mask}] = y;
  }

  Graph& g_;
  const int64_t multiple_;
  PerValue<Axes> axes_;
  std::map<NodeId, PadAxes> records_;
  std::map<int, Extent> widened_;  // by the root of their axes
  std::map<int, bool> named_;
  std::map<std::pair<ValueId, uint32_t>, ValueId> forms_;
  double flops_before_ = 0, flops_after_ = 0;
};

}  // namespace

void pass_pad_dims(Graph& g, PassContext& ctx) {
  decompose_kernelless(g, "pad_dims");
  Padder padder(g, ctx.spec.pad_multiple);
  const int count = padder.run();
  g.erase_dead();
  if (count == 0) {
    ctx.messages.push_back(cat("--pad-dims ", ctx.spec.pad_multiple,
                               ": every extent of a product is a multiple already"));
    return;
  }
  ctx.did = cat(count, count == 1 ? " extent: " : " extents: ", padder.summary());
  ctx.messages.push_back(cat("--pad-dims ", ctx.spec.pad_multiple, ": ", ctx.did));
}

}  // namespace ortrain
