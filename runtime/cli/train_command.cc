// `ortrain MODEL`: trains, shows progress, saves checkpoints and writes the trained model.
//
// A run folder holds run.jsonl (one object per step), recipe.toml (the settings), checkpoints/,
// what run_outputs.h writes and, at the end, model.onnx. The first SIGINT or SIGTERM finishes the
// step, saves and exits with 128 + signal; the second one kills. Nothing of a folder that already
// holds a run is touched without
// --resume.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "graph/error.h"
#include "ops/common/half_units.h"
#include "runtime/cli/export.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/run_outputs.h"
#include "runtime/cli/run_recipe.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/watch_text.h"
#include "runtime/data/fingerprint.h"
#include "runtime/ema.h"
#include "runtime/trainer.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kWarmup = 3;  // steps before a timeline begins

volatile std::sig_atomic_t g_signal = 0;
extern "C" void on_signal(int signal) {
  g_signal = signal;
  std::signal(signal, SIG_DFL);
}

std::string short_number(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", v);
  return buffer;
}

std::string input_text(double waited, double loaded, double total) {
  if (total <= 0 || waited < 0.1 * total) return {};
  char text[96];
  std::snprintf(text, sizeof text, "input-bound: %.0f %% of step, loading %.1f cores",
                100 * waited / total, loaded / total);
  return text;
}

class CliObserver : public Observer {
 public:
  CliObserver(Progress& progress, RunOutputs& outputs, int64_t epochs)
      : progress_(progress), outputs_(outputs), epochs_(epochs) {}
  void on_step(const StepInfo& s) override {
    StepLine line{.step = s.step,
                  .steps = s.steps,
                  .epoch = s.epoch + 1,
                  .epochs = epochs_,
                  .loss = s.loss,
                  .losses = s.losses,
                  .has_loss = s.has_loss,
                  .epoch_loss = s.epoch_loss,
                  .lr = s.lr,
                  .grad_norm = s.grad_norm,
                  .loss_scale = s.loss_scale,
                  .samples_per_s = 0,
                  .ms = s.ms,
                  .wait_ms = s.wait_ms,
                  .load_ms = s.load_ms,
                  .skipped = s.skipped,
                  .this_skipped = s.this_skipped};
    waited_ += s.wait_ms;
    loaded_ += s.load_ms;
    total_ += s.ms;
    // Of the last steps, about ten seconds' worth: what is going on now.
    const double keep = std::max(0.0, 1 - s.ms / 10e3);
    recent_wait_ = recent_wait_ * keep + s.wait_ms;
    recent_load_ = recent_load_ * keep + s.load_ms;
    recent_ = recent_ * keep + s.ms;
    line.input = input_text(recent_wait_, recent_load_, recent_);
    samples_ += s.samples;
    line.samples_per_s = static_cast<double>(s.samples) / std::max(s.ms, 1e-6) * 1e3;
    outputs_.step(line);
    line.samples_per_s = static_cast<double>(samples_) / std::max(total_, 1e-6) * 1e3;
    if (s.this_skipped)
      progress_.line(cat("step ", s.step, ": ", std::isfinite(s.loss) ? "a gradient" : "the loss",
                         " is not finite", s.loss_scale > 0 ? " at loss scale " : "",
                         s.loss_scale > 0 ? short_number(s.loss_scale) : "", "; step skipped"));
    if (!s.has_loss) progress_.line(cat("step ", s.step, ": no valid target; nothing was updated"));
    progress_.step(line);
    if (s.has_loss) last_loss_ = s.loss;
  }
  void on_eval_batch(Program& program, const data::Batch& batch,
                     const std::vector<Target>& targets) override {
    outputs_.batch(program, batch, targets);
  }
  void on_eval(const EvalResult& e) override {
    std::string text = cat("step ", e.step, "  evaluation");
    if (e.has_loss) text += "  loss " + short_number(e.loss);
    for (const auto& [name, loss] : e.losses) text += cat("  loss/", name, " ", short_number(loss));
    for (const Metric& m : e.metrics) text += "  " + m.name + " " + short_number(m.value);
    outputs_.eval(e);
    progress_.line(text);
  }
  void on_watch(const WatchReport& r) override {
    outputs_.watch(r);
    for (const std::string& line : watch_lines(r)) progress_.line(line);
  }
  void on_note(const std::string& text) override {
    outputs_.note(text);
    progress_.line(text);
  }
  void before_checkpoint() override { outputs_.flush(); }
  bool should_stop() override { return g_signal != 0; }
  // "" where waiting for data costs less than a tenth of the time.
  std::string input_bound() const { return input_text(waited_, loaded_, total_); }
  double samples_per_s() const {
    return static_cast<double>(samples_) / std::max(total_, 1e-6) * 1e3;
  }
  // Of the last step that had one; NaN: no step had a target.
  double last_loss() const { return last_loss_; }
  std::string best_text() const {
    std::string out;
    for (const auto& [name, at] : outputs_.best())
      if (name.find("loss") == std::string::npos)
        out += cat(out.empty() ? "" : ", ", name, " ", short_number(at.first), " (step ", at.second,
                   ")");
    return out;
  }

