// The part of Trainer that knows, before a window of micro-batches starts, how many targets each of
// several losses has in it; see graph/passes/window.h.
//
// Nothing of it exists for one loss, without accumulation, or where no target can be ignored. It
// reads the label arrays alone, a window ahead of the step.
#include <set>

#include "graph/error.h"
#include "runtime/trainer.h"

namespace ortrain {

void Trainer::make_counts() {
  counts_.clear();
  targets_of_window_.clear();
  if (options_.accumulate == 1 || spec_.more_losses.empty()) return;
  std::set<int64_t> sizes;
  for (const auto& [key, p] : programs_) sizes.insert(key.first);
  for (const int64_t size : sizes) add_program(counts_, train_, Mode::kEval, size, Phase::kCount);
  const std::vector<PlanTensor>& outputs = counts_.begin()->second->plan().outputs;
  if (outputs.empty()) return counts_.clear();
  for (const PlanTensor& t : outputs) {  // "targets/OUTPUT"
    const StoreEntry* state = store_.find(kWindowPrefix + t.name);
    // An epoch of single micro-batches has no window to share.
    targets_of_window_.push_back(state ? reinterpret_cast<double*>(state->data) : nullptr);
  }
}

std::optional<data::Loader> Trainer::label_loader(int64_t first_step, int64_t end_step) {
  if (counts_.empty()) return std::nullopt;
  return std::optional<data::Loader>(
      std::in_place, train_, counts_.begin()->second->arrays(), micro_,
      data::LoaderOptions{.first_step = first_step, .end_step = end_step, .threaded = false});
}

void Trainer::count_targets(data::Loader& labels, const Window& w) {
  for (double* sum : targets_of_window_)
    if (sum) *sum = 0;
  for (int64_t m = 0; m < w.count; ++m) {
    const data::Batch* batch = labels.next();
    while (batch && batch->step < w.first + m) batch = labels.next();
    ORTRAIN_CHECK(batch != nullptr, "the loader of labels ended early");
    for (size_t i = 0; i < batch->arrays.size(); ++i) arrays_[i] = batch->arrays[i].data;
    Program& p = *counts_.at({batch->count, Phase::kCount});
    p.run({arrays_.begin(), arrays_.begin() + static_cast<std::ptrdiff_t>(batch->arrays.size())});
    for (size_t i = 0; i < targets_of_window_.size(); ++i)
      if (double* sum = targets_of_window_[i])
        *sum += p.executor().output(static_cast<int>(i)).as_double(0);
  }
}

}  // namespace ortrain
