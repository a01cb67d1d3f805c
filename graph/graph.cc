// Graph edits: use lists, erasing, topological order.
#include "graph/graph.h"

#include <algorithm>
#include <queue>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain {

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::kImported: return "imported";
    case Stage::kInferred: return "inferred";
    case Stage::kDifferentiated: return "differentiated";
    case Stage::kPlaced: return "placed";
    case Stage::kScheduled: return "scheduled";
  }
  return "?";
}

Graph Graph::share() const {
  Graph g(*ops_);
  g.stage = stage;
  g.name = name;
  g.values_ = values_;
  g.nodes_ = nodes_;
  g.inputs_ = inputs_;
  g.outputs_ = outputs_;
  g.output_names_ = output_names_;
  g.updates_ = updates_;
  g.params = params;
  g.order = order;
  g.tensors_.reserve(tensors_.size());
  for (const HostTensor& t : tensors_) g.tensors_.push_back(t.share());
  return g;
}

ValueId Graph::new_value() {
  values_.emplace_back();
  return static_cast<ValueId>(values_.size() - 1);
}

// --- sources
// ----------------------------------------------------------------------------------------------------
ValueId Graph::add_input(std::string input_name, DType dtype, Shape shape) {
  const ValueId v = new_value();
  Value& x = value(v);
  x.source = Source::kInput;
  x.name = std::move(input_name);
  x.dtype = dtype;
  x.shape = std::move(shape);
  x.typed = true;
  inputs_.push_back(v);
  return v;
}

ValueId Graph::add_const(HostTensor contents, std::string const_name) {
  const ValueId v = new_value();
  value(v).source = Source::kConst;
  value(v).name = std::move(const_name);
  set_tensor(v, std::move(contents));
  return v;
}

ValueId Graph::add_param(HostTensor initial, std::string param_name) {
  const ValueId v = add_const(std::move(initial), std::move(param_name));
  value(v).source = Source::kParam;
  return v;
}

ValueId Graph::add_state(HostTensor initial, std::string state_name) {
  const ValueId v = add_const(std::move(initial), std::move(state_name));
  value(v).source = Source::kState;
  return v;
}

void Graph::set_source(ValueId v, Source source) {
  ORTRAIN_CHECK(value(v).producer == kNone, "a produced value cannot become a source");
  ORTRAIN_CHECK(source != Source::kNode, "a source cannot become produced");
  if (value(v).source == Source::kInput) std::erase(inputs_, v);
  if (source == Source::kInput) inputs_.push_back(v);
  value(v).source = source;
}

const HostTensor* Graph::tensor(ValueId v) const {
  const int32_t t = value(v).tensor;
  return t == kNone ? nullptr : &tensors_[static_cast<size_t>(t)];
}

void Graph::set_tensor(ValueId v, HostTensor contents) {
  Value& x = value(v);
  x.dtype = contents.dtype();
  x.shape = Shape(contents.dims());
  x.typed = true;
  if (x.tensor == kNone) {
    x.tensor = static_cast<int32_t>(tensors_.size());
    tensors_.push_back(std::move(contents));
  } else {
    tensors_[static_cast<size_t>(x.tensor)] = std::move(contents);
  }
}

std::vector<ValueId> Graph::sources(Source kind) const {
  std::vector<ValueId> out;
  for (ValueId v = 0; v < value_count(); ++v)
    if (value(v).source == kind && kind != Source::kNode) out.push_back(v);
  return out;
}

ValueId Graph::find(std::string_view wanted) const {
  for (ValueId v = 0; v < value_count(); ++v) {
    const Value& x = value(v);
    if (x.name == wanted && (x.source != Source::kNode || x.producer != kNone)) return v;
  }
  return kNone;
}

// --- nodes
// ------------------------------------------------------------------------------------------------------
NodeId Graph::add_node(const OpDef& op, std::vector<ValueId> inputs, Attrs attrs, int outputs,
                       std::string origin) {
  const NodeId n = node_count();
  nodes_.emplace_back();
  Node& x = node(n);
  x.op = &op;
  x.attrs = std::move(attrs);
  x.origin = std::move(origin);
  for (ValueId v : inputs)
    if (v != kNone) value(v).uses.push_back(n);
  x.inputs = std::move(inputs);
  for (int i = 0; i < outputs; ++i) add_output(n, i);
  return n;
}

ValueId Graph::add_output(NodeId n, int index) {
  Node& x = node(n);
  if (static_cast<int>(x.outputs.size()) <= index)
    x.outputs.resize(static_cast<size_t>(index) + 1, kNone);
  ValueId& slot = x.outputs[static_cast<size_t>(index)];
  if (slot != kNone) return slot;
  const ValueId v = new_value();
  value(v).producer = n;
  value(v).output_index = index;
  return slot = v;
}

void Graph::drop_use(ValueId v, NodeId n) {
  auto& uses = value(v).uses;
  const auto it = std::find(uses.begin(), uses.end(), n);
  ORTRAIN_CHECK(it != uses.end(), "use list out of step");
  uses.erase(it);
}

