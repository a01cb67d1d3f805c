// See rebatch.h.
#include "graph/rebatch.h"

#include <algorithm>
#include <optional>
#include <set>

#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr int64_t kTimes = 7;  // the trial batch is so many times the fixed one
constexpr int kMostTries = 64;

// The open choices on the way, in order: which was made of how many.
struct Choice {
  size_t made = 0, of = 1;
};

class Rebatch {
 public:
  // `choices` are made as given as far as they go, then the likeliest ones, which are added.
  Rebatch(Graph graph, int64_t batch, std::vector<Choice>& choices)
      : g_(std::move(graph)), batch_(batch), choices_(choices), place_(g_) {}

  Rebatched run() {
    for (ValueId v = 0; v < g_.value_count(); ++v)
      fixed_.push_back(g_.value(v).typed ? g_.value(v).shape.values() : Dims());
    std::set<std::string> symbols;
    for (const ValueId v : g_.inputs()) {
      Value& x = g_.value(v);
      if (x.uses.empty() || x.shape.rank() == 0 || x.shape[0] != Dim(batch_)) continue;
      x.shape[0] = Dim(batch_ * kTimes);
      place_[v] = {0, 1};
      inputs_.push_back(v);
    }
    ORTRAIN_CHECK(!inputs_.empty(), "no input has the batch");
    for (const NodeId n : g_.topo()) visit(n);
    Rebatched r{std::move(g_), batch_, "batch", {}, std::move(replaced_)};
    Graph& g = r.graph;
    for (const ValueId v : g.outputs()) r.outputs.push_back(place_[v]);
    for (NodeId n = 0; n < g.node_count(); ++n)
      for (const ValueId v : g.node(n).outputs)
        if (v != kNone) {
          g.value(v).typed = g.value(v).has_ints = false;
          g.value(v).shape = {};
          g.value(v).ints.clear();
        }
    for (const ValueId v : inputs_) g.value(v).shape[0] = Dim::symbol(r.symbol);
    g.stage = Stage::kImported;
    return r;
  }

 private:
  Dims dims(ValueId v) const { return fixed_[static_cast<size_t>(v)]; }
  bool scaled(ValueId v) { return v != kNone && place_[v].axis >= 0; }

  // Types the node at the trial batch; "" when the batch arrives in each float output, or when no
  // input has it.
  std::string attempt(NodeId n) {
    try {
      g_.infer(n);
    } catch (const Error& e) {
      return e.what();
    }
    const Node& x = g_.node(n);
    const bool given =
        std::any_of(x.inputs.begin(), x.inputs.end(), [&](ValueId v) { return scaled(v); });
    for (const ValueId v : x.outputs) {
      if (v == kNone) continue;
      const Shape& now = g_.value(v).shape;
      const Dims was = dims(v);
      place_[v] = {};
      if (now.rank() != static_cast<int>(was.size())) return "its result has another rank";
      for (int a = 0; a < now.rank(); ++a) {
        const int64_t old = was[static_cast<size_t>(a)];
        if (now[a] == Dim(old)) continue;
        if (now[a] != Dim(old * kTimes) || scaled(v))
          return cat("its result has shape ", now.str(), " at batch ", batch_ * kTimes, ", ",
                     Shape(was).str(), " at ", batch_);
        const int64_t outer = outer_of(x, old);
        place_[v] = {a, outer};
      }
      if (given && !scaled(v))
        return cat("its result ", Shape(was).str(), " does not grow with the batch");
    }
    return {};
  }

  // How many blocks lie outside of the batch within an axis: as in the input of the same extent.
  int64_t outer_of(const Node& x, int64_t extent) {
    for (const ValueId in : x.inputs)
      if (scaled(in) && dims(in)[static_cast<size_t>(place_[in].axis)] == extent)
        return place_[in].outer;
    return 1;
  }

  void visit(NodeId n) {
    const Node& x = g_.node(n);
    if (!x.op) return;
    std::string why = attempt(n);
    const bool moves = x.op->name == "Reshape" && scaled(input(x, 0));
    if (moves) return reshape(n, why);
    if (why.empty()) return;
    if (constant_shape(n) || operands(n)) {
      replaced_.push_back(g_.describe(n));
      return;
    }
    fail(ErrorCode::kUnsupported, "--rebatch: ", g_.describe(n), " forbids another batch than ",
         batch_, ": ", why);
  }

