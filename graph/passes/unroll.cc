// The walk of unroll.h: demand-driven, so that the branch of an If that is not taken is never
// typed.
#include "graph/passes/unroll.h"

#include <algorithm>
#include <unordered_set>

#include "graph/error.h"
#include "graph/rewrite.h"

namespace ortrain {

void infer_dissolved(InferCtx& c) {
  c.fail("structural operators are dissolved by pass infer and have no type before");
}

// The structural operators are this pass's syntax; their records in ops/ say what they take.
Unroll::Handler Unroll::handler(const OpDef& op) {
  static const std::map<std::string_view, Handler> table = {
      {"If", &Unroll::branch},
      {"Loop", &Unroll::loop},
      {"Scan", &Unroll::scan},
      {"SequenceMap", &Unroll::sequence_map},
      {"SequenceConstruct", &Unroll::sequence_construct},
      {"SequenceEmpty", &Unroll::sequence_empty},
      {"SequenceAt", &Unroll::sequence_at},
      {"SequenceInsert", &Unroll::sequence_insert},
      {"SequenceErase", &Unroll::sequence_erase},
      {"SequenceLength", &Unroll::sequence_length},
      {"SplitToSequence", &Unroll::split_to_sequence},
      {"ConcatFromSequence", &Unroll::concat_from_sequence},
      {"Optional", &Unroll::optional},
      {"OptionalGetElement", &Unroll::optional_get},
      {"OptionalHasElement", &Unroll::optional_has},
      {kGateOp, &Unroll::gate_node},
      {kPerIterationOp, &Unroll::per_iteration},
      {kMissingOp, &Unroll::missing},
  };
  const auto it = table.find(op.name);
  return it == table.end() ? nullptr : it->second;
}

Unroll::Unroll(Graph& g, PassContext& ctx)
    : g_(g), ctx_(ctx), training_(ctx.spec.mode == Mode::kTrain || ctx.spec.mode == Mode::kGrads) {}

void Unroll::run() {
  const auto settle = [&](auto&& value) {  // dissolving may put another value in its place
    for (NodeId n = g_.value(value()).producer; n != kNone && !done(n);
         n = g_.value(value()).producer)
      need(n);
  };
  for (size_t i = 0; i < g_.outputs().size(); ++i) settle([&] { return g_.outputs()[i]; });
  for (size_t i = 0; i < g_.updates().size(); ++i) settle([&] { return g_.updates()[i].next; });
  throw_problems();
  split_outputs();
  g_.erase_dead();
}

void Unroll::throw_problems() const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) throw problems_[0];
  std::string text = cat(problems_.size(), " nodes of the model cannot be had as they are:");
  for (size_t i = 0; i < problems_.size() && i < 20; ++i) text += cat("\n  ", problems_[i].what());
  if (problems_.size() > 20) text += cat("\n  and ", problems_.size() - 20, " more");
  throw Error(problems_[0].code(), text);
}

bool Unroll::done(NodeId n) const {
  return static_cast<size_t>(n) < done_.size() && done_[static_cast<size_t>(n)];
}

void Unroll::mark_done(NodeId n) {
  if (static_cast<size_t>(n) >= done_.size())
    done_.resize(std::max(static_cast<size_t>(n) + 1, 2 * done_.size()), 0);
  done_[static_cast<size_t>(n)] = 1;
}

int Unroll::eager(NodeId n) const {
  const Node& x = g_.node(n);
  const int all = static_cast<int>(x.inputs.size());
  if (!is_structural(*x.op)) return all;
  if (x.op->name == "If") {
    const NodeId condition = g_.value(x.inputs[0]).producer;
    return known(n, 0) || (condition != kNone && !done(condition)) ? 1 : all;
  }
  return x.attrs.has("token") ? static_cast<int>(x.attrs.i("token", 0)) : all;
}

void Unroll::need(NodeId root) {
  std::vector<NodeId> stack{root};
  while (!stack.empty()) {
    const NodeId n = stack.back();
    if (!g_.node(n).op || done(n)) {
      stack.pop_back();
      continue;
    }
    const size_t before = stack.size();
    for (int i = eager(n) - 1; i >= 0; --i) {  // the first input on top: it is visited first
      const ValueId v = input(n, i);
      if (v == kNone) continue;
      const NodeId up = g_.value(v).producer;
      if (up != kNone && !done(up)) stack.push_back(up);
    }
    if (stack.size() > before) continue;
    stack.pop_back();
    mark_done(n);
    process(n);
  }
}

void Unroll::need_input(NodeId n, int i) {
  for (ValueId v = input(n, i); v != kNone; v = input(n, i)) {
    const NodeId up = g_.value(v).producer;
    if (up == kNone || done(up)) return;
    need(up);
  }
}

