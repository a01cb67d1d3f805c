// Loops of unroll.h: bodies copied into the graph, once per iteration.
#include <algorithm>
#include <unordered_set>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/passes/unroll.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

// Follows Identity nodes, which exporters put between a loop's condition and its result.
ValueId behind_identities(const Graph& g, ValueId v) {
  for (const Node* n = producer(g, v); n && n->op->ew == Ew::kIdentity; n = producer(g, v))
    v = n->inputs[0];
  return v;
}

}  // namespace

// --- copies

int Unroll::token_of(NodeId n) const {
  const int64_t token = g_.node(n).attrs.i("token", -1);
  if (token < 0 || token >= static_cast<int64_t>(g_.node(n).inputs.size()) ||
      !producer(g_, input(n, static_cast<int>(token)), kBodyOp))
    fail(ErrorCode::kModel, g_.describe(n), ": it has no body");
  return static_cast<int>(token);
}

Unroll::Body Unroll::body_of(NodeId n, const std::vector<bool>& use) {
  Body body;
  body.token = token_of(n);
  body.params = g_.value(input(n, body.token)).producer;

  // Forward: what depends on the body's inputs. A copy of this node that an outer loop made shares
  // the Body node; the owners are where the body ends.
  std::unordered_set<NodeId> inside;
  std::vector<NodeId> stack{body.params};
  while (!stack.empty()) {
    const NodeId at = stack.back();
    stack.pop_back();
    for (ValueId v : g_.node(at).outputs) {
      if (v == kNone) continue;
      for (NodeId user : g_.value(v).uses) {
        const Attrs& attrs = g_.node(user).attrs;
        const bool owner =
            is_structural(*g_.node(user).op) && attrs.has("token") &&
            input(user, static_cast<int>(attrs.i("token", 0))) == input(n, body.token);
        if (!owner && inside.insert(user).second) stack.push_back(user);
      }
    }
  }
  // Nested loops look at their bodies again in each iteration, also at what nothing needs.
  if ((looked_at_ += static_cast<int64_t>(inside.size())) > kMostLookedAt)
    refuse(n, "the loops around it would take too long to unroll");
  // Backward from the results, producers first.
  std::unordered_set<NodeId> listed;
  for (size_t r = 0; r < use.size(); ++r) {
    const ValueId result = input(n, body.token + 1 + static_cast<int>(r));
    if (!use[r] || result == kNone) continue;
    stack.push_back(g_.value(result).producer);
    while (!stack.empty()) {
      const NodeId at = stack.back();
      if (at == kNone || !inside.count(at) || listed.count(at)) {
        stack.pop_back();
        continue;
      }
      const size_t before = stack.size();
      for (ValueId v : g_.node(at).inputs) {
        const NodeId up = v == kNone ? kNone : g_.value(v).producer;
        if (up != kNone && inside.count(up) && !listed.count(up)) stack.push_back(up);
      }
      if (stack.size() > before) continue;
      stack.pop_back();
      listed.insert(at);
      body.slice.push_back(at);
    }
  }
  return body;
}

void Unroll::charge(NodeId n, int64_t nodes) {
  copied_ += nodes;
  if (copied_ > kMostCopies)
    refuse(n, cat("unrolled, the loops of the model would pass ", kMostCopies,
                  " nodes; fewer iterations (shorter sequences in the data, or an export with a "
                  "smaller bound) would fit"));
}

