// Lookup, ready-made inference rules and example inputs for operator records.
#include "graph/op_def.h"

#include <algorithm>

#include "graph/error.h"

namespace ortrain {

// --- inference
// --------------------------------------------------------------------------------------------------
const Value& InferCtx::input(int i) const {
  if (!has(i)) ortrain::fail(ErrorCode::kShape, "input ", i, " is missing");
  return g_.value(node().inputs[static_cast<size_t>(i)]);
}

const HostTensor* InferCtx::constant(int i) const {
  if (!has(i) || input(i).source != Source::kConst) return nullptr;
  return g_.tensor(node().inputs[static_cast<size_t>(i)]);
}

std::optional<std::vector<Dim>> InferCtx::ints(int i) const {
  if (!has(i)) return std::nullopt;
  if (input(i).has_ints) return input(i).ints;
  const HostTensor* t = constant(i);
  if (!t || !(is_integer(t->dtype()) || t->dtype() == DType::kBool) || t->count() > 4096)
    return std::nullopt;
  const std::vector<int64_t> v = t->as_ints();
  return std::vector<Dim>(v.begin(), v.end());
}

std::vector<Dim> InferCtx::need_ints(int i, std::string_view what) const {
  auto v = ints(i);
  if (!v)
    ortrain::fail(ErrorCode::kUnsupported, what,
                  " depends on data; ortrain plans before step 1 and needs it as a constant");
  return *v;
}

void InferCtx::out(int i, DType dtype, Shape shape) {
  if (i >= output_count() || node().outputs[static_cast<size_t>(i)] == kNone) return;
  Value& v = g_.value(node().outputs[static_cast<size_t>(i)]);
  v.dtype = dtype;
  v.shape = std::move(shape);
  v.typed = true;
  v.has_ints = false;
  v.ints.clear();
}

void InferCtx::out_ints(int i, std::vector<Dim> contents) {
  if (i >= output_count() || node().outputs[static_cast<size_t>(i)] == kNone) return;
  Value& v = g_.value(node().outputs[static_cast<size_t>(i)]);
  v.has_ints = true;
  v.ints = std::move(contents);
}

Dim InferCtx::fresh(std::string_view hint) const { return Dim::fresh(std::string(hint)); }
void InferCtx::fail(const std::string& message) const { throw Error(ErrorCode::kShape, message); }

void infer_same_as_first(InferCtx& c) { c.out(0, c.dtype(0), c.shape(0)); }

namespace {
Shape broadcast_all(InferCtx& c) {
  Shape s = c.shape(0);
  for (int i = 1; i < c.input_count(); ++i) {
    if (c.dtype(i) != c.dtype(0))
      c.fail(
          cat("inputs have different types: ", name_of(c.dtype(0)), " and ", name_of(c.dtype(i))));
    s = broadcast(s, c.shape(i));
  }
  return s;
}
}  // namespace

void infer_broadcast(InferCtx& c) { c.out(0, c.dtype(0), broadcast_all(c)); }
void infer_compare(InferCtx& c) { c.out(0, DType::kBool, broadcast_all(c)); }

// --- gradient and decomposition
// ---------------------------------------------------------------------------------
namespace {
bool present(const std::vector<ValueId>& list, int i) {
  return i >= 0 && i < static_cast<int>(list.size()) && list[static_cast<size_t>(i)] != kNone;
}
}  // namespace

const Node& Grad::node() const { return b.graph().node(n); }
bool Grad::has_x(int i) const { return present(node().inputs, i); }
bool Grad::has_y(int i) const { return present(node().outputs, i); }
bool Grad::has_dy(int i) const { return present(dys, i); }
Expr Grad::x(int i) {
  ORTRAIN_CHECK(has_x(i), "gradient formula uses a missing input of " + b.origin());
  return b.wrap(node().inputs[static_cast<size_t>(i)]);
}
Expr Grad::y(int i) {
  ValueId v = has_y(i) ? node().outputs[static_cast<size_t>(i)] : b.graph().add_output(n, i);
  if (!b.graph().value(v).typed) b.graph().infer(n);
  return b.wrap(v);
}
Expr Grad::dy(int i) {
  if (has_dy(i)) return b.wrap(dys[static_cast<size_t>(i)]);
  return b.zeros_like(y(i));
}

const Node& Decompose::node() const { return b.graph().node(n); }
bool Decompose::has_x(int i) const { return present(node().inputs, i); }
bool Decompose::wants(int i) const { return present(node().outputs, i); }
Expr Decompose::x(int i) {
  ORTRAIN_CHECK(has_x(i), "decomposition uses a missing input of " + b.origin());
  return b.wrap(node().inputs[static_cast<size_t>(i)]);
}

void RawNode::ints_to_input(const char* attr, size_t i) {
  if (!attrs.has(attr)) return;
  set_input(i, constant(HostTensor::ints(attrs.ints(attr))));
  attrs.erase(attr);
}

// --- records
// ----------------------------------------------------------------------------------------------------
const GradRule* OpDef::grad_rule(int input) const {
  if (inputs.empty()) return nullptr;
  const size_t i = std::min(static_cast<size_t>(input), inputs.size() - 1);
  std::string_view name = inputs[i];
  while (!name.empty() && (name.back() == '?' || name.back() == '*')) name.remove_suffix(1);
  for (const GradRule& r : grad)
    if (r.input == name) return &r;
  return nullptr;
}

bool OpDef::differentiable() const {
  if (grad.empty()) return decompose != nullptr;
  return std::any_of(grad.begin(), grad.end(),
                     [](const GradRule& r) { return r.kind == GradRule::Kind::kFormula; });
}

void OpTable::add(OpDef op) {
  std::string name = op.name;
  const bool inserted = ops_.emplace(name, std::make_unique<OpDef>(std::move(op))).second;
  ORTRAIN_CHECK(inserted, "operator " + name + " has two records");
}

const OpDef* OpTable::find(std::string_view name) const {
  const auto it = ops_.find(name);
  return it == ops_.end() ? nullptr : it->second.get();
}

const OpDef& OpTable::get(std::string_view name) const {
  const OpDef* op = find(name);
  ORTRAIN_CHECK(op != nullptr, cat("operator ", name, " has no record"));
  return *op;
}

std::vector<const OpDef*> OpTable::all() const {
  std::vector<const OpDef*> out;
  for (const auto& [name, op] : ops_) out.push_back(op.get());
  return out;
}

std::vector<std::string> OpTable::nearest(std::string_view name, int count) const {
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= b.size(); ++j) {
        const size_t cost = diagonal + (a[i - 1] != b[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, cost});
      }
    }
    return row[b.size()];
  };
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const auto& [n, op] : ops_)
    if (!n.starts_with("ortrain.")) ranked.emplace_back(distance(name, n), n);
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (const auto& [d, n] : ranked)
    if (static_cast<int>(out.size()) < count) out.push_back(n);
  return out;
}

