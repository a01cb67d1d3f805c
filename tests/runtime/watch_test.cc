// The numerics watch: it changes no bit of a run, its norms are those of gradients that a program
// of another kind gives, and its shares and warnings are right for values with known ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/error.h"
#include "runtime/trainer.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
using test::Recorder;
using testing::Contains;
using testing::HasSubstr;

struct Watcher : Recorder {
  void on_watch(const WatchReport& r) override { reports.push_back(r); }
  std::vector<WatchReport> reports;
};

StepSpec spec_of(const char* optimizer, DType narrow) {
  StepSpec s = test::small_spec();
  s.optimizer.name = optimizer;
  s.narrow = narrow;
  if (narrow == DType::kF16) s.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic, .init = 256};
  return s;
}

TEST(Watch, ChangesNoBit) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(36);
  for (const char* optimizer : {"sgd", "adamw", "adafactor", "muon"})
    for (const DType narrow : {DType::kUndefined, DType::kF16, DType::kBF16})
      for (const int64_t accumulate : {1, 3})
        for (const double clip : {0.0, 1.0}) {
          StepSpec spec = spec_of(optimizer, narrow);
          spec.optimizer.clip_norm = clip;
          TrainOptions o;
          o.batch_size = 12 / accumulate;
          o.accumulate = accumulate;
          o.epochs = 2;
          Trainer plain(source, data, nullptr, spec, o);
          Recorder a;
          plain.run(a);
          o.watch_every = 2;
          Trainer watched(source, data, nullptr, spec, o);
          Watcher b;
          watched.run(b);
          EXPECT_EQ(test::contents(plain.store()), test::contents(watched.store())) << optimizer;
          EXPECT_EQ(a.losses(), b.losses());
          ASSERT_EQ(b.reports.size(), 4u);  // 1, 2, 4, 6
          EXPECT_EQ(b.reports[2].step, 4);
          EXPECT_EQ(b.reports[0].params.size(), 4u);
          EXPECT_EQ(b.reports[0].nodes.empty(), narrow == DType::kUndefined);
        }
}

TEST(Watch, NormsAreThoseOfTheGradients) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(24);
  for (const int64_t accumulate : {1, 3})
    for (const bool scaled : {false, true}) {
      StepSpec spec = test::small_spec();
      spec.compute = DType::kF64;
      spec.optimizer.name = "sgd";
      spec.optimizer.schedule = "constant";
      spec.optimizer.clip_norm = scaled ? 0.1 : 0;
      if (scaled) spec.loss_scale = {.kind = LossScaleSpec::Kind::kStatic, .init = 1000};
      // Gradients from a program without optimizer, window or scale.
      StepSpec grads = spec;
      grads.mode = Mode::kGrads;
      ParamStore store;
      Arena arena;
      Program p(source, spec_for_data(source, data, grads, 24), store, arena, {});
      arena.allocate();
      p.start(arena);
      data::Loader loader(data, p.arrays(),
                          data::Sampler({.samples = 24, .batch_size = 24, .shuffle = false}), {});
      p.run(pointers(*loader.next()));
      std::map<std::string, double> want, weights;
      double all = 0;
      for (const char* name : {"w1", "b1", "w2", "b2"}) {
        const HostTensor g = p.executor().output(p.plan().output(cat("grad/", name)));
        const HostTensor w = store.get(name);
        for (int64_t i = 0; i < g.count(); ++i) {
          want[name] += g.as_double(i) * g.as_double(i);
          weights[name] += w.as_double(i) * w.as_double(i);
        }
        all += want[name];
      }
      TrainOptions o;
      o.steps = 1;
      o.shuffle = false;
      o.batch_size = 24 / accumulate;
      o.accumulate = accumulate;
      o.watch_every = 1;
      Trainer t(source, data, nullptr, spec, o);
      Watcher r;
      t.run(r);
      ASSERT_EQ(r.reports.size(), 1u);
      const double clip = scaled ? std::min(1.0, 0.1 / (std::sqrt(all) + 1e-6)) : 1;
      for (const WatchedParam& w : r.reports[0].params) {
        const double g = std::sqrt(want.at(w.name)), x = std::sqrt(weights.at(w.name));
        EXPECT_NEAR(w.grad_norm, g, 1e-12) << w.name;
        EXPECT_NEAR(w.weight_norm, x, 1e-12) << w.name;
        EXPECT_NEAR(w.update_ratio, spec.optimizer.lr * g * clip / x, 1e-11) << w.name;
        EXPECT_EQ(w.gradient.zero + w.gradient.subnormal + w.gradient.saturated, 0);
      }
    }
}

TEST(Watch, SharesOfKnownValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0, 1, 0x1p-15F, -0x1p-24F, 65504, 70000, inf, NAN, -2, 0x1p-14F};
  Shares f16, f32;
  double squares = 0;
  f16.add(DType::kF16, DType::kF32, 10, x);
  EXPECT_EQ(f16.zero, 1);
  EXPECT_EQ(f16.subnormal, 2);
  EXPECT_EQ(f16.saturated, 4);
  EXPECT_DOUBLE_EQ(f16.underflowed(), 2.0 / 9);
  f32.add(DType::kF32, DType::kF32, 5, x, &squares);
  EXPECT_EQ(f32.subnormal, 0);
  EXPECT_EQ(f32.saturated, 0);
  EXPECT_DOUBLE_EQ(squares, 1 + 0x1p-30 + 0x1p-48 + 65504.0 * 65504.0);
  const float tiny[] = {1e-39F, 3e38F, std::numeric_limits<float>::max()};
  Shares ends;
  ends.add(DType::kF32, DType::kF32, 3, tiny);
  EXPECT_EQ(ends.subnormal, 1);
  EXPECT_EQ(ends.saturated, 1);
}

// A loss that is made small sends fp16 gradients below its normal range; a scale brings them back.
TEST(Watch, WarnsAboutUnderflowAndLargeUpdates) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(24);
  for (const bool scaled : {false, true}) {
    StepSpec spec = test::small_spec();
    spec.narrow = DType::kF16;
    spec.loss.factor = 1e-4;
    spec.optimizer.lr = scaled ? 3 : 1e-4;  // adamw: about the update of each weight
    spec.optimizer.name = "adamw";
    if (scaled) spec.loss_scale = {.kind = LossScaleSpec::Kind::kStatic, .init = 65536};
    TrainOptions o;
    o.steps = 1;
    o.batch_size = 24;
    o.watch_every = 1;
    Trainer t(source, data, nullptr, spec, o);
    Watcher r;
    t.run(r);
    const std::vector<std::string> said = watch_warnings(r.reports[0]);
    EXPECT_EQ(testing::Matches(Contains(HasSubstr("underflow in f16: loss scaling")))(said),
              !scaled)
        << testing::PrintToString(said);
    EXPECT_EQ(testing::Matches(Contains(HasSubstr("'w2': update/weight ratio")))(said), scaled)
        << testing::PrintToString(said);
  }
}

}  // namespace
}  // namespace ortrain