void Unroll::iterate(NodeId n, const Body& body, const std::vector<ValueId>& args, int64_t i,
                     int base, ValueId active, const std::vector<bool>& use) {
  charge(n, body.cost());
  const bool gated = active != kNone && training_;
  const std::string suffix = cat("[", i, "]");
  std::unordered_map<ValueId, ValueId> now;
  const std::vector<ValueId> params = g_.node(body.params).outputs;
  ORTRAIN_CHECK(params.size() == args.size(), "a body takes another number of values");
  for (size_t k = 0; k < params.size(); ++k) {
    if (params[k] == kNone) continue;
    // The first two of a Loop are its counter and condition.
    now[params[k]] = gated && k >= 2 ? gate(args[k], active, g_.node(n).origin) : args[k];
  }
  for (NodeId original : body.slice) {
    std::vector<ValueId> in = g_.node(original).inputs;
    for (ValueId& v : in) {
      if (v == kNone) continue;
      auto it = now.find(v);
      if (it == now.end() && gated && g_.value(v).source != Source::kConst &&
          !(g_.value(v).producer != kNone && g_.node(g_.value(v).producer).op->name == kBodyOp))
        it = now.emplace(v, gate(v, active, g_.node(n).origin)).first;
      if (it != now.end()) v = it->second;
    }
    const Node& old = g_.node(original);
    const size_t outputs = old.outputs.size();
    const NodeId copy =
        g_.add_node(*old.op, std::move(in), Attrs(old.attrs), 0, old.origin + suffix);
    for (size_t o = 0; o < outputs; ++o)
      if (const ValueId from = g_.node(original).outputs[o]; from != kNone)
        now[from] = g_.add_output(copy, static_cast<int>(o));
  }
  for (size_t r = 0; r < use.size(); ++r) {
    const ValueId v = input(n, body.token + 1 + static_cast<int>(r));
    const auto it = now.find(v);
    if (use[r]) g_.set_input(n, base + static_cast<int>(r), it == now.end() ? v : it->second);
  }
  for (size_t r = 0; r < use.size(); ++r)
    if (use[r]) need_input(n, base + static_cast<int>(r));
}

// A node that reads the values, so that none dies before it is used; returns what stands for it.
ValueId Unroll::keep(std::vector<ValueId> values) {
  const NodeId n = g_.add_node(g_.ops().get(kBodyOp), std::move(values), {}, 1, "kept");
  mark_done(n);
  return g_.node(n).outputs[0];
}

// --- stacking and cutting

ValueId Unroll::stacked(NodeId n, std::vector<ValueId> pieces, int64_t axis, bool backwards) {
  for (ValueId v : pieces) {
    if (list(v)) refuse(n, "it stacks sequences; only tensors can be");
    if (!(g_.value(v).shape == g_.value(pieces[0]).shape))
      refuse(n, cat("it stacks values of shapes ", g_.value(pieces[0]).shape.str(), " and ",
                    g_.value(v).shape.str(), "; all iterations must give one shape"));
  }
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  Builder b(g_, g_.node(n).origin);
  std::vector<Expr> parts;
  for (ValueId v : pieces) parts.push_back(b.unsqueeze(b.wrap(v), {axis}));
  return parts.size() == 1 ? parts[0].id() : b.concat(parts, axis).id();
}

// No pieces: their shape is that of an iteration that would run.
ValueId Unroll::empty_stack(NodeId n, ValueId piece, int64_t axis) {
  const Value& v = g_.value(piece);
  if (list(piece) || !v.shape.is_const())
    refuse(n, "it runs no iteration and stacks what has no fixed shape");
  Dims dims = v.shape.values();
  dims.insert(dims.begin() + normalize_axis(axis, static_cast<int>(dims.size()) + 1), 0);
  return g_.add_const(HostTensor(v.dtype, std::move(dims)));
}

std::vector<ValueId> Unroll::cut(NodeId n, ValueId x, int64_t axis) {
  const Shape shape = g_.value(x).shape;
  const int a = normalize_axis(axis, shape.rank());
  const int64_t length = shape[a].value();
  charge(n, 2 * length);
  Builder b(g_, g_.node(n).origin);
  std::vector<Expr> parts;
  if (length == 1) parts.push_back(b.wrap(x));
  if (length > 1)
    parts =
        b.ops("Split", {b.wrap(x), b.ints(std::vector<int64_t>(static_cast<size_t>(length), 1))},
              {{"axis", int64_t{a}}}, static_cast<int>(length));
  std::vector<ValueId> out;
  for (Expr& e : parts) out.push_back(b.squeeze(e, {a}).id());
  return out;
}

// --- Loop

