// Graphs and plain nodes: the main part of the importer (onnx_import.h).
#include "importers/onnx_import.h"

#include <algorithm>
#include <cstring>
#include <queue>

#include "graph/error.h"
#include "graph/structure.h"
#include "importers/onnx_support.h"

namespace ortrain {
namespace {

// After inlining; a small file must not fill the memory.
constexpr int64_t kMostNodes = 300'000, kMostNameBytes = int64_t{1} << 29;
constexpr int64_t kMostFilled = int64_t{1} << 28;  // elements of weights given as one number

std::string shown_domain(const std::string& d) { return d.empty() ? "ai.onnx" : d; }

// Names that the bodies of control-flow attributes read; they may come from the enclosing graph.
void body_reads(const onnx::NodeProto& node, const std::function<void(const std::string&)>& read) {
  for (const auto& a : node.attribute()) {
    const auto body = [&](const onnx::GraphProto& g) {
      for (const auto& inner : g.node()) {
        for (const auto& name : inner.input()) read(name);
        body_reads(inner, read);
      }
      for (const auto& o : g.output()) read(o.name());
    };
    if (a.has_g()) body(a.g());
    for (const auto& g : a.graphs()) body(g);
  }
}

}  // namespace

std::string full_op_name(const std::string& domain, const std::string& op) {
  return domain.empty() || domain == "ai.onnx" ? op : domain + "." + op;
}

std::string list_names(const std::vector<std::string>& names, size_t most) {
  std::string s;
  for (size_t i = 0; i < names.size() && i < most; ++i) s += (i ? ", '" : "'") + names[i] + "'";
  if (names.size() > most) s += cat(" and ", names.size() - most, " more");
  return s;
}

bool takes_weight(const OpDef& def, int i) {
  if (def.ew != Ew::kNone || i == 0 || i >= static_cast<int>(def.inputs.size())) return false;
  if (std::count(def.state_inputs.begin(), def.state_inputs.end(), i)) return true;
  std::string name = def.inputs[static_cast<size_t>(i)];
  if (name.ends_with('?')) name.pop_back();
  for (const char* weight : {"W", "R", "B", "C", "scale", "Scale"})
    if (name == weight) return true;
  return false;
}

bool all_elements_equal(const HostTensor& t) {
  const size_t one = size_of(t.dtype());
  const auto* p = static_cast<const char*>(t.raw());
  return t.count() > 0 && std::memcmp(p, p + one, t.bytes() - one) == 0;
}

Importer::Importer(const onnx::ModelProto& model, const FileIndex& index, const FileBytes& file,
                   DataFiles& external, const OpTable& ops, const ImportOptions& options)
    : graph(ops),
      model_(model),
      index_(index),
      file_(file),
      external_(external),
      ops_(ops),
      options_(options) {}

void Importer::run() {
  if (!model_.has_graph()) fail(ErrorCode::kModel, "not an ONNX model: it has no graph");
  const auto imports = [](const auto& list, std::map<std::string, int>& out) {
    for (const auto& o : list)
      out[o.domain() == "ai.onnx" ? "" : o.domain()] =
          static_cast<int>(std::clamp<int64_t>(o.version(), 0, 1 << 20));
  };
  imports(model_.opset_import(), opsets_);
  for (const auto& f : model_.functions()) {
    const std::string key = f.domain() + ":" + f.name() + ":" + f.overload();
    if (!functions_.emplace(key, &f).second)
      fail(ErrorCode::kModel, "two functions are called '", f.domain(), ".", f.name(), "'");
    function_opsets_[&f] = opsets_;
    imports(f.opset_import(), function_opsets_[&f]);
  }
  const onnx::GraphProto& g = model_.graph();
  for (const auto& n : g.node()) {
    const OpDef* def = ops_.find(full_op_name(n.domain(), n.op_type()));
    for (int i = 0; i < n.input_size(); ++i) {
      ++reads_[n.input(i)];
      if (def && takes_weight(*def, i)) ++weight_reads_[n.input(i)];
    }
    body_reads(n, [&](const std::string& name) { ++reads_[name]; });
  }
  for (const auto& o : g.output())
    if (!output_names_.insert(o.name()).second)
      fail(ErrorCode::kModel, "two outputs are called '", o.name(), "'");

  graph.name = g.name();
  Scope main;
  main.opsets = &opsets_;
  add_initializers(g, main);
  add_inputs(main);
  add_nodes(g.node(), main);
  throw_problems();
  add_outputs(main);
  settle_states();
  repair();
  if (!options_.reset_head.empty()) reset_head(options_.reset_head, options_.seed);
  settle_constants();
}

// --- inputs, initializers, outputs

void Importer::add_initializers(const onnx::GraphProto& g, Scope& s) {
  for (const auto& t : g.initializer()) {
    if (t.name().empty()) fail(ErrorCode::kModel, "an initializer has no name");
    define(s, t.name(), add_tensor(t, s.prefix + t.name(), !function_of(s)));
  }
  for (const auto& t : g.sparse_initializer())
    define(s, t.values().name(), unusable("'" + t.values().name() + "' is a sparse tensor"));
}

void Importer::add_inputs(Scope& s) {
  for (const auto& input : model_.graph().input()) {
    const std::string& name = input.name();
    if (name.empty()) fail(ErrorCode::kModel, "a graph input has no name");
    const auto it = s.names.find(name);
    if (it != s.names.end()) {  // IR < 4 lists initializers as inputs too
      if (it->second.kind == Named::Kind::kTensor &&
          graph.value(it->second.id).source == Source::kInput)
        fail(ErrorCode::kModel, "two inputs are called '", name, "'");
      continue;
    }
    if (!input.type().has_tensor_type()) {
      define(s, name,
             unusable(cat("input '", name,
                          "' is not a tensor; sequences and optionals can be built "
                          "inside the model only")));
      continue;
    }
    const auto& type = input.type().tensor_type();
    const DType dtype = dtype_from_onnx(type.elem_type());
    if (dtype == DType::kUndefined)
      fail(ErrorCode::kUnsupported, "input '", name, "': element type ",
           onnx_dtype_name(type.elem_type()), " is not supported");
    if (!type.has_shape())
      fail(ErrorCode::kUnsupported, "input '", name,
           "' has no shape; ortrain needs at least the number of axes (export the model with "
           "shapes, or add them with onnx.shape_inference)");
    Shape shape;
    for (int i = 0; i < type.shape().dim_size(); ++i) {
      const auto& d = type.shape().dim(i);
      if (d.has_dim_value()) {
        // Some exporters write -1 or 0 where the size is open; no sample fits into 0.
        shape.push_back(d.dim_value() > 0 ? Dim(d.dim_value()) : Dim::fresh(cat(name, "_", i)));
      } else if (!d.dim_param().empty() && d.dim_param() != "?") {  // Paddle's name for any size
        shape.push_back(Dim::symbol(d.dim_param()));
      } else {
        shape.push_back(Dim::fresh(cat(name, "_", i)));
      }
    }
    define(s, name, {.id = graph.add_input(unique_name(name), dtype, std::move(shape))});
  }
}

void Importer::add_outputs(Scope& s) {
  for (const auto& o : model_.graph().output()) {
    const Named n = read(s, o.name(), "the list of outputs");
    if (n.kind != Named::Kind::kTensor || n.id == kNone)
      fail(ErrorCode::kUnsupported, "output '", o.name(), "' is not a tensor of a supported type");
    graph.add_output(n.id, o.name());
  }
}

// --- names

const Importer::Named* Importer::find(const Scope& s, const std::string& name) const {
  for (const Scope* at = &s; at; at = at->outer) {
    const auto it = at->names.find(name);
    if (it != at->names.end()) return &it->second;
  }
  return nullptr;
}

Importer::Named Importer::read(const Scope& s, const std::string& name,
                               const std::string& reader) const {
  const Named* n = find(s, name);
  if (!n)
    fail(ErrorCode::kModel, reader, " reads '", name,
         "', which is no input, no initializer and no node's output");
  return *n;
}

const onnx::FunctionProto* Importer::function_of(const Scope& s) const {
  for (const Scope* at = &s; at; at = at->outer)
    if (at->function) return at->function;
  return nullptr;
}

void Importer::define(Scope& s, const std::string& name, Named what) {
  if (!s.names.emplace(name, what).second)
    fail(ErrorCode::kModel, "the name '", s.prefix, name, "' is defined twice");
}

void Importer::define_value(Scope& s, const std::string& name, ValueId v) {
  if (graph.value(v).name.empty()) graph.value(v).name = s.prefix + name;
  define(s, name, {.id = v});
}

std::string Importer::unique_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 2; !source_names_.insert(name).second; ++i) name = cat(wanted, "#", i);
  return name;
}

