// See trainer.h.
#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "graph/error.h"
#include "runtime/class_weights.h"
#include "runtime/ema.h"

namespace ortrain {
namespace {
using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
constexpr double kCheckpointMs = 60e3;  // between checkpoints when no step count is given
constexpr int64_t kSkipLimit = 100;     // skipped steps in a row that end the run

// The sizes of batches that a sampler hands out in steps [0, steps).
std::set<int64_t> batch_sizes(const data::Sampler& sampler, int64_t steps) {
  std::set<int64_t> sizes;
  for (int64_t step : {int64_t{0}, sampler.steps_per_epoch() - 1})
    if (step >= 0 && step < steps) sizes.insert(sampler.count(step));
  return sizes;
}
}  // namespace

data::Sampler Trainer::make_sampler(int64_t samples) const {
  return data::Sampler({.samples = samples,
                        .batch_size = options_.batch_size,
                        .shuffle = options_.shuffle,
                        .seed = spec_.seed,
                        .last = options_.last_batch});
}

data::Sampler Trainer::eval_sampler() const {
  const int64_t samples = eval_->samples();
  const int64_t batch = options_.eval_batch > 0 ? options_.eval_batch : options_.batch_size;
  return data::Sampler(
      {.samples = samples, .batch_size = std::min(batch, samples), .shuffle = false});
}

Trainer::Trainer(const Graph& source, const data::Dataset& train, const data::Dataset* eval,
                 StepSpec spec, TrainOptions options, const ParamStore::Copied& copied)
    : source_(source),
      train_(train),
      eval_(eval),
      spec_(std::move(spec)),
      options_(std::move(options)),
      copied_(copied),
      sampler_(make_sampler(train.samples())) {
  total_ = options_.steps > 0 ? options_.steps : sampler_.steps_for_epochs(options_.epochs);
  if (spec_.optimizer.total_steps == 0) spec_.optimizer.total_steps = total_;
  spec_.mode = Mode::kTrain;
  spec_.skip_nonfinite = true;  // so that a bad step can be looked at, and left out
  const int64_t full = sampler_.count(0);
  targets_ = find_targets(source, spec_for_data(source, train, spec_, full));
  const std::vector<std::string> weights = balance_classes(targets_, train, spec_);
  for (int64_t size : batch_sizes(sampler_, std::max<int64_t>(total_, 1)))
    add_program(programs_, train_, Mode::kTrain, size);
  messages_ = program().messages();
  messages_.insert(messages_.end(), weights.begin(), weights.end());
  const data::Fit fit = train_.check_fits(program().arrays());
  messages_.insert(messages_.end(), fit.notes.begin(), fit.notes.end());
  check_labels(targets_, train_);
  if (eval_) make_eval_programs();
  if (const size_t limit = memory_limit(), need = store_.bytes() + program().plan().arena_bytes;
      limit > 0 && need > limit)
    fail(ErrorCode::kMemory, "a step needs ", bytes_text(need), ", the machine has ",
         bytes_text(limit), "; the arena holds ", bytes_text(program().plan().arena_bytes),
         " at batch size ", full, ": a smaller --batch-size would fit");
  arena_.allocate();
  for (Programs* list : {&programs_, &evals_})
    for (auto& [size, p] : *list) p->start(arena_);
  loader_bytes_ =
      data::Loader(train_, program().arrays(), sampler_, {.threaded = false}).buffer_bytes();
  run_ = {.step = 0,
          .skipped = 0,
          .seed = spec_.seed,
          .shuffle = options_.shuffle,
          .batch_size = options_.batch_size,
          .samples = sampler_.options().samples,
          .graph_hash = checkpoint::graph_hash(source),
          .extra = options_.checkpoint_extra};
}

void Trainer::add_program(Programs& programs, const data::Dataset& data, Mode mode, int64_t batch) {
  if (programs.contains(batch)) return;
  StepSpec spec = spec_;
  spec.mode = mode;
  spec = spec_for_data(source_, data, spec, batch);
  programs.emplace(batch, std::make_unique<Program>(source_, spec, store_, arena_, options_.select,
                                                    options_.compile, copied_));
}

void Trainer::make_eval_programs() {
  const data::Sampler sampler = eval_sampler();
  for (int64_t size : batch_sizes(sampler, sampler.steps_per_epoch()))
    add_program(evals_, *eval_, Mode::kEval, size);
  eval_->check_fits(eval_program()->arrays());
  check_labels(eval_targets(), *eval_);
}

std::string Trainer::memory_text() const {
  std::string text = ortrain::memory_text(programs_.begin()->second->plan());
  if (loader_bytes_) text += cat("; ", bytes_text(loader_bytes_), " of batch buffers");
  return text;
}

void Trainer::resume(const std::string& path) {
  const checkpoint::RunState saved = checkpoint::read_run(path);
  std::string problems;
  const auto differs = [&](const char* what, auto was, auto now) {
    if (was != now)
      problems +=
          cat("\n  ", what, " was ", static_cast<int64_t>(was), ", is ", static_cast<int64_t>(now));
  };
  differs("the number of training samples", saved.samples, run_.samples);
  differs("--batch-size", saved.batch_size, run_.batch_size);
  differs("--seed", saved.seed, run_.seed);
  differs("--shuffle", saved.shuffle, run_.shuffle);
  if (!problems.empty())
    fail(ErrorCode::kData, "checkpoint '", path,
         "' belongs to a run with another order of samples:", problems);
  checkpoint::RunState run = checkpoint::load(path, store_, run_.graph_hash);
  for (const auto& [key, value] : run_.extra) run.extra[key] = value;
  run_ = std::move(run);
  last_checkpoint_ = path;
}

std::string Trainer::save(Observer& observer) {
  for (const StoreEntry& e : store_.entries()) {
    if (!e.trainable) continue;
    const HostTensor t = HostTensor::view(e.dtype, e.dims, e.data);
    for (int64_t i = 0; i < t.count(); ++i)
      if (!std::isfinite(t.as_double(i)))
        fail(ErrorCode::kNumeric, "parameter '", e.name, "' is not finite after step ", run_.step,
             "; nothing was saved",
             last_checkpoint_.empty() ? "" : ", the last good checkpoint is ", last_checkpoint_);
  }
  observer.before_checkpoint();
  last_checkpoint_ =
      checkpoint::save(options_.checkpoint_folder, store_, run_, {.keep = options_.keep});
  observer.on_checkpoint(last_checkpoint_);
  return last_checkpoint_;
}

void Trainer::check_loss(double loss, Program& program, const std::vector<const void*>& arrays) {
  const std::optional<std::string> bad = program.trace(arrays);
  fail(ErrorCode::kNumeric, "the loss is ", std::isnan(loss) ? "NaN" : "infinite", " at step ",
       run_.step + 1, ". First bad values: ", bad ? *bad : std::string("not found again"),
       ". The parameters are as after step ", run_.step,
       last_checkpoint_.empty() ? std::string() : "; the last checkpoint is " + last_checkpoint_,
       ". A smaller --lr or --clip-norm may help; --on-nan skip leaves such batches out");
}

TrainResult Trainer::run(Observer& observer) {
  data::Loader loader(train_, program().arrays(), sampler_,
                      {.first_step = run_.step,
                       .end_step = std::max(total_, run_.step),
                       .threaded = options_.loader_thread});
  TrainResult result;
  const bool saves = !options_.checkpoint_folder.empty();
  int64_t saved_at = run_.step, skipped_in_a_row = 0;
  auto saved_time = Clock::now();
  std::vector<const void*> arrays(program().arrays().size());
  StepInfo info;  // one for all steps: nothing is allocated in the loop
  for (const Target& t : targets_)
    if (!t.name.empty()) info.losses.emplace_back(t.name, 0);
  while (run_.step < total_ && !result.stopped) {
    const auto start = Clock::now();
    const data::Batch* batch = loader.next();
    ORTRAIN_CHECK(batch != nullptr, "the loader ended early");
    info.wait_ms = ms_since(start);
    for (size_t i = 0; i < arrays.size(); ++i) arrays[i] = batch->arrays[i].data;
    Program& program = *programs_.at(batch->count);
    program.run(arrays);
    const Plan& plan = program.plan();
    const auto scalar = [&](const char* name, double missing) {
      const int i = plan.output(name);
      return i < 0 ? missing : program.executor().output(i).as_double(0);
    };
    info.loss = scalar("loss", 0);
    for (auto& [name, value] : info.losses) value = scalar(("loss/" + name).c_str(), 0);
    info.lr = scalar("lr", 0);
    info.grad_norm = scalar("grad_norm", -1);
    info.this_skipped =
        !std::isfinite(info.loss) || (info.grad_norm != -1 && !std::isfinite(info.grad_norm));
    if (info.this_skipped) {
      if (!options_.skip_bad_steps) check_loss(info.loss, program, arrays);
      ++run_.skipped;
      if (++skipped_in_a_row == kSkipLimit)
        fail(ErrorCode::kNumeric, "the loss was not finite in ", kSkipLimit,
             " steps in a row, up to step ", run_.step + 1);
    } else {
      skipped_in_a_row = 0;
    }
    info.step = ++run_.step;
    info.steps = total_;
    info.epoch = batch->position.epoch;
    info.samples = batch->count;
    info.skipped = run_.skipped;
    info.ms = ms_since(start);
    observer.on_step(info);

    const bool last = run_.step == total_;
    const bool epoch_ends = last || sampler_.position(run_.step).epoch != batch->position.epoch;
    if (eval_ &&
        (options_.eval_every > 0 ? run_.step % options_.eval_every == 0 || last : epoch_ends)) {
      result.last_eval = evaluate();
      observer.on_eval(*result.last_eval);
    }
    result.stopped = !last && observer.should_stop();
    const bool due = options_.checkpoint_every > 0 ? run_.step % options_.checkpoint_every == 0
                                                   : ms_since(saved_time) > kCheckpointMs;
    if (saves && run_.step != saved_at && (due || last || result.stopped)) {
      save(observer);
      saved_at = run_.step;
      saved_time = Clock::now();
    }
  }
  result.step = run_.step;
  result.skipped = run_.skipped;
  result.checkpoint = last_checkpoint_;
  return result;
}

// The label array of the evaluation data may have another name.
std::vector<Target> Trainer::eval_targets() const {
  StepSpec spec = spec_;
  spec.mode = Mode::kEval;
  spec = spec_for_data(source_, *eval_, spec, 1);
  std::vector<Target> targets = targets_;
  const std::vector<LossSpec> losses = spec.losses();
  for (size_t i = 0; i < targets.size(); ++i) targets[i].label = losses[i].label;
  return targets;
}

EvalResult Trainer::evaluate() {
  ORTRAIN_CHECK(eval_ != nullptr, "no evaluation data");
  const auto start = Clock::now();
  const AveragedWeights averaged(store_);
  const data::Sampler sampler = eval_sampler();
  data::Loader loader(*eval_, eval_program()->arrays(), sampler,
                      {.end_step = sampler.steps_per_epoch(), .threaded = false});
  Evaluation evaluation(eval_targets());
  EvalResult result;
  while (const data::Batch* batch = loader.next()) {
    Program& p = *evals_.at(batch->count);
    p.run(pointers(*batch));
    evaluation.add(p, *batch);
    result.samples += batch->count;
  }
  static_cast<EvalValues&>(result) = evaluation.values();
  result.step = run_.step;
  result.seconds = ms_since(start) / 1000;
  return result;
}

}  // namespace ortrain
