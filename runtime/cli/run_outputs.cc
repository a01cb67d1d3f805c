// See run_outputs.h.
#include "runtime/cli/run_outputs.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "graph/error.h"
#include "ortrain_config.h"
#include "runtime/cli/flags.h"
#include "runtime/cli/machine.h"
#include "runtime/cli/report.h"
#include "runtime/cli/watch_text.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

constexpr double kSampleEvery = 0.25, kFlushEvery = 1, kReportEvery = 10;  // seconds

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string log_path(const Context& c, const std::string& folder) {
  return c.config.has("log") ? c.config.text("log") : (fs::path(folder) / "run.jsonl").string();
}

ordered_json facts_of(const Context& c, Trainer& t, const data::Dataset& train,
                      const data::Dataset* eval, const std::string& folder) {
  int64_t parameters = 0, tensors = 0;
  for (const StoreEntry& e : t.store().entries())
    if (e.trainable) parameters += element_count(e.dims), ++tensors;
  const Machine m = this_machine();
  const Plan& plan = t.program().plan();
  ordered_json j{{"model", c.model_path}, {"data", c.config.text("data")}};
  if (eval) j["eval_data"] = c.config.text("eval-data");
  j["samples"] = train.samples();
  if (eval) j["eval_samples"] = eval->samples();
  j["parameters"] = parameters;
  j["tensors"] = tensors;
  j["batch_size"] = std::min(c.config.integer("batch-size"), train.samples());
  j["accumulate"] = c.config.integer("accumulate");
  j["steps_per_epoch"] = t.steps_per_epoch();
  j["optimizer"] = c.config.text("optimizer");
  j["lr"] = c.config.text("lr");
  j["precision"] = c.config.text("precision");
  j["memory"] = {{"planned", t.memory_bytes()},
                 {"arena", plan.arena_bytes},
                 {"parameters", plan.params},
                 {"states", plan.states},
                 {"constants", plan.constants}};
  j["flops_per_step"] = plan.flops;
  j["started"] = utc_now();
  j["log"] = fs::absolute(log_path(c, folder)).lexically_normal().string();
  j["host"] = m.host;
  j["machine"] = {{"cpu", m.cpu},   {"cores", m.cores},   {"threads", select_options(c).threads},
                  {"simd", m.simd}, {"memory", m.memory}, {"system", m.system}};
  j["versions"] = {{"ortrain", kVersion},
                   {"oneDNN", kOneDnnVersion},
                   {"ONNX IR", kOnnxIrVersion},
                   {"compiler", __VERSION__}};
  return j;
}

ordered_json eval_json(const EvalResult& e) {
  ordered_json j;
  if (e.has_loss) j["loss"] = e.loss;
  for (const auto& [name, loss] : e.losses) j["loss/" + name] = loss;
  for (const Metric& m : e.metrics) j[m.name] = m.value;
  return j;
}

}  // namespace

LogSinks parse_sinks(const std::vector<std::string>& words) {
  LogSinks s;
  for (const std::string& w : words) {
    if (w == "report")
      s.report = true;
    else if (w == "tensorboard")
      s.tensorboard = true;
    else if (w == "histograms")
      s.tensorboard = s.histograms = true;
    else if (w == "mlflow")
      s.mlflow = true;
    else if (w.starts_with("mlflow=") && w.size() > 7)
      s.mlflow = true, s.mlflow_folder = w.substr(7);
    else if (w != "none")
      fail(ErrorCode::kUsage, "--log-to ", w,
           ": expected report, tensorboard, histograms, mlflow, mlflow=FOLDER or none");
  }
  return s;
}

RunOutputs::RunOutputs(const Context& c, Trainer& trainer, const data::Dataset& train,
                       const data::Dataset* eval, const std::string& folder, bool resumed,
                       const Timeline* timeline)
    : folder_(folder),
      sinks_(parse_sinks(c.config.list("log-to"))),
      trainer_(trainer),
      eval_(eval),
      log_(log_path(c, folder), resumed, trainer.step()),
      timeline_(timeline),
      recipe_(c.config.recipe()),
      notes_(trainer.messages()),
      began_(now()) {
  file_.facts = facts_of(c, trainer, train, eval, folder);
  file_.step = trainer.step();
  file_.steps = trainer.total_steps();
  if (resumed && is_run(folder)) {
    const RunSummary before = read_run(folder);
    history_ = read_history(before);
    earlier_ = before.seconds;
    file_.best = before.best;
    if (before.json.is_object() && before.json.contains("started"))
      file_.facts["started"] = before.json["started"];
  }
  if (sinks_.report) memory_ = memory_json(trainer.program().plan());
  if (sinks_.tensorboard) {
    events_.emplace(folder, trainer.step());
    if (trainer.step() == 0) events_->text("recipe", 0, "```\n" + recipe_ + "```");
  }
  if (sinks_.mlflow) {
    std::map<std::string, std::string> params;
    for (const Flag& f : flag_table())
      if (f.in_recipe && c.config.has(f.name)) params[f.name] = c.config.text(f.name);
    params["model"] = c.model_path;
    mlflow_.emplace(sinks_.mlflow_folder, fs::path(folder).filename().string(), params);
  }
  file_.write(folder_);
}

RunOutputs::~RunOutputs() {
  if (finished_) return;  // an Error is on its way: finish() was not reached
  try {
    finish("failed", file_.error.empty() ? "ended by an error" : file_.error);
  } catch (const std::exception&) {  // the first error is the one to tell
  }
}