// --- examples
// ---------------------------------------------------------------------------------------------------
ExampleInput f(Dims dims, double low, double high) {
  return {ExampleInput::Kind::kFloat, std::move(dims), low, high, {}, false};
}
ExampleInput floats(Dims dims, std::vector<double> values) {
  return {ExampleInput::Kind::kFloats, std::move(dims), 0, 0, std::move(values), false};
}
ExampleInput ints(Dims dims, int64_t low, int64_t high) {
  return {ExampleInput::Kind::kInts,
          std::move(dims),
          static_cast<double>(low),
          static_cast<double>(high),
          {},
          false};
}
ExampleInput iconst(Dims dims, std::vector<int64_t> values) {
  return {ExampleInput::Kind::kInts,
          std::move(dims),
          0,
          0,
          std::vector<double>(values.begin(), values.end()),
          true};
}
ExampleInput ivals(std::vector<int64_t> values) {
  return iconst({static_cast<int64_t>(values.size())}, values);
}
ExampleInput bools(Dims dims) {
  return {ExampleInput::Kind::kBool, std::move(dims), 0, 2, {}, false};
}
ExampleInput typed(DType dtype, ExampleInput e) {
  e.dtype = dtype;
  return e;
}
ExampleInput absent() { return {ExampleInput::Kind::kAbsent, {}, 0, 0, {}, false}; }

}  // namespace ortrain
