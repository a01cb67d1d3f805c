// ctest-timeout: 600
// Inputs of types that do not belong together: a file may declare any.
//
// Every input of every example is given once in other types, the rest as they are. The record's
// inference (or its decomposition's) refuses that with an Error, or every kernel that accepts
// computes what the reference does from the same numbers in their own types; where the output's
// type changes from float to integer with the input's, that it runs is all that is asked. A kernel
// that takes a type for granted would read past the smaller buffer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "graph/structure.h"
#include "tests/ops/example_case.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

// Gradient and optimizer ops that only our passes build, from tensors whose types they know.
bool internal(const OpDef& op) { return op.name.starts_with("ortrain."); }

// A mask of bools means another thing than one of numbers.
bool type_has_a_meaning(const OpDef& op, size_t input) {
  return op.name == "Attention" && op.inputs[std::min(input, op.inputs.size() - 1)] == "attn_mask?";
}

DType type_of(const Case& c, size_t input) {
  const auto& in = c.g.node(c.n).inputs;
  return input < in.size() && in[input] != kNone ? c.g.value(in[input]).dtype : DType::kUndefined;
}

std::vector<DType> others(DType own) {
  using enum DType;
  switch (own) {
    case kF32: return {kF64, kI64, kBool};
    case kF64: return {kF32, kI64, kBool};
    case kI64: return {kI32, kF32, kBool};
    case kBool: return {kI64, kF32};
    case kUndefined: return {};
    default: return {kF32, kI64, kBool};
  }
}

bool comparable(const HostTensor& got, const HostTensor& want) {
  return got.dtype() == want.dtype() || (is_float(got.dtype()) && is_float(want.dtype()));
}

void check(const OpDef& op, const Example& example, DType base, Odd odd, const std::string& what) {
  Case c = make_case(op, example, base, odd);
  odd.back = true;
  Case same = make_case(op, example, DType::kF64, odd);
  if (op.kernels.empty()) {  // decomposed
    const std::vector<HostTensor> out = run_graph(c.g, c.values);
    const std::vector<HostTensor> truth = run_graph(same.g, same.values);
    for (size_t i = 0; i < out.size(); ++i)
      if (!op.random && comparable(out[i], truth[i])) expect_close(out[i], truth[i], 2e-5, what);
    return;
  }
  const std::vector<HostTensor> truth =
      run_kernel(op.kernels.back(), query_of(same.g, same.n), node_inputs(same));
  const KernelQuery q = query_of(c.g, c.n);
  for (const KernelEntry& entry : op.kernels) {
    if (std::string_view(entry.device) != "cpu") continue;
    if (entry.reject && !entry.reject(q).empty()) continue;
    const std::vector<HostTensor> out = run_kernel(entry, q, node_inputs(c));
    for (size_t i = 0; i < out.size(); ++i)
      if (q.out[i].present() && !op.random && comparable(out[i], truth[i]))
        expect_close(out[i], truth[i], 2e-5, cat(what, ", ", entry.name));
  }
}

class MixedTypes : public testing::TestWithParam<const OpDef*> {};

TEST_P(MixedTypes, RefusedOrRight) {
  const OpDef& op = *GetParam();
  if (is_structural(op) || internal(op) || op.view) return;
  for (size_t e = 0; e < op.examples.size(); ++e)
    for (const DType base : {DType::kF32, DType::kF64})
      for (size_t i = 0; op.examples[e].in.size() > 1 && i < op.examples[e].in.size(); ++i) {
        if (type_has_a_meaning(op, i)) continue;
        for (const DType other : others(type_of(make_case(op, op.examples[e], base), i))) {
          const std::string what =
              label(op, e, cat("input ", i, " as ", name_of(other), " among ", name_of(base)));
          SCOPED_TRACE(what);
          try {
            check(op, op.examples[e], base, {static_cast<int>(i), other}, what);
          } catch (const Error&) {  // refused
          }
          if (HasFatalFailure()) return;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Ops, MixedTypes, testing::ValuesIn(all_ops().all()), [](const auto& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace ortrain::test
