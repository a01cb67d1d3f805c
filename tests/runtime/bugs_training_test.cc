// Bugs that other programs had in the training loop (tests/golden/bugs): accumulation with padding
// and with a short last window, the scale that the gradient is divided by, clipping before
// unscaling, batches without a target, the order of samples after a resume. The right numbers are
// those of expect.json.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "importers/onnx.h"
#include "ortrain_test_paths.h"
#include "runtime/trainer.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using test::contents;

// Keeps, per step, what was told and the named parameters.
struct Watch : test::Recorder {
  void on_step(const StepInfo& s) override {
    Recorder::on_step(s);
    for (const std::string& name : names) {
      const HostTensor t = store->get(name);
      std::vector<double> numbers;
      for (int64_t i = 0; i < t.count(); ++i) numbers.push_back(t.as_double(i));
      after[name].push_back(std::move(numbers));
    }
  }
  ParamStore* store = nullptr;
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::vector<double>>> after;
};

std::vector<double> flat(const json& j) {
  if (j.is_number()) return {j.get<double>()};
  std::vector<double> out;
  for (const json& x : j)
    for (double v : flat(x)) out.push_back(v);
  return out;
}

class Bug : public testing::Test {
 protected:
  void open(const std::string& id) {
    const std::string folder = std::string(test::kSourceDir) + "/tests/golden/bugs/" + id;
    std::ifstream in(folder + "/expect.json");
    expect_ = json::parse(in);
    file_ = OnnxFile::open(folder + "/model.onnx", test::all_ops());
    data_.emplace(data::Dataset::open(folder + "/data.npz"));
    spec_.optimizer.name = "sgd";
    options_.shuffle = false;
    options_.select.reference = true;
  }
  Trainer make() { return Trainer(file_->graph(), *data_, nullptr, spec_, options_); }
  Watch train(const std::vector<std::string>& names) {
    Watch w;
    Trainer t = make();
    w.store = &t.store();
    w.names = names;
    t.run(w);
    return w;
  }
  void near(const std::vector<double>& got, const json& right, const std::string& what) {
    const std::vector<double> want = flat(right);
    ASSERT_EQ(got.size(), want.size()) << what;
    const double rtol = expect_["tol"]["rtol"], atol = expect_["tol"]["atol"];
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], atol + rtol * std::fabs(want[i])) << what << " " << i;
  }
  std::unique_ptr<OnnxFile> file_;
  std::optional<data::Dataset> data_;
  json expect_;
  StepSpec spec_;
  TrainOptions options_;
};

TEST_F(Bug, H06PaddingWeighsByTarget) {
  open("H06");
  spec_.loss.kind = "cross_entropy";
  spec_.optimizer.lr = 0.5;
  options_.batch_size = 1;
  options_.accumulate = 2;
  options_.steps = 1;
  const Watch w = train({"Wt", "b"});
  near({w.steps[0].loss}, expect_["right"]["loss"], "loss");
  for (const char* name : {"Wt", "b"})
    near(w.after.at(name)[0], expect_["right"]["after"][name], name);
  double squares = 0;
  for (const char* name : {"Wt", "b"})
    for (double g : flat(expect_["right"]["grad"][name])) squares += g * g;
  near({w.steps[0].grad_norm}, std::sqrt(squares), "gradient norm");
}

TEST_F(Bug, H07TheShortLastWindowIsExactAndTheScheduleMovesPerStep) {
  open("H07");
  spec_.loss.kind = "mse";
  spec_.optimizer.lr = 0.1;
  spec_.optimizer.schedule = "linear";
  options_.batch_size = 1;
  options_.accumulate = 2;
  const Watch w = train({"w"});
  const json& trace = expect_["right"]["trace"];
  ASSERT_EQ(w.steps.size(), trace.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    near({w.steps[i].lr}, trace[i]["lr"], "lr");
    near({w.steps[i].grad_norm}, std::fabs(trace[i]["grad"].get<double>()), "gradient");
    near(w.after.at("w")[i], trace[i]["w"], "w");
  }
  EXPECT_EQ(w.steps[2].samples, 1);
  options_.accumulate = 0;
  EXPECT_THROW(make(), Error);
}

TEST_F(Bug, H08TheGradientIsDividedByTheScaleItWasMultipliedBy) {
  open("H08");
  spec_.loss.kind = "graph";
  spec_.optimizer.lr = 1;
  spec_.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic, .init = 4, .growth = 2, .interval = 1};
  options_.batch_size = 1;
  const Watch w = train({"w"});
  const json& right = expect_["right"];
  ASSERT_EQ(w.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    near(w.after.at("w")[i], right["w_after_each_step"][i], "w");
    near({w.steps[i].loss_scale}, right["scale_used_in_backward"][i], "scale");
    near({w.steps[i].grad_norm}, right["reported_grad_norm"][i], "norm");
  }
}

