// lora: adapters A and B beside each target weight (lora.h), scaled by alpha / r.
//
// y = x W becomes y = x W + ((drop(x) A) alpha/r) B; the product A B is never made. A starts
// uniform in +-1/sqrt(in) (Kaiming, a = sqrt 5), a pure function of seed, name and element
// (SplitMix64); B starts at zero. Adapters are parameters of their own; what else trains is decided
// in trainable.cc. Right after infer, so that weights are still where the file has them.
#include "graph/lora.h"

#include <cmath>

#include "graph/error.h"
#include "graph/fnv.h"
#include "graph/op_def.h"
#include "graph/passes/passes.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

HostTensor initial_a(DType dtype, const LoraTarget& t, int64_t rank, uint64_t seed) {
  HostTensor a(dtype, {t.in, rank});
  const uint64_t stream = mix(seed * kGolden ^ fnv1a(t.a()));
  const double bound = 1 / std::sqrt(static_cast<double>(t.in));
  for (int64_t i = 0; i < a.count(); ++i) {
    const uint64_t bits = mix(stream + static_cast<uint64_t>(i + 1) * kGolden);
    a.set_double(i, (static_cast<double>(bits >> 11) * 0x1p-52 - 1) * bound);
  }
  return a;
}

void adapt(Graph& g, PassContext& ctx, const LoraTarget& t, NodeId product, ValueId a, ValueId b) {
  const LoraSpec& spec = ctx.spec.lora;
  const Node n = g.node(product);  // a copy: nodes move as the graph grows
  Builder builder(g, n.origin + "|lora");
  // The product once more, so that everything behind the old one can read the sum.
  const NodeId again = g.add_node(*n.op, n.inputs, n.attrs, 1, n.origin);
  g.infer(again);
  const ValueId plain = g.node(again).outputs[0];
  g.value(plain).name = g.value(n.outputs[0]).name;
  Expr x = builder.wrap(n.inputs[0]);
  const bool training = ctx.spec.mode == Mode::kTrain || ctx.spec.mode == Mode::kGrads;
  if (spec.dropout > 0 && training)
    x = builder.op("ortrain.Dropout", {x, builder.wrap(step_state(g))},
                   {{"ratio", spec.dropout},
                    {"seed", static_cast<int64_t>(ctx.spec.seed)},
                    {"key", static_cast<int64_t>(fnv1a(cat(n.origin, "|", t.base)) >> 1)}});
  const Expr narrow = builder.matmul(x, builder.wrap(a));
  const double alpha = n.op->name == "Gemm" ? n.attrs.f("alpha", 1) : 1;
  const Expr delta = builder.matmul(narrow * (spec.scale() * alpha), builder.wrap(b));
  const Expr sum = builder.wrap(plain) + delta;
  g.replace_uses(n.outputs[0], sum.id());
  g.erase_if_dead(product);
}

}  // namespace

void pass_lora(Graph& g, PassContext& ctx) {
  const LoraSpec& spec = ctx.spec.lora;
  const std::vector<LoraTarget> targets = lora_targets(g, spec);
  int64_t numbers = 0;
  std::string names;
  for (const LoraTarget& t : targets) {
    const DType dtype = g.value(g.node(t.nodes[0]).inputs[0]).dtype;
    const ValueId a = g.add_param(initial_a(dtype, t, spec.rank, ctx.spec.seed), t.a());
    const ValueId b = g.add_param(HostTensor(dtype, {spec.rank, t.out}), t.b());
    for (NodeId n : t.nodes) adapt(g, ctx, t, n, a, b);
    numbers += spec.rank * (t.in + t.out);
    if (names.size() < 300) names += (names.empty() ? "" : ", ") + t.weight;
  }
  ctx.did = cat(targets.size(), " weights with adapters of rank ", spec.rank, ", ", numbers,
                " numbers: ", names);
  ctx.messages.push_back("lora: " + ctx.did);
}

}  // namespace ortrain