 private:
  Progress& progress_;
  RunOutputs& outputs_;
  int64_t epochs_, samples_ = 0;
  double waited_ = 0, loaded_ = 0, total_ = 0, last_loss_ = NAN;
  double recent_wait_ = 0, recent_load_ = 0, recent_ = 0;
};

void prepare_folder(const std::string& out, bool resume) {
  std::error_code error;
  fs::create_directories(fs::path(out) / "checkpoints", error);
  if (error) fail(ErrorCode::kIo, "cannot create the run folder ", out, ": ", error.message());
  if (!resume && !fs::is_empty(fs::path(out) / "checkpoints", error))
    fail(ErrorCode::kUsage, out,
         " already holds a run; continue it with --resume or choose another --out");
}

// Sums are split by thread, so the bits of a run belong to a number of threads.
using Extra = std::map<std::string, std::string>;  // of a checkpoint
void check_threads(const Context& c, const Extra& saved, const TrainOptions& now) {
  const auto was = saved.find("threads");
  const std::string& is = now.checkpoint_extra.at("threads");
  if (was == saved.end() || was->second == is) return;
  const std::string text = cat("the run had ", was->second, " threads, now there are ", is);
  if (c.config.on("deterministic"))
    fail(ErrorCode::kUsage, text, ": with --deterministic go on with --threads ", was->second);
  std::printf("note: %s; the last bits of its numbers may differ from here on\n", text.c_str());
}

// Other data is allowed (more was collected, a file was mended), but not unnoticed.
void check_data(const Extra& saved, const TrainOptions& now) {
  const auto was = saved.find("data");
  if (was == saved.end() || was->second == now.checkpoint_extra.at("data")) return;
  std::printf(
      "note: these are not the samples that the run began with (fingerprint %s, was %s); it goes "
      "on "
      "with them, but not to the result of an unbroken run\n",
      now.checkpoint_extra.at("data").c_str(), was->second.c_str());
}

