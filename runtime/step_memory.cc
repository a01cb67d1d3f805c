// See step_memory.h.
#include "runtime/step_memory.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>

#include "graph/error.h"
#include "runtime/buffer.h"
#include "runtime/lower.h"
#include "runtime/memplan.h"
#include "runtime/storage.h"

namespace ortrain {
namespace {

constexpr size_t kMostBytes = size_t{4} << 30;
constexpr double kLongMs = 20;  // measured once; shorter ones are run again

std::string attr_text(const AttrValue& value) {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else if constexpr (std::is_arithmetic_v<T>) {
          return std::to_string(v);
        } else {
          std::string out;
          for (const auto& item : v) out += cat(item, ",");
          return out;
        }
      },
      value);
}

std::string key_of(const Query& query) {
  const KernelQuery& q = query.q;
  std::string key = q.op;
  for (const auto& [name, value] : q.attrs.items()) key += cat(";", name, "=", attr_text(value));
  for (const auto* side : {&q.in, &q.out}) {
    key += "|";
    for (const TensorDesc& t : *side) key += cat(name_of(t.dtype), Shape(t.dims).str(), " ");
  }
  for (const HostTensor* c : q.constants)  // sizes and axes; the contents of tables do not matter
    if (c && !is_float(c->dtype()) && c->count() <= 16)
      for (int64_t i : c->as_ints()) key += cat(i, ",");
  return key;
}

size_t bytes_of(const KernelQuery& q, size_t workspace) {
  size_t bytes = align_up(workspace);
  for (const auto* side : {&q.in, &q.out})
    for (const TensorDesc& t : *side)
      if (t.present()) bytes += align_up(t.bytes());
  return bytes;
}

double guess_ms(const Graph& g, NodeId n, const KernelQuery& q) {
  const Node& x = g.node(n);
  const double flops = x.op->flops ? x.op->flops(g, x) : 0;
  return flops / 100e6 + static_cast<double>(bytes_of(q, 0)) / 10e6;
}

double measure(const KernelQuery& q, const OpDef& op, const Kernel& kernel) {
  Buffer buffer(bytes_of(q, kernel.workspace) + kAlign);
  std::byte* next = buffer.data();
  const auto take = [&](const TensorDesc& t, bool fill) -> void* {
    if (!t.present()) return nullptr;
    std::byte* data = next;
    next += align_up(t.bytes());
    if (fill && t.dtype == DType::kF32)
      std::fill_n(reinterpret_cast<float*>(data), t.count(), 0.5f);
    if (fill && t.dtype == DType::kF64)
      std::fill_n(reinterpret_cast<double*>(data), t.count(), 0.5);
    return data;
  };
  std::vector<const void*> in(std::max(q.in.size(), op.inputs.size()), nullptr);
  std::vector<void*> out(std::max(q.out.size(), op.outputs.size()), nullptr);
  for (size_t i = 0; i < q.in.size(); ++i) {
    in[i] = take(q.in[i], true);
    if (in[i] && q.constant(i)) in[i] = q.constant(i)->raw();
  }
  for (size_t i = 0; i < q.out.size(); ++i) out[i] = take(q.out[i], false);
  Fault fault;
  const KernelArgs args{in.data(), out.data(), kernel.workspace ? next : nullptr, &fault};
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel.run(args);
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    // The first run takes the page faults.
    if (i == 1 || (i > 1 && ms < best)) best = ms;
    if (i > 0 && ms > kLongMs) break;
  }
  return best;
}

bool is_read(const Graph& g, ValueId v) {
  const auto& outputs = g.outputs();
  return !g.value(v).uses.empty() || std::find(outputs.begin(), outputs.end(), v) != outputs.end();
}

}  // namespace

void StepMemory::lower(Graph& g) { decompose_missing(g, select_); }

StepMemory::Known& StepMemory::known(const Graph& g, NodeId n, bool measured) {
  const Query query = make_query(g, n, select_.threads);
  Known& k = nodes_.try_emplace(key_of(query), Known{SIZE_MAX, -1}).first->second;
  if (k.workspace != SIZE_MAX && (k.ms >= 0 || !measured)) return k;
  const Selection s = select_kernel(g, n, select_);
  k.workspace = s.kernel.workspace;
  if (measured)
    k.ms = !measure_ || bytes_of(query.q, k.workspace) > kMostBytes
               ? guess_ms(g, n, query.q)
               : measure(query.q, *g.node(n).op, s.kernel);
  return k;
}

// Updates of parameters never run twice; measuring them would take several times their memory.
MemoryModel::Cost StepMemory::cost(const Graph& g, NodeId n) {
  const std::vector<ValueId>& made = g.node(n).outputs;
  const bool again =
      std::any_of(made.begin(), made.end(), [&](ValueId v) { return v != kNone && is_read(g, v); });
  const Known& k = known(g, n, again);
  return {again ? k.ms : guess_ms(g, n, make_query(g, n, select_.threads).q), k.workspace};
}

size_t StepMemory::arena_bytes(const Graph& g) {
  Storage storage = assign_storage(g, g.order);
  for (size_t i = 0; i < g.order.size(); ++i) {
    if (g.node(g.order[i]).op->view) continue;
    const int now = static_cast<int>(i);
    if (const size_t workspace = known(g, g.order[i], false).workspace; workspace > 0)
      storage.intervals.push_back({workspace, now, now, -1});
  }
  return plan_memory(storage.intervals).peak;
}

size_t StepMemory::store_bytes(const Graph& g) {
  size_t bytes = 0;
  for (Source kind : {Source::kParam, Source::kState})
    for (ValueId v : g.sources(kind)) {
      const Value& x = g.value(v);
      bytes += align_up(static_cast<size_t>(element_count(x.shape.values())) * size_of(x.dtype));
    }
  std::set<std::string> seen;  // equal constants lie there once
  for (ValueId v : g.sources(Source::kConst)) {
    const HostTensor* t = g.tensor(v);
    if (!t || !is_read(g, v)) continue;
    const std::string key = cat(name_of(t->dtype()), Shape(t->dims()).str(), ":") +
                            std::string(static_cast<const char*>(t->raw()), t->bytes());
    if (seen.insert(key).second) bytes += align_up(std::max<size_t>(t->bytes(), 1));
  }
  return bytes;
}

}  // namespace ortrain
