// Functions, branches and sequences: the part of the importer (onnx_import.h) that dissolves
// structure into plain nodes.
#include <numeric>

#include "graph/error.h"
#include "importers/onnx_import.h"

namespace ortrain {

const onnx::FunctionProto* Importer::find_function(const onnx::NodeProto& p) const {
  if (functions_.empty()) return nullptr;
  const auto it = functions_.find(p.domain() + ":" + p.op_type() + ":" + p.overload());
  return it == functions_.end() ? nullptr : it->second;
}

// The body's nodes under "<call>/": ONNX passes inputs and outputs by position, attributes by name.
void Importer::inline_function(const onnx::NodeProto& p, const onnx::FunctionProto& f,
                               const std::string& origin, Scope& s) {
  const std::string shown =
      cat("call of function '", full_op_name(f.domain(), f.name()), "' at '", origin, "'");
  for (const Scope* at = &s; at; at = at->function ? at->caller : at->outer)
    if (at->function == &f) fail(ErrorCode::kModel, shown, ": the function calls itself");
  if (p.input_size() > f.input_size() || p.output_size() > f.output_size())
    fail(ErrorCode::kModel, shown, " has ", p.input_size(), " inputs and ", p.output_size(),
         " outputs, the function has ", f.input_size(), " and ", f.output_size());
  Scope body;
  body.caller = &s;
  body.function = &f;
  body.prefix = origin + "/";
  body.opsets = &function_opsets_.at(&f);
  body.depth = s.depth + 1;
  for (int i = 0; i < f.input_size(); ++i) {
    const bool given = i < p.input_size() && !p.input(i).empty();
    define(body, f.input(i), given ? read(s, p.input(i), shown) : Named{});
  }
  for (const auto& a : f.attribute_proto()) body.attributes[a.name()] = &a;
  for (const auto& a : p.attribute())
    if (const auto* given = resolve(a, s)) body.attributes[a.name()] = given;
  add_nodes(f.node(), body);
  for (int i = 0; i < p.output_size(); ++i) {
    if (p.output(i).empty()) continue;
    const Named out = read(body, f.output(i), shown);
    if (out.kind == Named::Kind::kTensor && out.id != kNone && s.is_main() &&
        graph.value(out.id).source == Source::kNode)
      graph.value(out.id).name = p.output(i);  // the name that the user knows
    define(s, p.output(i), out);
  }
}

void Importer::inline_if(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  const std::string shown = "If '" + origin + "'";
  if (p.input_size() != 1) fail(ErrorCode::kModel, shown, " has ", p.input_size(), " inputs");
  const Named condition = read(s, p.input(0), shown);
  if (condition.kind == Named::Kind::kPoison) return poison(p, s);
  const HostTensor* known = nullptr;
  if (condition.kind == Named::Kind::kTensor && condition.id != kNone &&
      graph.value(condition.id).source == Source::kConst)
    known = graph.tensor(condition.id);
  if (!known || known->count() != 1 || known->dtype() != DType::kBool) {
    problem("If on data: control flow comes with the operator issue", origin);
    return poison(p, s);
  }
  const char* name = known->as_int(0) ? "then_branch" : "else_branch";
  const onnx::GraphProto* taken = nullptr;
  for (const auto& a : p.attribute())
    if (a.name() == name && a.has_g()) taken = &a.g();
  if (!taken) fail(ErrorCode::kModel, shown, " has no ", name);
  if (taken->output_size() < p.output_size())
    fail(ErrorCode::kModel, shown, " has ", p.output_size(), " outputs, its ", name, " gives ",
         taken->output_size());
  Scope body;
  body.outer = &s;
  body.prefix = origin + "/";
  body.opsets = s.opsets;
  body.depth = s.depth + 1;
  add_initializers(*taken, body);
  add_nodes(taken->node(), body);
  for (int i = 0; i < p.output_size(); ++i)
    if (!p.output(i).empty()) define(s, p.output(i), read(body, taken->output(i).name(), shown));
}

ValueId Importer::add_plain(std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
                            const std::string& origin) {
  const OpDef* def = ops_.find(op);
  if (!def) fail(ErrorCode::kUnsupported, "'", origin, "' needs ", op, ", which is missing");
  const NodeId n = graph.add_node(*def, std::move(inputs), std::move(attrs), 1, origin);
  return graph.node(n).outputs[0];
}

// Piece `index` of a sequence; kNone when it is not known now.
ValueId Importer::sequence_item(const Sequence& q, int64_t index, const std::string& origin) {
  const auto count =
      static_cast<int64_t>(q.x == kNone ? q.items.size() : q.sizes.size());  // 0: not known
  if (index < 0) index += count;
  if (index < 0 || (count > 0 && index >= count)) return kNone;
  if (q.x == kNone) return count ? q.items[static_cast<size_t>(index)] : kNone;
  int64_t start = 0, end = 0;
  if (q.sizes.empty()) {
    if (__builtin_mul_overflow(index, q.piece, &start) ||
        __builtin_add_overflow(start, q.piece, &end))
      return kNone;
  } else {
    const auto at = q.sizes.begin() + index;
    for (auto it = q.sizes.begin(); it != at; ++it)
      if (__builtin_add_overflow(start, *it, &start)) return kNone;
    if (__builtin_add_overflow(start, *at, &end)) return kNone;
  }
  const auto ints = [&](int64_t v) { return graph.add_const(HostTensor::ints({v})); };
  ValueId out = add_plain("Slice", {q.x, ints(start), ints(end), ints(q.axis)}, {}, origin);
  if (q.squeeze) out = add_plain("Squeeze", {out, ints(q.axis)}, {}, origin);
  return out;
}

// SplitToSequence, SequenceConstruct, SequenceAt and ConcatFromSequence whose structure is known
// now. False: not one of them.
bool Importer::add_sequence(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  const std::string op = full_op_name(p.domain(), p.op_type());
  if (op != "SplitToSequence" && op != "SequenceConstruct" && op != "SequenceAt" &&
      op != "ConcatFromSequence")
    return false;
  const std::string shown = op + " '" + origin + "'";
  std::vector<Named> in;
  for (const auto& name : p.input()) {
    in.push_back(name.empty() ? Named{} : read(s, name, shown));
    if (in.back().kind == Named::Kind::kUnusable) problem(reasons_[in.back().index], origin);
    if (in.back().kind == Named::Kind::kPoison || in.back().kind == Named::Kind::kUnusable) {
      poison(p, s);
      return true;
    }
  }
  Attrs attrs;
  if (!read_attributes(p, origin, s, attrs)) {
    poison(p, s);
    return true;
  }
  if (in.empty() || p.output_size() != 1)
    fail(ErrorCode::kModel, shown, " has ", in.size(), " inputs and ", p.output_size(), " outputs");
  const auto refuse = [&](const std::string& why) {
    problem(op + ": " + why, origin);
    poison(p, s);
    return true;
  };
  const auto constant = [&](size_t i) -> const HostTensor* {
    return i < in.size() && in[i].kind == Named::Kind::kTensor && in[i].id != kNone &&
                   graph.value(in[i].id).source == Source::kConst
               ? graph.tensor(in[i].id)
               : nullptr;
  };
  const bool takes_sequence = op == "SequenceAt" || op == "ConcatFromSequence";
  for (size_t i = 0; i < in.size(); ++i) {
    const bool is_sequence = in[i].kind == Named::Kind::kSequence;
    if (is_sequence != (takes_sequence && i == 0) || (!is_sequence && in[i].id == kNone && i == 0))
      return refuse("sequences of this form are not supported");
  }

  if (op == "SplitToSequence") {
    Sequence q{.x = in[0].id, .axis = attrs.i("axis", 0)};
    q.squeeze = in.size() < 2 && attrs.i("keepdims", 1) == 0;
    if (in.size() > 1) {
      const HostTensor* split = constant(1);
      if (!split || is_float(split->dtype())) return refuse("its split must be a constant");
      if (split->rank() > 0) q.sizes = split->as_ints();
      if (split->rank() > 0 && q.sizes.empty()) return refuse("its split is empty");
      if (split->rank() == 0) q.piece = split->as_int(0);
      for (int64_t n : q.sizes)
        if (n < 0) fail(ErrorCode::kModel, shown, ": negative size ", n);
      if (q.piece <= 0) fail(ErrorCode::kModel, shown, ": pieces of size ", q.piece);
    }
    sequences_.push_back(std::move(q));
  } else if (op == "SequenceConstruct") {
    Sequence q;
    for (const Named& n : in) q.items.push_back(n.id);
    sequences_.push_back(std::move(q));
  } else if (op == "SequenceAt") {
    const HostTensor* index = constant(1);
    if (!index || index->count() != 1 || is_float(index->dtype()))
      return refuse("its position must be a constant");
    const ValueId v = sequence_item(sequences_[in[0].index], index->as_int(0), origin);
    if (v == kNone) return refuse(cat("position ", index->as_int(0), " is not known to exist"));
    define_value(s, p.output(0), v);
    return true;
  } else {
    const Sequence& q = sequences_[in[0].index];
    if (q.x != kNone) return refuse("only of a SequenceConstruct");
    std::vector<ValueId> items = q.items;
    const int64_t axis = attrs.i("axis", 0);
    if (attrs.i("new_axis", 0))
      for (ValueId& v : items)
        v = add_plain("Unsqueeze", {v, graph.add_const(HostTensor::ints({axis}))}, {}, origin);
    define_value(s, p.output(0), add_plain("Concat", items, {{"axis", axis}}, origin));
    return true;
  }
  define(s, p.output(0), {.kind = Named::Kind::kSequence, .index = sequences_.size() - 1});
  return true;
}

}  // namespace ortrain