void Importer::poison(const onnx::NodeProto& p, Scope& s) {
  for (const auto& o : p.output())
    if (!o.empty()) define(s, o, {.kind = Named::Kind::kPoison});
}

void Importer::problem(const std::string& what, const std::string& origin) {
  for (auto& [text, nodes] : problems_)
    if (text == what) return nodes.push_back(origin);
  problems_.push_back({what, {origin}});
}

void Importer::throw_problems() const {
  if (problems_.empty()) return;
  std::string text = "the model asks for what ortrain does not have:";
  for (const auto& [what, nodes] : problems_)
    text += "\n  " + what + "; at " + list_names(nodes, 20);
  throw Error(ErrorCode::kUnsupported, text);
}

int Importer::opset(const Scope& s, const std::string& domain) const {
  const auto it = s.opsets->find(domain == "ai.onnx" ? "" : domain);
  return it == s.opsets->end() ? 1 : it->second;
}

// --- nodes

// Indices of the nodes, producers first; nodes that are in order already stay so.
std::vector<int> Importer::order(const Nodes& nodes) const {
  std::unordered_map<std::string, int> producer;
  for (int i = 0; i < nodes.size(); ++i)
    for (const auto& o : nodes[i].output())
      if (!o.empty()) producer.emplace(o, i);
  std::vector<std::vector<int>> users(static_cast<size_t>(nodes.size()));
  std::vector<int> waiting(static_cast<size_t>(nodes.size()), 0);
  for (int i = 0; i < nodes.size(); ++i) {
    const auto read = [&](const std::string& name) {
      const auto it = producer.find(name);
      if (it == producer.end()) return;
      users[static_cast<size_t>(it->second)].push_back(i);
      ++waiting[static_cast<size_t>(i)];
    };
    for (const auto& name : nodes[i].input()) read(name);
    body_reads(nodes[i], read);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < nodes.size(); ++i)
    if (waiting[static_cast<size_t>(i)] == 0) ready.push(i);
  std::vector<int> out;
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    out.push_back(i);
    for (int user : users[static_cast<size_t>(i)])
      if (--waiting[static_cast<size_t>(user)] == 0) ready.push(user);
  }
  if (out.size() != static_cast<size_t>(nodes.size())) {
    std::vector<std::string> stuck;
    for (int i = 0; i < nodes.size(); ++i)
      if (waiting[static_cast<size_t>(i)] > 0)
        stuck.push_back(nodes[i].name().empty() ? cat(nodes[i].op_type(), "_", i)
                                                : nodes[i].name());
    fail(ErrorCode::kModel, "the graph has a cycle through or before ", list_names(stuck, 10));
  }
  return out;
}

