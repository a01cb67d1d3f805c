// ew_kernels(): prepares a node of an op with an elementwise code, or of one that decomposes into
// such ops, as a program for the engine. "simd" takes everything that computes in f32; "ref" takes
// every element type.
#include "ops/common/elementwise.h"

#include "graph/error.h"
#include "ops/all_ops.h"
#include "ops/common/ew_engine.h"

namespace ortrain::ops {

namespace {

const OpTable& table() {
  static const OpTable ops = [] {
    OpTable t;
    register_all(t);
    return t;
  }();
  return ops;
}

// The instructions of one op with a code on given operands; the result is the last of `program`.
bool append_code(EwProgram& program, Ew code, const std::vector<EwOperand>& x, bool to_bool) {
  if (code == Ew::kCast && to_bool) code = Ew::kToBool;
  const auto add = [&](Ew c, std::array<EwOperand, 3> args) {
    program.code.push_back({c, args});
    return EwOperand::temp(static_cast<int>(program.code.size()) - 1);
  };
  switch (ew_arity(code)) {
    case 1: add(code, {x[0]}); return true;
    case 2: {
      if (x.size() == 1) return add(Ew::kIdentity, {x[0]}), true;
      EwOperand t = x[0];
      for (size_t i = 1; i < x.size(); ++i) t = add(code, {t, x[i]});
      return true;
    }
    case 3:
      if (x.size() != 3) return false;
      add(code, {x[0], x[1], x[2]});
      return true;
    default: return false;
  }
}

std::optional<EwProgram> decomposed(const OpDef& op, const KernelQuery& q) {
  Graph g(table());
  std::vector<ValueId> ids;
  std::map<ValueId, EwOperand> operand;
  for (size_t i = 0; i < q.in.size(); ++i) {
    if (!q.has_in(i)) {
      ids.push_back(kNone);
      continue;
    }
    ids.push_back(q.constant(i) ? g.add_const(q.constant(i)->share())
                                : g.add_input(cat('x', i), q.in[i].dtype, Shape(q.in[i].dims)));
    operand[ids.back()] = EwOperand::input(static_cast<int>(i));
  }
  const NodeId n = g.add_node(op, ids, q.attrs, static_cast<int>(q.out.size()), q.origin);
  g.infer(n);
  Decompose d{Builder(g, q.origin), n};
  std::vector<Expr> results = op.decompose(d);
  for (NodeId m = 0; m < g.node_count(); ++m) {  // composites inside the composite
    const Node& inner = g.node(m);
    if (m == n || !inner.op || inner.op->ew != Ew::kNone || !inner.op->decompose) continue;
    Decompose deeper{Builder(g, q.origin), m};
    const std::vector<Expr> parts = inner.op->decompose(deeper);
    const std::vector<ValueId> old = g.node(m).outputs;
    for (size_t i = 0; i < old.size() && i < parts.size(); ++i) {
      g.replace_uses(old[i], parts[i].id());
      for (Expr& e : results)
        if (e.id() == old[i]) e = parts[i];
    }
    g.erase_if_dead(m);
  }
  EwProgram program;
  for (NodeId m : g.topo()) {
    if (m == n) continue;
    const Node& node = g.node(m);
    if (node.op->ew == Ew::kNone || node.outputs.size() != 1) return std::nullopt;
    std::vector<EwOperand> args;
    const int arity = ew_arity(node.op->ew);
    for (ValueId v : node.inputs) {
      if (arity == 1 && !args.empty()) break;
      if (!operand.contains(v)) {
        const HostTensor* t = g.tensor(v);
        if (!t || t->count() != 1) return std::nullopt;
        operand[v] = EwOperand::constant(t->as_double(0));
      }
      args.push_back(operand[v]);
    }
    if (!append_code(program, node.op->ew, args, g.value(node.outputs[0]).dtype == DType::kBool))
      return std::nullopt;
    operand[node.outputs[0]] = EwOperand::temp(static_cast<int>(program.code.size()) - 1);
  }
  for (const Expr& e : results) {
    const auto it = operand.find(e.id());
    if (it == operand.end()) return std::nullopt;
    EwOperand o = it->second;
    if (o.kind != EwOperand::Kind::kTemp) {
      program.code.push_back({Ew::kIdentity, {o}});
      o = EwOperand::temp(static_cast<int>(program.code.size()) - 1);
    }
    program.outputs.push_back(o.index);
  }
  return program;
}

struct Chosen {
  EwProgram program;
  DType cls;
};
Chosen choose(const KernelQuery& q) {
  auto program = ew_program_of(q);
  if (!program)
    fail(ErrorCode::kUnsupported, q.op, " has no elementwise meaning in this form (", q.origin,
         ")");
  const OpDef& op = table().get(q.op);
  return {std::move(*program), ew_class(op.ew, q.in, q.out)};
}

std::string simd_reject(const KernelQuery& q) {
  const Ew code = table().get(q.op).ew;
  return ew_class(code, q.in, q.out) == DType::kF32 ? "" : "computes in f32 only";
}
Kernel prepare(const KernelQuery& q, bool simd) {
  const Chosen c = choose(q);
  return ew_prepare(c.program, c.cls, q.in, q.out, q.threads, simd);
}
Kernel simd_prepare(const KernelQuery& q) { return prepare(q, true); }
Kernel ref_prepare(const KernelQuery& q) { return prepare(q, false); }

}  // namespace

std::optional<EwProgram> ew_program_of(const KernelQuery& q) {
  const OpDef& op = table().get(q.op);
  if (op.ew == Ew::kNone) return op.decompose ? decomposed(op, q) : std::nullopt;
  EwProgram program;
  std::vector<EwOperand> x;
  for (size_t i = 0; i < q.in.size(); ++i)
    if (q.has_in(i)) x.push_back(EwOperand::input(static_cast<int>(i)));
  if (x.empty() || !append_code(program, op.ew, x, q.out[0].dtype == DType::kBool))
    return std::nullopt;
  program.outputs = {static_cast<int>(program.code.size()) - 1};
  return program;
}

std::optional<LayoutChange> ew_channels_last(Graph& g, NodeId n) {
  const std::vector<ValueId>& in = g.node(n).inputs;
  for (size_t i = 1; i < in.size(); ++i)
    if (in[i] != kNone && g.value(in[i]).shape.rank() != 0) return std::nullopt;
  return LayoutChange{{0}, {0}};
}

std::vector<KernelEntry> ew_kernels() {
  return {{"cpu", "simd", simd_reject, simd_prepare}, {"cpu", "ref", nullptr, ref_prepare}};
}

}  // namespace ortrain::ops
