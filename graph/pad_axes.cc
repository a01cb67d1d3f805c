// See pad_axes.h.
#include "graph/pad_axes.h"

namespace ortrain {
namespace {

std::map<std::string, PadRule, std::less<>>& rules() {
  static std::map<std::string, PadRule, std::less<>> table;
  return table;
}

std::optional<PadAxes> elementwise(const Graph& g, const Node& n, bool any) {
  const Shape& y = g.value(n.outputs[0]).shape;
  PadAxes p{{}, {std::string(static_cast<size_t>(y.rank()), '.')}};
  for (ValueId v : n.inputs)
    p.inputs.push_back(v == kNone ? ""
                                  : std::string(static_cast<size_t>(g.value(v).shape.rank()), '.'));
  for (int a = 0; a < y.rank(); ++a) {
    std::vector<std::pair<size_t, size_t>> full;  // (input, axis) with the whole extent
    size_t inputs = 0;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (n.inputs[i] == kNone) continue;
      ++inputs;
      const Shape& x = g.value(n.inputs[i]).shape;
      const int at = a - (y.rank() - x.rank());
      if (at >= 0 && x[at] == y[a]) full.emplace_back(i, static_cast<size_t>(at));
    }
    if (any ? full.empty() : full.size() != inputs) continue;
    const char letter = static_cast<char>('a' + a);
    for (const auto& [i, at] : full) p.inputs[i][at] = letter;
    p.outputs[0][static_cast<size_t>(a)] = letter;
  }
  return p;
}

}  // namespace

std::optional<PadAxes> pad_axes_all_zero(const Graph& g, const Node& n) {
  return elementwise(g, n, false);
}
std::optional<PadAxes> pad_axes_any_zero(const Graph& g, const Node& n) {
  return elementwise(g, n, true);
}
std::optional<PadAxes> pad_axes_of_channels(const Graph& g, const Node& n) {
  if (n.outputs.size() > 1 || n.attrs.i("channels_last", 0)) return std::nullopt;
  const std::string x =
      ".c" + std::string(static_cast<size_t>(g.value(n.inputs[0]).shape.rank() - 2), '.');
  return PadAxes{{x}, {x}};
}

void add_pad_rule(const std::string& op, PadRule rule) { rules()[op] = rule; }

PadRule pad_rule(const OpDef& op) {
  const auto it = rules().find(op.name);
  if (it != rules().end()) return it->second;
  if (op.pad == Pad::kZeroToZero) return {pad_axes_all_zero, nullptr};
  return {};
}

}  // namespace ortrain
