// Sequences and optionals of unroll.h: lists of values that only this pass knows. What is taken
// from one is the value itself, so gradients need nothing of their own.
#include "graph/builder.h"
#include "graph/error.h"
#include "graph/passes/unroll.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

constexpr int64_t kMostListed = int64_t{1} << 24;  // items of all lists; each step copies its list

}  // namespace

ValueId Unroll::new_list(List list, const std::string& origin) {
  const NodeId n = g_.add_node(g_.ops().get("SequenceConstruct"), list.items, {}, 1, origin);
  mark_done(n);
  give(n, std::move(list));
  return g_.node(n).outputs[0];
}

// Output 0 of the node is the list. The node stays, without users in the end, and holds the items.
void Unroll::give(NodeId n, List list) {
  listed_ += static_cast<int64_t>(list.items.size()) + 1;
  if (listed_ > kMostListed)
    refuse(n, cat("the sequences of the model have more than ", kMostListed, " items"));
  lists_[g_.node(n).outputs[0]] = std::move(list);
}

const Unroll::List& Unroll::need_list(NodeId n, int i) const {
  const List* q = input(n, i) == kNone ? nullptr : list(input(n, i));
  if (!q || q->optional)
    fail(ErrorCode::kModel, g_.describe(n), ": input ", i, " is ",
         q ? "an optional" : "not a sequence", ", expected a sequence");
  return *q;
}

int64_t Unroll::count(NodeId n, const List& q, const char* what) const {
  if (q.split == kNone) return static_cast<int64_t>(q.items.size());
  if (!q.sizes.empty()) return static_cast<int64_t>(q.sizes.size());
  const Shape& shape = g_.value(q.split).shape;
  const Dim extent = shape[normalize_axis(q.axis, shape.rank())];
  if (!extent.is_const())
    refuse(n, cat(what, " needs the length of a sequence, which is that of axis ", q.axis, " of ",
                  g_.describe_value(q.split), ": ", extent.str(),
                  ", still open (data for the model's inputs gives it)"));
  return (extent.value() + q.piece - 1) / q.piece;
}

// Item `index` >= 0 of a sequence, which must have it.
ValueId Unroll::item(NodeId n, const List& q, int64_t index) {
  if (q.split == kNone) return q.items[static_cast<size_t>(index)];
  int64_t start = 0, end = 0;
  bool over = false;
  if (q.sizes.empty()) {
    over = __builtin_mul_overflow(index, q.piece, &start) ||
           __builtin_add_overflow(start, q.piece, &end);
  } else {
    for (int64_t i = 0; i < index; ++i)
      over |= __builtin_add_overflow(start, q.sizes[static_cast<size_t>(i)], &start);
    over |= __builtin_add_overflow(start, q.sizes[static_cast<size_t>(index)], &end);
  }
  if (over) fail(ErrorCode::kModel, g_.describe(n), ": a piece of a sequence lies beyond 2^63");
  Builder b(g_, g_.node(n).origin);
  Expr x = b.op("Slice", {b.wrap(q.split), b.ints({start}), b.ints({end}), b.ints({q.axis})});
  if (q.squeeze) x = b.op("Squeeze", {x, b.ints({q.axis})});
  return x.id();
}

// All items; what was only to be cut is cut now.
const std::vector<ValueId>& Unroll::items(NodeId n, ValueId sequence) {
  List& q = lists_.at(sequence);
  if (q.split == kNone) return q.items;
  const int64_t pieces = count(n, q, "it");
  charge(n, pieces);
  std::vector<int64_t> sizes = q.sizes;
  const Shape shape = g_.value(q.split).shape;
  const int axis = normalize_axis(q.axis, shape.rank());
  if (sizes.empty())
    for (int64_t i = 0; i < pieces; ++i)
      sizes.push_back(std::min(q.piece, shape[axis].value() - i * q.piece));
  Builder b(g_, g_.node(n).origin);
  std::vector<Expr> parts;
  if (pieces == 1) parts.push_back(b.wrap(q.split));
  if (pieces > 1)
    parts = b.ops("Split", {b.wrap(q.split), b.ints(sizes)}, {{"axis", int64_t{axis}}},
                  static_cast<int>(pieces));
  const NodeId maker = g_.value(sequence).producer;
  for (Expr& e : parts) {
    if (q.squeeze) e = b.squeeze(e, {axis});
    q.items.push_back(e.id());
    g_.set_input(maker, static_cast<int>(g_.node(maker).inputs.size()), e.id());  // holds it
  }
  for (size_t i = 0; i < q.items.size(); ++i) {
    const int at = static_cast<int>(g_.node(maker).inputs.size() - q.items.size() + i);
    need_input(maker, at);
    q.items[i] = input(maker, at);
  }
  q.split = kNone;
  return q.items;
}

