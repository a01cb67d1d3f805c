// Data sets, specs and runners for the commands.
#include "runtime/cli/setup.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "graph/error.h"
#include "runtime/class_weights.h"
#include "runtime/cli/lora.h"
#include "runtime/cli/losses.h"
#include "runtime/cli/optimizer_flags.h"
#include "runtime/cli/unused.h"
#include "runtime/cli/words.h"
#include "runtime/evaluate.h"
#include "runtime/threads.h"

namespace ortrain::cli {
namespace fs = std::filesystem;

int64_t batch_size(const Context& c, int64_t samples, std::vector<std::string>& notes) {
  const int64_t asked = c.config.integer("batch-size");
  const std::optional<Dim> axis = batch_axis(c.file->graph());
  if (!axis || !axis->is_const()) return std::min(asked, samples);
  const int64_t fixed = axis->value();
  if (fixed > samples)
    fail(ErrorCode::kData, "the model's inputs have the batch size ", fixed,
         " built in, the data has ", samples, " samples");
  if (fixed == asked) return asked;
  if (!c.config.is_default("batch-size"))
    fail(ErrorCode::kShape, "--batch-size ", asked, ", but the model's inputs have the batch size ",
         fixed, " built in; export it with a dynamic batch axis, use --batch-size ", fixed,
         ", or --rebatch");
  notes.push_back(cat("batch size ", fixed, " is built into the model"));
  return fixed;
}

namespace {
// file | off | a ratio, as StepSpec::dropout.
double dropout_ratio(const std::string& text) {
  if (text == "file") return -1;
  if (text == "off") return 0;
  double v = 0;
  if (!parse_number(text, v) || v < 0 || v >= 1)
    fail(ErrorCode::kUsage, "--dropout ", text, ": expected file, off or a ratio in [0, 1)");
  return v;
}
void set_precision(StepSpec& s, const std::string& name) {
  if (name == "fp64") s.compute = DType::kF64;
  if (name == "bf16") s.narrow = DType::kBF16;
  if (name == "fp16") s.narrow = DType::kF16;
  s.tf32 = name == "tf32";
}
}  // namespace

StepSpec make_spec(const Context& c, Mode mode) {
  const Config& k = c.config;
  StepSpec s;
  s.mode = mode;
  read_losses(k, s);
  s.optimizer = optimizer_spec(k);
  s.loss_scale = loss_scale_spec(k.list("loss-scale"), k.text("precision"));
  s.recompute.mode = k.text("recompute");
  // auto is off on CPUs: their products handle the rest of a tile for less than the zeros cost
  // (docs/training.md has the figures).
  if (const std::string& pad = k.text("pad-dims"); pad != "auto" && pad != "off")
    s.pad_multiple = std::stoll(pad);
  s.stop_at_nonfinite =
      k.text("on-nan") != "skip" && s.loss_scale.kind != LossScaleSpec::Kind::kDynamic;
  set_precision(s, k.text("precision"));
  s.seed = static_cast<uint64_t>(k.integer("seed"));
  s.batch_norm = k.text("batch-norm");
  s.file_modes = k.text("training-mode") == "file";
  s.dropout = dropout_ratio(k.text("dropout"));
  if (k.has("lora")) s.lora = parse_lora(k.text("lora"));
  refuse_unused(k, "lora-export", k.has("lora"), "there is no --lora");
  s.train = k.list("train");
  s.freeze = k.list("freeze");
  for (const std::string& name : k.list("disable-pass")) {
    const auto& all = passes();
    const auto it =
        std::find_if(all.begin(), all.end(), [&](const Pass& p) { return name == p.name; });
    if (it == all.end())
      fail(ErrorCode::kUsage, "--disable-pass ", name,
           ": no such pass; see ortrain inspect MODEL --passes");
    if (it->can_disable == Switch::kNeeded)
      fail(ErrorCode::kUsage, "--disable-pass ", name, ": this pass is needed");
    s.disabled.insert(name);
  }
  return s;
}

CompileOptions compile_options(const Context& c) {
  CompileOptions o;
  o.evaluate = make_evaluator();
  if (const std::string& dump = c.config.text("dump-after"); !dump.empty()) {
    const auto& all = passes();
    if (dump != "all" &&
        std::none_of(all.begin(), all.end(), [&](const Pass& p) { return dump == p.name; }))
      fail(ErrorCode::kUsage, "--dump-after ", dump,
           ": no such pass; see ortrain inspect MODEL --passes");
    o.after_pass = [dump](const std::string& pass, const Graph& g) {
      if (dump == "all" || dump == pass)
        std::printf("--- after %s\n%s\n", pass.c_str(), print_graph(g).c_str());
    };
  }
  return o;
}

SelectOptions select_options(const Context& c) {
  return {.reference = c.config.text("kernels") == "ref",
          .threads = set_threads(static_cast<int>(c.config.integer("threads")))};
}

ParamStore::Copied drop_pages(const Context& c) {
  return [file = c.file.get()](const HostTensor& t) { file->drop_pages(t); };
}

StepSpec data_spec(const Context& c, const data::Dataset& data, Mode mode, int64_t batch,
                   std::vector<std::string>& notes) {
  StepSpec spec = make_spec(c, mode);
  const std::vector<LossSpec> losses = spec.losses();
  if (std::none_of(losses.begin(), losses.end(), [](const LossSpec& l) { return l.balance; }))
    return spec_for_data(c.file->graph(), data, spec, batch);
  // Weights belong to the training data, whatever is evaluated.
  std::optional<data::Dataset> training;
  if (mode == Mode::kEval && c.config.has("data"))
    training = open_data(c, c.config.text("data"), DataUse::kTrain);
  const data::Dataset& counted = training ? *training : data;
  const StepSpec bound = spec_for_data(c.file->graph(), counted, spec, batch);
  const auto said = balance_classes(find_targets(c.file->graph(), bound), counted, spec);
  notes.insert(notes.end(), said.begin(), said.end());
  return spec_for_data(c.file->graph(), data, spec, batch);
}

namespace {
DataUse use_of(Mode mode) {
  return mode == Mode::kTrain  ? DataUse::kTrain
         : mode == Mode::kEval ? DataUse::kEval
                               : DataUse::kPredict;
}
}  // namespace

DataRun::DataRun(const Context& c, const std::string& paths, Mode mode, bool short_last)
    : set_(open_data(c, paths, use_of(mode))),
      loader_(loader_settings(c, set_)),
      notes_(set_.notes),
      batch_(batch_size(c, set_.samples(), notes_)) {
  const int64_t total = set_.samples();
  StepSpec wanted = data_spec(c, set_, mode, batch_, notes_);
  const std::string recompute = wanted.recompute.mode;
  memory_ = std::make_unique<StepMemory>(select_options(c));
  CompileOptions options = compile_options(c);
  options.memory = memory_.get();
  const bool trains = mode == Mode::kTrain || mode == Mode::kGrads;
  const MemoryBudget budget =
      trains ? parse_budget(c.config.text("memory-budget")) : MemoryBudget();
  fit_ = fit_budget(recompute, budget, trains ? memory_limit() : 0, [&](const RecomputeSpec& r) {
    wanted.recompute = r;
    programs_.clear();
    Footprint used;
    for (int64_t size : {batch_, short_last ? total % batch_ : 0}) {
      if (size == 0 || programs_.contains(size)) continue;
      const StepSpec spec = spec_for_data(c.file->graph(), set_, wanted, size);
      if (size == batch_) spec_ = spec;
      programs_[size] = std::make_unique<Program>(c.file->graph(), spec, store_, arena_,
                                                  select_options(c), options, drop_pages(c));
      used.arena = std::max(used.arena, programs_[size]->plan().arena_bytes);
      const RecomputeReport& report = programs_[size]->recompute();
      if (report.bound > used.bound) used.bound = report.bound, used.bound_node = report.bound_node;
    }
    used.fixed = store_.bytes();
    arena_ = Arena();
    arena_.reserve(used.arena);
    return used;
  });
  if (!fit_.fits) refuse_budget(fit_, budget.given(), "");
  const data::Fit fit = set_.check_fits(program().arrays());
  for (const auto* list : {&fit.notes, &program().messages()})
    notes_.insert(notes_.end(), list->begin(), list->end());
  if (mode == Mode::kEval) targets_ = find_targets(c.file->graph(), spec_);
  c.file->release_copies();
  store_.prefault();
  arena_.allocate();
  for (auto& [size, p] : programs_) p->start(arena_);
}

data::Sampler DataRun::sampler() const {
  return data::Sampler({.samples = set_.samples(), .batch_size = batch_, .shuffle = false});
}

void DataRun::run_one(const data::Batch& b) { programs_.at(b.count)->run(pointers(b)); }

void explain_missing_data(const Context& c, const std::string& command) {
  const Graph& g = c.file->graph();
  std::string wants;
  for (ValueId v : g.inputs()) {
    const Value& x = g.value(v);
    wants += cat("\n  ", x.name, "  ", name_of(x.dtype), x.shape.str());
  }
  const std::string recipe = fs::path(c.model_path).replace_extension(".toml").string();
  fail(ErrorCode::kUsage, "no data: give arrays whose first axis counts samples:", wants,
       "\n  labels  class numbers (i64) or targets (f32); not needed when the model's output is "
       "its loss",
       "\nWrite them with numpy.savez(\"train.npz\", ...) and run:\n  ortrain ",
       command.empty() ? "" : command + " ", c.model_path, " --data train.npz",
       "\nor let it look at data of another kind (pictures, tables, text) and write the recipe ",
       recipe, ":\n  ortrain init ", c.model_path, " --data PATH");
}

namespace {
std::string run_name(const Context& c) {
  const std::string stem = fs::path(c.model_path).parent_path().filename().string();
  const std::string name = fs::path(c.model_path).stem().string();
  return name == "model" && !stem.empty() ? stem : name;
}

// The highest N of runs/NAME-N; 0: there is none.
int64_t newest_number(const std::string& name) {
  int64_t newest = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("runs", ignored)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(name + "-")) continue;
    const std::string digits = file.substr(name.size() + 1);
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    newest = std::max<int64_t>(newest, std::stoll(digits));
  }
  return newest;
}
}  // namespace

std::string newest_run(const Context& c, const std::string& flag) {
  const std::string name = run_name(c);
  const int64_t newest = newest_number(name);
  if (newest == 0)
    fail(ErrorCode::kUsage, "no run of this model under runs/; name its folder with ", flag);
  return cat("runs/", name, "-", newest);
}

std::string run_folder(const Context& c, bool resume) {
  if (c.config.has("out")) return c.config.text("out");
  if (resume) return newest_run(c, "--out");
  const std::string name = run_name(c);
  return cat("runs/", name, "-", newest_number(name) + 1);
}

std::string count_text(int64_t n) {
  std::string s = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(s.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3)
    s.insert(static_cast<size_t>(i), ",");
  return s;
}

}  // namespace ortrain::cli
