// infer: dtype and shape of every value that the outputs need, in one walk (unroll.h), producers
// first. Shape chains and constant subgraphs become constants on the way, parameters never melt
// into them; branches, loops and sequences dissolve. Later passes may trust every type.
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/passes/unroll.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {

// With compute f64 everything that is a float becomes f64: contents here, inputs through a Cast,
// and the element type that an operator names in an attribute.
void widen(Graph& g) {
  for (Source kind : {Source::kParam, Source::kState, Source::kConst})
    for (ValueId v : g.sources(kind))
      if (is_float(g.value(v).dtype) && g.value(v).dtype != DType::kF64)
        g.set_tensor(v, g.tensor(v)->cast(DType::kF64));
  for (NodeId n = 0; n < g.node_count(); ++n)
    for (const char* name : {"to", "dtype", "output_dtype", "precision"}) {
      const AttrValue* a = g.node(n).attrs.find(name);
      const auto* type = a ? std::get_if<std::string>(a) : nullptr;
      const auto dtype = type ? dtype_from_name(*type) : std::nullopt;
      if (dtype && is_float(*dtype)) g.node(n).attrs.set(name, std::string(name_of(DType::kF64)));
    }
  for (const ValueId v : std::vector<ValueId>(g.inputs())) {
    if (!is_float(g.value(v).dtype) || g.value(v).dtype == DType::kF64) continue;
    const NodeId cast = g.add_node(g.ops().get("Cast"), {kNone}, {{"to", std::string("f64")}}, 1,
                                   g.value(v).name + "|f64");
    g.replace_uses(v, g.node(cast).outputs[0]);
    g.set_input(cast, 0, v);
  }
}

// Float data whose every use is an input without gradient (Resize scales, Clip bounds, Pad value)
// is a constant; some of it decides shapes.
int settle_constants(Graph& g) {
  PerValue<bool> carries = reaches(g, g.outputs());
  int changed = 0;
  for (ValueId v : g.sources(Source::kParam)) {
    if (carries[v] || g.value(v).uses.empty()) continue;
    g.set_source(v, Source::kConst);
    g.params[v] = {false, "a constant: no gradient passes through any of its uses", {}};
    ++changed;
  }
  return changed;
}

}  // namespace

void pass_infer(Graph& g, PassContext& ctx) {
  if (ctx.spec.compute == DType::kF64) widen(g);
  settle_constants(g);
  if (ctx.spec.mode == Mode::kTrain || ctx.spec.mode == Mode::kGrads)
    if (std::string frozen = integer_weights(g); !frozen.empty())
      ctx.messages.push_back(std::move(frozen));
  Unroll walk(g, ctx);
  walk.run();
  g.stage = Stage::kInferred;
  ctx.did = cat(walk.typed, " nodes typed, ", walk.folded, " folded into constants");
  if (walk.dissolved) ctx.did += cat(", ", walk.dissolved, " of control flow dissolved");
}

}  // namespace ortrain
