// ctest-timeout: 900
// The generic operator test: every example of every record goes through the same checks.
//
// Record: every float input has a gradient rule (or the op decomposes). Example: kernels agree with
// the reference in double precision, in place or not, twice bit for bit, without writing outside
// their outputs; the decomposition means the same; gradients match central differences in double
// precision (relative 1e-6) in random directions. Only tests/ops/interpreter.h runs graphs here:
// planner and passes are not involved.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "graph/structure.h"
#include "ops/common/elementwise.h"
#include "tests/ops/example_case.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

// Replaces nodes that have neither gradient rules nor a zero gradient by their decomposition.
void decompose_for_gradient(Graph& g) {
  for (bool again = true; again;) {
    again = false;
    for (NodeId n : g.topo()) {
      const OpDef& op = *g.node(n).op;
      if (!op.grad.empty() || !op.decompose) continue;
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
}

// Plain reverse mode over all nodes; seeds by value. Independent of graph/autodiff.cc on purpose.
std::map<ValueId, Expr> reverse(Graph& g, Builder& b, std::map<ValueId, Expr> grads,
                                const std::vector<ValueId>& wanted) {
  std::vector<NodeId> order = g.topo();
  std::vector<bool> needs(static_cast<size_t>(g.value_count()) + 1, false);
  for (ValueId v : wanted) needs[static_cast<size_t>(v)] = true;
  for (NodeId n : order)
    for (ValueId v : g.node(n).inputs)
      if (v != kNone && needs[static_cast<size_t>(v)])
        for (ValueId y : g.node(n).outputs)
          if (y != kNone && is_float(g.value(y).dtype)) needs[static_cast<size_t>(y)] = true;
  std::reverse(order.begin(), order.end());
  for (NodeId n : order) {
    std::vector<ValueId> dys;
    bool any = false;
    for (ValueId y : g.node(n).outputs) {
      dys.push_back(y != kNone && grads.contains(y) ? grads[y].id() : kNone);
      any |= dys.back() != kNone;
    }
    if (!any) continue;
    for (size_t i = 0; i < g.node(n).inputs.size(); ++i) {
      const ValueId x = g.node(n).inputs[i];
      if (x == kNone || static_cast<size_t>(x) >= needs.size() || !needs[static_cast<size_t>(x)])
        continue;
      const GradRule* rule = g.node(n).op->grad_rule(static_cast<int>(i));
      if (!rule) {
        ADD_FAILURE() << g.node(n).op->name << ": no gradient rule for input " << i;
        continue;
      }
      if (rule->kind != GradRule::Kind::kFormula) continue;
      Grad context{Builder(g, "grad"), n, static_cast<int>(i), dys};
      Expr dx = rule->formula(context);
      if (!dx) continue;
      dx = b.cast(b.sum_to(b.wrap(dx.id()), g.value(x).shape), g.value(x).dtype);
      EXPECT_EQ(dx.shape().str(), g.value(x).shape.str())
          << g.node(n).op->name << ": gradient shape of input " << i;
      grads[x] = grads.contains(x) ? grads[x] + dx : dx;
    }
  }
  return grads;
}

void check_gradient(const OpDef& op, size_t index, const Example& example) {
  Case c = make_case(op, example, DType::kF64);
  if (c.floats.empty()) return;
  Random random{0xd1ec7 + index};
  const std::vector<HostTensor> ys = run_graph(c.g, c.values);  // also replaces ops without kernels
  // Weights r of a scalar L = sum r * y over all float outputs.
  std::vector<HostTensor> weights;
  for (const HostTensor& y : ys) {
    weights.emplace_back(DType::kF64, y.dims());
    for (int64_t i = 0; i < y.count(); ++i) weights.back().set_double(i, random.next() * 2 - 1);
  }
  Case fresh = make_case(op, example, DType::kF64);
  decompose_for_gradient(fresh.g);
  Builder b(fresh.g, "gradient");
  std::map<ValueId, Expr> seeds;
  const std::vector<ValueId> outputs = fresh.g.outputs();
  for (size_t i = 0; i < outputs.size(); ++i)
    if (is_float(fresh.g.value(outputs[i]).dtype))
      seeds[outputs[i]] = b.constant(weights[i].clone());
  if (seeds.empty()) return;
  const std::map<ValueId, Expr> grads = reverse(fresh.g, b, seeds, fresh.floats);
  fresh.g.clear_outputs();
  std::vector<ValueId> with_gradient;
  for (ValueId v : fresh.floats) {
    const auto it = grads.find(v);
    if (it == grads.end()) continue;
    with_gradient.push_back(v);
    fresh.g.add_output(it->second.id(), "g");
  }
  const std::vector<HostTensor> analytic = run_graph(fresh.g, fresh.values);

  const auto loss = [&](const std::map<ValueId, HostTensor>& at) {
    const std::vector<HostTensor> out = run_graph(c.g, at);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i)
      if (is_float(out[i].dtype()))
        for (int64_t k = 0; k < out[i].count(); ++k)
          sum += weights[i].as_double(k) * out[i].as_double(k);
    return sum;
  };
  for (size_t w = 0; w < with_gradient.size(); ++w) {
    const ValueId v = with_gradient[w];
    const HostTensor& x = c.values.at(v);
    for (int direction = 0; direction < 2; ++direction) {
      HostTensor d(DType::kF64, x.dims());
      double exact = 0, size = 1e-3;
      for (int64_t i = 0; i < x.count(); ++i) {
        d.set_double(i, random.next() * 2 - 1);
        exact += d.as_double(i) * analytic[w].as_double(i);
        size += std::abs(d.as_double(i) * analytic[w].as_double(i));
      }
      const auto at = [&](double h) {
        std::map<ValueId, HostTensor> moved;
        for (const auto& [id, t] : c.values) moved[id] = t.clone();
        for (int64_t i = 0; i < x.count(); ++i)
          moved[v].set_double(i, x.as_double(i) + h * d.as_double(i));
        return loss(moved);
      };
      // Fourth order: (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h.
      const double h = 2e-4;
      const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      EXPECT_NEAR(exact, numeric, 1e-6 * std::max(size, 1.0))
          << label(op, index, cat("gradient of input ", fresh.g.value(v).name));
    }
  }
}

void check_kernels(const OpDef& op, size_t index, const Example& example) {
  const Case exact = make_case(op, example, DType::kF64);
  const KernelQuery q64 = query_of(exact.g, exact.n);
  const std::vector<HostTensor> truth = run_kernel(op.kernels.back(), q64, node_inputs(exact));
  ASSERT_TRUE(op.kernels.back().reject == nullptr)
      << op.name << ": the reference must accept everything";
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const Case c = make_case(op, example, dtype);
    for (const KernelEntry& entry : op.kernels) {
      if (std::string_view(entry.device) != "cpu") continue;
      const KernelQuery q = query_of(c.g, c.n);
      if (entry.reject && !entry.reject(q).empty()) continue;
      const std::string what = label(op, index, cat(entry.name, " ", name_of(dtype)));
      const std::vector<HostTensor> out = run_kernel(entry, q, node_inputs(c));
      for (size_t i = 0; i < out.size(); ++i)
        if (q.out[i].present())
          expect_close(out[i], truth[i], dtype == DType::kF64 ? 1e-12 : 2e-5, what);
      const std::vector<HostTensor> again = run_kernel(entry, q, node_inputs(c));
      for (size_t i = 0; i < out.size(); ++i)
        EXPECT_TRUE(out[i].bytes() == 0 ||
                    std::memcmp(out[i].raw(), again[i].raw(), out[i].bytes()) == 0)
            << what << ": two runs differ";
      for (const auto& pair : op.inplace) {
        if (!q.has_in(static_cast<size_t>(pair.second)) ||
            !q.has_out(static_cast<size_t>(pair.first)))
          continue;
        if (q.in[static_cast<size_t>(pair.second)].bytes() !=
            q.out[static_cast<size_t>(pair.first)].bytes())
          continue;
        const std::vector<HostTensor> placed = run_kernel(entry, q, node_inputs(c), {pair});
        for (size_t i = 0; i < out.size(); ++i)
          if (q.out[i].present()) expect_close(placed[i], out[i], 1e-12, what + " in place");
      }
    }
  }
}

