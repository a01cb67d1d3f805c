// fuse_split: Slices and Gathers of one position that cut a value into consecutive pieces along one
// axis become one Split, whose gradient is one Concat instead of a whole gradient and an Add per
// piece. Exporters write the query, key and value of attention so, and the steps of a loop. Refuses
// steps other than 1, gaps, overlaps that are not equal, and several axes.
#include <algorithm>

#include "graph/error.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

struct Piece {
  NodeId node;
  int axis;
  int64_t start, end;
  bool drops_axis = false;  // Gather by a scalar
};

std::optional<int64_t> single(const Graph& g, ValueId v) {
  const HostTensor* t = constant(g, v);
  if (!t || t->count() != 1) return std::nullopt;
  return t->as_int(0);
}

std::optional<Piece> piece(const Graph& g, NodeId n) {
  const Node& x = g.node(n);
  const auto start = single(g, input(x, 1)), end = single(g, input(x, 2)),
             axis = single(g, input(x, 3));
  if (!start || !end || !axis) return std::nullopt;
  if (input(x, 4) != kNone && single(g, input(x, 4)) != 1) return std::nullopt;
  const Shape& s = g.value(x.inputs[0]).shape;
  if (!s.is_const()) return std::nullopt;
  const int a = normalize_axis(*axis, s.rank());
  const int64_t extent = s[a].value();
  const auto clamp = [extent](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + extent : i, 0, extent);
  };
  return Piece{n, a, clamp(*start), clamp(*end)};
}

std::optional<Piece> position(const Graph& g, NodeId n) {
  const Node& x = g.node(n);
  const HostTensor* index = constant(g, input(x, 1));
  const Shape& s = g.value(x.inputs[0]).shape;
  if (!index || index->rank() != 0 || !s.is_const()) return std::nullopt;
  const int a = normalize_axis(x.attrs.i("axis", 0), s.rank());
  const int64_t extent = s[a].value(), at = index->as_int(0) + (index->as_int(0) < 0 ? extent : 0);
  if (at < 0 || at >= extent) return std::nullopt;
  return Piece{n, a, at, at + 1, true};
}

bool split(Graph& g, ValueId v) {
  std::vector<Piece> pieces;
  for (NodeId n : g.value(v).uses) {
    const bool slice = g.node(n).op->name == "Slice", gather = g.node(n).op->name == "Gather";
    if ((!slice && !gather) || g.node(n).inputs[0] != v) continue;
    const auto p = slice ? piece(g, n) : position(g, n);
    if (p && (pieces.empty() || p->axis == pieces[0].axis)) pieces.push_back(*p);
  }
  if (pieces.size() < 2) return false;
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.start < b.start; });
  const int axis = pieces[0].axis;
  int64_t at = 0;
  std::vector<int64_t> sizes;
  std::vector<size_t> part;  // by piece
  for (const Piece& p : pieces) {
    const bool again = !sizes.empty() && p.start == at - sizes.back() && p.end == at;
    if (!again) {
      if (p.start != at || p.end <= p.start) return false;
      sizes.push_back(p.end - p.start);
      at = p.end;
    }
    part.push_back(sizes.size() - 1);
  }
  if (at != g.value(v).shape[axis].value() || sizes.size() < 2) return false;
  Builder b(g, g.node(pieces[0].node).origin + "|split");
  const auto parts = b.ops("Split", {b.wrap(v), b.ints(sizes)}, {{"axis", int64_t{axis}}},
                           static_cast<int>(sizes.size()));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Expr x = parts[part[i]];
    g.replace_uses(g.node(pieces[i].node).outputs[0],
                   (pieces[i].drops_axis ? b.squeeze(x, {axis}) : x).id());
  }
  return true;
}

}  // namespace

int fuse_split(Graph& g, PassContext&) {
  if (!g.ops().find("Split")) return 0;
  int done = 0;
  const int values = g.value_count();
  for (ValueId v = 0; v < values; ++v)
    if (g.value(v).uses.size() > 1) done += split(g, v);
  return done;
}

}  // namespace ortrain