void announce(const Context& c, Trainer& t, const data::Dataset& data, int64_t batch,
              const std::string& out) {
  int64_t count = 0, tensors = 0;
  for (const StoreEntry& e : t.store().entries())
    if (e.trainable) count += element_count(e.dims), ++tensors;
  std::printf("%s: %s parameters in %s tensors\n", c.model_path.c_str(), count_text(count).c_str(),
              count_text(tensors).c_str());
  const int64_t k = c.config.integer("accumulate");
  const std::string effective =
      k > 1 ? cat(batch, " x ", k, " accumulated = ", count_text(batch * k)) : cat(batch);
  std::printf("%s samples, batch %s, %lld steps per epoch, %lld steps; %s, lr %s, %s\n",
              count_text(data.samples()).c_str(), effective.c_str(),
              static_cast<long long>(t.steps_per_epoch()), static_cast<long long>(t.total_steps()),
              c.config.text("optimizer").c_str(), c.config.text("lr").c_str(),
              c.config.text("precision").c_str());
  std::printf("memory: %s\n", t.memory_text().c_str());
  for (const std::string& p : c.file->problems()) std::printf("note: %s\n", p.c_str());
  for (const std::string& m : t.messages()) std::printf("note: %s\n", m.c_str());
  const std::string precision = c.config.text("precision");
  const bool bf16 = precision == "bf16", fp16 = precision == "fp16";
  if ((bf16 || fp16) && !ops::native_half(bf16 ? DType::kBF16 : DType::kF16))
    std::printf(
        "note: this CPU has no fast units for %s: its numbers are widened and multiplied in "
        "f32, which saves memory and takes somewhat more time than fp32\n",
        precision.c_str());
  std::printf("run folder: %s\n", out.c_str());
  std::fflush(stdout);
}

}  // namespace