// A node that cannot be typed is noted and what reads it passed over, so that all such nodes are
// told at once; inside of a body that is being dissolved the first one ends the walk.
void Unroll::process(NodeId n) {
  const OpDef& op = *g_.node(n).op;
  const auto give_up = [&] {
    for (ValueId v : g_.node(n).outputs)
      if (v != kNone) failed_.insert(v);
  };
  if (!failed_.empty())
    for (ValueId v : g_.node(n).inputs)
      if (v != kNone && failed_.contains(v)) return give_up();
  if (is_structural(op) || op.name == kGateOp) {
    if (const Handler h = handler(op)) {
      ++dissolved;
      ++inside_;
      (this->*h)(n);
      --inside_;
      return;
    }
  }
  for (ValueId v : g_.node(n).inputs) {
    if (v == kNone || !list(v)) continue;
    if (op.ew != Ew::kIdentity)
      refuse(n, cat("it takes ", list(v)->optional ? "an optional" : "a sequence",
                    ", which only sequence and optional operators do"));
    replace(g_.node(n).outputs[0], v);
    return erase(n);
  }
  try {
    g_.infer(n);
    ++typed;
    // Pass lora looks for weights behind a scale under their own names; canonicalize folds them.
    if (ctx_.spec.lora.rank > 0 && op.name == "DequantizeLinear") return;
    folded += try_fold(g_, n, ctx_.evaluate);
  } catch (const Error& e) {
    if (inside_ > 0) throw;
    problems_.push_back(e);
    give_up();
  }
}

void Unroll::erase(NodeId n) {
  std::vector<NodeId> stack{n};
  while (!stack.empty()) {
    const NodeId at = stack.back();
    stack.pop_back();
    if (!g_.node(at).op) continue;
    const std::vector<ValueId> in = g_.node(at).inputs;
    if (!g_.erase_if_dead(at)) continue;
    for (ValueId v : in)
      if (v != kNone && g_.value(v).producer != kNone && g_.value(v).uses.empty())
        stack.push_back(g_.value(v).producer);
  }
}

void Unroll::replace(ValueId from, ValueId to) {
  if (from == kNone) return;
  if (g_.value(to).name.empty()) g_.value(to).name = g_.value(from).name;
  g_.replace_uses(from, to);
}

// An output of the model that is a list becomes one output per item: "y" becomes "y.0", "y.1", ...
void Unroll::split_outputs() {
  const std::vector<ValueId> values = g_.outputs();
  if (std::none_of(values.begin(), values.end(), [&](ValueId v) { return list(v); })) return;
  const std::vector<std::string> names = g_.output_names();
  std::vector<std::pair<ValueId, std::string>> all;
  const auto add = [&](auto&& self, ValueId v, const std::string& name) -> void {
    const List* q = list(v);
    if (!q) return all.push_back({v, name});
    const std::vector<ValueId> parts = items(g_.value(v).producer, v);
    if (q->optional && !parts.empty()) return self(self, parts[0], name);
    for (size_t i = 0; i < parts.size(); ++i) self(self, parts[i], cat(name, ".", i));
  };
  for (size_t i = 0; i < values.size(); ++i) add(add, values[i], names[i]);
  g_.clear_outputs();
  for (const auto& [v, name] : all) g_.add_output(v, name);
  for (size_t i = 0; i < all.size(); ++i)  // pieces that were cut just now
    if (const NodeId n = g_.value(g_.outputs()[i]).producer; n != kNone && !done(n)) need(n);
}

// --- what is known

ValueId Unroll::input(NodeId n, int i) const {
  return ortrain::input(g_.node(n), static_cast<size_t>(i));
}

bool Unroll::wanted(NodeId n, int output) const {
  const auto& out = g_.node(n).outputs;
  if (static_cast<size_t>(output) >= out.size()) return false;
  const ValueId v = out[static_cast<size_t>(output)];
  return v != kNone && (!g_.value(v).uses.empty() || is_graph_result(g_, v));
}

const Unroll::List* Unroll::list(ValueId v) const {
  const auto it = lists_.find(v);
  return it == lists_.end() ? nullptr : &it->second;
}

const HostTensor* Unroll::known(NodeId n, int i) const { return constant(g_, input(n, i)); }

std::optional<int64_t> Unroll::position(NodeId n, int i, const char* what) const {
  const ValueId v = input(n, i);
  if (v == kNone) return std::nullopt;
  const HostTensor* t = known(n, i);
  if (!t) refuse(n, cat(what, " must be known before training, and ", cause(v)));
  if (t->count() != 1 || is_float(t->dtype()))
    fail(ErrorCode::kModel, g_.describe(n), ": ", what, " has ", t->count(), " elements of type ",
         name_of(t->dtype()), ", expected one integer");
  return t->as_int(0);
}

std::string Unroll::cause(ValueId v) const {
  std::vector<ValueId> stack{v};
  std::unordered_set<ValueId> seen;
  while (!stack.empty()) {
    const ValueId at = stack.back();
    stack.pop_back();
    if (!seen.insert(at).second) continue;
    const Value& x = g_.value(at);
    if (x.has_ints)
      for (const Dim& d : x.ints)
        if (!d.is_const())
          return cat("it comes from the size '", d.str(),
                     "', which is still open (data for the model's inputs gives it)");
    if (x.source == Source::kInput)
      return cat("it depends on the contents of input ", g_.describe_value(at));
    if (x.source == Source::kParam)
      return cat("it depends on parameter ", g_.describe_value(at), ", which may train");
    if (x.source == Source::kState) return cat("it depends on state ", g_.describe_value(at));
    if (x.producer == kNone) continue;
    for (ValueId in : g_.node(x.producer).inputs)
      if (in != kNone) stack.push_back(in);
  }
  return cat("it is computed by ", g_.value(v).producer == kNone
                                       ? std::string("nothing")
                                       : g_.describe(g_.value(v).producer));
}

void Unroll::refuse(NodeId n, const std::string& why) const {
  fail(ErrorCode::kUnsupported, g_.describe(n), ": ", why);
}

}  // namespace ortrain
