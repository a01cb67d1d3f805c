// cast_precision: products compute in bf16 or fp16, the rest follows as its record says
// (OpDef::precision), before autodiff: the Cast of a parameter turns its 16-bit gradient into the
// f32 one of the master weight.
//
// kAlways16: inputs are cast, from the first on, until the operator's inference accepts; what it
// takes in f32 beside 16-bit data (masks, statistics) stays f32. kNever16: 16-bit inputs become f32
// again. kFollow: 16-bit when every input is; where one is f32 and inference accepts the mixture it
// stays, numbers are cast when the 16-bit type holds them, else everything is promoted to f32, as
// PyTorch does. A value is cast once per type. Outputs and states keep their types; integers, truth
// values and f64 are left alone. A product whose inner extent is 1 (positions times frequencies)
// stays f32: there is nothing to gain and much to lose.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/half.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

class Caster {
 public:
  Caster(Graph& g, DType narrow) : g_(g), narrow_(narrow), cast_(g, kNone) {}

  void run() {
    std::vector<DType> outputs, updates;  // as they are now, and shall be afterwards
    for (ValueId v : g_.outputs()) outputs.push_back(g_.value(v).dtype);
    for (const StateUpdate& u : g_.updates()) updates.push_back(g_.value(u.next).dtype);
    for (NodeId n : g_.topo()) visit(n);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (g_.value(g_.outputs()[i]).dtype != outputs[i])
        g_.set_output(static_cast<int>(i), as(g_.outputs()[i], outputs[i]));
    for (size_t i = 0; i < updates.size(); ++i)
      if (g_.value(g_.updates()[i].next).dtype != updates[i])
        g_.set_update(static_cast<int>(i), as(g_.updates()[i].next, updates[i]));
  }
  std::string summary() const {
    if (products_ == 0) return "";
    return cat(products_, " products in ", name_of(narrow_), ", ", followers_, " nodes follow, ",
               casts_, " casts (", params_, " of parameters)");
  }

 private:
  DType type(ValueId v) const { return g_.value(v).dtype; }
  bool reads(NodeId n, DType d) const {
    const auto& in = g_.node(n).inputs;
    return std::any_of(in.begin(), in.end(), [&](ValueId v) { return v != kNone && type(v) == d; });
  }

  // v in the other type of the pair f32, narrow.
  ValueId as(ValueId v, DType to) {
    if (type(v) == to) return v;
    const Node* p = producer(g_, v, "Cast");
    if (p && to == narrow_ && type(p->inputs[0]) == narrow_) return p->inputs[0];  // was widened
    if (cast_[v] == kNone) {
      Builder b(g_, g_.describe_value(v) + "|cast_precision");
      const ValueId made = b.cast(b.wrap(v), to).id();
      cast_[v] = made;
      ++casts_;
      params_ += g_.value(v).source == Source::kParam;
    }
    return cast_[v];
  }