void Importer::add_nodes(const Nodes& nodes, Scope& s) {
  if (s.depth > options_.max_depth)
    fail(ErrorCode::kModel, "functions or branches are nested deeper than ", options_.max_depth,
         " at '", s.prefix, "'");
  nodes_seen_ += nodes.size();
  if (nodes_seen_ > kMostNodes)
    fail(ErrorCode::kModel, "the model has more than ", kMostNodes,
         " nodes once its functions are inlined");
  for (int i : order(nodes)) add_node(nodes[i], i, s);
}

void Importer::add_node(const onnx::NodeProto& p, int index, Scope& s) {
  const std::string origin =
      s.prefix + (p.name().empty() ? cat(p.op_type(), "_", index) : p.name());
  if ((name_bytes_ += static_cast<int64_t>(origin.size())) > kMostNameBytes)
    fail(ErrorCode::kModel, "the names of the nodes are too long once functions are inlined");
  if (p.op_type().empty()) fail(ErrorCode::kModel, "node '", origin, "' names no operator");
  const std::string op = full_op_name(p.domain(), p.op_type());
  const int version = opset(s, p.domain());
  if (op == p.op_type() && (version < kOldestOpset || version > kNewestOpset))
    fail(ErrorCode::kUnsupported, "the model uses opset ", version, " of ai.onnx (node '", origin,
         "'); ortrain reads ", kOldestOpset, " to ", kNewestOpset,
         version < kOldestOpset ? "; onnx.version_converter brings it up" : "");
  if (const auto* f = find_function(p); f && !(ops_.find(op) && op == p.op_type()))
    return inline_function(p, *f, origin, s);
  if (op == "Constant" && add_constant(p, origin, s)) return;
  if (op == "If") return add_if(p, origin, s);
  if (op == "Loop" || op == "Scan" || op == "SequenceMap") return add_loop(p, origin, s);
  if (op == "ai.onnx.preview.FlexAttention" && add_flex_attention(p, origin, s)) return;
  if (op == "Identity" && add_untied(p, s)) return;
  if (op == "ConstantOfShape" && add_filled(p, s)) return;
  add_op(p, origin, s);
}

