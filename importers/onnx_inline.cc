// Functions and bodies: the part of the importer (onnx_import.h) that puts the nodes of functions,
// branches and loops into the one flat graph (graph/structure.h says how a body lies there).
#include <algorithm>

#include "graph/error.h"
#include "graph/structure.h"
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
  body.token = s.token;
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

const onnx::GraphProto* Importer::body_graph(const onnx::NodeProto& p, const char* name,
                                             const std::string& shown) const {
  for (const auto& a : p.attribute())
    if (a.name() == name && a.has_g()) return &a.g();
  fail(ErrorCode::kModel, shown, " has no ", name);
}

// The values that names of the node's inputs stand for; nullopt with its outputs poisoned when one
// had a problem.
std::optional<std::vector<ValueId>> Importer::read_inputs(const onnx::NodeProto& p,
                                                          const std::string& origin, Scope& s) {
  const std::string shown = p.op_type() + " '" + origin + "'";
  std::vector<ValueId> out;
  bool fits = true;
  for (const auto& name : p.input()) {
    const Named n = name.empty() ? Named{} : read(s, name, shown);
    if (n.kind == Named::Kind::kUnusable) problem(reasons_[n.index], origin);
    fits = fits && n.kind == Named::Kind::kTensor;
    out.push_back(n.id);
  }
  if (fits) return out;
  poison(p, s);
  return std::nullopt;
}

// Imports a body inside of scope s; its results, or nullopt when one had a problem (listed).
std::optional<std::vector<ValueId>> Importer::add_body(const onnx::GraphProto& g, Scope& body,
                                                       const std::string& origin,
                                                       const std::string& shown) {
  add_initializers(g, body);
  add_nodes(g.node(), body);
  std::vector<ValueId> out;
  bool fits = true;
  for (const auto& o : g.output()) {
    const Named n = read(body, o.name(), shown);
    if (n.kind == Named::Kind::kUnusable) problem(reasons_[n.index], origin);
    if (n.kind == Named::Kind::kTensor && n.id == kNone)
      fail(ErrorCode::kModel, shown, ": its body gives '", o.name(), "', which was left out");
    fits = fits && n.kind == Named::Kind::kTensor;
    out.push_back(n.id);
  }
  if (fits) return out;
  return std::nullopt;
}

Importer::Scope Importer::inner_scope(const Scope& s, const std::string& origin) const {
  Scope body;
  body.outer = &s;
  body.prefix = origin + "/";
  body.opsets = s.opsets;
  body.depth = s.depth + 1;
  body.token = s.token;
  return body;
}

// One branch of an If whose condition is not known yet. What it asks for in vain matters only when
// it is taken: then its values tell.
std::vector<ValueId> Importer::add_branch(const onnx::GraphProto& g, const std::string& origin,
                                          const std::string& shown, Scope& s) {
  const auto before = problems_;
  Scope body = inner_scope(s, origin);
  const auto results = add_body(g, body, origin, shown);
  if (results && problems_ == before) return *results;
  std::string why;
  for (const auto& [what, nodes] : problems_) {
    const auto same = std::find_if(before.begin(), before.end(),
                                   [&text = what](const auto& b) { return b.first == text; });
    if (same == before.end() || same->second.size() != nodes.size())
      why += cat(why.empty() ? "" : "\n  ", what, "; at ", list_names(nodes, 20));
  }
  problems_ = before;
  if (why.empty()) return {};  // something outside had a problem that is already listed
  const NodeId n = graph.add_node(ops_.get(kMissingOp), {}, {{"why", cat(shown, ": ", why)}},
                                  g.output_size(), origin);
  return graph.node(n).outputs;
}

void Importer::add_if(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  const std::string shown = "If '" + origin + "'";
  if (p.input_size() != 1) fail(ErrorCode::kModel, shown, " has ", p.input_size(), " inputs");
  const auto in = read_inputs(p, origin, s);
  if (!in) return;
  const ValueId condition = (*in)[0];
  if (condition == kNone) fail(ErrorCode::kModel, shown, " has no condition");
  const auto check = [&](const onnx::GraphProto& g, const char* name) {
    if (g.output_size() < p.output_size())
      fail(ErrorCode::kModel, shown, " has ", p.output_size(), " outputs, its ", name, " gives ",
           g.output_size());
  };
  const HostTensor* known =
      graph.value(condition).source == Source::kConst ? graph.tensor(condition) : nullptr;
  if (known && known->count() == 1 && known->dtype() == DType::kBool) {
    const char* name = known->as_int(0) ? "then_branch" : "else_branch";
    const onnx::GraphProto& taken = *body_graph(p, name, shown);
    check(taken, name);
    Scope body = inner_scope(s, origin);
    const auto results = add_body(taken, body, origin, shown);
    if (!results) return poison(p, s);
    for (int i = 0; i < p.output_size(); ++i)
      if (!p.output(i).empty()) define(s, p.output(i), {.id = (*results)[static_cast<size_t>(i)]});
    return;
  }
  if (!has_record("If", origin) || !has_record(kMissingOp, origin)) return poison(p, s);
  std::vector<ValueId> inputs{condition};
  for (const char* name : {"then_branch", "else_branch"}) {
    const onnx::GraphProto& g = *body_graph(p, name, shown);
    check(g, name);
    std::vector<ValueId> results = add_branch(g, origin, shown, s);
    if (results.empty()) return poison(p, s);
    results.resize(static_cast<size_t>(p.output_size()));
    inputs.insert(inputs.end(), results.begin(), results.end());
  }
  define_outputs(p, graph.add_node(ops_.get("If"), inputs, {}, 0, origin), s);
}