void RunOutputs::step(const StepLine& line) {
  const double t = now();
  if (t - sampled_ > kSampleEvery) {
    sampled_ = t;
    resident_ = resident_bytes();
  }
  ordered_json row = log_row(line);
  row["rss_bytes"] = resident_;
  log_.write(row);
  history_.add(row);
  file_.step = line.step;
  for (const auto& [key, value] : row.items()) {
    if (!value.is_number() || key == "step" || key == "epoch") continue;
    if (events_) events_->scalar("train/" + key, line.step, value);
    if (mlflow_) mlflow_->metric("train/" + key, line.step, value);
  }
  if (t - flushed_ > kFlushEvery) flush();
}

void RunOutputs::batch(Program& program, const data::Batch& batch,
                       const std::vector<Target>& targets) {
  if (!sinks_.report && !sinks_.tensorboard) return;
  look_.add(program, batch, targets);
  if (!look_.class_names.empty() || targets.empty()) return;
  const auto names = eval_->vocabularies.find(targets[0].label);
  if (names != eval_->vocabularies.end()) look_.class_names = names->second;
}

void RunOutputs::eval(const EvalResult& e) {
  const ordered_json values = eval_json(e);
  log_.write({{"step", e.step}, {"eval", values}});
  history_.add({{"step", e.step}, {"eval", values}});
  for (const auto& [name, value] : values.items()) {
    const double v = value;
    auto [it, fresh] = file_.best.try_emplace(name, v, e.step);
    if (!fresh && (higher_is_better(name) ? v > it->second.first : v < it->second.first))
      it->second = {v, e.step};
    if (events_) events_->scalar("eval/" + name, e.step, v);
    if (mlflow_) mlflow_->metric("eval/" + name, e.step, v);
  }
  if (events_) write_events(e);
  if (now() - reported_ > kReportEvery) write_report();
}

// Histograms of the parameters; pictures of the evaluation data with the model's answers.
void RunOutputs::write_events(const EvalResult& e) {
  if (sinks_.histograms)
    for (const StoreEntry& p : trainer_.store().entries())
      if (p.trainable && p.dtype == DType::kF32)
        events_->histogram(
            "parameters/" + p.name, e.step,
            {reinterpret_cast<const float*>(p.data), static_cast<size_t>(element_count(p.dims))});
  if (look_.pictures().empty()) return;
  std::string table = "| picture | label | answer | probability |\n|---|---|---|---|\n";
  for (size_t i = 0; i < look_.pictures().size(); ++i) {
    const EvalLook::Sample& s = look_.pictures()[i];
    events_->picture(cat("pictures/", i), e.step, s.picture.width, s.picture.height,
                     s.picture.channels, s.picture.png);
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", s.probability);
    const auto name = [&](int64_t k) {
      const auto at = static_cast<size_t>(k);
      return at < look_.class_names.size() ? look_.class_names[at] : std::to_string(k);
    };
    table += s.label >= 0
                 ? cat("| ", i, " | ", name(s.label), " | ", name(s.said), " | ", text, " |\n")
                 : cat("| ", i, " | ", s.target, " | ", s.output, " | |\n");
  }
  events_->text("pictures/answers", e.step, table);
}

void RunOutputs::watch(const WatchReport& report) { log_.write(watch_json(report)); }

void RunOutputs::note(const std::string& text) { notes_.push_back(text); }

void RunOutputs::flush() {
  flushed_ = now();
  log_.flush();
  if (events_) events_->flush();
  if (mlflow_) mlflow_->flush();
}

void RunOutputs::write_report() {
  reported_ = now();
  file_.seconds = earlier_ + reported_ - began_;
  file_.write(folder_);
  if (timeline_path_.empty() && timeline_ && timeline_->recorded() > 0 &&
      (timeline_->done() || finished_)) {
    timeline_path_ = (fs::path(folder_) / "timeline.json").string();
    timeline_->write(timeline_path_);
  }
  if (!sinks_.report) return;
  ordered_json run = file_.json();
  run["name"] = fs::path(folder_).lexically_normal().filename().string();
  run["peak_rss_bytes"] = peak_resident_bytes();
  ordered_json j{{"run", std::move(run)}, {"history", history_.json()}, {"memory", memory_}};
  if (!look_.empty()) j["look"] = look_.json();
  if (timeline_ && timeline_->recorded() > 0) {
    j["operators"] = ordered_json::array();
    for (const Timeline::Total& o : timeline_->totals())
      j["operators"].push_back({{"name", o.name},
                                {"ms", rounded(o.ms)},
                                {"share", rounded(o.share)},
                                {"calls", o.calls}});
  }
  j["notes"] = notes_;
  j["recipe"] = recipe_;
  write_page((fs::path(folder_) / "report.html").string(), "report", j["run"]["name"], j);
}

void RunOutputs::finish(const std::string& state, const std::string& error) {
  finished_ = true;
  file_.state = state;
  file_.error = error;
  flush();
  write_report();
  if (!mlflow_) return;
  for (const char* name : {"report.html", "model.onnx", "recipe.toml"})
    mlflow_->artifact((fs::path(folder_) / name).string());
  mlflow_->finish(state != "failed");
}

std::string RunOutputs::written() const {
  std::string out;
  if (!timeline_path_.empty())
    out += cat("timeline: ", timeline_path_, " (", timeline_->recorded(),
               " steps; open it in ui.perfetto.dev)\n");
  if (mlflow_) out += cat("mlflow: ", mlflow_->folder(), "\n");
  if (sinks_.report) out += cat("report: ", (fs::path(folder_) / "report.html").string(), "\n");
  return out;
}

}  // namespace ortrain::cli
