// The memory side of Trainer: keeping within --memory-budget or the machine, and what recomputation
// costs in fact. See trainer.h.
#include <algorithm>

#include "graph/error.h"
#include "runtime/trainer.h"

namespace ortrain {
namespace {

// Steps that are timed node by node once a run has warmed up.
constexpr int64_t kWatchFrom = 3, kWatchTo = 10;

}  // namespace

size_t Trainer::buffer_bytes(int64_t batch) {
  const int64_t full = micro_.count(0);
  std::vector<data::ArraySpec> arrays = programs_.begin()->second->arrays();
  for (data::ArraySpec& a : arrays)
    if (!a.dims.empty() && a.dims[0] == full && !train_.shared(a.name)) a.dims[0] = batch;
  data::SamplerOptions options = micro_.options();
  options.batch_size = batch;
  return data::Loader(train_, arrays, data::Sampler(options),
                      {.threaded = false, .prefetch = options_.prefetch})
      .buffer_bytes();
}

void Trainer::fit_to_memory(const std::string& recompute) {
  step_memory_ = std::make_unique<StepMemory>(options_.select);
  options_.compile.memory = step_memory_.get();
  fit_ = fit_budget(recompute, options_.budget, memory_limit(), [&](const RecomputeSpec& r) {
    if (r.mode != spec_.recompute.mode || r.arena_bytes != spec_.recompute.arena_bytes) {
      spec_.recompute = r;
      programs_.clear();
      make_programs();
    }
    loader_bytes_ = buffer_bytes(micro_.count(0));
    if (const auto labels = label_loader(0, 0)) loader_bytes_ += labels->buffer_bytes();
    Footprint used{.arena = 0, .fixed = store_.bytes() + loader_bytes_};
    for (const Programs* list : {&programs_, &evals_, &counts_, &watched_})
      for (const auto& [key, p] : *list) {
        used.arena = std::max(used.arena, p->plan().arena_bytes);
        if (p->recompute().bound <= used.bound) continue;
        used.bound = p->recompute().bound;
        used.bound_node = p->recompute().bound_node;
      }
    arena_ = Arena();
    arena_.reserve(used.arena);
    return used;
  });
  if (fit_.fits) return;
  const std::optional<Dim> axis = batch_axis(source_);
  const AdviceQuestion question{.source = source_,
                                .spec = spec_,
                                .batch = micro_.count(0),
                                .accumulate = options_.accumulate,
                                .batch_may_change = axis && !axis->is_const(),
                                .budget = fit_.budget,
                                .select = options_.select,
                                .programs =
                                    [&](const StepSpec& spec, int64_t batch, int64_t parts) {
                                      StepSpec s = spec;
                                      s.window = {.phase = Phase::kOnly,
                                                  .accumulate = options_.accumulate * parts,
                                                  .samples = batch,
                                                  .nominal = batch};
                                      std::vector<Phase> phases{Phase::kOnly};
                                      if (s.window.accumulate > 1)
                                        phases = {Phase::kFirst, Phase::kMiddle, Phase::kLast};
                                      std::vector<StepSpec> out;
                                      for (const Phase phase : phases) {
                                        s.window.phase = phase;
                                        out.push_back(spec_for_data(source_, train_, s, batch));
                                      }
                                      return out;
                                    },
                                .buffers = [&](int64_t batch) { return buffer_bytes(batch); }};
  refuse_budget(fit_, options_.budget.given(), advise(question));
}

std::string Trainer::memory_text() const {
  std::string text = ortrain::memory_text(main_->plan());
  if (loader_bytes_) text += cat("; ", bytes_text(loader_bytes_), " of batch buffers");
  if (options_.budget.given())
    text += cat("; ", memory_bytes(), " bytes in all, budget ", fit_.budget);
  const RecomputeReport& r = main_->recompute();
  if (r.copies > 0)
    text += "\n" + recompute_text(r) +
            cat("; in all ", memory_bytes(), " instead of ", fit_.unconstrained, " bytes");
  return text;
}

void Trainer::watch_recompute(Observer& observer, int64_t steps) {
  Program& p = program();
  if (p.recompute().copies == 0 || steps > kWatchTo) return;
  if (steps < kWatchTo) return p.executor().set_profile(steps >= kWatchFrom);
  p.executor().set_profile(false);
  observer.on_note(measured_text(p.recompute(), p.executor()));
}

}  // namespace ortrain