void Importer::add_op(const onnx::NodeProto& p, const std::string& origin, Scope& s) {
  RawNode raw{graph, opset(s, p.domain()), full_op_name(p.domain(), p.op_type()), {}, {}, {}};
  const std::string shown = raw.op + " '" + origin + "'";
  bool fits = true;
  for (const auto& name : p.input()) {
    if (name.empty()) {
      raw.inputs.push_back(kNone);
      continue;
    }
    const Named n = read(s, name, shown);
    if (n.kind == Named::Kind::kUnusable) problem(reasons_[n.index], origin);
    fits = fits && n.kind == Named::Kind::kTensor;
    raw.inputs.push_back(n.id);
  }
  while (!raw.inputs.empty() && raw.inputs.back() == kNone) raw.inputs.pop_back();
  for (const auto& o : p.output()) raw.wanted.push_back(!o.empty());
  while (!raw.wanted.empty() && !raw.wanted.back()) raw.wanted.pop_back();

  const auto missing = [&](const std::string& op) {
    const std::string shown_op =
        cat(p.op_type(), " (domain ", shown_domain(p.domain()), ", opset ", raw.opset, "): ");
    if (const std::string_view why = refusal_of(op); !why.empty())
      return problem(cat(shown_op, "refused: ", why), origin);
    std::vector<std::string> near = ops_.nearest(op);
    std::string text = shown_op + "no such operator in ortrain";
    for (size_t i = 0; i < near.size(); ++i) text += (i ? ", " : "; nearest: ") + near[i];
    problem(text, origin);
  };
  const OpDef* def = ops_.find(raw.op);
  if (!def) missing(raw.op);
  for (const auto& a : p.attribute())
    if (def && (a.has_g() || a.graphs_size() > 0)) {
      problem(cat(raw.op, ": attribute '", a.name(), "' is a graph, which only If, Loop, Scan and ",
                  "SequenceMap have"),
              origin);
      return poison(p, s);
    }
  if (!def || !read_attributes(p, origin, s, raw.attrs) || !fits) return poison(p, s);
  try {
    if (def->adapt) def->adapt(raw);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw e.within(shown);
    problem(cat(p.op_type(), " (domain ", shown_domain(p.domain()), ", opset ", raw.opset,
                "): ", e.what()),
            origin);
    return poison(p, s);
  }
  def = ops_.find(raw.op);
  if (!def) {
    missing(raw.op);
    return poison(p, s);
  }

  // Counts against the record; '?' is optional, '*' repeats.
  const auto count = [&](const std::vector<std::string>& formal, size_t got, auto present,
                         const char* what) {
    const bool repeats = !formal.empty() && formal.back().back() == '*';
    if (got > formal.size() && !repeats)
      fail(ErrorCode::kModel, shown, " has ", got, " ", what, ", ", def->name, " takes at most ",
           formal.size());
    for (size_t i = 0; i < formal.size(); ++i)
      if (formal[i].back() != '?' && formal[i].back() != '*' && !present(i))
        fail(ErrorCode::kModel, shown, " lacks ", what, " ", i, " ('", formal[i], "')");
  };
  if (!def->outputs.empty()) {
    count(
        def->inputs, raw.inputs.size(),
        [&](size_t i) { return i < raw.inputs.size() && raw.inputs[i] != kNone; }, "inputs");
    count(
        def->outputs, raw.wanted.size(), [](size_t) { return true; }, "outputs");
  }
  // A random node of a loop's body draws anew in each iteration, whatever it reads.
  if (s.token != kNone && (def->random || def->training_policy)) {
    if (raw.inputs.empty() || raw.inputs[0] == kNone) {
      problem(raw.op + ": without an input, inside the body of a loop, it is not supported",
              origin);
      return poison(p, s);
    }
    if (!has_record(kPerIterationOp, origin)) return poison(p, s);
    raw.inputs[0] = graph
                        .node(graph.add_node(ops_.get(kPerIterationOp), {raw.inputs[0], s.token},
                                             {}, 1, origin))
                        .outputs[0];
  }
  const NodeId n = graph.add_node(*def, raw.inputs, raw.attrs, 0, origin);
  for (int i = 0; i < static_cast<int>(raw.wanted.size()); ++i) {
    if (!raw.wanted[static_cast<size_t>(i)] || i >= p.output_size()) continue;
    define_value(s, p.output(i), graph.add_output(n, i));
  }
  if (s.is_main() && site_of(p.doc_string()) >= 0) protos_[n] = &p;
  for (int i : def->state_inputs)
    state_uses_.push_back({n, i, s.is_main() ? site_of(p.doc_string()) : -1});
}

