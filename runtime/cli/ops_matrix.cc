// Rows of the matrix and their three forms. Element types are found by planning the first example
// of the record that accepts them: what inference or every kernel refuses is not listed.
#include "runtime/cli/ops_matrix.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/structure.h"
#include "importers/onnx_support.h"
#include "runtime/plan.h"

namespace ortrain::cli {
namespace {

constexpr std::string_view kOnnx = "ai.onnx";

std::string domain_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? kOnnx : name.substr(0, dot));
}
std::string short_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
}

std::string join(const std::vector<std::string>& parts, const char* between = ", ") {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : between) + p;
  return out;
}

// --- gradient

std::string input_name(std::string name) {
  while (!name.empty() && (name.back() == '?' || name.back() == '*')) name.pop_back();
  return name;
}

void set_gradient(const OpDef& op, OpRow& r) {
  if (op.grad.empty()) {
    r.gradient = op.decompose ? "by its decomposition" : "none";
    if (op.decompose)
      for (const std::string& in : op.inputs) r.differentiable.push_back(input_name(in));
    return;
  }
  std::vector<std::string> refused;
  for (const GradRule& g : op.grad) {
    if (g.kind == GradRule::Kind::kFormula) r.differentiable.push_back(g.input);
    if (g.kind == GradRule::Kind::kRefused) refused.push_back(g.input + ": " + g.why);
  }
  if (!r.differentiable.empty())
    r.gradient = join(r.differentiable);
  else if (refused.empty())
    r.gradient = "zero";
  if (!refused.empty())
    r.gradient += (r.gradient.empty() ? "refused (" : "; refused (") + join(refused, "; ") + ")";
}

// --- element types

HostTensor example_tensor(const ExampleInput& e, DType dtype) {
  HostTensor t(dtype, e.dims);
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, e.values.empty() ? std::max(e.low, 0.0) : e.values[static_cast<size_t>(i)]);
  return t;
}

// The inputs of an example that hold its data: floats without a fixed type, or where there are none
// everything that is neither constant nor of a fixed type.
std::vector<bool> data_inputs(const Example& example) {
  using Kind = ExampleInput::Kind;
  std::vector<bool> floats, others;
  bool any = false;
  for (const ExampleInput& e : example.in) {
    const bool open = e.kind != Kind::kAbsent && e.dtype == DType::kUndefined;
    floats.push_back(open && (e.kind == Kind::kFloat || e.kind == Kind::kFloats));
    others.push_back(open && !e.constant);
    any |= floats.back();
  }
  return any ? floats : others;
}

