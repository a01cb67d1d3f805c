// See program.h.
#include "runtime/program.h"

#include <algorithm>

#include "graph/error.h"
#include "runtime/evaluate.h"

namespace ortrain {

Program::Program(const Graph& source, const StepSpec& spec, ParamStore& store, Arena& arena,
                 const SelectOptions& select, CompileOptions options,
                 const ParamStore::Copied& copied) {
  options.evaluate = make_evaluator();
  CompileResult compiled = compile(source, spec, options);
  notes_ = std::move(compiled.notes);
  messages_ = std::move(compiled.messages);
  recompute_ = compiled.recompute;
  plan_ = make_plan(compiled.graph, store, select, copied);
  arena.reserve(plan_.arena_bytes);
  for (size_t i = 0; i < plan_.inputs.size(); ++i)
    if (plan_.inputs[i].place.kind == Place::Kind::kInput) read_.push_back(i);
  pointers_.assign(plan_.inputs.size(), nullptr);
}

void Program::start(const Arena& arena) { executor_.emplace(plan_, arena); }

std::vector<data::ArraySpec> Program::arrays() const {
  std::vector<data::ArraySpec> out;
  for (size_t i : read_) {
    const PlanTensor& t = plan_.inputs[i];
    out.push_back({t.name, t.dtype, t.dims});
  }
  return out;
}

const std::vector<const void*>& Program::place(const std::vector<const void*>& arrays) {
  ORTRAIN_CHECK(arrays.size() == read_.size(), "one array per input that is read");
  for (size_t i = 0; i < read_.size(); ++i) pointers_[read_[i]] = arrays[i];
  return pointers_;
}
void Program::run(const std::vector<const void*>& arrays) { executor_->run(place(arrays)); }
std::optional<BadNode> Program::find_bad_node(const ParamStore& store,
                                              const std::vector<const void*>& arrays,
                                              bool scaled_loss) {
  return ortrain::find_bad_node(*executor_, &store, place(arrays), scaled_loss);
}
bool Program::run(const std::vector<const void*>& arrays, StepHook& hook) {
  return executor_->run(place(arrays), hook);
}

// --- data and graph ---
namespace {

bool is_input(const Graph& g, const std::string& name) {
  return std::any_of(g.inputs().begin(), g.inputs().end(),
                     [&](ValueId v) { return g.value(v).name == name; });
}

// The array that is named after an output; "" when there is none.
std::string label_of_output(const Graph& source, const data::Dataset& data,
                            const std::string& output) {
  std::vector<std::string> found;
  for (const char* word : {"label", "labels", "target", "targets", "y"})
    for (const std::string& name : {output + "_" + word, word + ("_" + output)})
      if (data.has(name) && !is_input(source, name)) found.push_back(name);
  if (found.size() > 1)
    fail(ErrorCode::kUsage, data.where(), " holds two label arrays for output '", output, "': '",
         found[0], "' and '", found[1], "'; name one: --loss \"", output, ":auto(", found[0],
         ")\"");
  return found.empty() ? "" : found[0];
}

std::string pick_label(const Graph& source, const data::Dataset& data) {
  std::vector<std::string> free, named;
  std::string all;
  for (const std::string& name : data.names()) {
    if (is_input(source, name)) continue;
    free.push_back(name);
    all += (all.empty() ? "'" : ", '") + name + "'";
    for (const char* usual : {"labels", "label", "targets", "target", "y"})
      if (name == usual) named.push_back(name);
  }
  if (free.empty()) return {};
  if (free.size() == 1) return free[0];
  if (named.size() == 1) return named[0];
  fail(ErrorCode::kUsage, data.where(), " holds ", free.size(),
       " arrays that are no model input: ", all, "; name the labels with --label");
}

// Output `name`, or the first float one.
PlanTensor typed_output(const Graph& g, const std::string& name) {
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    const Value& x = g.value(g.outputs()[i]);
    if (name.empty() ? is_float(x.dtype) : g.output_names()[i] == name)
      return {g.output_names()[i], x.dtype, x.shape.is_const() ? x.shape.values() : Dims{}, {}};
  }
  return {};
}

// The class axis of index labels, by the rule of attach_loss: axis 1 if the other axes are the
// labels', else the last; of a rank-3 output where both fit, the last.
int class_axis(const Dims& x, const Dims& y) {
  const auto fits = [&](size_t axis) {
    Dims rest = x;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(axis));
    return rest == y;
  };
  if (x.size() < 2) return -1;
  const bool second = fits(1), last = x.size() > 2 && fits(x.size() - 1);
  if (second && last) return x.size() == 3 ? 2 : 1;
  return second ? 1 : last ? static_cast<int>(x.size()) - 1 : -1;
}

}  // namespace

std::vector<data::ArraySpec> input_specs(const Graph& source) {
  std::vector<data::ArraySpec> specs;
  for (ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    if (x.uses.empty()) continue;
    Dims dims;
    for (const Dim& d : x.shape) dims.push_back(d.is_const() ? d.value() : -1);
    specs.push_back({x.name, x.dtype, std::move(dims)});
  }
  return specs;
}

