// See param_groups.h.
#include "graph/passes/param_groups.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/error.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

std::string number(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", v);
  return buffer;
}

std::string tensors(size_t n) { return cat(n, n == 1 ? " tensor" : " tensors"); }

bool digits(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "encoder.layer.3" of "encoder.layer.3.output.bias"; "" where no part of the name before the last
// is a number.
std::string block_of(const std::string& name) {
  for (size_t begin = 0;;) {
    const size_t end = name.find_first_of("./", begin);
    if (end == std::string::npos) return {};
    if (digits(std::string_view(name).substr(begin, end - begin))) return name.substr(0, end);
    begin = end + 1;
  }
}

struct Layer {
  std::string name;  // of the block, or its first parameter
  size_t count = 0;  // of its parameters
};

}  // namespace

std::map<ValueId, int> param_depths(const Graph& g) {
  PerValue<int> depth(g, -1);  // -1: known without inputs
  for (ValueId v : g.inputs()) depth[v] = 0;
  const std::vector<NodeId> order = g.topo();
  for (NodeId n : order) {
    int d = -1;
    for (ValueId v : g.node(n).inputs)
      if (v != kNone && depth[v] >= 0) d = std::max(d, depth[v] + 1);
    for (ValueId v : g.node(n).outputs)
      if (v != kNone) depth[v] = d;
  }
  // Backwards: the least depth of a node with inputs that reads the value.
  constexpr int kUnused = 1 << 30;
  PerValue<int> first(g, kUnused);
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    int own = kUnused;
    for (ValueId v : g.node(*n).outputs)
      if (v != kNone) own = std::min(own, depth[v] >= 0 ? depth[v] : first[v]);
    for (ValueId v : g.node(*n).inputs)
      if (v != kNone && depth[v] < 0) first[v] = std::min<int>(first[v], own);
  }
  std::map<ValueId, int> out;
  for (const auto& [v, info] : g.params) out[v] = first[v];
  return out;
}

ParamGroups::ParamGroups(const Graph& g, const OptimizerSpec& spec) {
  const bool norm_bias = std::count(spec.no_decay.begin(), spec.no_decay.end(), "norm_bias") > 0;
  std::vector<std::string> no_decay = spec.no_decay;
  std::erase(no_decay, "norm_bias");
  std::vector<size_t> members(spec.groups.size(), 0);
  size_t others = 0;
  std::vector<bool> no_decay_used(no_decay.size(), false);
  for (const auto& [v, info] : g.params) {
    if (!info.trainable) continue;
    const std::string& name = g.value(v).name;
    Setting& s = settings_[v] = {1, spec.weight_decay};
    size_t i = 0;
    while (i < spec.groups.size() && !matches_any({spec.groups[i].regex}, name)) ++i;
    if (i < spec.groups.size()) {
      const ParamGroup& group = spec.groups[i];
      ++members[i];
      s.lr_factor = group.lr_factor;
      if (group.lr >= 0) {
        if (spec.lr <= 0 && group.lr > 0)
          fail(ErrorCode::kUsage, "--group ", group.regex, ": lr needs --lr above 0");
        s.lr_factor *= group.lr > 0 ? group.lr / spec.lr : 0;
      }
      if (group.weight_decay >= 0) s.weight_decay = group.weight_decay;
    } else {
      ++others;
    }
    if (norm_bias && g.value(v).shape.rank() <= 1) s.weight_decay = 0;
    for (size_t k = 0; k < no_decay.size(); ++k)
      if (matches_any({no_decay[k]}, name)) s.weight_decay = 0, no_decay_used[k] = true;
  }
  for (size_t k = 0; k < no_decay.size(); ++k)
    if (!no_decay_used[k])
      fail(ErrorCode::kUsage, "--no-decay ", no_decay[k],
           ": no trainable parameter has a name that matches");
  for (size_t i = 0; i < members.size(); ++i) {
    const ParamGroup& group = spec.groups[i];
    if (members[i] == 0)
      fail(ErrorCode::kUsage, "--group ", group.regex,
           ": no trainable parameter that an earlier group left has a name that matches");
    const double factor = group.lr_factor * (group.lr >= 0 && spec.lr > 0 ? group.lr / spec.lr : 1);
    text_.push_back(cat("group ", group.regex, ": ", tensors(members[i]), ", lr ",
                        number(spec.lr * factor), ", weight decay ",
                        number(group.weight_decay >= 0 ? group.weight_decay : spec.weight_decay)));
  }
  if (!members.empty())
    text_.push_back(cat("no group: ", tensors(others), ", lr ", number(spec.lr), ", weight decay ",
                        number(spec.weight_decay)));
  if (spec.layer_lr_decay != 1) decide_layers(g, spec.layer_lr_decay);
  for (const auto& [v, s] : settings_) own_rates_ |= s.lr_factor != 1;
}

void ParamGroups::decide_layers(const Graph& g, double decay) {
  const std::map<ValueId, int> depths = param_depths(g);
  std::map<std::string, int> blocks;  // depth of each one's first use
  int deepest = -1;                   // use of a parameter that is in a block
  for (const auto& [v, s] : settings_) {
    const std::string block = block_of(g.value(v).name);
    if (block.empty()) continue;
    const auto [it, fresh] = blocks.emplace(block, depths.at(v));
    it->second = std::min(it->second, depths.at(v));
    deepest = std::max(deepest, depths.at(v));
  }
  const bool named = blocks.size() >= 2;
  struct Use {
    int depth;
    std::string block;
    bool matrix;
    ValueId param;
  };
  std::vector<Use> uses;
  for (const auto& [v, s] : settings_) {
    const std::string block = named ? block_of(g.value(v).name) : std::string();
    uses.push_back(
        {block.empty() ? depths.at(v) : blocks.at(block), block, g.value(v).shape.rank() >= 2, v});
  }
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.block.empty() != b.block.empty() ? b.block.empty() : a.matrix > b.matrix;
  });

  std::vector<Layer> layers;
  std::map<std::string, size_t> of_block;
  std::map<ValueId, size_t> layer_of;
  for (Use& u : uses) {
    // Without numbers every matrix opens a layer; else blocks do, and what lies around them.
    if (!named && u.matrix) u.block = cat("matrix ", u.param);
    if (named && u.block.empty() && u.depth > deepest) u.block = "after all";
    if (u.block.empty() && layers.empty()) u.block = "before all";
    if (!u.block.empty()) {
      const auto [it, fresh] = of_block.emplace(u.block, layers.size());
      if (fresh) layers.push_back({blocks.contains(u.block) ? u.block : g.value(u.param).name});
      layer_of[u.param] = it->second;
    } else {
      layer_of[u.param] = layers.size() - 1;
    }
    ++layers[layer_of[u.param]].count;
  }

  const auto factor = [&](size_t layer) {
    return std::pow(decay, static_cast<double>(layers.size() - 1 - layer));
  };
  std::string list;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = layers[i];
    if (layers.size() <= 16 || i < 8 || i + 4 >= layers.size())
      list += cat(i ? "; " : "", l.name, " (", l.count, ") x ", number(factor(i)));
    else if (i == 8)
      list += "; ...";
  }
  for (auto& [v, s] : settings_) s.lr_factor *= factor(layer_of.at(v));
  text_.push_back(cat("learning rate by layer (tensors), ", layers.size(), " layers: ", list));
}

}  // namespace ortrain