void Graph::set_input(NodeId n, int index, ValueId v) {
  Node& x = node(n);
  if (static_cast<int>(x.inputs.size()) <= index)
    x.inputs.resize(static_cast<size_t>(index) + 1, kNone);
  ValueId& slot = x.inputs[static_cast<size_t>(index)];
  if (slot != kNone) drop_use(slot, n);
  slot = v;
  if (v != kNone) value(v).uses.push_back(n);
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  const std::vector<NodeId> users = value(from).uses;
  for (NodeId n : users)
    for (size_t i = 0; i < node(n).inputs.size(); ++i)
      if (node(n).inputs[i] == from) set_input(n, static_cast<int>(i), to);
  for (ValueId& v : outputs_)
    if (v == from) v = to;
  for (StateUpdate& u : updates_)
    if (u.next == from) u.next = to;
}

bool Graph::erase_if_dead(NodeId n) {
  Node& x = node(n);
  if (!x.op) return false;
  for (ValueId v : x.outputs) {
    if (v == kNone) continue;
    if (!value(v).uses.empty()) return false;
    if (std::find(outputs_.begin(), outputs_.end(), v) != outputs_.end()) return false;
    for (const StateUpdate& u : updates_)
      if (u.next == v) return false;
  }
  for (ValueId v : x.inputs)
    if (v != kNone) drop_use(v, n);
  for (ValueId v : x.outputs)
    if (v != kNone) value(v).producer = kNone;
  x = Node();
  return true;
}

int Graph::erase_dead() {
  std::vector<bool> needed(static_cast<size_t>(node_count()), false);
  std::vector<ValueId> stack(outputs_);
  for (const StateUpdate& u : updates_) stack.push_back(u.next);
  while (!stack.empty()) {
    const ValueId v = stack.back();
    stack.pop_back();
    const NodeId n = value(v).producer;
    if (n == kNone || needed[static_cast<size_t>(n)]) continue;
    needed[static_cast<size_t>(n)] = true;
    for (ValueId in : node(n).inputs)
      if (in != kNone) stack.push_back(in);
  }
  int erased = 0;
  for (NodeId n = 0; n < node_count(); ++n) {
    Node& x = node(n);
    if (!x.op || needed[static_cast<size_t>(n)]) continue;
    for (ValueId v : x.inputs)
      if (v != kNone) drop_use(v, n);
    for (ValueId v : x.outputs)
      if (v != kNone) value(v).producer = kNone;
    x = Node();
    ++erased;
  }
  return erased;
}

void Graph::infer(NodeId n) {
  const Node& x = node(n);
  ORTRAIN_CHECK(x.op && x.op->infer, "node without an infer rule: " + describe(n));
  try {
    for (size_t i = 0; i < x.inputs.size(); ++i)
      if (x.inputs[i] != kNone && !value(x.inputs[i]).typed)
        fail(ErrorCode::kShape, "input ", i, " (", describe_value(x.inputs[i]),
             ") has no type yet");
    const auto refuse_storage = [&](ValueId v, const char* verb) {
      if (v != kNone && value(v).typed && is_storage(value(v).dtype) && !x.op->storage)
        fail(ErrorCode::kUnsupported, x.op->name, " does not ", verb, " the storage type ",
             name_of(value(v).dtype), "; cast or dequantize to a float type first");
    };
    for (ValueId v : x.inputs) refuse_storage(v, "take");
    InferCtx context(*this, n);
    x.op->infer(context);
    for (ValueId v : node(n).outputs) refuse_storage(v, "give");
  } catch (const Error& e) {
    throw e.within(describe(n));
  }
}

// --- outputs and updates
// ----------------------------------------------------------------------------------------
void Graph::add_output(ValueId v, std::string output_name) {
  outputs_.push_back(v);
  output_names_.push_back(std::move(output_name));
}
void Graph::set_output(int index, ValueId v) { outputs_[static_cast<size_t>(index)] = v; }
void Graph::clear_outputs() {
  outputs_.clear();
  output_names_.clear();
}
void Graph::add_update(ValueId state, ValueId next) { updates_.push_back({state, next}); }
void Graph::set_update(int index, ValueId next) {
  updates_[static_cast<size_t>(index)].next = next;
}

// --- order and names
// --------------------------------------------------------------------------------------------
std::vector<NodeId> Graph::topo() const {
  std::vector<int32_t> waiting(nodes_.size(), 0);
  std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>> ready;
  size_t live = 0;
  for (NodeId n = 0; n < node_count(); ++n) {
    if (!node(n).op) continue;
    ++live;
    for (ValueId v : node(n).inputs)
      if (v != kNone && value(v).producer != kNone) ++waiting[static_cast<size_t>(n)];
    if (waiting[static_cast<size_t>(n)] == 0) ready.push(n);
  }
  std::vector<NodeId> order;
  order.reserve(live);
  while (!ready.empty()) {
    const NodeId n = ready.top();
    ready.pop();
    order.push_back(n);
    for (ValueId v : node(n).outputs)
      if (v != kNone)
        for (NodeId user : value(v).uses)
          if (--waiting[static_cast<size_t>(user)] == 0) ready.push(user);
  }
  if (order.size() != live) {
    std::string names;
    for (NodeId n = 0; n < node_count(); ++n)
      if (node(n).op && waiting[static_cast<size_t>(n)] > 0 && names.size() < 300)
        names += (names.empty() ? "" : ", ") + describe(n);
    fail(ErrorCode::kModel, "the graph has a cycle through ", names);
  }
  return order;
}

std::string Graph::describe(NodeId n) const {
  const Node& x = node(n);
  return cat(x.op ? x.op->name : "erased", " '", x.origin, "'");
}

std::string Graph::describe_value(ValueId v) const {
  return value(v).name.empty() ? cat("%", v) : "'" + value(v).name + "'";
}

}  // namespace ortrain
