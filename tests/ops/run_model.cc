// See run_model.h.
#include "tests/ops/run_model.h"

#include <cmath>

#include "graph/error.h"
#include "runtime/evaluate.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace ortrain::test {

std::map<std::string, HostTensor> run_model(const Graph& source, StepSpec spec,
                                            const std::map<std::string, const HostTensor*>& inputs,
                                            bool reference) {
  for (ValueId v : source.inputs())
    if (const auto it = inputs.find(source.value(v).name); it != inputs.end())
      spec.input_dims[it->first] = it->second->dims();
  CompileResult compiled = compile(source, spec, {.evaluate = make_evaluator()});
  ParamStore store;
  const Plan plan = make_plan(compiled.graph, store, {.reference = reference});
  Arena arena;
  arena.reserve(plan.arena_bytes);
  arena.allocate();
  Executor executor(plan, arena);
  std::vector<const void*> data;
  for (const PlanTensor& t : plan.inputs) {
    const auto it = inputs.find(t.name);
    ORTRAIN_CHECK(it != inputs.end() && it->second->dtype() == t.dtype, "input " + t.name);
    data.push_back(it->second->raw());
  }
  executor.run(data);
  std::map<std::string, HostTensor> out;
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    out[plan.outputs[i].name] = executor.output(static_cast<int>(i)).clone();
  return out;
}

std::string difference(const std::map<std::string, HostTensor>& outputs, const std::string& name,
                       const HostTensor& want) {
  constexpr double kRtol = 1e-3, kAtol = 1e-7;
  const auto it = outputs.find(name);
  if (it == outputs.end()) return "the plan has no output '" + name + "'";
  const HostTensor& got = it->second;
  if (got.dtype() != want.dtype())
    return cat("type ", name_of(got.dtype()), ", expected ", name_of(want.dtype()));
  if (got.dims() != want.dims())
    return cat("shape ", Shape(got.dims()).str(), ", expected ", Shape(want.dims()).str());
  for (int64_t i = 0; i < got.count(); ++i) {
    if (!is_float(got.dtype()) && !is_storage_float(got.dtype())) {
      if (got.as_int(i) != want.as_int(i))
        return cat("element ", i, " is ", got.as_int(i), ", expected ", want.as_int(i));
      continue;
    }
    const double a = got.as_double(i), b = want.as_double(i);
    const bool equal = (std::isnan(a) && std::isnan(b)) || a == b ||
                       std::abs(a - b) <= kAtol + kRtol * std::abs(b);
    if (!equal) return cat("element ", i, " is ", a, ", expected ", b);
  }
  return "";
}

}  // namespace ortrain::test