TEST_F(Bug, H09ClipsAfterUnscaling) {
  open("H09");
  spec_.loss.kind = "graph";
  spec_.optimizer.lr = 1;
  spec_.optimizer.clip_norm = 1;
  spec_.loss_scale = {.kind = LossScaleSpec::Kind::kStatic, .init = 65536};
  options_.batch_size = 1;
  const Watch w = train({"w"});
  ASSERT_EQ(w.steps.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    near(w.after.at("w")[i], expect_["right"]["w_after_each_step"][i], "w");
    near({w.steps[i].grad_norm}, expect_["right"]["grad_norm"][i], "norm");
  }
}

TEST_F(Bug, H10ABatchWithoutTargetsChangesNothing) {
  open("H10");
  spec_.loss.kind = "cross_entropy";
  spec_.optimizer.lr = 0.5;
  options_.batch_size = 2;
  const Watch w = train({"W", "b"});
  const json& right = expect_["right"];
  ASSERT_EQ(w.steps.size(), 3u);
  near({w.steps[0].loss}, right["after_batch0"]["loss"], "loss");
  near({w.steps[2].loss}, right["after_batch2"]["loss"], "loss");
  EXPECT_TRUE(w.steps[0].has_loss && !w.steps[1].has_loss && w.steps[2].has_loss);
  EXPECT_FALSE(w.steps[1].this_skipped);
  EXPECT_EQ(w.steps[2].skipped, 0);
  const double sum =
      flat(right["after_batch0"]["loss"])[0] + flat(right["after_batch2"]["loss"])[0];
  near({w.steps[2].epoch_loss}, sum / 2, "epoch mean over four labels");
  for (const char* name : {"W", "b"}) {
    near(w.after.at(name)[0], right["after_batch0"]["after"][name], name);
    EXPECT_EQ(w.after.at(name)[0], w.after.at(name)[1]);
    near(w.after.at(name)[2], right["after_batch2"]["after"][name], name);
  }
  // With momentum and decoupled decay a gradient of zero would still move the weights.
  spec_.optimizer.name = "adamw";
  spec_.optimizer.weight_decay = 0.1;
  const Watch adam = train({"W", "W/exp_avg", "W/exp_avg_sq", kStepName});
  for (const auto& [name, values] : adam.after) EXPECT_EQ(values[0], values[1]) << name;
  EXPECT_EQ(adam.after.at(kStepName)[2], std::vector<double>{2});
}

TEST_F(Bug, H12ResumeGoesOnWithTheSameSamplesAndMasks) {
  open("H12");
  std::string name = (fs::temp_directory_path() / "ortrain-bugs-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  spec_.loss.kind = "mse";
  spec_.optimizer.name = "adamw";
  spec_.optimizer.lr = 0.01;
  spec_.optimizer.schedule = "cosine";
  spec_.seed = 7;
  options_.batch_size = 3;
  options_.epochs = 3;
  options_.shuffle = true;
  options_.checkpoint_folder = name;
  options_.checkpoint_every = 2;
  options_.keep = 100;
  test::Recorder straight;
  Trainer a = make();
  EXPECT_EQ(a.steps_per_epoch(), expect_["right"]["steps_per_epoch"]);
  a.run(straight);
  const auto from = [&](int64_t step) {
    return cat(name, "/step-", step < 10 ? "00000" : "0000", step);
  };
  options_.checkpoint_folder.clear();
  for (const int64_t step : expect_["run"]["checkpoint_at"].get<std::vector<int64_t>>()) {
    for (int again = 0; again < 2; ++again) {
      test::Recorder rest;
      Trainer b = make();
      b.resume(from(step));
      b.run(rest);
      ASSERT_EQ(rest.steps.size() + static_cast<size_t>(step), straight.steps.size());
      for (size_t i = 0; i < rest.steps.size(); ++i) {
        const StepInfo& s = straight.steps[i + static_cast<size_t>(step)];
        EXPECT_EQ(rest.steps[i].loss, s.loss);
        EXPECT_EQ(rest.steps[i].epoch_loss, s.epoch_loss);
        EXPECT_EQ(rest.steps[i].lr, s.lr);
      }
      EXPECT_EQ(contents(b.store()), contents(a.store())) << step;
    }
  }
  // The masks matter: without them another end.
  spec_.seed = 8;
  Trainer c = make();
  test::Recorder other;
  c.run(other);
  EXPECT_NE(contents(c.store()), contents(a.store()));
  fs::remove_all(name);
}

}  // namespace
}  // namespace ortrain
