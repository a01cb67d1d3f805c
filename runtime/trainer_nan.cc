// The end of a run whose loss or gradients are not finite: the step is run again to name the node
// that made the first bad value. See trainer.h, nan_search.h.
//
// The search runs what trained; where the node found is one of ours (fused from several of the
// file's), it runs the step once more without fusions, so that the file's node is named. Nothing
// that a checkpoint holds changes.
#include <cmath>
#include <new>

#include "graph/error.h"
#include "runtime/trainer.h"

namespace ortrain {

// The micro-batches of the failing step again, in order.
std::optional<BadNode> Trainer::search_window(const Programs& programs) {
  const Window w = window(run_.step);
  data::Loader loader(train_, programs_.begin()->second->arrays(), micro_,
                      {.first_step = w.first, .end_step = w.first + w.count, .threaded = false});
  const StoreEntry* before = store_.find(std::string(kWindowPrefix) + "samples");
  int64_t samples = 0;
  for (int64_t m = 0; m < w.count; ++m) {
    const data::Batch* batch = loader.next();
    if (!batch) return std::nullopt;
    // Masks are those of the step: they count the samples before this micro-batch.
    if (before) *reinterpret_cast<int64_t*>(before->data) = samples;
    samples += batch->count;
    for (const auto& [key, program] : programs) {
      const bool this_one =
          m + 1 < w.count ? m == 0 ? key.second == Phase::kFirst : key.second == Phase::kMiddle
                          : key.second == Phase::kLast;
      if (key.first != batch->count || !(w.count == 1 ? key.second == Phase::kOnly : this_one))
        continue;
      if (auto bad = program->find_bad_node(store_, pointers(*batch),
                                            spec_.loss_scale.kind != LossScaleSpec::Kind::kOff))
        return bad;
    }
  }
  return std::nullopt;
}

std::optional<BadNode> Trainer::search_unfused() {
  const StepSpec kept = spec_;
  Arena arena;
  std::swap(arena, arena_);  // add_program() reserves there
  std::optional<BadNode> bad;
  try {
    spec_.disabled.insert({"fuse_forward", "fuse_late"});
    Programs plain;
    for (const auto& [key, program] : programs_)
      add_program(plain, train_, Mode::kTrain, key.first, key.second);
    arena_.allocate();
    for (auto& [key, program] : plain) program->start(arena_);
    bad = search_window(plain);
  } catch (const Error&) {  // no memory for a second plan, say: the first finding stands
  } catch (const std::bad_alloc&) {
  }
  std::swap(arena, arena_);
  spec_ = kept;
  return bad;
}

void Trainer::stop_at_nan(double loss) {
  std::optional<BadNode> bad = search_window(programs_);
  if (bad && bad->op.starts_with("ortrain."))
    if (auto plain = search_unfused()) bad = std::move(plain);
  // See StepSpec::stop_at_nonfinite.
  const bool updated = std::isfinite(loss) && spec_.stop_at_nonfinite && spec_.recompute.budgeted();
  const bool scaled = spec_.loss_scale.kind != LossScaleSpec::Kind::kOff;
  fail(ErrorCode::kNumeric, "the ",
       std::isnan(loss)       ? "loss is NaN"
       : !std::isfinite(loss) ? "loss is infinite"
                              : "gradients are not finite, though the loss is,",
       " at step ", run_.step + 1,
       ". First bad values: ", bad ? bad->text : std::string("not found again"),
       updated
           ? ". Some parameters were updated already, since --memory-budget is short; the others "
             "are as after step "
           : ". The parameters are as after step ",
       run_.step,
       last_checkpoint_.empty() ? std::string() : "; the last checkpoint is " + last_checkpoint_,
       ". A smaller --lr", scaled ? ", --loss-scale" : "",
       " or --clip-norm may help; --on-nan skip leaves such batches out");
}

}  // namespace ortrain