void Unroll::sequence_construct(NodeId n) { give(n, {.items = g_.node(n).inputs}); }

void Unroll::sequence_empty(NodeId n) { give(n, {}); }

void Unroll::split_to_sequence(NodeId n) {
  const Attrs& attrs = g_.node(n).attrs;
  if (list(input(n, 0))) refuse(n, "it splits a tensor, not a sequence");
  List q{.split = input(n, 0), .axis = attrs.i("axis", 0)};
  q.axis = normalize_axis(q.axis, g_.value(q.split).shape.rank());
  if (input(n, 1) == kNone) {
    q.squeeze = attrs.i("keepdims", 1) == 0;
    return give(n, std::move(q));
  }
  const HostTensor* split = known(n, 1);
  if (!split)
    refuse(n,
           cat("the sizes of its pieces must be known before training, and ", cause(input(n, 1))));
  if (is_float(split->dtype()) || split->rank() > 1)
    fail(ErrorCode::kModel, g_.describe(n), ": its sizes have type ", name_of(split->dtype()),
         " and ", split->rank(), " axes, expected integers with one axis at most");
  if (split->rank() == 0) {
    q.piece = split->as_int(0);
    if (q.piece <= 0) fail(ErrorCode::kModel, g_.describe(n), ": pieces of size ", q.piece);
    return give(n, std::move(q));
  }
  q.sizes = split->as_ints();
  int64_t sum = 0;
  for (int64_t size : q.sizes)
    if (size < 0 || __builtin_add_overflow(sum, size, &sum))
      fail(ErrorCode::kModel, g_.describe(n), ": a piece of size ", size);
  const Dim extent = g_.value(q.split).shape[static_cast<int>(q.axis)];
  if (q.sizes.empty() || (extent.is_const() && extent.value() != sum))
    fail(ErrorCode::kShape, g_.describe(n), ": its ", q.sizes.size(), " pieces have ", sum,
         " elements, axis ", q.axis, " has ", extent.str());
  give(n, std::move(q));
}

void Unroll::sequence_length(NodeId n) {
  const int64_t length = count(n, need_list(n, 0), "it");
  replace(g_.node(n).outputs[0], g_.add_const(HostTensor::scalar<int64_t>(length)));
  erase(n);
}

void Unroll::sequence_at(NodeId n) {
  const List& q = need_list(n, 0);
  const std::optional<int64_t> given = position(n, 1, "its position");
  if (!given) fail(ErrorCode::kModel, g_.describe(n), ": it has no position");
  int64_t at = *given;
  const bool open = q.split != kNone && q.sizes.empty() &&
                    !g_.value(q.split).shape[static_cast<int>(q.axis)].is_const();
  if (at < 0 || !open) {
    const int64_t length = count(n, q, "a position from the end");
    if (at < -length || at >= length)
      fail(ErrorCode::kModel, g_.describe(n), ": position ", at, " of a sequence of ", length);
    if (at < 0) at += length;
  }
  replace(g_.node(n).outputs[0], item(n, q, at));
  erase(n);
}

void Unroll::sequence_insert(NodeId n) {
  need_list(n, 0);
  List out{.items = items(n, input(n, 0))};
  const auto length = static_cast<int64_t>(out.items.size());
  int64_t at = position(n, 2, "its position").value_or(length);
  if (at < -length || at > length)
    fail(ErrorCode::kModel, g_.describe(n), ": position ", at, " of a sequence of ", length);
  if (at < 0) at += length;
  out.items.insert(out.items.begin() + at, input(n, 1));
  give(n, std::move(out));
}