// The constant tensor that a node of the main graph reads as its only input, when the export could
// put a tensor in the node's place; else kNone.
ValueId Importer::replaceable_input(const onnx::NodeProto& p, const Scope& s) const {
  if (!s.is_main() || p.input_size() != 1 || p.output_size() != 1) return kNone;
  const Named* from = find(s, p.input(0));
  if (!from || from->kind != Named::Kind::kTensor || output_names_.count(p.output(0)) ||
      site_of(p.doc_string()) < 0)
    return kNone;
  return from->id;
}

// The node's output is a tensor of the file from here on; the export writes it in the node's place.
void Importer::become_tensor(const onnx::NodeProto& p, HostTensor t, Scope& s) {
  TensorSlot slot{.where = TensorSlot::Where::kNode,
                  .site = site_of(p.doc_string()),
                  .dtype = t.dtype(),
                  .dims = t.dims()};
  const ValueId own = graph.add_param(std::move(t), unique_name(p.output(0)));
  slot.name = graph.value(own).name;
  slots.push_back(std::move(slot));
  define(s, p.output(0), {.id = own});
}

// Identity of an initializer that others read too, all elements equal: an exporter found two equal
// tensors and kept one (the TorchScript exporter of PyTorch does so). It becomes a tensor again.
bool Importer::add_untied(const onnx::NodeProto& p, Scope& s) {
  const ValueId from = options_.untie ? replaceable_input(p, s) : kNone;
  if (from == kNone || graph.value(from).source != Source::kParam || reads_[p.input(0)] < 2)
    return false;
  const HostTensor t = graph.tensor(from)->share();
  if (!all_elements_equal(t)) return false;
  become_tensor(p, t.share(), s);
  slots.back().split_from = graph.value(from).name;
  merged_[graph.value(from).name].push_back(p.output(0));
  return true;
}