  // A Reshape keeps the order in memory: the batch lies where as many elements lie before it.
  void reshape(NodeId n, const std::string& why) {
    const Node x = g_.node(n);
    const ValueId in = x.inputs[0], out = x.outputs[0];
    const Dims from = dims(in), to = dims(out);
    const BatchPlace p = place_[in];
    int64_t before = p.outer;
    for (int a = 0; a < p.axis; ++a) before *= from[static_cast<size_t>(a)];
    std::vector<std::pair<int, BatchPlace>> all;  // by likelihood
    int64_t prefix = 1;
    for (size_t q = 0; q < to.size() && prefix > 0 && prefix <= before; prefix *= to[q++]) {
      if (before % prefix != 0 || to[q] == 0 || to[q] % (before / prefix * batch_) != 0) continue;
      const int64_t outer = before / prefix;
      const int rank = (outer == 1 ? 4 : 0) + (to[q] == outer * batch_ ? 2 : 0) +
                       (static_cast<int>(q) == p.axis ? 1 : 0);
      all.push_back({-rank, {static_cast<int>(q), outer}});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    BatchPlace best;
    if (all.size() > 1) {
      if (++choice_ > choices_.size()) choices_.push_back({});
      choices_[choice_ - 1].of = all.size();
      best = all[std::min(choices_[choice_ - 1].made, all.size() - 1)].second;
    } else if (!all.empty()) {
      best = all[0].second;
    }
    const bool empty = std::count(to.begin(), to.end(), 0) > 0;
    if (best.axis < 0 || empty || !constant(g_, input(x, 1)))
      fail(ErrorCode::kUnsupported, "--rebatch: ", g_.describe(n), " forbids another batch than ",
           batch_, ": ", Shape(from).str(), " -> ", Shape(to).str(),
           " has no axis that the batch alone would make longer", why.empty() ? "" : "; " + why);
    if (why.empty() && place_[out].axis == best.axis) {
      place_[out].outer = best.outer;
      return;
    }
    Dims shape = to;
    shape[static_cast<size_t>(best.axis)] = -1;
    g_.set_input(n, 1, add_const(HostTensor::ints(shape)));
    const std::string still = attempt(n);
    if (!still.empty() || place_[out].axis != best.axis)
      fail(ErrorCode::kUnsupported, "--rebatch: ", g_.describe(n), ": ", still);
    place_[out].outer = best.outer;
    replaced_.push_back(g_.describe(n));
  }

  // A constant shape, size or end with the batch in one place.
  bool constant_shape(NodeId n) {
    const Node x = g_.node(n);
    for (size_t i = 0; i < x.inputs.size(); ++i) {
      const HostTensor* t = constant(g_, x.inputs[i]);
      if (!t || t->dtype() != DType::kI64 || t->rank() != 1 || t->count() > 16) continue;
      const std::vector<int64_t> values = t->as_ints();
      for (size_t e = 0; e < values.size(); ++e) {
        if (values[e] != batch_) continue;
        std::vector<int64_t> grown = values;
        grown[e] *= kTimes;
        const ValueId old = x.inputs[i];
        g_.set_input(n, static_cast<int>(i), add_const(HostTensor::ints(grown)));
        if (attempt(n).empty()) {
          g_.set_input(n, static_cast<int>(i), sizes(values, e, g_.node(n).origin));
          return attempt(n).empty();
        }
        g_.set_input(n, static_cast<int>(i), old);
      }
    }
    return false;
  }

  // Operands that have the batch's rows, or one row, where the others have the batch.
  bool operands(NodeId n) {
    const Node x = g_.node(n);
    struct Spread {
      int input;
      int axis;
    };
    std::vector<Spread> all;
    for (size_t i = 0; i < x.inputs.size(); ++i) {
      const ValueId v = x.inputs[i];
      if (v == kNone || scaled(v) || !g_.value(v).typed) continue;
      const Dims d = dims(v);
      for (size_t a = 0; a < d.size(); ++a)
        if (d[a] == batch_) all.push_back({static_cast<int>(i), static_cast<int>(a)});
    }
    if (all.empty() || all.size() > 12) return false;
    // One operand after the other, then several together (both states of an LSTM).
    for (size_t set = 1; set < (size_t{1} << all.size()); ++set) {
      std::vector<Spread> chosen;
      std::set<int> taken;
      bool twice = false;
      for (size_t k = 0; k < all.size(); ++k)
        if (set >> k & 1) {
          chosen.push_back(all[k]);
          twice = twice || !taken.insert(all[k].input).second;
        }
      if (twice) continue;
      std::vector<std::pair<ValueId, Shape>> kept;
      for (const Spread& s : chosen) {
        Value& v = g_.value(x.inputs[static_cast<size_t>(s.input)]);
        kept.emplace_back(x.inputs[static_cast<size_t>(s.input)], v.shape);
        v.shape[s.axis] = Dim(batch_ * kTimes);
      }
      const bool fits = attempt(n).empty();
      for (auto it = kept.rbegin(); it != kept.rend(); ++it) g_.value(it->first).shape = it->second;
      if (!fits) continue;
      for (const Spread& s : chosen) {  // a value that the node reads twice is spread for both
        const ValueId old = x.inputs[static_cast<size_t>(s.input)];
        const ValueId now = spread(old, s.axis, g_.node(n).origin);
        for (size_t i = 0; i < x.inputs.size(); ++i)
          if (x.inputs[i] == old) g_.set_input(n, static_cast<int>(i), now);
      }
      return attempt(n).empty();
    }
    return false;
  }

  ValueId add_const(HostTensor t) {
    const Dims d = t.dims();
    const ValueId v = g_.add_const(std::move(t));
    grow();
    fixed_[static_cast<size_t>(v)] = d;
    return v;
  }
  void grow() { fixed_.resize(static_cast<size_t>(g_.value_count())); }

  ValueId add(const char* op, std::vector<ValueId> inputs, Attrs attrs, const std::string& origin,
              Dims fixed, BatchPlace place) {
    const NodeId n =
        g_.add_node(g_.ops().get(op), std::move(inputs), std::move(attrs), 1, origin + "|rebatch");
    g_.infer(n);
    const ValueId v = g_.node(n).outputs[0];
    grow();
    fixed_[static_cast<size_t>(v)] = std::move(fixed);
    place_[v] = place;
    return v;
  }

  // The vector `values` with the run's batch in place e.
  ValueId sizes(const std::vector<int64_t>& values, size_t e, const std::string& origin) {
    std::vector<ValueId> parts;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(e);
    if (e > 0) parts.push_back(add_const(HostTensor::ints({values.begin(), middle})));
    parts.push_back(
        add("Shape", {inputs_[0]}, {{"start", int64_t{0}}, {"end", int64_t{1}}}, origin, {1}, {}));
    if (e + 1 < values.size())
      parts.push_back(add_const(HostTensor::ints({middle + 1, values.end()})));
    if (parts.size() == 1) return parts[0];
    return add("Concat", parts, {{"axis", int64_t{0}}}, origin,
               {static_cast<int64_t>(values.size())}, {});
  }

  ValueId spread(ValueId v, int axis, const std::string& origin) {
    Dims d = dims(v);
    if (batch_ > 1) {  // its first row stands for all; that they are equal is proved by running
      d[static_cast<size_t>(axis)] = 1;
      v = add("Slice",
              {v, add_const(HostTensor::ints({0})), add_const(HostTensor::ints({1})),
               add_const(HostTensor::ints({axis}))},
              {}, origin, d, {});
      d[static_cast<size_t>(axis)] = batch_;
    }
    const ValueId shape = sizes(d, static_cast<size_t>(axis), origin);
    return add("Expand", {v, shape}, {}, origin, d, {axis, 1});
  }

  Graph g_;
  const int64_t batch_;
  std::vector<Choice>& choices_;
  size_t choice_ = 0;
  PerValue<BatchPlace> place_;
  std::vector<Dims> fixed_;  // at the fixed batch
  std::vector<ValueId> inputs_;
  std::vector<std::string> replaced_;
};

}  // namespace

Rebatched rebatch(const Graph& source, int64_t batch, const Evaluate& evaluate,
                  const std::function<void(const Rebatched&)>& prove) {
  for (const ValueId v : source.inputs()) {
    const Value& x = source.value(v);
    for (int a = 0; a < x.shape.rank(); ++a)
      if (!x.shape[a].is_const() && !x.uses.empty())
        fail(ErrorCode::kUnsupported, "--rebatch: input '", x.name, "' ", x.shape.str(),
             " has an open size; only files with all sizes fixed need it");
  }
  StepSpec spec;
  spec.mode = Mode::kPredict;
  CompileOptions options;
  options.evaluate = evaluate;
  options.until = "infer";
  std::vector<Choice> choices;
  std::optional<Error> first;
  for (int tries = 0; tries < kMostTries; ++tries) {
    try {
      Rebatched r = Rebatch(compile(source, spec, options).graph, batch, choices).run();
      if (prove) prove(r);
      return r;
    } catch (const Error& e) {
      if (!first) first = e;
    }
    while (!choices.empty() && choices.back().made + 1 >= choices.back().of) choices.pop_back();
    if (choices.empty()) break;
    ++choices.back().made;
  }
  throw *first;
}

}  // namespace ortrain