void Unroll::sequence_erase(NodeId n) {
  need_list(n, 0);
  List out{.items = items(n, input(n, 0))};
  const auto length = static_cast<int64_t>(out.items.size());
  int64_t at = position(n, 1, "its position").value_or(length - 1);
  if (at < -length || at >= length)
    fail(ErrorCode::kModel, g_.describe(n), ": position ", at, " of a sequence of ", length);
  if (at < 0) at += length;
  out.items.erase(out.items.begin() + at);
  give(n, std::move(out));
}

void Unroll::concat_from_sequence(NodeId n) {
  need_list(n, 0);
  const std::vector<ValueId> parts = items(n, input(n, 0));
  if (parts.empty()) refuse(n, "it joins an empty sequence, whose items have no known type");
  const int64_t axis = g_.node(n).attrs.i("axis", 0);
  ValueId out = parts[0];
  if (g_.node(n).attrs.i("new_axis", 0)) {
    out = stacked(n, parts, axis, false);
  } else if (parts.size() > 1) {
    Builder b(g_, g_.node(n).origin);
    std::vector<Expr> xs;
    for (ValueId v : parts) {
      if (list(v)) refuse(n, "it joins sequences of sequences; only tensors can be joined");
      xs.push_back(b.wrap(v));
    }
    out = b.concat(xs, axis).id();
  }
  replace(g_.node(n).outputs[0], out);
  erase(n);
}

void Unroll::sequence_map(NodeId n) {
  const int token = token_of(n), total = static_cast<int>(g_.node(n).inputs.size());
  const std::vector<bool> use(static_cast<size_t>(total - token - 1), true);
  const Body body = body_of(n, use);
  need_list(n, 0);
  std::vector<std::vector<ValueId>> given, made(use.size());
  for (int i = 0; i < token; ++i) {
    const ValueId v = input(n, i);
    if (v == kNone) fail(ErrorCode::kModel, g_.describe(n), ": it lacks input ", i);
    given.push_back(list(v) ? items(n, v) : std::vector<ValueId>{});
    if (list(v) && given[static_cast<size_t>(i)].size() != given[0].size())
      fail(ErrorCode::kModel, g_.describe(n), ": its sequences have ", given[0].size(), " and ",
           given[static_cast<size_t>(i)].size(), " items");
  }
  std::vector<ValueId> kept;
  for (size_t at = 0; at < given[0].size(); ++at) {
    std::vector<ValueId> args, results;
    for (int i = 0; i < token; ++i)
      args.push_back(list(input(n, i)) ? given[static_cast<size_t>(i)][at] : input(n, i));
    iterate(n, body, args, static_cast<int64_t>(at), total, kNone, use);
    for (size_t r = 0; r < use.size(); ++r)
      results.push_back(made[r].emplace_back(input(n, total + static_cast<int>(r))));
    kept.push_back(keep(results));
  }
  const std::vector<ValueId> outputs = g_.node(n).outputs;
  for (size_t o = 0; o < outputs.size() && o < made.size(); ++o)
    if (outputs[o] != kNone) replace(outputs[o], new_list({.items = made[o]}, g_.node(n).origin));
  erase(n);
  for (ValueId v : kept) erase(g_.value(v).producer);
}

void Unroll::optional(NodeId n) {
  List out{.optional = true};
  if (input(n, 0) != kNone) out.items.push_back(input(n, 0));
  give(n, std::move(out));
}

void Unroll::optional_get(NodeId n) {
  const ValueId v = input(n, 0);
  const List* q = v == kNone ? nullptr : list(v);
  if (v == kNone || (q && q->optional && q->items.empty()))
    fail(ErrorCode::kModel, g_.describe(n), ": it takes the element of an empty optional");
  replace(g_.node(n).outputs[0], q && q->optional ? q->items[0] : v);
  erase(n);
}

void Unroll::optional_has(NodeId n) {
  const ValueId v = input(n, 0);
  const List* q = v == kNone ? nullptr : list(v);
  const bool has = v != kNone && !(q && q->optional && q->items.empty());
  replace(g_.node(n).outputs[0], g_.add_const(HostTensor::scalar<bool>(has)));
  erase(n);
}

}  // namespace ortrain
