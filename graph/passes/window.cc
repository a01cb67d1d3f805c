// Sums, weights and random keys of windows; see window.h. Nothing here runs for a step of one batch
// without a loss scale.
#include "graph/passes/window.h"

#include <algorithm>

#include "graph/op_def.h"
#include "graph/passes/row_gradients.h"
#include "graph/rewrite.h"
#include "graph/trainable.h"

namespace ortrain {
namespace {
using Phase = WindowSpec::Phase;

ValueId state_named(const Graph& g, const std::string& name) {
  for (ValueId v : g.sources(Source::kState))
    if (g.value(v).name == name) return v;
  return kNone;
}

ValueId weight_output(const Graph& g) {
  for (size_t i = 0; i < g.outputs().size(); ++i)
    if (g.output_names()[i] == kLossWeight) return g.outputs()[i];
  return kNone;
}

ValueId window_state(Graph& g, ValueId like, const std::string& name) {
  const Value& x = g.value(like);
  return g.add_state(HostTensor(x.dtype, x.shape.values()), kWindowPrefix + name);
}

}  // namespace

bool may_be_empty(const Graph& g) { return weight_output(g) != kNone; }

Expr loss_weight(Builder& b, const WindowSpec& w) {
  if (const ValueId v = weight_output(b.graph()); v != kNone) return b.cast(b.wrap(v), DType::kF64);
  return b.scalar(DType::kF64, w.samples > 0
                                   ? static_cast<double>(w.samples) / static_cast<double>(w.nominal)
                                   : 1);
}

Expr window_share(Builder& b, const WindowSpec& w, Expr weight, const std::string& loss) {
  const double samples =
      w.samples > 0 ? static_cast<double>(w.samples) / static_cast<double>(w.nominal) : 1;
  const Expr own =
      weight ? b.cast(b.wrap(weight.id()), DType::kF64) : b.scalar(DType::kF64, samples);
  if (w.phase == Phase::kCount) return own;
  const ValueId all = b.graph().add_state(HostTensor::scalar<double>(0), kWindowTargets + loss);
  return own / b.op("Max", {b.wrap(all), b.scalar(DType::kF64, kNoWeight)});
}

Expr window_targets(Builder& b) {
  Expr sum;
  for (ValueId v : b.graph().sources(Source::kState))
    if (b.graph().value(v).name.starts_with(kWindowTargets))
      sum = sum ? sum + b.wrap(v) : b.wrap(v);
  return sum;
}

ValueId loss_scale_state(Graph& g, const LossScaleSpec& spec) {
  const ValueId v = state_named(g, kLossScaleName);
  if (v != kNone) return v;
  return g.add_state(HostTensor::scalar<float>(static_cast<float>(spec.init)), kLossScaleName);
}

Expr loss_scale(Builder& b, const LossScaleSpec& spec) {
  Graph& g = b.graph();
  if (spec.kind == LossScaleSpec::Kind::kOff) return {};
  if (spec.kind == LossScaleSpec::Kind::kStatic) return b.scalar(DType::kF64, spec.init);
  return b.cast(b.wrap(loss_scale_state(g, spec)), DType::kF64);
}

Expr gradient_seed(Builder& b, const StepSpec& spec) {
  const DType dtype = b.graph().value(b.graph().outputs()[0]).dtype;
  const WindowSpec& w = spec.window;
  Expr seed = loss_scale(b, spec.loss_scale);
  if (spec.mode == Mode::kGrads) return seed ? b.cast(seed, dtype) : seed;
  const bool shares = static_cast<bool>(window_targets(b));
  if (w.phase != Phase::kOnly && !shares && (may_be_empty(b.graph()) || w.samples != w.nominal)) {
    const Expr weight = loss_weight(b, w);
    seed = seed ? seed * weight : weight;
  }
  return seed ? b.cast(seed, dtype) : seed;
}

Expr window_sum(Builder& b, const WindowSpec& w, Expr x, const std::string& name) {
  Graph& g = b.graph();
  const ValueId state = window_state(g, x.id(), name);
  const Expr sum = w.phase == Phase::kFirst ? x : add_gradient(b.wrap(state), x);
  g.add_update(state, sum.id());
  return sum;
}

void carry_states(Graph& g, const WindowSpec& w) {
  const size_t count = g.updates().size();
  for (size_t i = 0; i < count; ++i) {
    const ValueId state = g.updates()[i].state;
    const ValueId carried = window_state(g, state, g.value(state).name);
    if (w.phase != Phase::kFirst) g.replace_uses(state, carried);
    if (w.phase == Phase::kLast) continue;
    g.add_update(carried, g.updates()[i].next);
    g.set_update(static_cast<int>(i), state);  // stays as it is
  }
}

int key_randomness(Graph& g, Builder& b, const WindowSpec& w) {
  const ValueId step = state_named(g, kStepName);
  if (step == kNone) return 0;
  std::vector<NodeId> nodes;
  for (NodeId n : g.value(step).uses)
    if (g.node(n).op->random) nodes.push_back(n);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  if (nodes.empty()) return 0;
  const ValueId before = window_state(g, step, "samples");
  const Expr samples = b.scalar(DType::kI64, static_cast<double>(w.samples));
  const Expr so_far = b.wrap(before);
  if (w.phase == Phase::kFirst) g.add_update(before, samples.id());
  if (w.phase == Phase::kMiddle) g.add_update(before, (so_far + samples).id());
  if (w.phase == Phase::kFirst) return static_cast<int>(nodes.size());
  Expr own_step;
  for (NodeId n : nodes) {
    const std::vector<std::string>& names = g.node(n).op->inputs;
    const auto at = std::find(names.begin(), names.end(), "before?");
    if (at != names.end()) {
      const int64_t numbers = element_count(g.value(g.node(n).outputs[0]).shape.values());
      g.node(n).attrs.set(
          "per_sample", w.samples > 0 && numbers % w.samples == 0 ? numbers / w.samples : numbers);
      g.set_input(n, static_cast<int>(at - names.begin()), before);
      continue;
    }
    if (!own_step) own_step = b.wrap(step) + so_far * b.scalar(DType::kI64, 4294967296.0);
    for (size_t i = 0; i < g.node(n).inputs.size(); ++i)
      if (g.node(n).inputs[i] == step) g.set_input(n, static_cast<int>(i), own_step.id());
  }
  return static_cast<int>(nodes.size());
}

}  // namespace ortrain