void Importer::define_outputs(const onnx::NodeProto& p, NodeId n, Scope& s) {
  for (int i = 0; i < p.output_size(); ++i)
    if (!p.output(i).empty()) define_value(s, p.output(i), graph.add_output(n, i));
}

bool Importer::has_record(const char* op, const std::string& origin) {
  if (ops_.find(op)) return true;
  problem(cat(op, " (domain ai.onnx): no such operator in ortrain"), origin);
  return false;
}

// Loop, Scan and SequenceMap: the body's inputs are outputs of an ortrain.Body node.
void Importer::add_loop(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  const std::string& op = p.op_type();
  const std::string shown = op + " '" + origin + "'";
  const bool has_records = has_record(op.c_str(), origin) && has_record(kBodyOp, origin);
  const auto in = read_inputs(p, origin, s);
  if (!in) return;
  if (!has_records) return poison(p, s);
  const onnx::GraphProto& g = *body_graph(p, "body", shown);
  std::vector<ValueId> inputs = *in;
  Attrs attrs;
  const auto number = [&](const onnx::AttributeProto& a) { return a.i(); };
  const auto numbers = [&](const onnx::AttributeProto& a) {
    return std::vector<int64_t>(a.ints().begin(), a.ints().end());
  };
  int64_t scanned = 0;
  for (const auto& given : p.attribute()) {
    const auto* a = resolve(given, s);
    if (!a || given.name() == "body") continue;
    if (given.name() == "num_scan_inputs") scanned = number(*a);
    if (op == "Scan" && a->ints_size() > 0)  // opset 8 has only the directions of the inputs
      attrs.set(given.name() == "directions" ? "scan_input_directions" : given.name(), numbers(*a));
  }
  size_t extra = 0;  // inputs of the body that are not inputs of the node, less the other way round
  if (op == "Loop") {
    while (inputs.size() < 2) inputs.push_back(kNone);
  } else if (op == "Scan") {
    if (opset(s, p.domain()) == 8) {
      if (inputs.empty() || inputs[0] != kNone) {
        problem("Scan of opset 8 with sequence_lens: only full sequences are supported", origin);
        return poison(p, s);
      }
      inputs.erase(inputs.begin());
      attrs.set("batched", int64_t{1});
    }
    if (scanned < 1 || scanned > static_cast<int64_t>(inputs.size()))
      fail(ErrorCode::kModel, shown, " has ", inputs.size(), " inputs and scans ", scanned);
    attrs.set("states", static_cast<int64_t>(inputs.size()) - scanned);
    extra = inputs.size() - static_cast<size_t>(scanned);  // states are results too
  }
  if (static_cast<size_t>(g.input_size()) != inputs.size())
    fail(ErrorCode::kModel, shown, " gives its body ", inputs.size(), " values, the body takes ",
         g.input_size());
  const size_t results_at_least = op == "Loop" ? inputs.size() - 1 : extra;
  if (static_cast<size_t>(g.output_size()) < results_at_least ||
      p.output_size() > g.output_size() - (op == "Loop"))
    fail(ErrorCode::kModel, shown, " has ", p.output_size(), " outputs, its body gives ",
         g.output_size());
  for (size_t i = op == "Loop" ? 2 : 0; i < inputs.size(); ++i)
    if (inputs[i] == kNone) fail(ErrorCode::kModel, shown, " lacks input ", i);

  const NodeId params = graph.add_node(ops_.get(kBodyOp), {}, {}, g.input_size(), origin + "/body");
  const ValueId token = graph.node(params).outputs[0];
  Scope body = inner_scope(s, origin);
  body.token = token;
  for (int i = 0; i < g.input_size(); ++i)
    define_value(body, g.input(i).name(), graph.node(params).outputs[static_cast<size_t>(i)]);
  const auto results = add_body(g, body, origin, shown);
  if (!results) return poison(p, s);
  attrs.set("token", static_cast<int64_t>(inputs.size()));
  inputs.push_back(token);
  inputs.insert(inputs.end(), results->begin(), results->end());
  define_outputs(p, graph.add_node(ops_.get(op), inputs, attrs, 0, origin), s);
}

}  // namespace ortrain
