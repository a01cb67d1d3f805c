// Every optimizer, schedule, clipping and group against the trajectories of PyTorch (or the paper's
// formula) in tests/golden/optimizers, from the command line's flags down; resuming with each.
//
// Errors relative to the largest magnitude in the tensor: float64 1e-13, float32 5e-6 (the largest
// seen: 4e-15 and 1.7e-6).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/builder.h"
#include "graph/error.h"
#include "ortrain_test_paths.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/cli/optimizer_flags.h"
#include "runtime/data/safetensors.h"
#include "runtime/program.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kSteps = 50;
const int64_t kKept[] = {5, 50};

OptimizerSpec spec_of(const std::string& flags) {
  std::vector<std::string> words{"ortrain"};
  std::istringstream in(flags);
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const cli::CommandLine line =
      cli::parse_command_line(static_cast<int>(argv.size()), argv.data(), {"train"});
  EXPECT_TRUE(line.positional.empty()) << flags;
  cli::Config config;
  for (const auto& [name, value] : line.flags) config.set(name, value, "--" + name);
  return cli::optimizer_spec(config);
}

struct Case {
  std::string name, flags;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> out;
    std::ifstream in(std::string(test::kSourceDir) + "/tests/golden/optimizers/cases.txt");
    for (std::string line; std::getline(in, line);) {
      const size_t space = line.find(' ');
      out.push_back({line.substr(0, space), line.substr(space + 1)});
    }
    return out;
  }();
  return list;
}

// All tensors of the file by name.
const std::map<std::string, HostTensor>& golden() {
  static const std::map<std::string, HostTensor> tensors = [] {
    const data::ArrayFile file = data::open_safetensors(
        std::string(test::kSourceDir) + "/tests/golden/optimizers/cases.safetensors");
    std::map<std::string, HostTensor> out;
    for (const data::StoredArray& a : file.arrays) out.emplace(a.name, a.tensor().clone());
    return out;
  }();
  return tensors;
}

HostTensor as(DType dtype, const HostTensor& t, int64_t first, const Dims& dims) {
  HostTensor out(dtype, dims);
  for (int64_t i = 0; i < out.count(); ++i) out.set_double(i, t.as_double(first + i));
  return out;
}

std::vector<std::string> params() {
  std::vector<std::string> out;
  for (const char* name : {"conv.weight", "fc.weight", "fc.bias", "out.weight", "scale"})
    out.push_back(name);
  return out;
}

// loss = sum over all parameters of p * gradient, so that the gradients are the inputs; for
// matrices the trace of a product, so that they look like weights.
Graph model(DType dtype) {
  Graph g(test::all_ops());
  Builder b(g, "model");
  Expr loss;
  for (const std::string& name : params()) {
    const HostTensor& start = golden().at("start/" + name);
    const Expr p = b.wrap(g.add_param(as(dtype, start, 0, start.dims()), name));
    const Expr x = b.wrap(g.add_input("grad." + name, dtype, Shape(start.dims())));
    std::vector<int64_t> axes;
    for (int a = 0; a < start.rank(); ++a) axes.push_back(a);
    Expr each = p * x;
    if (axes.size() == 2) {
      const int64_t rows = start.dims()[0];
      HostTensor identity(dtype, {rows, rows});
      for (int64_t i = 0; i < rows; ++i) identity.set_double(i * rows + i, 1);
      each = b.op("MatMul", {p, x}, {{"trans_b", int64_t{1}}}) * b.constant(std::move(identity));
    }
    const Expr sum = b.sum(each, axes, false);
    loss = loss ? loss + sum : sum;
  }
  g.add_output(loss.id(), "loss");
  return g;
}