int run_train(Context& c) {
  if (c.config.on("print-config")) return std::printf("%s", c.config.print().c_str()), 0;
  if (!c.config.has("data")) explain_missing_data(c, "");
  parse_sinks(c.config.list("log-to"));  // a wrong word is refused before a folder is made
  const bool resume = c.config.on("resume");
  std::vector<std::string> notes = c.notes;
  const data::Dataset train = open_data(c, c.config.text("data"), DataUse::kTrain);
  keep_data_settings(c, train);
  std::optional<data::Dataset> eval;
  if (c.config.has("eval-data"))
    eval = open_data(c, c.config.text("eval-data"), DataUse::kEval);
  else if (c.config.has("split"))
    eval = open_data(c, c.config.text("data"), DataUse::kEval);
  const LoaderSettings loading = loader_settings(c, train);
  notes.insert(notes.end(), train.notes.begin(), train.notes.end());
  if (!loading.note.empty()) notes.push_back(loading.note);
  const std::string out = run_folder(c, resume);
  const int64_t batch = batch_size(c, train.samples(), notes);
  TrainOptions o;
  o.batch_size = batch;
  o.accumulate = c.config.integer("accumulate");
  o.steps = c.config.has("steps") ? c.config.integer("steps") : 0;
  o.epochs = c.config.has("epochs") ? c.config.integer("epochs") : 1;
  o.shuffle = c.config.text("shuffle") != "none";
  const std::string& last = c.config.text("last-batch");
  o.last_batch = last == "drop"   ? data::LastBatch::kDrop
                 : last == "wrap" ? data::LastBatch::kWrap
                                  : data::LastBatch::kKeep;
  o.eval_every = c.config.integer("eval-every");
  o.skip_bad_steps = c.config.text("on-nan") == "skip";
  o.watch_every = c.config.integer("watch");
  o.checkpoint_folder = (fs::path(out) / "checkpoints").string();
  o.checkpoint_every = c.config.integer("checkpoint-every");
  o.keep = static_cast<int>(c.config.integer("keep"));
  o.checkpoint_extra = {{"model", fs::absolute(c.model_path).lexically_normal().string()}};
  if (c.config.has("lora")) o.checkpoint_extra["lora"] = c.config.text("lora");
  o.loader_workers = loading.workers;
  o.prefetch = loading.prefetch;
  o.loader_cpus = loading.cpus;
  o.select = select_options(c);
  o.checkpoint_extra["data"] = data::fingerprint(train);
  o.checkpoint_extra["threads"] = std::to_string(o.select.threads);
  o.compile = compile_options(c);
  o.source_contents = [&](bool needed) {
    if (needed)
      c.file->graph();
    else
      c.file->release_copies();
  };
  o.budget = parse_budget(c.config.text("memory-budget"));
  std::optional<Timeline> timeline;
  if (const int64_t steps = c.config.integer("profile"); steps > 0)
    o.timeline = &timeline.emplace(steps, kWarmup);
  const StepSpec spec = make_spec(c, Mode::kTrain);
  const LoraExport lora(c, spec.lora, c.config.text("lora-export"));
  Trainer trainer(c.file->graph(), train, eval ? &*eval : nullptr, spec, o, drop_pages(c));

  prepare_folder(out, resume);
  if (resume) {
    std::vector<std::string> damaged;
    const auto newest = checkpoint::newest(o.checkpoint_folder, &damaged);
    for (const std::string& d : damaged) std::printf("note: %s\n", d.c_str());
    if (newest) {
      const Extra saved = checkpoint::read_run(*newest).extra;
      check_threads(c, saved, o);
      check_data(saved, o);
      trainer.resume(*newest);
    } else
      std::printf("note: no complete checkpoint in %s; starting from the beginning\n",
                  o.checkpoint_folder.c_str());
  }
  const bool quiet = c.config.on("quiet");
  if (!quiet) announce(c, trainer, train, batch, out);
  if (!quiet)
    for (const std::string& n : notes) std::printf("note: %s\n", n.c_str());
  if (resume && !quiet)
    std::printf("resumed after step %lld\n", static_cast<long long>(trainer.step()));
  write_recipe(c, out);
  write_vocabularies(c, out);
  write_skipped(train, out);
  Progress progress(quiet, trainer.memory_bytes());
  RunOutputs outputs(c, trainer, train, eval ? &*eval : nullptr, out, resume,
                     timeline ? &*timeline : nullptr);
  CliObserver observer(progress, outputs, o.steps > 0 ? 0 : o.epochs);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  const auto started = std::chrono::steady_clock::now();
  const TrainResult result = trainer.run(observer);
  progress.finish();
  write_skipped(train, out);
  outputs.flush();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

  if (result.stopped) {
    outputs.finish("stopped");
    std::printf(
        "stopped by signal %d after step %lld; checkpoint %s\ncontinue with: ortrain %s --resume "
        "--out %s\n",
        static_cast<int>(g_signal), static_cast<long long>(result.step), result.checkpoint.c_str(),
        c.model_path.c_str(), out.c_str());
    return 128 + static_cast<int>(g_signal);
  }
  const std::string model = (fs::path(out) / "model.onnx").string();
  {
    std::map<std::string, std::string> metadata{{"ortrain.step", std::to_string(result.step)}};
    add_data_metadata(c, metadata);
    const bool averages = c.config.number("ema") > 0;
    if (averages) metadata["ortrain.weights"] = "averages of decay " + c.config.text("ema");
    std::optional<ExportDraft> draft;
    {
      ParamStore store = trainer.finish();
      const AveragedWeights averaged(store);
      draft.emplace(c, store, model, metadata, lora);
    }
    draft->publish(train);
    if (averages)
      std::printf("the model holds averages of the weights (--ema %s)\n",
                  c.config.text("ema").c_str());
  }
  std::printf("done: %lld steps in %s, %.0f samples/s, last loss %s\n",
              static_cast<long long>(result.step), duration_text(seconds).c_str(),
              observer.samples_per_s(),
              std::isnan(observer.last_loss()) ? "n/a: no step had a valid target"
                                               : short_number(observer.last_loss()).c_str());
  if (const std::string best = observer.best_text(); !best.empty())
    std::printf("best: %s\n", best.c_str());
  if (result.skipped > 0)
    std::printf("%lld steps were skipped because their loss or gradients were not finite\n",
                static_cast<long long>(result.skipped));
  if (const std::string input = observer.input_bound(); !input.empty())
    std::printf("%s\n", input.c_str());
  if (const int64_t skipped = train.skips().count(); skipped > 0)
    std::printf("%lld samples could not be read and were left out: %s\n",
                static_cast<long long>(skipped), (fs::path(out) / "skipped.txt").c_str());
  outputs.finish("done");
  std::printf("model: %s\n%s", model.c_str(), outputs.written().c_str());
  if (const std::string adapters = (fs::path(out) / "adapters").string(); fs::exists(adapters))
    std::printf("adapters: %s\n", adapters.c_str());
  return 0;
}

}  // namespace ortrain::cli
