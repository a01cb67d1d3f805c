// See trainer.h.
#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

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

WindowSpec::Phase phase_of(int64_t m, int64_t count) {
  using Phase = WindowSpec::Phase;
  if (count == 1) return Phase::kOnly;
  return m == 0 ? Phase::kFirst : m + 1 == count ? Phase::kLast : Phase::kMiddle;
}

int64_t checked_product(int64_t batch, int64_t accumulate) {
  int64_t product = 0;
  if (accumulate < 1 || __builtin_mul_overflow(batch, accumulate, &product))
    fail(ErrorCode::kUsage, "--accumulate ", accumulate, " at batch size ", batch,
         ": expected at least 1, and a product within 64 bits");
  return product;
}

// The sizes of batches that a sampler hands out in steps [0, steps).
std::set<int64_t> batch_sizes(const data::Sampler& sampler, int64_t steps) {
  std::set<int64_t> sizes;
  for (int64_t step : {int64_t{0}, sampler.steps_per_epoch() - 1})
    if (step >= 0 && step < steps) sizes.insert(sampler.count(step));
  return sizes;
}
}  // namespace

data::Sampler Trainer::make_sampler(int64_t batch) const {
  return data::Sampler({.samples = train_.samples(),
                        .batch_size = batch,
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
      sampler_(make_sampler(checked_product(options_.batch_size, options_.accumulate))),
      micro_(make_sampler(options_.batch_size)) {
  total_ = options_.steps > 0 ? options_.steps : sampler_.steps_for_epochs(options_.epochs);
  if (spec_.optimizer.total_steps == 0) spec_.optimizer.total_steps = total_;
  spec_.mode = Mode::kTrain;
  spec_.skip_nonfinite = true;  // so that a bad step can be looked at, and left out
  spec_.stop_at_nonfinite =
      !options_.skip_bad_steps && spec_.loss_scale.kind != LossScaleSpec::Kind::kDynamic;
  const int64_t full = micro_.count(0);
  targets_ = find_targets(source, spec_for_data(source, train, spec_, full));
  const std::vector<std::string> weights = balance_classes(targets_, train, spec_);
  const std::string recompute = std::exchange(spec_.recompute.mode, "off");
  make_programs();
  messages_ = program().messages();
  messages_.insert(messages_.end(), weights.begin(), weights.end());
  const data::Fit fit = train_.check_fits(program().arrays());
  messages_.insert(messages_.end(), fit.notes.begin(), fit.notes.end());
  check_labels(targets_, train_);
  if (eval_) make_eval_programs();
  fit_to_memory(recompute);
  need_contents(false);
  store_.prefault();
  arena_.allocate();
  for (Programs* list : {&programs_, &evals_, &counts_, &watched_})
    for (auto& [key, p] : *list) p->start(arena_);
  if (options_.watch_every > 0)
    watch_ = std::make_unique<NumericsWatch>(store_, spec_.narrow, spec_.compute,
                                             spec_.loss_scale.kind != LossScaleSpec::Kind::kOff);
  arrays_.resize(programs_.begin()->second->arrays().size());
  run_ = {.step = 0,
          .skipped = 0,
          .seed = spec_.seed,
          .shuffle = options_.shuffle,
          .batch_size = options_.batch_size,
          .samples = sampler_.options().samples,
          .accumulate = options_.accumulate,
          .epoch_loss = 0,
          .epoch_weight = 0,
          .graph_hash = checkpoint::graph_hash(source),
          .extra = options_.checkpoint_extra};
}

void Trainer::need_contents(bool needed) {
  if (needed == contents_needed_) return;
  contents_needed_ = needed;
  if (options_.source_contents) options_.source_contents(needed);
}

Program* Trainer::add_program(Programs& programs, const data::Dataset& data, Mode mode,
                              int64_t batch, Phase phase) {
  std::unique_ptr<Program>& made = programs[{batch, phase}];
  if (made) return made.get();
  StepSpec spec = spec_;
  spec.mode = mode;
  if (mode == Mode::kTrain || phase == Phase::kCount)
    spec.window = {.phase = phase,
                   .accumulate = options_.accumulate,
                   .samples = batch,
                   .nominal = micro_.count(0)};
  spec = spec_for_data(source_, data, spec, batch);
  need_contents(true);
  made = std::make_unique<Program>(source_, spec, store_, arena_, options_.select, options_.compile,
                                   copied_);
  return made.get();
}

Trainer::Window Trainer::window(int64_t step) const {
  const int64_t k = options_.accumulate;
  if (options_.last_batch == data::LastBatch::kWrap) return {step * k, k};
  const data::SamplePosition at = sampler_.position(step);
  const int64_t first = micro_.step_of({at.epoch, at.batch * k});
  return {first, std::min(k, micro_.step_of({at.epoch + 1, 0}) - first)};
}

// One program per phase and size that occurs: an epoch's first window and its last have them all.
void Trainer::make_programs() {
  const int64_t last = std::min(sampler_.steps_per_epoch(), std::max<int64_t>(total_, 1)) - 1;
  for (const int64_t step : {int64_t{0}, last}) {
    const Window w = window(step);
    for (int64_t m = 0; m < w.count; ++m) {
      Program* p = add_program(programs_, train_, Mode::kTrain, micro_.count(w.first + m),
                               phase_of(m, w.count));
      if (step == 0) main_ = p;
    }
  }
  if (options_.watch_every > 0) {
    watched_.clear();
    spec_.watch = true;
    for (const auto& [key, program] : programs_)
      if (key.second == Phase::kOnly || key.second == Phase::kLast)
        add_program(watched_, train_, Mode::kTrain, key.first, key.second);
    spec_.watch = false;
  }
  make_counts();
}

void Trainer::make_eval_programs() {
  const data::Sampler sampler = eval_sampler();
  for (int64_t size : batch_sizes(sampler, sampler.steps_per_epoch()))
    add_program(evals_, *eval_, Mode::kEval, size);
  eval_->check_fits(eval_program()->arrays());
  check_labels(eval_targets(), *eval_);
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
  differs("--accumulate", saved.accumulate, run_.accumulate);
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

// Whether the scale of this step can still fall: then values that are not finite are its fault.
bool Trainer::overflow_is_normal() const {
  if (spec_.loss_scale.kind != LossScaleSpec::Kind::kDynamic) return false;
  return store_.get(kLossScaleName).as_double(0) > spec_.loss_scale.min;
}

// Runs the micro-batches of the next step; the program of the last one holds its results.
Program& Trainer::run_window(data::Loader& loader, data::Loader* labels, StepInfo& info) {
  const Window w = window(run_.step);
  if (labels) count_targets(*labels, w);
  Program* program = nullptr;
  const bool stops = !options_.skip_bad_steps && !overflow_is_normal();
  for (int64_t m = 0; m < w.count; ++m) {
    const auto start = Clock::now();
    const data::Batch* batch = loader.next();
    while (batch && batch->step < w.first + m) batch = loader.next();  // dropped at an epoch's end
    ORTRAIN_CHECK(batch != nullptr, "the loader ended early");
    info.wait_ms += ms_since(start);
    if (options_.timeline) options_.timeline->span("waiting for data", start, Clock::now());
    for (size_t i = 0; i < arrays_.size(); ++i) arrays_[i] = batch->arrays[i].data;
    program = programs_.at({batch->count, phase_of(m, w.count)}).get();
    if (watch_ && m + 1 == w.count && watches()) {
      program = watched_.at({batch->count, phase_of(m, w.count)}).get();
      watch_->before_step();
      watch_->watch(program->executor());
      program->run(arrays_, *watch_);
    } else {
      program->run(arrays_);
    }
    info.samples += batch->count;
    if (m + 1 == w.count || !stops) continue;
    const double loss = program->executor().output(0).as_double(0);
    if (!std::isfinite(loss)) stop_at_nan(loss);
  }
  return *program;
}

// What the step's outputs say; stops the run where they are not finite and that is not normal.
void Trainer::judge(Program& program, StepInfo& info) {
  const Plan& plan = program.plan();
  const auto scalar = [&](const char* name, double missing) {
    const int i = plan.output(name);
    return i < 0 ? missing : program.executor().output(i).as_double(0);
  };
  info.loss = scalar("loss", 0);
  for (auto& [name, value] : info.losses) value = scalar(("loss/" + name).c_str(), 0);
  info.lr = scalar("lr", 0);
  info.grad_norm = scalar("grad_norm", -1);
  info.loss_scale = scalar("loss_scale", 0);
  const double samples = static_cast<double>(info.samples) / static_cast<double>(micro_.count(0));
  const double weight = scalar("weight", samples);
  info.has_loss = weight > 0 || std::isnan(weight);
  info.this_skipped = scalar("finite", 1) == 0;
  if (info.has_loss && std::isfinite(info.loss)) {
    run_.epoch_loss += info.loss * weight;
    run_.epoch_weight += weight;
  }
  info.epoch_loss = run_.epoch_loss / run_.epoch_weight;
  if (!info.this_skipped) {
    skipped_in_a_row_ = 0;
    return;
  }
  const bool normal = spec_.loss_scale.kind == LossScaleSpec::Kind::kDynamic &&
                      info.loss_scale > spec_.loss_scale.min;
  if (!normal && !options_.skip_bad_steps) stop_at_nan(info.loss);
  ++run_.skipped;
  if (++skipped_in_a_row_ == kSkipLimit)
    fail(ErrorCode::kNumeric, "the loss or its gradients were not finite in ", kSkipLimit,
         " steps in a row, up to step ", run_.step + 1);
}

// Every program writes into the timeline, or none.
void Trainer::record(Timeline* timeline) {
  for (auto& [key, p] : programs_) p->executor().set_timeline(timeline);
}

TrainResult Trainer::run(Observer& observer) {
  const Window first = window(run_.step), last_window = window(std::max(total_ - 1, run_.step));
  data::Loader loader(train_, programs_.begin()->second->arrays(), micro_,
                      {.first_step = first.first,
                       .end_step = last_window.first + last_window.count,
                       .threaded = options_.loader_thread,
                       .workers = options_.loader_workers,
                       .prefetch = options_.prefetch,
                       .cpus = options_.loader_cpus});
  std::optional<data::Loader> labels =
      label_loader(first.first, last_window.first + last_window.count);
  TrainResult result;
  const bool saves = !options_.checkpoint_folder.empty();
  int64_t saved_at = run_.step, steps_here = 0;
  double load_ms = 0;
  auto saved_time = Clock::now();
  StepInfo info;  // one for all steps: nothing is allocated in the loop
  for (const Target& t : targets_)
    if (!t.name.empty()) info.losses.emplace_back(t.name, 0);
  while (run_.step < total_ && !result.stopped) {
    const auto start = Clock::now();
    info.samples = 0;
    info.wait_ms = 0;
    const int64_t epoch = sampler_.position(run_.step).epoch;
    const bool watched = watch_ && watches();
    if (options_.timeline)
      record(options_.timeline->begin_step(run_.step + 1) ? options_.timeline : nullptr);
    Program& done = run_window(loader, labels ? &*labels : nullptr, info);
    judge(done, info);
    if (options_.timeline) options_.timeline->end_step();
    info.step = ++run_.step;
    info.steps = total_;
    info.epoch = epoch;
    info.skipped = run_.skipped;
    info.ms = ms_since(start);
    const double loaded = loader.stats().cpu_seconds * 1e3;
    info.load_ms = loaded - load_ms;
    load_ms = loaded;
    observer.on_step(info);
    if (watched)
      observer.on_watch(
          watch_->report(done.executor(), run_.step, info.this_skipped || !info.has_loss));
    watch_recompute(observer, ++steps_here);

    const bool last = run_.step == total_;
    const bool epoch_ends = last || sampler_.position(run_.step).epoch != epoch;
    if (epoch_ends) run_.epoch_loss = run_.epoch_weight = 0;
    if (eval_ &&
        (options_.eval_every > 0 ? run_.step % options_.eval_every == 0 || last : epoch_ends)) {
      result.last_eval = evaluate(&observer);
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

ParamStore Trainer::finish() {
  arena_ = Arena();
  return std::move(store_);
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

EvalResult Trainer::evaluate(Observer* observer) {
  ORTRAIN_CHECK(eval_ != nullptr, "no evaluation data");
  const auto start = Clock::now();
  const AveragedWeights averaged(store_);
  const data::Sampler sampler = eval_sampler();
  data::Loader loader(*eval_, eval_program()->arrays(), sampler,
                      {.end_step = sampler.steps_per_epoch(),
                       .threaded = options_.loader_thread && eval_->heavy(),
                       .workers = options_.loader_workers,
                       .prefetch = options_.prefetch});
  const std::vector<Target> targets = eval_targets();
  Evaluation evaluation(targets);
  EvalResult result;
  while (const data::Batch* batch = loader.next()) {
    Program& p = *evals_.at({batch->count, Phase::kOnly});
    p.run(pointers(*batch));
    evaluation.add(p, *batch);
    if (observer) observer->on_eval_batch(p, *batch, targets);
    result.samples += batch->count;
  }
  static_cast<EvalValues&>(result) = evaluation.values();
  result.step = run_.step;
  result.seconds = ms_since(start) / 1000;
  return result;
}

}  // namespace ortrain
