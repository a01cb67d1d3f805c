// What inspect and bench say of a step of several micro-batches (--accumulate): the programs of its
// first, middle and last micro-batch, planned as training plans them, and what they take together.
//
// Nothing is run. Batch buffers are not counted, as in the rest of these commands.
#include "graph/error.h"
#include "runtime/cli/setup.h"

namespace ortrain::cli {

std::string window_text(const Context& c, const DataRun& run) {
  using Phase = WindowSpec::Phase;
  const int64_t count = c.config.integer("accumulate");
  if (count < 2) return "";
  struct Part {
    Phase phase;
    const char* name;
  };
  std::vector<Part> parts = {{Phase::kFirst, "first (its gradients start the sums)"}};
  if (count > 2) parts.push_back({Phase::kMiddle, "next (gradients are added)"});
  parts.push_back({Phase::kLast, "last (gradients are added, then the update)"});
  ParamStore store;
  Arena arena;
  StepMemory memory(select_options(c));
  CompileOptions options = compile_options(c);
  options.after_pass = nullptr;
  options.memory = &memory;
  StepSpec spec = run.spec();
  const MemoryBudget budget = parse_budget(c.config.text("memory-budget"));
  std::vector<std::unique_ptr<Program>> programs;
  const auto make = [&](const RecomputeSpec& recompute) {
    spec.recompute = recompute;
    programs.clear();
    Footprint used;
    for (const Part& part : parts) {
      spec.window = {
          .phase = part.phase, .accumulate = count, .samples = run.batch(), .nominal = run.batch()};
      programs.push_back(std::make_unique<Program>(c.file->graph(), spec, store, arena,
                                                   select_options(c), options));
      used.arena = std::max(used.arena, programs.back()->plan().arena_bytes);
      const RecomputeReport& r = programs.back()->recompute();
      if (r.bound > used.bound) used.bound = r.bound, used.bound_node = r.bound_node;
    }
    used.fixed = store.bytes();
    return used;
  };
  const BudgetFit fit =
      fit_budget(make_spec(c, Mode::kTrain).recompute.mode, budget, memory_limit(), make);
  std::string out = cat("--accumulate ", count, ": a step of ", count, " micro-batches of ",
                        run.batch(), " samples; micro-batches:");
  for (size_t i = 0; i < parts.size(); ++i) {
    const Plan& plan = programs[i]->plan();
    out += cat("\n  ", parts[i].name, ": ", plan.steps.size(), " steps, arena ",
               bytes_text(plan.arena_bytes), " (", plan.arena_bytes, " bytes), at least ",
               bytes_text(plan.arena_lower_bound), " needed");
    if (programs[i]->recompute().copies > 0)
      out += cat("\n    ", recompute_text(programs[i]->recompute()));
  }
  out += cat("\n  parameters, states, sums and constants ", bytes_text(fit.used.fixed),
             " + the largest arena = ", bytes_text(fit.used.total()), " (", fit.used.total(),
             " bytes)");
  if (!fit.fits) out += cat("; more than the budget of ", fit.budget);
  return out + "\n";
}

}  // namespace ortrain::cli