void Unroll::loop(NodeId n) {
  const int total = static_cast<int>(g_.node(n).inputs.size());
  const int carried = token_of(n) - 2, scans = total - token_of(n) - 2 - carried;
  if (carried < 0 || scans < 0) fail(ErrorCode::kModel, g_.describe(n), ": its body does not fit");
  std::vector<bool> use(static_cast<size_t>(1 + carried + scans), true);
  bool stacks = false;
  for (int s = 0; s < scans; ++s) {
    const bool w = use[static_cast<size_t>(1 + carried + s)] = wanted(n, carried + s);
    stacks |= w;
  }
  const Body body = body_of(n, use);
  const std::optional<int64_t> most = position(n, 0, "its trip count");

  // Input 1 holds the condition of the next iteration; none = it runs.
  const auto stops = [&] { return known(n, 1) && known(n, 1)->as_int(0) == 0; };
  const auto settle_condition = [&](ValueId v) {
    g_.set_input(n, 1, v);
    need_input(n, 1);
  };
  if (known(n, 1) && known(n, 1)->count() != 1)
    fail(ErrorCode::kModel, g_.describe(n), ": its condition has ", known(n, 1)->count(),
         " elements, expected one bool");
  const ValueId param =
      g_.node(body.params).outputs.size() > 1 ? g_.node(body.params).outputs[1] : kNone;
  const ValueId next = behind_identities(g_, input(n, body.token + 1));
  const HostTensor* always = constant(g_, next);
  const bool runs_on = next == param || (always && always->count() == 1 && always->as_int(0) != 0);
  if (!stops() && runs_on && (input(n, 1) == kNone || known(n, 1))) {
    if (!most) refuse(n, "it has neither a trip count nor a condition that could end it");
    if (*most > (kMostCopies - copied_) / body.cost())
      refuse(n, cat(*most, " iterations of ", body.cost(), " nodes are more than the ", kMostCopies,
                    " nodes that loops may become; fewer iterations (shorter sequences in the "
                    "data, or an export with a smaller bound) would fit"));
  }

  const auto run = [&](int64_t i, ValueId active) {
    std::vector<ValueId> args{g_.add_const(HostTensor::scalar<int64_t>(i)),
                              g_.add_const(HostTensor::scalar<bool>(true))};
    for (int k = 0; k < carried; ++k) args.push_back(input(n, 2 + k));
    iterate(n, body, args, i, total, active, use);
  };

  std::vector<std::vector<ValueId>> pieces(static_cast<size_t>(scans));
  std::vector<ValueId> kept;
  int64_t i = 0;
  for (; !stops() && (!most || i < std::max<int64_t>(*most, 0)); ++i) {
    ValueId active = input(n, 1) == kNone || known(n, 1) ? kNone : scalar(n, input(n, 1));
    if (active != kNone) {
      if (!most || *most > (kMostCopies - copied_) / body.cost() + i)
        refuse(n, cat("its condition is only known while training (", cause(active), "), and ",
                      most ? cat("its trip count of ", *most, " is too large to run them all")
                           : std::string("no trip count bounds it"),
                      "; a smaller constant trip count would help"));
      if (stacks)
        refuse(n, cat("it stacks a value per iteration, and their number is only known while "
                      "training: its condition, ",
                      cause(active)));
      settle_condition(active);
      active = input(n, 1);
    }
    run(i, active);
    if (active != kNone)
      for (NodeId inner : body.slice) refuse_states(n, inner);
    if (active == kNone) {
      for (int k = 0; k < carried; ++k) g_.set_input(n, 2 + k, input(n, total + 1 + k));
      settle_condition(input(n, total));
      std::vector<ValueId> stack;
      for (int s = 0; s < scans; ++s)
        if (use[static_cast<size_t>(1 + carried + s)])
          stack.push_back(
              pieces[static_cast<size_t>(s)].emplace_back(input(n, total + 1 + carried + s)));
      if (!stack.empty()) kept.push_back(keep(std::move(stack)));
      continue;
    }
    for (int k = 0; k < carried; ++k) {
      g_.set_input(
          n, 2 + k,
          select(n, active, input(n, total + 1 + k), input(n, 2 + k), cat("carried value ", k)));
      need_input(n, 2 + k);
    }
    Builder b(g_, g_.node(n).origin);
    const ValueId goes_on = input(n, total);
    settle_condition(b.op("And", {b.wrap(active), b.wrap(scalar(n, goes_on))}).id());
  }

  std::vector<ValueId> results;
  for (int k = 0; k < carried; ++k) results.push_back(input(n, 2 + k));
  if (i == 0 && stacks) run(0, kNone);  // for the shapes; nothing uses it
  for (int s = 0; s < scans; ++s) {
    if (!use[static_cast<size_t>(1 + carried + s)]) {
      results.push_back(kNone);
      continue;
    }
    const auto& p = pieces[static_cast<size_t>(s)];
    results.push_back(p.empty() ? empty_stack(n, input(n, total + 1 + carried + s), 0)
                                : stacked(n, p, 0, false));
  }
  const std::vector<ValueId> outputs = g_.node(n).outputs;
  for (size_t o = 0; o < outputs.size(); ++o)
    if (o < results.size() && results[o] != kNone) replace(outputs[o], results[o]);
  erase(n);
  for (ValueId v : kept) erase(g_.value(v).producer);
}