double worst_error(const HostTensor& got, const HostTensor& want, int64_t first) {
  double scale = 0, worst = 0;
  for (int64_t i = 0; i < got.count(); ++i) {
    const double w = want.as_double(first + i), error = std::fabs(got.as_double(i) - w);
    scale = std::max(scale, std::fabs(w));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst / std::max(scale, 1e-3);
}

double run(const Case& c, DType dtype) {
  const Graph g = model(dtype);
  StepSpec spec;
  spec.mode = Mode::kTrain;
  spec.compute = dtype;
  spec.loss.kind = "graph";
  spec.train = {""};  // "scale" looks like a constant
  spec.optimizer = spec_of(c.flags);
  spec.optimizer.total_steps = kSteps;
  ParamStore store;
  Arena arena;
  Program program(g, spec, store, arena, {.threads = 2});
  arena.allocate();
  program.start(arena);
  double worst = 0;
  for (int64_t t = 0; t < kSteps; ++t) {
    std::vector<HostTensor> batch;
    std::vector<const void*> pointers;
    for (const data::ArraySpec& a : program.arrays()) {
      const HostTensor& all = golden().at("grads/" + a.name.substr(5));
      batch.push_back(as(dtype, all, t * element_count(a.dims), a.dims));
      pointers.push_back(batch.back().raw());
    }
    EXPECT_EQ(pointers.size(), params().size());
    program.run(pointers);
    for (int64_t k = 0; k < 2; ++k) {
      if (t + 1 != kKept[k]) continue;
      for (const std::string& name : params()) {
        const HostTensor now = store.get(name);
        worst =
            std::max(worst, worst_error(now, golden().at(c.name + "/" + name), k * now.count()));
        if (spec.optimizer.ema == 0) continue;
        worst = std::max(worst, worst_error(store.get(name + "/ema"),
                                            golden().at(c.name + "/ema/" + name), k * now.count()));
      }
    }
  }
  return worst;
}

TEST(Optimizers, TrajectoriesInFloat64) {
  EXPECT_GE(cases().size(), 90u);
  for (const Case& c : cases()) {
    const double error = run(c, DType::kF64);
    EXPECT_LE(error, 1e-13) << c.name << ": " << c.flags;
  }
}

TEST(Optimizers, TrajectoriesInFloat32) {
  for (const Case& c : cases()) {
    const double error = run(c, DType::kF32);
    EXPECT_LE(error, 5e-6) << c.name << ": " << c.flags;
    EXPECT_GT(error, 0) << c.name;
  }
}

// Bits of parameters and every state: a run of 9 steps, and the same stopped after 4 and resumed;
// each optimizer, schedule and clipping also with micro-batches and a loss scale that grows.
TEST(Optimizers, ResumeIsBitIdentical) {
  std::string folder = (fs::temp_directory_path() / "ortrain-optimizers-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(24);
  std::vector<std::pair<Case, bool>> runs;
  for (const Case& c : cases()) {
    if (c.name.starts_with("group_") || c.name.starts_with("adamw_no_decay_regex")) continue;
    runs.emplace_back(c, false);
    runs.emplace_back(c, true);
  }
  for (const auto& [c, scaled] : runs) {
    SCOPED_TRACE(c.name + (scaled ? ", scaled" : ""));
    StepSpec spec = test::small_spec();
    if (scaled)
      spec.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic, .init = 64, .interval = 3};
    spec.optimizer = spec_of(c.flags);
    TrainOptions o;
    o.batch_size = scaled ? 4 : 8;
    o.accumulate = scaled ? 2 : 1;
    o.epochs = 3;
    o.loader_thread = false;
    test::Recorder straight, first, second;
    Trainer a(source, data, nullptr, spec, o);
    a.run(straight);
    fs::remove_all(folder);
    o.checkpoint_folder = folder;
    first.stop_after = 4;
    Trainer b(source, data, nullptr, spec, o);
    b.run(first);
    const auto path = checkpoint::newest(folder);
    ASSERT_TRUE(path);
    Trainer resumed(source, data, nullptr, spec, o);
    resumed.resume(*path);
    resumed.run(second);
    EXPECT_TRUE(test::contents(resumed.store()) == test::contents(a.store()));
    EXPECT_FALSE(test::contents(b.store()) == test::contents(a.store()));
    EXPECT_EQ(second.steps.back().loss_scale, scaled ? 256 : 0);
  }
  fs::remove_all(folder);
}

// A step that is not finite leaves every parameter, state and average as it was.
TEST(Optimizers, SkippedStepChangesNoBit) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(24, 17);
  for (const Case& c : cases()) {
    if (c.name.find('_') != std::string::npos && c.name != "rmsprop_centered_momentum" &&
        c.name != "adam_amsgrad")
      continue;
    SCOPED_TRACE(c.name);
    StepSpec spec = test::small_spec();
    spec.optimizer = spec_of(c.flags);
    TrainOptions o;
    o.batch_size = 8;
    o.shuffle = false;
    o.skip_bad_steps = true;
    struct Watch : test::Recorder {
      void on_step(const StepInfo& s) override {
        test::Recorder::on_step(s);
        after.push_back(test::contents(*store));
      }
      ParamStore* store = nullptr;
      std::vector<std::vector<char>> after;
    } r;
    Trainer t(source, data, nullptr, spec, o);
    r.store = &t.store();
    t.run(r);
    ASSERT_EQ(r.after.size(), 3u);
    EXPECT_TRUE(r.steps[2].this_skipped);
    EXPECT_FALSE(r.after[0] == r.after[1]);
    EXPECT_TRUE(r.after[1] == r.after[2]);
  }
}

