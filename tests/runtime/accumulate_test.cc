// Windows of micro-batches and loss scaling in the training loop: k micro-batches = one batch (with
// padding, short tails and dropout), resume, steps that are skipped, and the loss scale being in
// each gradient path exactly once (I13).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "graph/builder.h"
#include "graph/error.h"
#include "runtime/trainer.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;
using test::contents;
using test::Recorder;
using testing::HasSubstr;
using Kind = LossScaleSpec::Kind;

// Bytes of everything that a checkpoint would hold but the named states.
std::map<std::string, std::vector<char>> kept(const ParamStore& store,
                                              const std::vector<std::string>& without = {}) {
  std::map<std::string, std::vector<char>> out;
  for (const StoreEntry& e : store.entries())
    if (!e.name.starts_with(kWindowPrefix) &&
        std::find(without.begin(), without.end(), e.name) == without.end())
      out[e.name].assign(reinterpret_cast<const char*>(e.data),
                         reinterpret_cast<const char*>(e.data) + e.bytes);
  return out;
}
std::vector<std::string> scale_states() { return {kLossScaleName, kGoodStepsName, kSkippedName}; }

// Largest |a - b| over all parameters, over the largest |a|.
double distance(const ParamStore& a, const ParamStore& b) {
  double worst = 0, size = 0;
  for (const StoreEntry& e : a.entries()) {
    if (e.kind != Source::kParam) continue;
    const HostTensor x = a.get(e.name), y = b.get(e.name);
    for (int64_t i = 0; i < x.count(); ++i) {
      worst = std::max(worst, std::fabs(x.as_double(i) - y.as_double(i)));
      size = std::max(size, std::fabs(x.as_double(i)));
    }
  }
  return worst / size;
}

// The labels of some rows are the ignored one: of every third, and of rows 8 to 11.
data::Dataset padded_data(int64_t samples) {
  const data::Dataset whole = test::small_data(samples);
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", whole.array("x").clone());
  HostTensor labels = whole.array("labels").clone();
  for (int64_t i = 0; i < samples; ++i)
    if (i % 3 == 0 || (i >= 8 && i < 12)) labels.set_double(i, -100);
  arrays.emplace_back("labels", std::move(labels));
  return data::Dataset::from_arrays(std::move(arrays));
}

