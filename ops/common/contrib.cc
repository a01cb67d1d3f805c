// See contrib.h.
#include "ops/common/contrib.h"

#include <array>

#include "graph/error.h"
#include "graph/rewrite.h"

namespace ortrain::ops {
namespace {

// Operator, and the attributes that its parameters are.
struct Activation {
  const char* name;
  std::array<const char*, 2> params;
};
constexpr Activation kActivations[] = {
    {"Relu", {}},       {"Tanh", {}},
    {"Sigmoid", {}},    {"Softplus", {}},
    {"Softsign", {}},   {"HardSwish", {}},
    {"Elu", {"alpha"}}, {"LeakyRelu", {"alpha"}},
    {"Selu", {}},       {"HardSigmoid", {"alpha", "beta"}},
    {"Clip", {}},       {"ThresholdedRelu", {"alpha"}},
};

const Activation* find(const std::string& name) {
  for (const Activation& a : kActivations)
    if (name == a.name) return &a;
  return nullptr;
}

}  // namespace

void expand_early(Graph& g, NodeId n, const TrainingPolicy&) {
  for (ValueId v : g.node(n).inputs)
    if (v != kNone && !g.value(v).shape.is_const()) return;
  for (ValueId v : g.node(n).outputs)
    if (v != kNone && !g.value(v).shape.is_const()) return;
  decompose_node(g, n, "canonicalize");
}

void check_activation(const std::string& name) {
  if (!name.empty() && !find(name)) fail(ErrorCode::kUnsupported, "activation '", name, "'");
}

Expr activated(Builder& b, Expr x, const std::string& name, const std::vector<double>& params) {
  if (name.empty()) return x;
  const Activation* a = find(name);
  if (!a) fail(ErrorCode::kUnsupported, "activation '", name, "'");
  if (name == "Clip") {
    Expr low, high;
    if (!params.empty()) low = b.scalar(x.dtype(), params[0]);
    if (params.size() > 1) high = b.scalar(x.dtype(), params[1]);
    return b.op("Clip", {x, low, high});
  }
  Attrs attrs;
  for (size_t i = 0; i < a->params.size() && i < params.size(); ++i)
    if (a->params[i]) attrs.set(a->params[i], params[i]);
  return b.op(name, {x}, attrs);
}

}  // namespace ortrain::ops
