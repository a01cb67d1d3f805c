// See budget.h.
#include "runtime/budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "graph/error.h"
#include "runtime/evaluate.h"

namespace ortrain {

size_t MemoryBudget::of(size_t unconstrained) const {
  return share > 0 ? static_cast<size_t>(share * static_cast<double>(unconstrained)) : bytes;
}

MemoryBudget parse_budget(const std::string& text) {
  if (text.empty()) return {};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [unit_at, error] = std::from_chars(text.data(), end, number);
  std::string unit(unit_at, end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {
      {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};
  if (error == std::errc() && std::isfinite(number) && number > 0) {
    if (unit == "%") {
      if (number <= 100) return {.bytes = 0, .share = number / 100};
    } else {
      for (const Unit& u : kUnits)
        if (unit == u.name && number * u.bytes >= 1 && number * u.bytes < 1e18)
          return {.bytes = static_cast<size_t>(number * u.bytes), .share = 0};
    }
  }
  fail(ErrorCode::kUsage, "--memory-budget '", text,
       "': expected bytes with or without a unit (B, KB, MB, GB, KiB, MiB, GiB), such as 4GiB or "
       "500MB, or a share up to 100% of what the step takes without recomputation, such as 80%");
}

namespace {
constexpr int kTries = 3;

size_t left_for_arena(size_t budget, size_t fixed) { return budget > fixed ? budget - fixed : 1; }
}  // namespace

BudgetFit fit_budget(const std::string& mode, const MemoryBudget& budget, size_t limit,
                     const std::function<Footprint(const RecomputeSpec&)>& make) {
  BudgetFit fit;
  const RecomputeSpec first{.mode = "off", .arena_bytes = 0};
  fit.used = make(first);
  fit.unconstrained = fit.used.total();
  if (mode == "sqrt") fit.used = make({.mode = "sqrt", .arena_bytes = 0});
  fit.budget = budget.given() ? budget.of(fit.unconstrained) : limit;
  if (fit.budget == 0 || fit.used.total() <= fit.budget) return fit;
  // Where nothing is left for the arena: the least, for the message. Other programs may have other
  // constants: again with what these leave.
  size_t fixed = 0;
  for (int i = 0; i < kTries && mode == "auto" && fit.used.fixed > fixed; ++i) {
    fixed = fit.used.fixed;
    fit.used = make({.mode = "auto", .arena_bytes = left_for_arena(fit.budget, fixed)});
    if (fit.used.total() <= fit.budget) break;
  }
  // How parameters are updated depends on what is left: the least may still fit.
  if (mode == "auto" && fit.used.total() > fit.budget &&
      fit.used.fixed + fit.used.bound <= fit.budget)
    fit.used = make({.mode = "auto", .arena_bytes = 1});
  fit.fits = fit.used.total() <= fit.budget;
  return fit;
}

namespace {
int64_t percent(double part, double whole) {
  return whole > 0 ? std::lround(100 * part / whole) : 0;
}
}  // namespace

std::string recompute_text(const RecomputeReport& r) {
  return cat("recompute: ", r.copies, " nodes run again, arena ", bytes_text(r.arena_after),
             " instead of ", bytes_text(r.arena_before), ", +", percent(r.extra_ms, r.step_ms),
             " % time predicted");
}

std::string measured_text(const RecomputeReport& r, const Executor& executor) {
  double again = 0, rest = 0;
  const std::vector<PlanStep>& steps = executor.plan().steps;
  for (size_t i = 0; i < steps.size(); ++i)
    (steps[i].again ? again : rest) += executor.step_ms()[i];
  return cat("recompute: +", percent(again, rest), " % time measured over ",
             executor.profiled_runs(), " steps, +", percent(r.extra_ms, r.step_ms), " % predicted");
}

namespace {

// Bytes of a step, recomputing as much as the budget asks for.
class DryPlanner {
 public:
  explicit DryPlanner(const AdviceQuestion& q) : q_(q), memory_(q.select, false) {}

  size_t bytes(const StepSpec& spec, int64_t batch, int64_t parts) {
    const size_t buffers = q_.buffers(batch);
    size_t store = 0, arena = 0;
    for (StepSpec s : q_.programs(spec, batch, parts)) {
      Footprint f = planned(s, {.mode = "off", .arena_bytes = 0}, buffers);
      size_t fixed = 0;
      for (int i = 0; i < kTries && f.total() > q_.budget && f.fixed > fixed; ++i) {
        fixed = f.fixed;
        f = planned(s, {.mode = "auto", .arena_bytes = left_for_arena(q_.budget, fixed)}, buffers);
      }
      store = std::max(store, f.fixed);
      arena = std::max(arena, f.arena);
    }
    return store + arena;
  }

 private:
  Footprint planned(StepSpec& spec, RecomputeSpec recompute, size_t buffers) {
    spec.recompute = std::move(recompute);
    CompileOptions options;
    options.evaluate = make_evaluator();
    options.memory = &memory_;
    CompileResult r = compile(q_.source, spec, options);
    memory_.lower(r.graph);
    return {.arena = memory_.arena_bytes(r.graph),
            .fixed = StepMemory::store_bytes(r.graph) + buffers};
  }

  const AdviceQuestion& q_;
  StepMemory memory_;
};

}  // namespace

std::string advise(const AdviceQuestion& q) {
  DryPlanner planner(q);
  std::string out;
  size_t least = SIZE_MAX;
  std::string least_flags;
  // True when the change fits, which is then said.
  const auto attempt = [&](const StepSpec& spec, int64_t parts, const std::string& flags) {
    size_t bytes = SIZE_MAX;
    try {
      bytes = planner.bytes(spec, q.batch / parts, parts);
    } catch (const Error&) {
      return false;  // a batch size or a type that this model cannot have
    }
    if (bytes < least) least = bytes, least_flags = flags;
    if (bytes > q.budget) return false;
    out += cat("\n  ", flags, "   (", bytes_text(bytes), ", ", bytes, " bytes)");
    return true;
  };
  const auto batches = [&](const StepSpec& spec, const std::string& others) {
    for (int64_t parts = 2; q.batch_may_change && parts <= q.batch; ++parts)
      if (q.batch % parts == 0 && attempt(spec, parts,
                                          cat("--batch-size ", q.batch / parts, " --accumulate ",
                                              q.accumulate * parts, others)))
        return true;
    return false;
  };
  const auto optimizer = [](StepSpec spec, const char* name) {
    spec.optimizer.name = name;
    spec.optimizer.momentum = 0;
    return spec;
  };
  bool found = attempt(q.spec, 1, "--recompute auto");
  found |= batches(q.spec, "");
  if (q.spec.compute == DType::kF32 && q.spec.narrow == DType::kUndefined) {
    StepSpec narrow = q.spec;
    narrow.narrow = DType::kBF16;
    found |= attempt(narrow, 1, "--precision bf16");
  }
  for (const char* name : {"lion", "sgd"})
    if (q.spec.optimizer.name != name)
      found |= attempt(optimizer(q.spec, name), 1, cat("--optimizer ", name));
  if (!found) batches(optimizer(q.spec, "sgd"), " --optimizer sgd");
  if (out.empty() && least < SIZE_MAX)
    return cat("; no micro-batch, precision or optimizer that was tried fits; the least is ",
               bytes_text(least), " (", least, " bytes) with ", least_flags);
  return out.empty() ? "" : "; what fits, as planned (recomputing where needed):" + out;
}

void refuse_budget(const BudgetFit& fit, bool asked, const std::string& advice) {
  const size_t bound = fit.used.fixed + fit.used.bound;
  std::string why;
  if (fit.used.bound > 0 && bound > fit.budget)
    why = cat("; no order and no recomputation can go below ", bound, ": ", fit.used.bound_node,
              " alone needs its inputs, outputs and scratch of ", fit.used.bound, " bytes");
  else if (fit.used.bound > 0)
    why = cat("; that is the least found, it is not known to be the least possible (no less than ",
              bound, ")");
  fail(ErrorCode::kMemory, "a step needs at least ", bytes_text(fit.used.total()), " (",
       fit.used.total(), " bytes), ", asked ? "--memory-budget allows " : "the machine has ",
       bytes_text(fit.budget), " (", fit.budget,
       " bytes): parameters, states, constants and batch "
       "buffers take ",
       fit.used.fixed, ", activations, gradients and scratch at least ", fit.used.arena, why,
       "; without recomputation the step takes ", fit.unconstrained, advice);
}

}  // namespace ortrain
