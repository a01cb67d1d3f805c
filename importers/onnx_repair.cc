// What exporters break in the parameters, repaired or at least told (onnx_import.h).
//
// Merged: scales and biases that start all-equal become one tensor; each node gets its own again
// (ImportOptions::untie). Untied: a tied head becomes a transposed copy; --tie makes the copy a
// view of the original again, and the export writes both places. Folded: BatchNorm into Conv,
// position tables into sums, zero biases into nothing; what is lost is named, with the export that
// keeps it.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "graph/spelling.h"
#include "importers/onnx_import.h"
#include "importers/onnx_torch.h"

namespace ortrain {
namespace {

// A scale or a bias: at most one axis is longer than 1, and all elements are the same.
bool uniform_vector(const HostTensor& t) {
  const auto longer = [](int64_t d) { return d > 1; };
  return t.count() > 1 && std::count_if(t.dims().begin(), t.dims().end(), longer) == 1 &&
         all_elements_equal(t);
}

bool same_contents(const HostTensor& a, const HostTensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

bool transposed_contents(const HostTensor& a, const HostTensor& b) {
  if (a.dtype() != b.dtype() || a.rank() != 2 || b.rank() != 2 || a.dims()[0] != b.dims()[1] ||
      a.dims()[1] != b.dims()[0])
    return false;
  const size_t size = size_of(a.dtype());
  const auto rows = static_cast<size_t>(a.dims()[0]), columns = static_cast<size_t>(a.dims()[1]);
  const auto* pa = static_cast<const std::byte*>(a.raw());
  const auto* pb = static_cast<const std::byte*>(b.raw());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      if (std::memcmp(pa + (r * columns + c) * size, pb + (c * rows + r) * size, size) != 0)
        return false;
  return true;
}

std::string shown_number(const HostTensor& t) {
  std::string text = std::to_string(t.as_double(0));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

constexpr int64_t kMostPairs = 10'000;  // of tables and heads that are compared

constexpr const char* kKeep = "torch.onnx.export(..., optimize=False) keeps";

}  // namespace

// --- merged

// The name of `node`'s own copy of tensor `merged`: PyTorch's, when the file tells which parameter
// it was, else one made from both.
std::string Importer::separate_name(const TorchNotes& torch, const onnx::NodeProto& node,
                                    const std::string& merged, const std::string& fallback) {
  std::vector<std::string> fits;
  for (const std::string& name : torch.parameters_of(node))
    if (last_part(name) == last_part(merged) && !source_names_.count(name)) fits.push_back(name);
  const std::string base = fits.size() == 1 ? fits[0] : fallback;
  std::string name = unique_name(base);
  for (int i = 2; node_names_.count(name); ++i) name = unique_name(cat(base, "@", i));
  return name;
}

void Importer::separate_merged(const TorchNotes& torch) {
  struct Use {
    NodeId node;
    const onnx::NodeProto* proto;
    int input;  // of both
  };
  std::map<std::string, std::string> roots;
  for (const TensorSlot& s : slots)
    if (!s.split_from.empty()) roots[s.name] = s.split_from;
  for (const ValueId v : graph.sources(Source::kParam)) {
    const HostTensor t = graph.tensor(v)->share();
    if (!uniform_vector(t)) continue;
    const std::string merged = graph.value(v).name;
    std::vector<NodeId> users(graph.value(v).uses);
    std::sort(users.begin(), users.end());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    std::vector<Use> uses;
    NodeId keeper = kNone;  // the node that keeps the tensor as it is
    for (const NodeId n : users) {
      const auto it = protos_.find(n);
      const onnx::NodeProto* proto = it == protos_.end() ? nullptr : it->second;
      const std::vector<ValueId>& in = graph.node(n).inputs;
      std::vector<Use> own;
      for (size_t i = 0; i < in.size(); ++i) {
        if (in[i] != v) continue;
        const GradRule* rule = graph.node(n).op->grad_rule(static_cast<int>(i));
        const bool here = proto && static_cast<int>(i) < proto->input_size() &&
                          (!rule || rule->kind != GradRule::Kind::kZero);
        if (here) own.push_back({n, proto, static_cast<int>(i)});
      }
      const auto reads = std::count(in.begin(), in.end(), v);
      const bool roles = std::all_of(own.begin(), own.end(), [&](const Use& u) {
        return takes_weight(*graph.node(n).op, u.input);
      });
      // v * v reads one parameter twice; a scale and a bias are two.
      if (own.empty() || static_cast<int64_t>(own.size()) != reads || (reads > 1 && !roles)) {
        keeper = n;
        continue;
      }
      uses.insert(uses.end(), own.begin(), own.end());
      const std::vector<std::string> from = torch.parameters_of(*proto);
      if (keeper == kNone && std::count(from.begin(), from.end(), merged)) keeper = n;
    }
    if (keeper == kNone && !uses.empty()) keeper = uses[0].node;
    const auto known = roots.find(merged);
    const std::string root = known == roots.end() ? merged : known->second;
    std::vector<std::string> fresh;
    bool kept = false;
    for (const Use& u : uses) {
      if (u.node == keeper && !kept) {
        kept = true;
        continue;
      }
      if (!options_.untie) {
        fresh.push_back(graph.node(u.node).origin);
        continue;
      }
      const std::string fallback = cat(merged, "@", graph.node(u.node).origin, ".", u.input);
      const ValueId own =
          graph.add_param(t.share(), separate_name(torch, *u.proto, merged, fallback));
      graph.set_input(u.node, u.input, own);
      slots.push_back({.name = graph.value(own).name,
                       .where = TensorSlot::Where::kInput,
                       .site = site_of(u.proto->doc_string()),
                       .input = u.input,
                       .dtype = t.dtype(),
                       .dims = t.dims(),
                       .split_from = root});
      fresh.push_back(graph.value(own).name);
    }
    if (fresh.empty()) continue;
    if (options_.untie)
      merged_[root].insert(merged_[root].end(), fresh.begin(), fresh.end());
    else
      notes.push_back(cat("'", merged, "' (all ", shown_number(t), ") is read by ",
                          fresh.size() + 1,
                          " nodes: merged by the exporter? --untie on trains one for each"));
  }
}

void Importer::tell_separated() {
  for (const auto& [root, names] : merged_) {
    const ValueId v = graph.find(root);
    notes.push_back(cat("'", root, "' (all ", v == kNone ? "equal" : shown_number(*graph.tensor(v)),
                        ") was ", names.size() + 1,
                        " tensors that the exporter had merged; trained apart again as ",
                        list_names(names, 20), " (--untie off keeps one)"));
  }
}

// --- untied

void Importer::tie(ValueId original, ValueId copy, bool transposed) {
  const std::string name = graph.value(copy).name;
  ValueId view = original;
  if (transposed)
    view = graph
               .node(graph.add_node(ops_.get("Transpose"), {original},
                                    {{"perm", std::vector<int64_t>{1, 0}}}, 1, name + "|tie"))
               .outputs[0];
  graph.replace_uses(copy, view);
  graph.set_source(copy, Source::kConst);
  ties.push_back({name, graph.value(original).name, transposed});
  notes.push_back(cat("'", name, "' is '", graph.value(original).name, "'",
                      transposed ? " transposed" : "",
                      ": tied, one parameter whose gradient is the sum (--tie off trains two)"));
}

// Copies of embedding tables that the head's product reads.
void Importer::find_twins(bool join) {
  const auto reads = [&](ValueId v, std::initializer_list<const char*> ops, size_t input) {
    const std::vector<NodeId>& uses = graph.value(v).uses;
    return std::any_of(uses.begin(), uses.end(), [&](NodeId n) {
      const Node& x = graph.node(n);
      return x.inputs.size() > input && x.inputs[input] == v &&
             std::any_of(ops.begin(), ops.end(), [&](const char* op) { return x.op->name == op; });
    });
  };
  int64_t pairs = 0;
  const std::vector<ValueId> params = graph.sources(Source::kParam);
  for (const ValueId table : params) {
    const HostTensor& t = *graph.tensor(table);
    if (graph.value(table).source != Source::kParam || t.rank() != 2 || t.count() < 2 ||
        !reads(table, {"Gather"}, 0) || all_elements_equal(t))
      continue;
    for (const ValueId head : params) {
      if (head == table || graph.value(head).source != Source::kParam ||
          !reads(head, {"MatMul", "Gemm"}, 1) || reads(head, {"Gather"}, 0))
        continue;
      if (++pairs > kMostPairs) return;
      const HostTensor& h = *graph.tensor(head);
      const bool turned = !same_contents(t, h);
      if (turned && !transposed_contents(t, h)) continue;
      if (join)
        tie(table, head, turned);
      else
        notes.push_back(cat("'", graph.value(head).name, "' is a ", turned ? "transposed " : "",
                            "copy of the embedding table '", graph.value(table).name,
                            "': a tied head that the exporter untied? They train apart; ",
                            "--tie auto makes them one"));
    }
  }
}

void Importer::tie_named(const std::string& text) {
  std::vector<std::string> known;
  for (const ValueId v : graph.sources(Source::kParam)) known.push_back(graph.value(v).name);
  const auto param = [&](const std::string& name) {
    const ValueId v = graph.find(name);
    if (v == kNone || graph.value(v).source != Source::kParam) {
      const std::string near = nearest_name(name, known);
      fail(ErrorCode::kUsage, "--tie ", text, ": the model has no parameter '", name, "'",
           near.empty() ? "" : "; did you mean '" + near + "'?");
    }
    return v;
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equal = pair.find('=');
    if (equal == std::string::npos)
      fail(ErrorCode::kUsage, "--tie '", text, "': expected auto, off or NAME=NAME,...");
    const ValueId a = param(pair.substr(0, equal)), b = param(pair.substr(equal + 1));
    const bool equals = a != b && same_contents(*graph.tensor(a), *graph.tensor(b));
    if (a == b || (!equals && !transposed_contents(*graph.tensor(a), *graph.tensor(b))))
      fail(ErrorCode::kUsage, "--tie ", pair, ": ",
           a == b ? "a tensor cannot be tied to itself"
                  : "their contents differ, also transposed; tying them would change the model");
    tie(a, b, !equals);
  }
}

// --- folded

void Importer::tell_folded(const TorchNotes& torch) {
  std::vector<std::string> batch_norms, tables, biases;
  const auto is_tensor = [&](const std::string& name) { return source_names_.count(name) > 0; };
  std::map<std::string, std::vector<const onnx::NodeProto*>> made_from;
  for (const auto& n : model_.graph().node()) {
    for (const std::string& name : torch.parameters_of(n)) made_from[name].push_back(&n);
    if (n.op_type() != "Conv") continue;
    const bool fused = node_note(n, "pkg.onnxscript.rewriter.rule_name").find("FuseBatchNorm") !=
                       std::string::npos;
    // The TorchScript exporter gives such weights new names.
    const bool renamed_weight = n.input_size() > 2 && n.input(1).starts_with("onnx::Conv_");
    if (fused || renamed_weight) batch_norms.push_back(n.name());
  }
  for (const ValueId v : graph.sources(Source::kParam)) {
    const std::vector<std::string> from = torch.computed_from(graph.value(v).name);
    const bool lost = std::any_of(from.begin(), from.end(),
                                  [&](const std::string& name) { return !is_tensor(name); });
    if (lost) tables.push_back(cat(graph.value(v).name, "' from ", list_names(from, 3)));
  }
  std::set<std::string> vectors;  // what may be the merged tensor of a missing bias
  if (!torch.empty())
    for (const ValueId v : graph.sources(Source::kParam))
      if (uniform_vector(*graph.tensor(v))) vectors.insert(graph.value(v).name);
  for (const std::string& name : torch.parameters()) {
    if (is_tensor(name)) continue;
    const auto it = made_from.find(name);
    if (it == made_from.end()) continue;
    const auto folded = [](const onnx::NodeProto* n) {
      return !node_note(*n, "pkg.onnxscript.rewriter.rule_name").empty();
    };
    if (last_part(name) != "bias" || std::any_of(it->second.begin(), it->second.end(), folded))
      continue;
    const auto has_vector = [&](const onnx::NodeProto* n) {
      return std::any_of(n->input().begin(), n->input().end(),
                         [&](const std::string& in) { return vectors.count(in) > 0; });
    };
    if (std::none_of(it->second.begin(), it->second.end(), has_vector)) biases.push_back(name);
  }
  if (!batch_norms.empty())
    notes.push_back(cat("BatchNormalization looks folded into ", list_names(batch_norms, 6),
                        ": trained as plain convolutions, scales and statistics are not in the "
                        "file; ",
                        kKeep,
                        " them (older exporter: training=TrainingMode.PRESERVE "
                        "on a model in training mode, do_constant_folding=False)"));
  for (const std::string& t : tables)
    notes.push_back(cat("the exporter computed '", t,
                        ", which is not in the file: a position table? ",
                        "It trains in its place, for this length only; ", kKeep, " the table"));
  if (!biases.empty())
    notes.push_back(cat("zero biases that the exporter dropped do not train: ",
                        list_names(biases, 6), "; ", kKeep, " them"));
}

void Importer::repair() {
  const TorchNotes torch(model_.graph());
  for (const auto& n : model_.graph().node())
    for (const auto& o : n.output()) node_names_.insert(o);
  separate_merged(torch);
  tell_separated();
  if (options_.tie == "off" || options_.tie == "auto")
    find_twins(options_.tie == "auto");
  else
    tie_named(options_.tie);
  tell_folded(torch);
}

}  // namespace ortrain
