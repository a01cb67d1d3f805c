// layout: channels-last data where conv-like ops want it (OpDef::wants_channels_last), because the
// plain layout is 2 to 30 times slower in the math library.
//
// Tensors stay dense and row-major: a channels-last value has shape [N, spatial..., C]. Each node
// is visited once, in order. A converted node reads channels-last versions of its inputs and its
// result is transposed back for users that stay as they are; elementwise nodes, views that keep
// batch and channel, and ops with a channels_last hook follow their input, so the transposes move
// to the borders and those without users die. Moving axes of extent 1 is a Reshape. Weights keep
// the file's layout (the kernels pack them), so parameters and their gradients need nothing.
#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

std::vector<int64_t> to_last(int rank) {  // [N, C, s...] -> [N, s..., C]
  std::vector<int64_t> p(static_cast<size_t>(rank));
  std::iota(p.begin(), p.end(), 0);
  std::rotate(p.begin() + 1, p.begin() + 2, p.end());
  return p;
}
std::vector<int64_t> to_first(int rank) {
  std::vector<int64_t> p(static_cast<size_t>(rank));
  std::iota(p.begin(), p.end(), 0);
  std::rotate(p.begin() + 1, p.end() - 1, p.end());
  return p;
}

// Whether the permutation leaves the order in memory as it is.
bool moves_nothing(const Shape& s, const std::vector<int64_t>& perm) {
  int64_t last = -1;
  for (int64_t axis : perm) {
    if (s[static_cast<int>(axis)] == Dim(1)) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}
Expr permute(Builder& b, Expr x, const std::vector<int64_t>& perm) {
  if (!moves_nothing(x.shape(), perm) || !x.shape().is_const()) return b.transpose(x, perm);
  Dims dims;
  for (int64_t axis : perm) dims.push_back(x.shape()[static_cast<int>(axis)].value());
  return b.reshape(x, dims);
}

class ChannelsLast {
 public:
  explicit ChannelsLast(Graph& g) : g_(g), last_(g, kNone) {}

  int run() {
    for (NodeId n : g_.topo()) {
      const Node& x = g_.node(n);
      if (x.inputs.empty() || x.inputs[0] == kNone) continue;
      if (x.op->channels_last)
        convert(n);
      else if (x.op->ew != Ew::kNone)
        follow_elementwise(n);
      else if (free_view(g_, x))
        follow_view(n);
    }
    return converted_;
  }

 private:
  bool known(ValueId v) { return v != kNone && last_[v] != kNone; }
  Builder builder(NodeId n) { return Builder(g_, g_.node(n).origin + "|layout"); }

  // v as [N, spatial..., C].
  ValueId last(Builder& b, ValueId v) {
    if (!known(v)) {
      const ValueId made = permute(b, b.wrap(v), to_last(g_.value(v).shape.rank())).id();
      last_[v] = made;
    }
    return last_[v];
  }

  // Output y of n is channels-last now; its users get it transposed back.
  void give_back(NodeId n, ValueId y) {
    Builder b = builder(n);
    const std::vector<NodeId> users = g_.value(y).uses;
    const Expr first = permute(b, b.wrap(y), to_first(g_.value(y).shape.rank()));
    if (first.id() == y) return;
    const NodeId back = g_.value(first.id()).producer;
    g_.replace_uses(y, first.id());
    g_.set_input(back, 0, y);
    last_[first.id()] = y;
  }

  void convert(NodeId n) {
    const OpDef& op = *g_.node(n).op;
    const ValueId x = g_.node(n).inputs[0];
    if (g_.value(x).shape.rank() < 3) return;
    if (!op.wants_channels_last && !known(x)) return;
    const std::optional<LayoutChange> change = op.channels_last(g_, n);
    if (!change) return;
    Builder b = builder(n);
    for (int i : change->inputs)
      g_.set_input(n, i, last(b, g_.node(n).inputs[static_cast<size_t>(i)]));
    g_.infer(n);
    const std::vector<ValueId> outputs = g_.node(n).outputs;
    for (int i : change->outputs)
      if (i < static_cast<int>(outputs.size()) && outputs[static_cast<size_t>(i)] != kNone)
        give_back(n, outputs[static_cast<size_t>(i)]);
    ++converted_;
  }

  // An input of an elementwise node of rank `rank`, with leading axes of 1 added.
  Shape lifted(ValueId v, int rank) const {
    Shape s;
    for (int i = g_.value(v).shape.rank(); i < rank; ++i) s.push_back(Dim(1));
    for (const Dim& d : g_.value(v).shape) s.push_back(d);
    return s;
  }

  void follow_elementwise(NodeId n) {
    const ValueId y = g_.node(n).outputs[0];
    const int rank = g_.value(y).shape.rank();
    if (rank < 3 || !g_.value(y).shape.is_const()) return;
    int64_t ready = 0, to_move = 0;  // elements already channels-last, elements to be transposed
    for (ValueId v : g_.node(n).inputs) {
      if (v == kNone) continue;
      const int64_t count = g_.value(v).shape.count().value();
      if (known(v) && g_.value(v).shape.rank() == rank)
        ready += count;
      else if (!moves_nothing(lifted(v, rank), to_last(rank)))
        to_move += count;
    }
    if (ready == 0 || to_move > ready) return;
    Builder b = builder(n);
    for (size_t i = 0; i < g_.node(n).inputs.size(); ++i) {
      const ValueId v = g_.node(n).inputs[i];
      if (v == kNone || g_.value(v).shape.count() == Dim(1)) continue;
      if (g_.value(v).shape.rank() == rank) {
        g_.set_input(n, static_cast<int>(i), last(b, v));
        continue;
      }
      const Expr full = b.reshape(b.wrap(v), lifted(v, rank).values());
      g_.set_input(n, static_cast<int>(i), permute(b, full, to_last(rank)).id());
    }
    g_.infer(n);
    give_back(n, y);
    ++converted_;
  }

  // A view that keeps batch and channel: [N, C, s...] -> [N, C, t...].
  void follow_view(NodeId n) {
    const ValueId x = g_.node(n).inputs[0], y = g_.node(n).outputs[0];
    const Shape &from = g_.value(x).shape, &to = g_.value(y).shape;
    if (!known(x) || to.rank() < 3 || !to.is_const() || !(from[0] == to[0]) || !(from[1] == to[1]))
      return;
    Builder b = builder(n);
    Dims dims = to.values();
    std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
    const ValueId made = b.reshape(b.wrap(last_[x]), dims).id();
    const ValueId first = permute(b, b.wrap(made), to_first(static_cast<int>(dims.size()))).id();
    last_[first] = made;
    g_.replace_uses(y, first);
    ++converted_;
  }

  Graph& g_;
  PerValue<ValueId> last_;  // per channels-first value: its channels-last version
  int converted_ = 0;
};

}  // namespace

void pass_layout(Graph& g, PassContext& ctx) {
  // Composites without kernels would stop the transposes, and may hide conv-like ops.
  decompose_kernelless(g, "layout");
  bool wanted = false;
  for (NodeId n : g.topo()) wanted |= g.node(n).op->wants_channels_last;
  if (!wanted) return;
  const int converted = ChannelsLast(g).run();
  g.erase_dead();
  int left = 0;
  for (NodeId n : g.topo()) left += g.node(n).op->name == "Transpose";
  ctx.did = cat(converted, " nodes channels-last, ", left, " transposes left");
}

}  // namespace ortrain