// Whether this example can be planned with its data in `dtype`.
bool plans(const OpTable& table, const OpDef& op, const Example& example, DType dtype) {
  using Kind = ExampleInput::Kind;
  const std::vector<bool> is_data = data_inputs(example);
  Graph g(table);
  std::vector<ValueId> in;
  for (size_t i = 0; i < example.in.size(); ++i) {
    const ExampleInput& e = example.in[i];
    if (e.kind == Kind::kAbsent) {
      in.push_back(kNone);
      continue;
    }
    const DType own = e.dtype != DType::kUndefined                        ? e.dtype
                      : e.kind == Kind::kFloat || e.kind == Kind::kFloats ? DType::kF32
                      : e.kind == Kind::kBool                             ? DType::kBool
                                                                          : DType::kI64;
    const DType t = is_data[i] ? dtype : own;
    in.push_back(e.constant ? g.add_const(example_tensor(e, t))
                            : g.add_input("x", t, Shape(e.dims)));
  }
  try {
    while (!in.empty() && in.back() == kNone) in.pop_back();
    const NodeId n = g.add_node(op, in, example.attrs, example.outputs, "example");
    g.infer(n);
    const std::vector<ValueId> outs = g.node(n).outputs;
    for (ValueId v : outs)
      if (v != kNone) g.add_output(v, "y");
    ParamStore store;
    make_plan(g, store, {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kInts[] = {DType::kI64, DType::kI32, DType::kI16, DType::kI8,
                           DType::kU64, DType::kU32, DType::kU16, DType::kU8};

void set_types(const OpTable& table, const OpDef& op, OpRow& r) {
  std::vector<DType> fixed;  // of the first input, in examples whose types are all given
  for (const Example& e : op.examples) {
    const std::vector<bool> open = data_inputs(e);
    if (std::find(open.begin(), open.end(), true) != open.end()) continue;
    const DType t =  // generators without inputs make f32 unless told otherwise
        e.in.empty() || e.in[0].dtype == DType::kUndefined ? DType::kF32 : e.in[0].dtype;
    if (plans(table, op, e, DType::kF32)) fixed.push_back(t);
  }
  const auto takes = [&](DType t) {
    if (std::find(fixed.begin(), fixed.end(), t) != fixed.end()) return true;
    return std::any_of(op.examples.begin(), op.examples.end(), [&](const Example& e) {
      const std::vector<bool> open = data_inputs(e);
      return std::find(open.begin(), open.end(), true) != open.end() && plans(table, op, e, t);
    });
  };
  for (DType t : kFloats)
    if (takes(t)) r.types.emplace_back(name_of(t));
  for (DType t : kInts)
    if (takes(t)) r.types.emplace_back(name_of(t));
  if (takes(DType::kBool)) r.types.emplace_back(name_of(DType::kBool));
  for (DType t : fixed)  // storage types
    if (std::find(r.types.begin(), r.types.end(), name_of(t)) == r.types.end())
      r.types.emplace_back(name_of(t));
}

// "f64 f32 f16 bf16" and the integers by one word each, where all are there.
std::string short_types(const std::vector<std::string>& types) {
  std::vector<std::string> left = types, words;
  const auto group = [&](auto begin, auto end, const char* word) {
    for (auto t = begin; t != end; ++t)
      if (std::find(left.begin(), left.end(), name_of(*t)) == left.end()) return;
    for (auto t = begin; t != end; ++t)
      left.erase(std::find(left.begin(), left.end(), name_of(*t)));
    words.emplace_back(word);
  };
  group(std::begin(kFloats), std::end(kFloats), "floats");
  group(std::begin(kInts), std::end(kInts), "integers");
  words.insert(words.end(), left.begin(), left.end());
  return join(words, " ");
}

// --- kernels

std::string kernels(const OpDef& op, std::string_view device) {
  if (op.view) return device == "cpu" ? "view" : "-";
  std::vector<std::string> out;
  for (const KernelEntry& k : op.kernels) {
    if (device != k.device) continue;
    const std::string_view name = k.name;
    if (name == "ref")
      out.emplace_back("reference");
    else if (name == "onednn")
      out.emplace_back("library (oneDNN)");
    else if (name == "simd" && op.ew != Ew::kNone)
      out.emplace_back("fused (simd)");
    else
      out.emplace_back(name);
  }
  if (out.empty()) return op.decompose && device == "cpu" ? "its decomposition's" : "-";
  return join(out);
}

std::string forward(const OpDef& op) {
  if (op.view) return "yes, without copying";
  if (op.kernels.empty()) return "as simpler operators";
  return op.random ? "yes, random" : "yes";
}

// In a table cell: one line, no bars.
std::string cell(std::string text) {
  std::string out;
  for (const char c : text)
    out += c == '\n' ? std::string(" ") : c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string opsets(const OpRow& r) {
  return r.since == r.newest ? std::to_string(r.since) : cat(r.since, "-", r.newest);
}

}  // namespace

std::vector<OpRow> op_rows(const OpTable& table) {
  std::vector<OpRow> out;
  for (const OpDef* op : table.all()) {
    OpRow r;
    r.domain = domain_of(op->name);
    if (r.domain == "ortrain") continue;
    r.op = short_name(op->name);
    r.since = r.domain == kOnnx ? std::max(op->since, kOldestOpset) : op->since;
    r.newest = r.domain == kOnnx ? kNewestOpset : op->since;
    r.note = op->note;
    if (is_structural(*op)) {
      r.forward = "dissolved before training";
      r.gradient = "that of what it becomes";
      r.cpu = r.cuda = "none needed";
      for (const std::string& in : op->inputs) r.differentiable.push_back(input_name(in));
      out.push_back(std::move(r));
      continue;
    }
    r.forward = forward(*op);
    set_gradient(*op, r);
    set_types(table, *op, r);
    r.cpu = kernels(*op, "cpu");
    r.cuda = kernels(*op, "cuda");
    r.examples = static_cast<int>(op->examples.size());
    out.push_back(std::move(r));
  }
  for (const DissolvedOp& d : dissolved_ops())
    out.push_back({std::string(d.op),
                   std::string(kOnnx),
                   std::max(d.since, kOldestOpset),
                   kNewestOpset,
                   "dissolved by the importer",
                   "passes",
                   {},
                   {},
                   "none needed",
                   "none needed",
                   std::string(d.how),
                   0});
  std::stable_sort(out.begin(), out.end(), [](const OpRow& a, const OpRow& b) {
    if ((a.domain == kOnnx) != (b.domain == kOnnx)) return a.domain == kOnnx;
    return a.domain != b.domain ? a.domain < b.domain : a.op < b.op;
  });
  return out;
}

std::vector<RefusedRow> refused_rows() {
  std::vector<RefusedRow> out;
  for (const RefusedOp& r : refused_ops())
    out.push_back({short_name(r.op), domain_of(r.op), std::string(r.reason)});
  return out;
}

std::string ops_text(const OpTable& table) {
  std::string out;
  const auto padded = [](std::string s, size_t width) {
    s.resize(std::max(s.size(), width), ' ');
    return s + " ";
  };
  const std::vector<OpRow> rows = op_rows(table);
  for (const OpRow& r : rows)
    out += padded(r.op, 28) + padded(r.domain, 14) + padded(opsets(r), 6) + padded(r.gradient, 32) +
           padded(short_types(r.types), 20) + r.cpu + "\n";
  out += cat(rows.size(), " operators\nrefused:\n");
  for (const RefusedRow& r : refused_rows())
    out += "  " + padded(r.op, 26) + padded(r.domain, 14) + r.reason + "\n";
  return out;
}

std::string ops_markdown(const OpTable& table) {
  const std::vector<OpRow> rows = op_rows(table);
  int with_gradient = 0, standard = 0;
  for (const OpRow& r : rows) {
    with_gradient += !r.differentiable.empty();
    standard += r.domain == kOnnx;
  }
  std::string out = cat(
      "# Operators\n\nWritten by `ortrain ops --markdown`; a test fails when it is stale.\n\n",
      rows.size(), " operators, ", standard, " of them ai.onnx (opsets ", kOldestOpset, " to ",
      kNewestOpset, "), ", with_gradient,
      " with a gradient.\n\n"
      "- **opset**: first opset of the operator (from ",
      kOldestOpset,
      ", the oldest that is read) to the newest; every form in between is brought to today's.\n"
      "- **gradient**: the inputs that receive one. *zero*: the derivative is zero or the result "
      "is "
      "no number to derive (indices, comparisons), written so in the record. *refused*: training "
      "through it is an error that names the node and the reason.\n"
      "- **types**: element types of the data (not of indices and shapes) for which a kernel of "
      "this "
      "build can be planned (in places more than ONNX allows).\n"
      "- **CPU**: kernels, best first; the last accepts everything. *library*: oneDNN. *fused*: "
      "the "
      "elementwise engine, chains run as one. *view*: no work, no copy. Others are ortrain's own.\n"
      "- **CUDA**: \"-\" is none yet.\n\n"
      "| op | domain | opset | forward | gradient | types | CPU | CUDA | edge values |\n"
      "|---|---|--:|---|---|---|---|---|---|\n");
  for (const OpRow& r : rows)
    out += cat("| ", r.op, " | ", r.domain, " | ", opsets(r), " | ", r.forward, " | ",
               cell(r.gradient), " | ", r.types.empty() ? "any" : short_types(r.types), " | ",
               r.cpu, " | ", r.cuda, " | ", cell(r.note), " |\n");
  out +=
      "\n## Refused by name\n\nThe importer's error says the same.\n\n"
      "| op | domain | reason |\n|---|---|---|\n";
  for (const RefusedRow& r : refused_rows())
    out += cat("| ", r.op == "*" ? "all others" : r.op, " | ", r.domain, " | ", cell(r.reason),
               " |\n");
  return out;
}

std::string ops_json(const OpTable& table) {
  nlohmann::json ops = nlohmann::json::array(), refused = nlohmann::json::array();
  for (const OpRow& r : op_rows(table))
    ops.push_back({{"op", r.op},
                   {"domain", r.domain},
                   {"since", r.since},
                   {"newest", r.newest},
                   {"forward", r.forward},
                   {"gradient", r.gradient},
                   {"differentiable", r.differentiable},
                   {"types", r.types},
                   {"cpu", r.cpu},
                   {"cuda", r.cuda},
                   {"examples", r.examples},
                   {"note", r.note}});
  for (const RefusedRow& r : refused_rows())
    refused.push_back({{"op", r.op}, {"domain", r.domain}, {"reason", r.reason}});
  return nlohmann::json({{"operators", ops}, {"refused", refused}}).dump(1) + "\n";
}

}  // namespace ortrain::cli
