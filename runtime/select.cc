// See select.h.
#include "runtime/select.h"

#include <string_view>

#include "graph/error.h"
#include "runtime/widen.h"

namespace ortrain {
namespace {

TensorDesc describe(const Graph& g, ValueId v) {
  if (v == kNone) return {};
  const Value& x = g.value(v);
  if (!x.typed || !x.shape.is_const())
    fail(ErrorCode::kShape, "the shape of ", g.describe_value(v),
         " is not known before training: ", x.typed ? x.shape.str() : "no type");
  return {x.dtype, x.shape.values()};
}

// Contents known at plan time: a constant, or a carried shape that is all numbers.
const HostTensor* known(const Graph& g, ValueId v, Query& query) {
  if (v == kNone) return nullptr;
  const Value& x = g.value(v);
  if (x.source == Source::kConst) return g.tensor(v);
  if (!x.has_ints || !x.shape.is_const()) return nullptr;
  for (const Dim& d : x.ints)
    if (!d.is_const()) return nullptr;
  auto t = std::make_unique<HostTensor>(x.dtype, x.shape.values());
  if (t->count() != static_cast<int64_t>(x.ints.size())) return nullptr;
  for (int64_t i = 0; i < t->count(); ++i)
    t->set_double(i, static_cast<double>(x.ints[static_cast<size_t>(i)].value()));
  query.owned.push_back(std::move(t));
  return query.owned.back().get();
}

std::vector<const KernelEntry*> candidates(const OpDef& op, const SelectOptions& options) {
  std::vector<const KernelEntry*> out;
  for (const KernelEntry& k : op.kernels)
    if (std::string_view(k.device) == options.device) out.push_back(&k);
  if (options.reference && out.size() > 1) out.erase(out.begin(), out.end() - 1);
  return out;
}

}  // namespace

Query make_query(const Graph& g, NodeId n, int threads) {
  const Node& node = g.node(n);
  Query query;
  KernelQuery& q = query.q;
  q.op = node.op->name;
  q.attrs = node.attrs;
  q.threads = threads;
  q.origin = node.origin;
  for (ValueId v : node.inputs) {
    q.in.push_back(describe(g, v));
    q.constants.push_back(known(g, v, query));
  }
  for (ValueId v : node.outputs) q.out.push_back(describe(g, v));
  return query;
}

bool has_kernel(const Graph& g, NodeId n, const SelectOptions& options) {
  const OpDef& op = *g.node(n).op;
  if (op.view) return true;
  const auto list = candidates(op, options);
  if (list.empty()) return false;
  const Query query = make_query(g, n, options.threads);
  for (const KernelEntry* k : list)
    if (!k->reject || k->reject(query.q).empty()) return true;
  if (has_half(query.q) && !options.reference)
    for (const KernelEntry* k : list)
      if (reject_widened(*k, query.q).empty()) return true;
  return false;
}

Selection select_kernel(const Graph& g, NodeId n, const SelectOptions& options) {
  const OpDef& op = *g.node(n).op;
  const Query query = make_query(g, n, options.threads);
  Selection s;
  const std::vector<const KernelEntry*> list = candidates(op, options);
  const auto takes = [&](const KernelEntry& k, bool widened) {
    std::string why = widened    ? reject_widened(k, query.q)
                      : k.reject ? k.reject(query.q)
                                 : std::string();
    const std::string name = widened ? cat(k.name, " in f32") : k.name;
    if (why.empty()) {
      try {
        s.kernel = widened ? prepare_widened(k, query.q) : k.prepare(query.q);
        s.name = name;
        if (s.kernel.run) return true;
        why = "gave no function";
      } catch (const std::exception& e) {
        why = e.what();
      }
    }
    s.refused.push_back({name, std::move(why)});
    return false;
  };
  const bool half = has_half(query.q) && !options.reference;
  for (const KernelEntry* k : list) {
    if (half && k == list.back())  // f32 kernels on converted data before the reference one
      for (const KernelEntry* f32 : list)
        if (f32 != list.back() && takes(*f32, true)) return s;
    if (takes(*k, false)) return s;
  }
  std::string reasons;
  for (const Refusal& r : s.refused) reasons += cat("\n  ", r.kernel, ": ", r.why);
  if (s.refused.empty())
    reasons = op.decompose ? " (it has a decomposition; decompose_missing() was not run)"
                           : " (its record lists none)";
  fail(ErrorCode::kUnsupported, g.describe(n), ": no kernel for device ", options.device, reasons);
}

std::string explain(const std::string& node, const Selection& s) {
  std::string out = cat(node, ": ", s.name);
  for (size_t i = 0; i < s.refused.size(); ++i)
    out += cat(i ? ", " : "; refused: ", s.refused[i].kernel, " (", s.refused[i].why, ")");
  return out;
}

}  // namespace ortrain