  bool accepts(NodeId n) {
    try {
      g_.infer(n);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void visit(NodeId n) {
    if (reads(n, DType::kF64)) return widen(n);
    switch (g_.node(n).op->precision) {
      case Precision::kAlways16: return narrow(n);
      case Precision::kNever16: return widen(n);
      case Precision::kFollow: return follow(n);
    }
  }

  void widen(NodeId n) {
    if (!reads(n, narrow_)) return;
    for (size_t i = 0; i < g_.node(n).inputs.size(); ++i) {
      const ValueId v = g_.node(n).inputs[i];
      if (v != kNone && type(v) == narrow_)
        g_.set_input(n, static_cast<int>(i), as(v, DType::kF32));
    }
    g_.infer(n);
  }

  bool worth_it(NodeId n) const {
    const Node& x = g_.node(n);
    if (!x.op->flops || x.outputs.empty() || x.outputs[0] == kNone) return true;
    const Shape& y = g_.value(x.outputs[0]).shape;
    if (!y.is_const()) return true;
    return x.op->flops(g_, x) > 2.0 * static_cast<double>(y.count().value());
  }

  void narrow(NodeId n) {
    if (!reads(n, DType::kF32) && !reads(n, narrow_)) return;
    if (!worth_it(n)) return widen(n);
    const std::vector<ValueId> before = g_.node(n).inputs;
    for (size_t i = 0; i < before.size(); ++i) {
      if (before[i] == kNone || type(before[i]) != DType::kF32) continue;
      g_.set_input(n, static_cast<int>(i), as(before[i], narrow_));
      if (accepts(n)) {
        ++products_;
        return;
      }
    }
    if (!reads(n, DType::kF32) && accepts(n)) {  // was all 16-bit already
      ++products_;
      return;
    }
    for (size_t i = 0; i < before.size(); ++i) g_.set_input(n, static_cast<int>(i), before[i]);
    widen(n);
  }

  // A number that the 16-bit type holds: not one that becomes infinite or zero.
  bool weak(ValueId v) const {
    const std::optional<double> x = uniform(g_, v);
    if (!x || g_.tensor(v)->count() != 1) return false;
    const double y = HostTensor::scalar_of(narrow_, *x).as_double(0);
    return std::isfinite(y) == std::isfinite(*x) && (y == 0) == (*x == 0);
  }

  void follow(NodeId n) {
    if (!reads(n, narrow_)) return;
    if (accepts(n)) return done(n);
    const std::vector<ValueId> before = g_.node(n).inputs;
    bool all = true;
    for (size_t i = 0; i < before.size(); ++i) {
      const ValueId v = before[i];
      if (v == kNone || type(v) != DType::kF32) continue;
      if (weak(v))
        g_.set_input(n, static_cast<int>(i), as(v, narrow_));
      else
        all = false;
    }
    if (all && accepts(n)) return done(n);
    for (size_t i = 0; i < before.size(); ++i) g_.set_input(n, static_cast<int>(i), before[i]);
    widen(n);
  }
  void done(NodeId n) {
    for (ValueId v : g_.node(n).outputs)
      if (v != kNone && type(v) == narrow_) {
        ++followers_;
        return;
      }
  }

  Graph& g_;
  const DType narrow_;
  PerValue<ValueId> cast_;  // per value: its version in the other type
  int products_ = 0, followers_ = 0, casts_ = 0, params_ = 0;
};

}  // namespace

void pass_cast_precision(Graph& g, PassContext& ctx) {
  decompose_kernelless(g, "cast_precision");
  Caster caster(g, ctx.spec.narrow);
  caster.run();
  g.erase_dead();
  ctx.did = caster.summary();
  ctx.messages.push_back(ctx.did.empty()
                             ? cat("precision ", name_of(ctx.spec.narrow),
                                   ": the model has no products to compute in it")
                             : cat("precision ", name_of(ctx.spec.narrow), ": ", ctx.did,
                                   "; weights, statistics, sums and loss stay f32"));
}

// round_tf32: every f32 input of a product, forward and backward, rounded to tf32 as the tensor
// cores of a GPU do; sums stay f32. A value is rounded once.
void pass_round_tf32(Graph& g, PassContext& ctx) {
  PerValue<ValueId> rounded(g, kNone);
  int products = 0, values = 0;
  for (NodeId n : g.topo()) {
    if (g.node(n).op->precision != Precision::kAlways16) continue;
    bool any = false;
    for (size_t i = 0; i < g.node(n).inputs.size(); ++i) {
      const ValueId v = g.node(n).inputs[i];
      if (v == kNone || g.value(v).dtype != DType::kF32) continue;
      if (rounded[v] == kNone) {
        Builder b(g, g.describe_value(v) + "|round_tf32");
        const ValueId made = b.op("ortrain.RoundTF32", {b.wrap(v)}).id();
        rounded[v] = made;
        ++values;
      }
      g.set_input(n, static_cast<int>(i), rounded[v]);
      any = true;
    }
    products += any;
  }
  ctx.messages.push_back(
      cat("precision tf32: inputs of ", products,
          " products are rounded to 10 bits before the f32 product, as a GPU would; slower here"));
  if (products > 0) ctx.did = cat(values, " inputs of ", products, " products rounded to tf32");
}

}  // namespace ortrain