// ConstantOfShape with a fixed shape that layers read as their weight: how some files (light
// models) leave out the numbers. It becomes a tensor of the file.
bool Importer::add_filled(const onnx::NodeProto& p, Scope& s) {
  const ValueId from = replaceable_input(p, s);
  if (from == kNone || graph.value(from).source != Source::kConst ||
      graph.value(from).dtype != DType::kI64 || reads_[p.output(0)] == 0 ||
      weight_reads_[p.output(0)] != reads_[p.output(0)])
    return false;
  Attrs attrs;
  if (!read_attributes(p, p.output(0), s, attrs)) return false;
  const DType dtype = dtype_from_name(attrs.s("dtype", "f32")).value_or(DType::kUndefined);
  const Dims dims = graph.tensor(from)->as_ints();
  if (!is_float(dtype) || dims.empty() || (filled_ += element_count(dims)) > kMostFilled)
    return false;
  HostTensor t(dtype, dims);
  const double fill = attrs.f("value", 0);
  for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, fill);
  become_tensor(p, std::move(t), s);
  return true;
}

// --- after the last node

// Float data read by a state input (OpDef::state_inputs) is state. A tensor whose elements are all
// equal and that serves something else too was merged by an exporter: the state gets its own.
void Importer::settle_states() {
  for (const auto& [n, input, site] : state_uses_) {
    const auto& in = graph.node(n).inputs;
    if (static_cast<size_t>(input) >= in.size() || in[static_cast<size_t>(input)] == kNone)
      continue;
    ValueId v = in[static_cast<size_t>(input)];
    while (graph.value(v).producer != kNone && graph.value(v).uses.size() == 1) {
      const Node& up = graph.node(graph.value(v).producer);
      if (up.op->name != "Identity" || up.inputs.size() != 1) break;
      v = up.inputs[0];
    }
    const Source source = graph.value(v).source;
    if (source != Source::kParam && source != Source::kState) continue;
    const bool shared = graph.value(v).uses.size() > 1;
    if (shared && options_.untie && site >= 0 && all_elements_equal(*graph.tensor(v))) {
      const HostTensor t = graph.tensor(v)->share();
      const ValueId own = graph.add_state(
          t.share(), unique_name(cat(graph.value(v).name, "@", graph.node(n).origin, ".", input)));
      graph.set_input(n, input, own);
      slots.push_back({.name = graph.value(own).name,
                       .where = TensorSlot::Where::kInput,
                       .site = site,
                       .input = input,
                       .dtype = t.dtype(),
                       .dims = t.dims(),
                       .split_from = graph.value(v).name});
      notes.push_back(cat("'", graph.value(v).name, "' serves ", graph.describe(n),
                          " as running state and other nodes too; it was split off"));
      continue;
    }
    if (in[static_cast<size_t>(input)] != v) {  // read through Identity nodes
      const NodeId up = graph.value(in[static_cast<size_t>(input)]).producer;
      graph.set_input(n, input, v);
      graph.erase_if_dead(up);
    }
    graph.set_source(v, Source::kState);
  }
}

// Float tensors from which no gradient can flow to an output (scales of a Resize, shapes, tensors
// that nothing reads) are constants.
void Importer::settle_constants() {
  PerValue<char> reaches(graph, 0);
  for (ValueId v : graph.outputs()) reaches[v] = 1;
  const std::vector<NodeId> order = graph.topo();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& n = graph.node(*it);
    const bool live = std::any_of(n.outputs.begin(), n.outputs.end(),
                                  [&](ValueId v) { return v != kNone && reaches[v]; });
    if (!live) continue;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (n.inputs[i] == kNone) continue;
      const GradRule* rule = n.op->grad_rule(static_cast<int>(i));
      if (!rule || rule->kind != GradRule::Kind::kZero) reaches[n.inputs[i]] = 1;
    }
  }
  for (ValueId v : graph.sources(Source::kParam))
    if (!reaches[v]) graph.set_source(v, Source::kConst);
}

}  // namespace ortrain