// --- Scan

void Unroll::scan(NodeId n) {
  const Attrs attrs = g_.node(n).attrs;
  const int token = token_of(n);
  const int states = static_cast<int>(attrs.i("states", 0)), xs = token - states;
  const int total = static_cast<int>(g_.node(n).inputs.size()), outs = total - token - 1 - states;
  if (states < 0 || xs < 1 || outs < 0)
    fail(ErrorCode::kModel, g_.describe(n), ": its body does not fit");
  std::vector<bool> use(static_cast<size_t>(states + outs), true);
  for (int o = 0; o < outs; ++o) use[static_cast<size_t>(states + o)] = wanted(n, states + o);
  const Body body = body_of(n, use);
  std::vector<ValueId> first, scanned;
  for (int i = 0; i < token; ++i) {
    if (input(n, i) == kNone || list(input(n, i))) refuse(n, cat("input ", i, " is not a tensor"));
    (i < states ? first : scanned).push_back(input(n, i));
  }
  std::vector<int64_t> axes = attrs.ints("scan_input_axes");
  axes.resize(static_cast<size_t>(xs), 0);
  std::vector<ValueId> results, kept;
  if (!attrs.i("batched", 0)) {
    results = scan_once(n, body, first, scanned, axes, use);
  } else {  // opset 8: axis 0 of everything is the batch, each entry a scan of its own
    std::vector<std::vector<ValueId>> columns, parts;
    for (int i = 0; i < token; ++i) {
      const ValueId v = input(n, i);
      if (g_.value(v).shape.rank() < 1 || !g_.value(v).shape[0].is_const())
        refuse(n, "the size of its batch is not known before training");
      columns.push_back(cut(n, v, 0));
      kept.push_back(keep(columns.back()));
      if (columns.back().size() != columns[0].size() || columns[0].empty())
        fail(ErrorCode::kShape, g_.describe(n), ": its inputs have batches of ", columns[0].size(),
             " and ", columns.back().size());
    }
    for (size_t e = 0; e < columns[0].size(); ++e) {
      std::vector<ValueId> s, x;
      for (size_t i = 0; i < columns.size(); ++i)
        (i < first.size() ? s : x).push_back(columns[i][e]);
      parts.push_back(scan_once(n, body, s, x, axes, use));
      std::vector<ValueId> made;
      for (ValueId v : parts.back())
        if (v != kNone) made.push_back(v);
      kept.push_back(keep(made));
    }
    for (size_t o = 0; o < parts[0].size(); ++o) {
      std::vector<ValueId> column;
      for (auto& p : parts) column.push_back(p[o]);
      results.push_back(column[0] == kNone ? kNone : stacked(n, column, 0, false));
    }
  }
  const std::vector<ValueId> outputs = g_.node(n).outputs;
  for (size_t o = 0; o < outputs.size(); ++o)
    if (o < results.size() && results[o] != kNone) replace(outputs[o], results[o]);
  erase(n);
  for (ValueId v : kept) erase(g_.value(v).producer);
}