// x[N,6] -> w -> BatchNormalization -> Dropout -> head, or without one of them.
Graph layered(bool norm, bool dropout) {
  Graph g(test::all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{Dim::symbol("N"), 6});
  Builder b(g, "net");
  const auto numbers = [](Dims dims, double step) {
    HostTensor t(DType::kF32, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_double(i, std::sin(step * static_cast<double>(i + 1)));
    return t;
  };
  const auto all = [](double v) {
    HostTensor t(DType::kF32, {8});
    for (int64_t i = 0; i < 8; ++i) t.set_double(i, v + 0.01 * static_cast<double>(i));
    return t;
  };
  Expr h = b.matmul(b.wrap(x), b.wrap(g.add_param(numbers({6, 8}, 0.7), "w1")));
  if (norm)
    h = b.op("BatchNormalization",
             {h, b.wrap(g.add_param(all(1), "scale")), b.wrap(g.add_param(all(0.1), "bias")),
              b.wrap(g.add_param(all(0), "mean")), b.wrap(g.add_param(all(1), "var"))});
  if (dropout) h = Builder(g, "drop").op("Dropout", {h}, {{"ratio", 0.5}});
  g.add_output(b.matmul(h, b.wrap(g.add_param(numbers({8, 3}, 1.3), "w2"))).id(), "logits");
  return g;
}

struct Settings {
  StepSpec spec = test::small_spec();
  TrainOptions options;
  Settings() {
    options.epochs = 2;
    options.batch_size = 12;
    spec.compute = DType::kF64;
  }
};

TEST(Accumulate, IsOneBatch) {
  const Graph source = test::small_model();
  const data::Dataset data = padded_data(40);  // 12 + 12 + 12 + 4
  for (const bool wide : {true, false})
    for (const data::LastBatch last :
         {data::LastBatch::kKeep, data::LastBatch::kDrop, data::LastBatch::kWrap}) {
      Settings s;
      s.options.last_batch = last;
      s.spec.compute = wide ? DType::kF64 : DType::kF32;
      s.spec.optimizer.name = "sgd";
      Trainer one(source, data, nullptr, s.spec, s.options);
      Recorder a;
      one.run(a);
      for (const int64_t k : {2, 3, 4, 6}) {
        Settings t = s;
        t.options.batch_size = 12 / k;
        t.options.accumulate = k;
        Trainer many(source, data, nullptr, t.spec, t.options);
        ASSERT_EQ(many.total_steps(), one.total_steps());
        Recorder b;
        many.run(b);
        ASSERT_EQ(b.steps.size(), a.steps.size());
        const double limit = wide ? 1e-12 : 1e-6;
        for (size_t i = 0; i < a.steps.size(); ++i) {
          EXPECT_NEAR(b.steps[i].loss, a.steps[i].loss, limit * a.steps[i].loss);
          EXPECT_NEAR(b.steps[i].epoch_loss, a.steps[i].epoch_loss, limit * a.steps[i].loss);
          EXPECT_NEAR(b.steps[i].grad_norm, a.steps[i].grad_norm, limit * a.steps[i].grad_norm);
          EXPECT_EQ(b.steps[i].lr, a.steps[i].lr);
          EXPECT_EQ(b.steps[i].samples, a.steps[i].samples);
          EXPECT_EQ(b.steps[i].epoch, a.steps[i].epoch);
        }
        EXPECT_LT(distance(one.store(), many.store()), limit) << k;
      }
    }
}

TEST(Accumulate, TheMeanOfMeansIsAnotherStep) {  // what the comparison above must not accept
  const Graph source = test::small_model();
  const data::Dataset data = padded_data(12);
  Settings s;
  s.options.steps = 1;
  s.options.shuffle = false;
  s.spec.optimizer.name = "sgd";
  Trainer one(source, data, nullptr, s.spec, s.options);
  Recorder a, b;
  one.run(a);
  double mean = 0;
  for (const int64_t first : {0, 4, 8}) {
    std::vector<std::pair<std::string, HostTensor>> part;
    HostTensor x(DType::kF32, {4, 6}), y(DType::kI64, {4});
    for (int64_t i = 0; i < 24; ++i) x.set_double(i, data.array("x").as_double(first * 6 + i));
    for (int64_t i = 0; i < 4; ++i) y.set_double(i, data.array("labels").as_double(first + i));
    part.emplace_back("x", std::move(x));
    part.emplace_back("labels", std::move(y));
    const data::Dataset rows = data::Dataset::from_arrays(std::move(part));
    Trainer t(source, rows, nullptr, s.spec, s.options);
    Recorder r;
    t.run(r);
    mean += r.steps[0].loss / 3;
  }
  EXPECT_GT(std::fabs(mean - a.steps[0].loss), 1e-3);
}

TEST(Accumulate, DropoutMasksAreThoseOfOneBatch) {
  const Graph source = layered(false, true);
  const data::Dataset data = test::small_data(40);
  Settings s;
  s.spec.optimizer.name = "sgd";
  Trainer one(source, data, nullptr, s.spec, s.options);
  Recorder a, b, other;
  one.run(a);
  s.options.batch_size = 3;
  s.options.accumulate = 4;
  Trainer many(source, data, nullptr, s.spec, s.options);
  many.run(b);
  for (size_t i = 0; i < a.steps.size(); ++i)
    EXPECT_NEAR(b.steps[i].loss, a.steps[i].loss, 1e-12 * a.steps[i].loss);
  EXPECT_LT(distance(one.store(), many.store()), 1e-12);
  s.spec.seed = 6;
  s.options.shuffle = false;
  Trainer again(source, data, nullptr, s.spec, s.options);
  again.run(other);
  EXPECT_GT(std::fabs(other.steps[0].loss - a.steps[0].loss), 1e-6);
}

TEST(Accumulate, ResumeIsBitIdentical) {
  std::string folder = (fs::temp_directory_path() / "ortrain-accumulate-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Graph source = layered(true, true);
  const data::Dataset data = padded_data(40);
  Settings s;
  s.spec.compute = DType::kF32;
  s.spec.loss_scale = {.kind = Kind::kDynamic, .init = 64, .growth = 2, .interval = 3};
  s.options.batch_size = 5;
  s.options.accumulate = 3;
  s.options.epochs = 3;
  s.options.checkpoint_folder = folder;
  s.options.checkpoint_every = 1;
  s.options.keep = 100;
  Trainer a(source, data, nullptr, s.spec, s.options);
  Recorder straight;
  a.run(straight);
  ASSERT_EQ(straight.steps.size(), 9u);
  EXPECT_EQ(straight.steps.back().loss_scale, 256);
  s.options.checkpoint_folder.clear();
  for (const int64_t step : {1, 2, 3, 5, 8}) {
    Trainer b(source, data, nullptr, s.spec, s.options);
    b.resume(cat(folder, "/step-00000", step));
    Recorder rest;
    b.run(rest);
    for (size_t i = 0; i < rest.steps.size(); ++i) {
      EXPECT_EQ(rest.steps[i].loss, straight.steps[i + static_cast<size_t>(step)].loss);
      EXPECT_EQ(rest.steps[i].loss_scale, straight.steps[i + static_cast<size_t>(step)].loss_scale);
      EXPECT_EQ(rest.steps[i].epoch_loss, straight.steps[i + static_cast<size_t>(step)].epoch_loss);
    }
    EXPECT_EQ(contents(b.store()), contents(a.store())) << step;
  }
  s.options.accumulate = 2;
  Trainer c(source, data, nullptr, s.spec, s.options);
  try {
    c.resume(folder + "/step-000001");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--accumulate was 3, is 2"));
  }
  fs::remove_all(folder);
}

TEST(Accumulate, TellsAboutBatchStatisticsOnce) {
  const Graph source = layered(true, false);
  const data::Dataset data = test::small_data(40);
  Settings s;
  s.options.batch_size = 4;
  s.options.accumulate = 3;
  Trainer t(source, data, nullptr, s.spec, s.options);
  int told = 0;
  for (const std::string& m : t.messages()) told += m.find("from each micro-batch") != m.npos;
  EXPECT_EQ(told, 1);
  // Running statistics move once per micro-batch.
  Recorder r;
  s.options.steps = 1;
  s.options.shuffle = false;
  Trainer one(source, data, nullptr, s.spec, s.options);
  one.run(r);
  Settings u;
  u.options = s.options;
  u.options.accumulate = 1;
  u.options.steps = 3;
  u.spec.optimizer.lr = 0;
  Trainer three(source, data, nullptr, u.spec, u.options);
  three.run(r);
  EXPECT_EQ(kept(one.store()).at("mean"), kept(three.store()).at("mean"));
  EXPECT_EQ(kept(one.store()).at("var"), kept(three.store()).at("var"));
}

// Scales by powers of two change no bit of the update, with and without clipping and accumulation:
// the scale is in each gradient path exactly once, and out before the norm is looked at (I13).
TEST(LossScale, APowerOfTwoChangesNoBit) {
  for (const bool norm : {false, true})
    for (const double clip : {0.0, 0.5})
      for (const int64_t accumulate : {1, 3})
        for (const char* optimizer : {"sgd", "adamw"}) {
          const Graph source = layered(norm, true);
          const data::Dataset data = padded_data(36);
          std::map<std::string, std::vector<char>> first;
          for (const double scale : {0.0, 1.0, 4096.0, 0.125}) {
            Settings s;
            s.spec.compute = DType::kF32;
            s.spec.optimizer.name = optimizer;
            // Without scaling the norm of K = 1 is not computed; the bits must agree all the same.
            s.spec.optimizer.clip_norm = clip;
            s.options.batch_size = 12 / accumulate;
            s.options.accumulate = accumulate;
            if (scale > 0) s.spec.loss_scale = {.kind = Kind::kStatic, .init = scale};
            Trainer t(source, data, nullptr, s.spec, s.options);
            Recorder r;
            t.run(r);
            if (first.empty()) first = kept(t.store());
            EXPECT_EQ(kept(t.store()), first) << norm << clip << accumulate << optimizer << scale;
          }
        }
}

// Steps whose scaled gradients overflow change nothing but the scale, and do not stop the run.
TEST(LossScale, AnOverflowIsSkippedAndHalvesTheScale) {
  for (const int64_t accumulate : {1, 3}) {
    const Graph source = layered(true, true);
    const data::Dataset data = test::small_data(36);
    Settings s;
    s.spec.compute = DType::kF32;
    s.spec.optimizer.name = "adamw";
    s.options.batch_size = 12 / accumulate;
    s.options.accumulate = accumulate;
    s.options.epochs = 4;
    s.spec.loss_scale = {
        .kind = Kind::kDynamic, .init = 3e38, .growth = 1024, .min = 1, .max = 3e38, .interval = 4};
    struct Watch : Recorder {
      void on_step(const StepInfo& i) override {
        Recorder::on_step(i);
        states.push_back(kept(*store, scale_states()));
      }
      ParamStore* store = nullptr;
      std::vector<std::map<std::string, std::vector<char>>> states;
    } r;
    Trainer t(source, data, nullptr, s.spec, s.options);
    r.store = &t.store();
    const auto before = kept(t.store(), scale_states());
    const TrainResult result = t.run(r);
    EXPECT_GT(result.skipped, 0);
    EXPECT_LT(result.skipped, 12);
    EXPECT_TRUE(r.steps[0].this_skipped);
    for (size_t i = 0; i < r.steps.size(); ++i) {
      EXPECT_TRUE(std::isfinite(r.steps[i].loss));
      // I14: moments, step, running statistics
      EXPECT_EQ(r.states[i] == (i == 0 ? before : r.states[i - 1]), r.steps[i].this_skipped) << i;
      if (i > 0 && r.steps[i - 1].this_skipped) {
        EXPECT_FLOAT_EQ(static_cast<float>(r.steps[i].loss_scale),
                        static_cast<float>(r.steps[i - 1].loss_scale / 1024));
      }
    }
    EXPECT_EQ(t.store().get(kSkippedName).as_int(0), result.skipped);
    EXPECT_EQ(t.store().get(kStepName).as_int(0), result.step - result.skipped);
  }
}

TEST(LossScale, AtItsMinimumABadLossStopsTheRun) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(40, 17);
  for (const int64_t accumulate : {1, 2}) {
    Settings s;
    s.spec.compute = DType::kF32;
    s.options.shuffle = false;
    s.options.batch_size = 8 / accumulate;
    s.options.accumulate = accumulate;
    s.spec.loss_scale = {.kind = Kind::kDynamic, .init = 4};
    Recorder r;
    Trainer t(source, data, nullptr, s.spec, s.options);
    try {  // the bad row comes once an epoch: 4, 2, then 1 is the end
      s.options.epochs = 3;
      Trainer u(source, data, nullptr, s.spec, s.options);
      u.run(r);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("the loss is NaN at step 13"));
    }
    EXPECT_EQ(r.steps.size(), 12u);
    EXPECT_EQ(r.steps.back().skipped, 2);
  }
}

}  // namespace
}  // namespace ortrain