// Evaluations look at the averages; the run itself does not notice.
TEST(Optimizers, EvaluationTakesTheAverages) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(40);
  TrainOptions o;
  o.batch_size = 8;
  o.epochs = 4;
  StepSpec spec = test::small_spec();
  spec.optimizer.ema = 0.9;
  test::Recorder r, plain;
  Trainer t(source, data, &data, spec, o);
  t.run(r);
  Trainer quiet(source, data, nullptr, spec, o);
  quiet.run(plain);
  EXPECT_TRUE(test::contents(t.store()) == test::contents(quiet.store()));
  const double averaged = t.evaluate().loss;
  for (const StoreEntry& e : t.store().entries())
    if (e.kind == Source::kParam) t.store().set(e.name, t.store().get(e.name + "/ema"));
  EXPECT_EQ(t.evaluate().loss, averaged);
  spec.optimizer.ema = 0;
  Trainer without(source, data, &data, spec, o);
  test::Recorder w;
  without.run(w);
  EXPECT_NE(w.evals.back().loss, r.evals.back().loss);
  EXPECT_EQ(w.losses(), r.losses());
}

std::string refusal(const std::string& flags) {
  try {
    const OptimizerSpec spec = spec_of(flags);
    StepSpec step = test::small_spec();
    step.optimizer = spec;
    const Graph source = test::small_model();
    Trainer t(source, test::small_data(8), nullptr, step, {.batch_size = 8});
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Optimizers, RefusesWhatMeansNothing) {
  EXPECT_EQ(refusal("--optimizer-args amsgrad=true"), "accepted");
  EXPECT_EQ(refusal("--optimizer sgd --optimizer-args amsgrad=true"),
            "--optimizer-args: sgd has no argument 'amsgrad'");
  EXPECT_EQ(refusal("--optimizer adagrad --optimizer-args alpha=1"),
            "--optimizer-args: adagrad has no argument 'alpha'; it has lr_decay, "
            "initial_accumulator_value");
  EXPECT_EQ(refusal("--optimizer rmsprop --optimizer-args alpha=2"),
            "--optimizer-args: alpha: '2': expected a number from 0 to 1");
  EXPECT_EQ(refusal("--optimizer rmsprop --optimizer-args alpha"),
            "--optimizer-args: 'alpha': expected NAME=VALUE");
  EXPECT_EQ(refusal("--schedule step"), "schedule 'step' needs --schedule-args step_size=STEPS");
  EXPECT_NE(refusal("--schedule one_cycle --warmup 3").find("warms up"), std::string::npos);
  EXPECT_EQ(refusal("--group w1"),
            "--group 'w1': expected REGEX:NAME=VALUE,... with lr, lr-factor or weight-decay");
  EXPECT_EQ(refusal("--group w1:momentum=1"),
            "--group w1: 'momentum' is no setting of a group; there are lr, lr-factor, "
            "weight-decay");
  EXPECT_EQ(refusal("--group w1:lr=x"), "--group w1: lr: 'x': expected a number from 0 to 1000000");
  EXPECT_EQ(
      refusal("--group w3:lr=1"),
      "--group w3: no trainable parameter that an earlier group left has a name that matches");
  EXPECT_NE(refusal("--group w(:lr=1").find("not a regular expression"), std::string::npos);
  EXPECT_EQ(refusal("--group w1:lr=0.1;b.*:weight-decay=0,lr-factor=2"), "accepted");
}

TEST(Optimizers, GroupsInRecipes) {
  const char* const forms[] = {
      "group = [\"^fc:lr=0.02\", \"bias$:lr-factor=2,weight-decay=0\"]\n",
      "group = \"^fc:lr=0.02; bias$:lr_factor=2, weight_decay=0\"\n",
      "[[group]]\nparams = \"^fc\"\nlr = 0.02\n[[group]]\nparams = \"bias$\"\nlr_factor = 2\n"
      "weight_decay = 0\n"};
  for (const char* text : forms) {
    cli::Config config;
    config.read_toml(text, "recipe", "");
    const std::vector<ParamGroup> groups = cli::optimizer_spec(config).groups;
    ASSERT_EQ(groups.size(), 2u) << text;
    EXPECT_EQ(groups[0].regex, "^fc");
    EXPECT_EQ(groups[0].lr, 0.02);
    EXPECT_LT(groups[0].weight_decay, 0);
    EXPECT_EQ(groups[1].regex, "bias$");
    EXPECT_EQ(groups[1].lr_factor, 2);
    EXPECT_EQ(groups[1].weight_decay, 0);
    cli::Config again;  // what a run writes into its folder
    again.read_toml(config.print(), "recipe", "");
    EXPECT_EQ(cli::optimizer_spec(again).groups.size(), 2u);
  }
}

}  // namespace
}  // namespace ortrain