std::vector<const void*> pointers(const data::Batch& batch) {
  std::vector<const void*> out;
  for (const data::BatchArray& a : batch.arrays) out.push_back(a.data);
  return out;
}

std::optional<Dim> batch_axis(const Graph& source) {
  std::optional<Dim> fixed;
  for (ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    if (x.uses.empty() || x.shape.rank() == 0) continue;
    if (!x.shape[0].is_const()) return x.shape[0];
    if (!fixed) fixed = x.shape[0];
  }
  return fixed;
}

void share_inputs(const Graph& source, data::Dataset& data) {
  const std::optional<Dim> batch = batch_axis(source);
  for (ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    const bool fixed = x.shape.rank() == 0 || (x.shape[0].is_const() && x.shape[0] != *batch);
    if (fixed && !x.uses.empty()) data.share(x.name);
  }
}

namespace {
void label_from_data(const Graph& source, const data::Dataset& data, const StepSpec& spec,
                     LossSpec& loss, int64_t batch, bool alone) {
  if (loss.kind == "graph") return;
  if (loss.label.empty() && !loss.output.empty())
    loss.label = label_of_output(source, data, loss.output);
  if (loss.label.empty() && alone) loss.label = pick_label(source, data);
  if (loss.label.empty()) return;
  const data::StoredArray* label = data.find(loss.label);
  if (label == nullptr) {
    if (spec.mode == Mode::kEval) return;  // no loss then
    data.stored(loss.label);               // throws: names the arrays that there are
  }
  loss.label_dims = label->dims;
  if (!label->dims.empty()) loss.label_dims[0] = batch;
  const bool wide = spec.compute == DType::kF64 && label->dtype == DType::kF64;
  loss.label_dtype = !is_float(label->dtype) ? DType::kI64 : wide ? DType::kF64 : DType::kF32;
}
}  // namespace

StepSpec spec_for_data(const Graph& source, const data::Dataset& data, StepSpec spec,
                       int64_t batch) {
  data.check_fits(input_specs(source));
  for (ValueId v : source.inputs()) {
    const std::string& name = source.value(v).name;
    const data::StoredArray* a = data.find(name);
    if (a == nullptr) continue;
    Dims dims = a->dims;
    if (!data.shared(name)) dims[0] = batch;
    spec.input_dims[name] = std::move(dims);
  }
  if (spec.mode == Mode::kPredict) return spec;
  const bool alone = spec.more_losses.empty();
  label_from_data(source, data, spec, spec.loss, batch, alone);
  for (LossSpec& loss : spec.more_losses) label_from_data(source, data, spec, loss, batch, false);
  return spec;
}

namespace {
Target find_target(const Graph& typed, const LossSpec& loss) {
  const PlanTensor output = typed_output(typed, loss.output);
  Target t;
  t.output = output.name;
  t.factor = loss.factor;
  t.kind = "graph";
  if (loss.kind == "graph" || loss.label_dtype == DType::kUndefined ||
      (loss.kind == "auto" && output.dims.empty()))
    return t;
  t.label = loss.label;
  t.label_dtype = loss.label_dtype;
  const bool soft = is_float(loss.label_dtype);
  const std::string kind = loss.kind != "auto" ? loss.kind : soft ? "mse" : "cross_entropy";
  t.kind = kind;
  t.metric.ignore_index = loss.ignore_index;
  if (kind == "cross_entropy" || kind == "nll" || (kind == "focal" && !soft)) {
    const int axis =
        soft ? (output.dims.size() == 3 ? 2 : 1) : class_axis(output.dims, loss.label_dims);
    if (axis < 0 || (soft && output.dims != loss.label_dims)) return t;  // compile() says why
    t.metric.kind = MetricSpec::Kind::kClasses;
    t.metric.class_axis = axis;
    if (!soft) t.classes = output.dims[static_cast<size_t>(axis)];
  } else if (kind == "bce" || kind == "bce_with_logits" || kind == "dice") {
    t.metric.kind = MetricSpec::Kind::kBinary;
    t.metric.threshold = kind == "bce_with_logits" ? 0 : 0.5;
  } else if (kind != "kl_div" && kind != "focal" && kind != "ctc") {
    t.metric.kind = MetricSpec::Kind::kRegression;
  }
  if (!t.classes && element_count(output.dims) != element_count(loss.label_dims))
    t.metric.kind = MetricSpec::Kind::kNone;  // compile() says why
  return t;
}

}  // namespace

std::vector<Target> find_targets(const Graph& source, const StepSpec& spec) {
  StepSpec forward = spec;
  forward.mode = Mode::kPredict;
  const CompileResult r =
      compile(source, forward, {.evaluate = make_evaluator(), .after_pass = {}, .until = "infer"});
  std::vector<Target> out;
  for (const LossSpec& loss : spec.losses()) {
    out.push_back(find_target(r.graph, loss));
    if (!spec.more_losses.empty()) out.back().name = loss.output;
  }
  return out;
}

}  // namespace ortrain