void check_decomposition(const OpDef& op, size_t index, const Example& example) {
  const Case exact = make_case(op, example, DType::kF64);
  const std::vector<HostTensor> truth =
      run_kernel(op.kernels.back(), query_of(exact.g, exact.n), node_inputs(exact));
  Case c = make_case(op, example, DType::kF64);
  Decompose d{Builder(c.g, "decomposed"), c.n};
  const std::vector<Expr> ys = op.decompose(d);
  c.g.clear_outputs();
  std::vector<size_t> which;
  for (size_t i = 0; i < ys.size(); ++i)
    if (ys[i]) c.g.add_output(ys[i].id(), "y"), which.push_back(i);
  const std::vector<HostTensor> out = run_graph(c.g, c.values);
  for (size_t i = 0; i < which.size(); ++i)
    if (truth[which[i]].count() >= 0 && truth[which[i]].dtype() != DType::kUndefined)
      expect_close(out[i], truth[which[i]], 1e-10, label(op, index, "decomposition"));
}

class EveryOp : public testing::TestWithParam<const OpDef*> {};

TEST_P(EveryOp, RecordIsComplete) {
  const OpDef& op = *GetParam();
  EXPECT_TRUE(op.infer) << "no infer rule";
  if (is_structural(op)) {  // dissolved before any rule is asked for; tests/ops/unroll_test.cc
    EXPECT_TRUE(op.kernels.empty() && !op.decompose && !op.note.empty());
    return;
  }
  EXPECT_FALSE(op.examples.empty()) << "no examples";
  EXPECT_TRUE(op.view || op.decompose || !op.kernels.empty()) << "no kernels and no decomposition";
  if (op.kernels.size() == 2 && op.kernels[0].prepare == ops::ew_kernels()[0].prepare) {
    EXPECT_TRUE(op.ew != Ew::kNone || op.decompose)
        << "ew_kernels() runs a code (.ew) or a decomposition into operators that have one";
  }
  const bool internal_update =
      op.name.starts_with("ortrain.");  // gradient and optimizer ops need no gradient
  if (!op.decompose && !internal_update) {
    for (size_t i = 0; i < op.inputs.size(); ++i)
      EXPECT_TRUE(op.grad_rule(static_cast<int>(i)))
          << "input " << op.inputs[i]
          << " has no gradient rule; write one, no_grad or not_differentiable";
  }
  for (const GradRule& r : op.grad)
    EXPECT_TRUE(r.kind != GradRule::Kind::kRefused || !r.why.empty()) << "refusal without a reason";
}

TEST_P(EveryOp, Examples) {
  const OpDef& op = *GetParam();
  for (size_t i = 0; i < op.examples.size(); ++i) {
    SCOPED_TRACE(label(op, i, ""));
    const Example& example = op.examples[i];
    try {
      if (!op.kernels.empty() && !op.view) check_kernels(op, i, example);
      if (!op.kernels.empty() && op.decompose) check_decomposition(op, i, example);
      const bool has_rules = !op.grad.empty() || (op.decompose && !op.name.starts_with("ortrain."));
      if (example.check_grad && has_rules && !op.random) check_gradient(op, i, example);
      EXPECT_TRUE(example.check_grad || !example.note.empty())
          << "gradient check switched off without a reason";
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, testing::ValuesIn(all_ops().all()), [](const auto& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace ortrain::test