// Final states, then stacked results (kNone where nothing wants one).
std::vector<ValueId> Unroll::scan_once(NodeId n, const Body& body, std::vector<ValueId> states,
                                       const std::vector<ValueId>& xs,
                                       const std::vector<int64_t>& axes,
                                       const std::vector<bool>& use) {
  const Attrs attrs = g_.node(n).attrs;
  const int total = static_cast<int>(g_.node(n).inputs.size());
  const size_t outs =
      static_cast<size_t>(total) - static_cast<size_t>(body.token) - 1 - states.size();
  const auto list_of = [&](const char* name, size_t count) {
    std::vector<int64_t> v = attrs.ints(name);
    v.resize(count, 0);
    return v;
  };
  const auto directions = list_of("scan_input_directions", xs.size());
  const auto out_axes = list_of("scan_output_axes", outs),
             out_directions = list_of("scan_output_directions", outs);

  int64_t length = -1;
  std::vector<std::vector<ValueId>> columns;
  std::vector<ValueId> kept;
  for (size_t j = 0; j < xs.size(); ++j) {
    const Shape shape = g_.value(xs[j]).shape;
    const Dim extent = shape[normalize_axis(axes[j], shape.rank())];
    if (!extent.is_const())
      refuse(n, cat("the length ", extent.str(), " of scanned input ", j,
                    " is still open (data for ", "the model's inputs gives it)"));
    if (length >= 0 && extent.value() != length)
      fail(ErrorCode::kShape, g_.describe(n), ": its scanned inputs have lengths ", length, " and ",
           extent.value());
    length = extent.value();
    if (length > (kMostCopies - copied_) / body.cost())
      refuse(n, cat(length, " iterations of ", body.cost(), " nodes are more than the ",
                    kMostCopies, " nodes that loops may become; shorter sequences would fit"));
    columns.push_back(cut(n, xs[j], axes[j]));
    kept.push_back(keep(columns.back()));
  }
  std::vector<std::vector<ValueId>> pieces(outs);
  for (int64_t t = 0; t < std::max<int64_t>(length, 1); ++t) {
    std::vector<ValueId> args = states;
    for (size_t j = 0; j < xs.size(); ++j) {
      if (length == 0) {  // for the shapes; nothing uses it
        Dims dims = g_.value(xs[j]).shape.values();
        dims.erase(dims.begin() + normalize_axis(axes[j], static_cast<int>(dims.size())));
        args.push_back(g_.add_const(HostTensor(g_.value(xs[j]).dtype, std::move(dims))));
        continue;
      }
      args.push_back(columns[j][static_cast<size_t>(directions[j] ? length - 1 - t : t)]);
    }
    iterate(n, body, args, t, total, kNone, use);
    std::vector<ValueId> made;
    for (size_t r = 0; r < use.size(); ++r) {
      if (!use[r]) continue;
      const ValueId v = input(n, total + static_cast<int>(r));
      made.push_back(v);
      if (r >= states.size()) pieces[r - states.size()].push_back(v);
    }
    kept.push_back(keep(made));
    for (size_t k = 0; k < states.size() && length > 0; ++k)
      states[k] = input(n, total + static_cast<int>(k));
  }
  std::vector<ValueId> results = states;
  for (size_t o = 0; o < outs; ++o)
    results.push_back(pieces[o].empty() ? kNone
                      : length == 0     ? empty_stack(n, pieces[o][0], out_axes[o])
                                    : stacked(n, pieces[o], out_axes[o], out_directions[o] != 0));
  for (ValueId v : kept) g_.erase_if_dead(g_.value(v).producer);
  return results;
}

void Unroll::per_iteration(NodeId n) {
  replace(g_.node(n).outputs[0], input(n, 0));
  erase(n);
}

void Unroll::missing(NodeId n) {
  throw Error(ErrorCode::kUnsupported, g_.node(n).attrs.s("why", "the importer lacks it"));
}

}  // namespace ortrain
