// The node-by-node interpreter behind interpreter.h.
#include "tests/ops/interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/all_ops.h"
#include "ops/common/isa.h"

namespace ortrain::test {
namespace {
constexpr size_t kGuard = 64;
constexpr unsigned char kMark = 0xA5;
}  // namespace

const OpTable& all_ops() {
  static const OpTable* table = [] {
    ops::limit_instruction_set();  // as the program does
    auto* t = new OpTable;
    ops::register_all(*t);
    return t;
  }();
  return *table;
}

KernelQuery query_of(const Graph& g, NodeId n, int threads) {
  const Node& node = g.node(n);
  KernelQuery q;
  q.op = node.op->name;
  q.attrs = node.attrs;
  q.threads = threads;
  q.origin = g.describe(n);
  for (ValueId v : node.inputs) {
    q.in.emplace_back();
    q.constants.push_back(nullptr);
    if (v == kNone) continue;
    q.in.back() = {g.value(v).dtype, g.value(v).shape.values()};
    if (g.value(v).source == Source::kConst) q.constants.back() = g.tensor(v);
  }
  for (ValueId v : node.outputs) {
    q.out.emplace_back();
    if (v != kNone) q.out.back() = {g.value(v).dtype, g.value(v).shape.values()};
  }
  return q;
}

const KernelEntry* pick(const OpDef& op, const std::string& wanted, const KernelQuery& q) {
  for (const KernelEntry& k : op.kernels) {
    if (wanted != "first" && wanted != k.name) continue;
    if (!k.reject || k.reject(q).empty()) return &k;
  }
  return nullptr;
}

std::vector<HostTensor> run_kernel(const KernelEntry& entry, const KernelQuery& q,
                                   const std::vector<const HostTensor*>& inputs,
                                   const std::vector<std::pair<int, int>>& alias) {
  const Kernel kernel = entry.prepare(q);
  std::vector<HostTensor> buffers;  // outputs with guard bytes behind them
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const HostTensor* t : inputs) in.push_back(t ? t->raw() : nullptr);
  for (const TensorDesc& d : q.out) {
    buffers.emplace_back(DType::kU8,
                         Dims{static_cast<int64_t>((d.present() ? d.bytes() : 0) + kGuard)});
    std::memset(buffers.back().mutable_raw(), kMark, buffers.back().bytes());
    out.push_back(d.present() ? buffers.back().mutable_raw() : nullptr);
  }
  for (const auto& [o, i] : alias) {
    const auto so = static_cast<size_t>(o), si = static_cast<size_t>(i);
    if (so >= out.size() || si >= in.size() || !out[so] || !in[si]) continue;
    if (inputs[si]->bytes()) std::memcpy(out[so], in[si], inputs[si]->bytes());
    in[si] = out[so];
  }
  const OpDef& op = all_ops().get(q.op);
  in.resize(std::max(in.size(), op.inputs.size()), nullptr);
  out.resize(std::max(out.size(), op.outputs.size()), nullptr);
  HostTensor workspace(DType::kU8, {static_cast<int64_t>(kernel.workspace + kGuard)});
  std::memset(workspace.mutable_raw(), kMark, workspace.bytes());
  Fault fault;
  KernelArgs args{in.data(), out.data(), workspace.mutable_raw(), &fault};
  kernel.run(args);
  const auto intact = [](const HostTensor& t, size_t from) {
    for (size_t i = from; i < t.bytes(); ++i)
      if (t.data<unsigned char>()[i] != kMark) return false;
    return true;
  };
  EXPECT_TRUE(intact(workspace, kernel.workspace))
      << q.op << " " << entry.name << ": workspace overrun";
  EXPECT_FALSE(fault.raised) << q.op << " " << entry.name << ": index out of range";
  std::vector<HostTensor> results;
  for (size_t i = 0; i < q.out.size(); ++i) {
    if (!q.out[i].present()) {
      results.emplace_back();
      continue;
    }
    EXPECT_TRUE(intact(buffers[i], q.out[i].bytes()))
        << q.op << " " << entry.name << ": output " << i << " overrun";
    results.push_back(HostTensor::view(q.out[i].dtype, q.out[i].dims, buffers[i].raw()).clone());
  }
  return results;
}

std::vector<HostTensor> run_graph(Graph& g, const std::map<ValueId, HostTensor>& inputs,
                                  const std::string& kernel) {
  for (bool again = true; again;) {  // ops without kernels are replaced by their decomposition
    again = false;
    for (NodeId n : g.topo()) {
      const OpDef& op = *g.node(n).op;
      if (op.view || !op.kernels.empty()) continue;
      ORTRAIN_CHECK(op.decompose, op.name + " has neither kernels nor a decomposition");
      Decompose d{Builder(g, g.node(n).origin), n};
      const std::vector<Expr> ys = op.decompose(d);
      const std::vector<ValueId> old = g.node(n).outputs;
      for (size_t i = 0; i < ys.size() && i < old.size(); ++i)
        if (old[i] != kNone && ys[i]) g.replace_uses(old[i], ys[i].id());
      g.erase_if_dead(n);
      again = true;
      break;
    }
  }
  std::map<ValueId, HostTensor> values;
  const auto get = [&](ValueId v) -> const HostTensor* {
    if (v == kNone) return nullptr;
    if (const auto it = inputs.find(v); it != inputs.end()) return &it->second;
    if (const auto it = values.find(v); it != values.end()) return &it->second;
    const HostTensor* t = g.tensor(v);
    ORTRAIN_CHECK(t, "no value for " + g.describe_value(v));
    return t;
  };
  for (NodeId n : g.topo()) {
    const Node& node = g.node(n);
    std::vector<const HostTensor*> in;
    for (ValueId v : node.inputs) in.push_back(get(v));
    if (node.op->view) {
      HostTensor copy = in[0]->clone();
      copy.reshape(g.value(node.outputs[0]).shape.values());
      values[node.outputs[0]] = std::move(copy);
      continue;
    }
    const KernelQuery q = query_of(g, n);
    const KernelEntry* entry =
        kernel == "ref" ? &node.op->kernels.back() : pick(*node.op, kernel, q);
    if (!entry) entry = &node.op->kernels.back();
    std::vector<HostTensor> out = run_kernel(*entry, q, in);
    for (size_t i = 0; i < out.size(); ++i)
      if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(out[i]);
  }
  std::vector<HostTensor> results;
  for (ValueId v : g.outputs()) results.push_back(get(v)->clone());
  return results;
}

}  // namespace ortrain::test
