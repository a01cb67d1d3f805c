// See lora.h.
#include "graph/lora.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

struct Use {
  NodeId node;
  bool transposed;  // the product multiplies by the tensor's transpose
};

// The products that multiply by v from the right; an empty string when there is no other use, else
// what stands in the way.
std::string collect(const Graph& g, ValueId v, bool transposed, std::vector<Use>& uses,
                    int depth = 0) {
  if (is_graph_result(g, v)) return "it is an output of the model";
  if (depth > 8) return "it is moved about too often";
  for (NodeId id : g.value(v).uses) {
    const Node& n = g.node(id);
    const bool right = n.inputs.size() > 1 && n.inputs[1] == v && n.inputs[0] != v;
    std::string problem;
    if (n.op->ew == Ew::kIdentity) {
      problem = collect(g, n.outputs[0], transposed, uses, depth + 1);
    } else if (n.op->name == "Transpose") {
      const std::vector<int64_t> perm = n.attrs.ints("perm", {1, 0});
      if (perm != std::vector<int64_t>{1, 0})
        problem = "it is used untransposed elsewhere";
      else
        problem = collect(g, n.outputs[0], !transposed, uses, depth + 1);
    } else if (right && n.op->name == "MatMul") {
      uses.push_back({id, transposed});
    } else if (right && n.op->name == "Gemm" && n.attrs.i("transA", 0) == 0 &&
               (n.inputs.size() < 3 || n.inputs[2] != v)) {
      uses.push_back({id, transposed != (n.attrs.i("transB", 0) != 0)});
    } else {
      problem = cat("it is also used by ", g.describe(id));
    }
    if (!problem.empty()) return problem;
  }
  return uses.empty() ? "no product uses it" : "";
}

std::string without_weight(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

bool named(const Graph& g, const std::vector<std::string>& regexes, const std::string& weight,
           const std::vector<NodeId>& nodes) {
  if (regexes.empty() || matches_any(regexes, weight)) return true;
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](NodeId n) { return matches_any(regexes, g.node(n).origin); });
}

// What holds a weight: float data of the file, a constant, or what turns integers into floats.
struct Holder {
  ValueId value;
  std::string name;
  bool mergeable;
};
std::vector<Holder> holders(const Graph& g) {
  std::vector<Holder> out;
  const auto add = [&](ValueId v, std::string name, bool mergeable) {
    const Value& x = g.value(v);
    if (x.shape.rank() == 2 && x.shape.is_const() && is_float(x.dtype) && !name.empty())
      out.push_back({v, std::move(name), mergeable});
  };
  for (ValueId v : g.sources(Source::kParam)) add(v, g.value(v).name, true);
  for (ValueId v : g.sources(Source::kConst)) add(v, g.value(v).name, false);
  for (NodeId n : g.topo()) {
    const Node& x = g.node(n);
    if (x.op->name == "DequantizeLinear" && constant(g, x.inputs[0]))
      add(x.outputs[0], g.value(x.inputs[0]).name, false);
  }
  return out;
}

}  // namespace

bool is_lora_name(std::string_view param) { return param.ends_with(kA) || param.ends_with(kB); }

std::vector<LoraTarget> lora_targets(const Graph& g, const LoraSpec& spec) {
  std::vector<LoraTarget> targets;
  std::string refused, could;
  const auto take = [&](LoraTarget t) {
    could += cat(could.empty() ? "" : ", ", "'", t.weight, "'");
    if (named(g, spec.targets, t.weight, t.nodes)) targets.push_back(std::move(t));
  };
  for (const Holder& h : holders(g)) {
    std::vector<Use> uses;
    std::string problem = collect(g, h.value, false, uses);
    for (const Use& u : uses)
      if (u.transposed != uses[0].transposed)
        problem = "some products use it transposed, others do not";
    if (!problem.empty()) {
      if (!spec.targets.empty() && matches_any(spec.targets, h.name) && h.mergeable)
        refused += cat("\n  '", h.name, "': ", problem);
      continue;
    }
    LoraTarget t{.weight = h.name,
                 .base = without_weight(h.name),
                 .transposed = uses[0].transposed,
                 .mergeable = h.mergeable};
    const Dims dims = g.value(h.value).shape.values();
    t.in = dims[t.transposed ? 1 : 0];
    t.out = dims[t.transposed ? 0 : 1];
    for (const Use& u : uses) t.nodes.push_back(u.node);
    take(std::move(t));
  }
  for (NodeId n : g.topo()) {
    const Node& x = g.node(n);
    if (x.op->name != "com.microsoft.MatMulNBits" || !constant(g, x.inputs[1])) continue;
    const std::string& name = g.value(x.inputs[1]).name;
    take({.weight = name,
          .base = without_weight(name),
          .mergeable = false,
          .in = x.attrs.i("K", 0),
          .out = x.attrs.i("N", 0),
          .nodes = {n}});
  }
  if (!refused.empty())
    fail(ErrorCode::kUsage, "--lora: these tensors match, but cannot take adapters:", refused);
  if (targets.empty())
    fail(ErrorCode::kUsage, "--lora: ", spec.targets.empty() ? "the model has no" : "no matching",
         " 2-D weight of a MatMul or Gemm", could.empty() ? "" : "; there are ", could);
  std::sort(targets.begin(), targets.end(),
            [](const LoraTarget& x, const LoraTarget& y) { return x.weight < y.weight; });
  for (size_t i = 1; i < targets.size(); ++i)
    if (targets[i].base == targets[i - 1].base)
      fail(ErrorCode::kUnsupported, "--lora: two weights are called '", targets[i].weight, "'");
  return targets;
}

std::vector<LoraTarget> lora_targets_of_file(const Graph& source, const StepSpec& spec,
                                             const Evaluate& evaluate) {
  StepSpec forward = spec;
  forward.mode = Mode::kPredict;
  const CompileResult r =
      compile(source, forward, {.evaluate = evaluate, .after_pass = {}, .until = "infer"});
  return lora_targets(r.graph, spec.lora);
}

HostTensor lora_merged(const LoraTarget& t, const LoraSpec& spec, const HostTensor& weight,
                       const HostTensor& a, const HostTensor& b) {
  HostTensor out(weight.dtype(), weight.dims());
  std::vector<double> rows(static_cast<size_t>(t.out));
  for (int64_t i = 0; i < t.in; ++i) {
    std::fill(rows.begin(), rows.end(), 0.0);
    for (int64_t k = 0; k < spec.rank; ++k) {
      const double x = a.as_double(i * spec.rank + k) * spec.scale();
      for (int64_t o = 0; o < t.out; ++o)
        rows[static_cast<size_t>(o)] += x * b.as_double(k * t.out + o);
    }
    for (int64_t o = 0; o < t.out; ++o) {
      const int64_t at = t.transposed ? o * t.in + i : i * t.out + o;
      out.set_double(at, weight.as_double(at) + rows[static_cast<size_t>(o)]);
    }
  }
  return out;
}

}  // namespace ortrain
