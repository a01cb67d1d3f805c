// Several losses over a window of micro-batches: each is the mean over its own valid targets of the
// whole window, so k micro-batches equal one batch, whatever each loss ignores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "graph/builder.h"
#include "runtime/trainer.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
using test::Recorder;
using testing::HasSubstr;

// x[N,6] -> Tanh(x w) -> outputs a [N,3], b [N,4], c [N,2].
Graph heads() {
  Graph g(test::all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{Dim::symbol("N"), 6});
  Builder b(g, "net");
  const auto param = [&](const char* name, Dims dims, double step) {
    HostTensor t(DType::kF32, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_double(i, std::sin(step * static_cast<double>(i + 1)));
    return b.wrap(g.add_param(std::move(t), name));
  };
  const Expr h = b.unary("Tanh", b.matmul(b.wrap(x), param("w", {6, 8}, 0.7)));
  g.add_output(b.matmul(h, param("wa", {8, 3}, 1.3)).id(), "a");
  g.add_output(b.matmul(h, param("wb", {8, 4}, 0.3)).id(), "b");
  g.add_output(b.matmul(h, param("wc", {8, 2}, 2.1)).id(), "c");
  return g;
}

// Labels of a and b leave out different rows; those of rows 8 to 15 of a are all ignored.
data::Dataset labelled(int64_t samples) {
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", test::small_data(samples).array("x").clone());
  HostTensor a(DType::kI64, {samples}), b(DType::kI64, {samples}), c(DType::kF32, {samples, 2});
  for (int64_t i = 0; i < samples; ++i) {
    a.set_double(i, i % 5 == 0 || (i >= 8 && i < 16) ? -100 : static_cast<double>(i % 3));
    b.set_double(i, i % 2 == 0 ? 0 : static_cast<double>(i % 4));
  }
  for (int64_t i = 0; i < c.count(); ++i) c.set_double(i, std::cos(static_cast<double>(i)));
  arrays.emplace_back("a_label", std::move(a));
  arrays.emplace_back("b_label", std::move(b));
  arrays.emplace_back("c_label", std::move(c));
  return data::Dataset::from_arrays(std::move(arrays));
}

StepSpec losses(const char* second) {
  StepSpec s;
  s.compute = DType::kF64;
  s.optimizer.name = "sgd";
  s.optimizer.lr = 0.1;
  s.optimizer.clip_norm = 1;
  s.loss = {.kind = "cross_entropy", .output = "a"};
  s.loss.factor = 0.3;
  LossSpec b{.kind = second, .output = "b"};
  b.ignore_index = 0;
  b.class_weights = {1, 2, 0.5, 3};
  if (b.kind == "focal") b.class_weights.clear();
  s.more_losses = {b, {.kind = "mse", .output = "c"}};
  return s;
}

double distance(const ParamStore& a, const ParamStore& b) {
  double worst = 0;
  for (const StoreEntry& e : a.entries())
    if (e.kind == Source::kParam)
      for (int64_t i = 0; i < a.get(e.name).count(); ++i)
        worst = std::max(worst, std::fabs(a.get(e.name).as_double(i) - b.get(e.name).as_double(i)));
  return worst;
}

TEST(WindowTargets, EachLossIsItsOwnMeanOverTheWindow) {
  const Graph source = heads();
  const data::Dataset data = labelled(40);
  for (const char* second : {"cross_entropy", "focal"})
    for (const bool shuffle : {false, true})
      for (const data::LastBatch last : {data::LastBatch::kKeep, data::LastBatch::kWrap}) {
        const StepSpec spec = losses(second);
        TrainOptions o;
        o.epochs = 2;
        o.batch_size = 12;
        o.shuffle = shuffle;
        o.last_batch = last;
        Trainer one(source, data, nullptr, spec, o);
        Recorder a;
        one.run(a);
        for (const int64_t k : {2, 3, 4}) {
          TrainOptions p = o;
          p.batch_size = 12 / k;
          p.accumulate = k;
          Trainer many(source, data, nullptr, spec, p);
          for (const std::string& m : many.messages())
            EXPECT_THAT(m, testing::Not(HasSubstr("count by samples")));
          Recorder b;
          many.run(b);
          ASSERT_EQ(b.steps.size(), a.steps.size());
          for (size_t i = 0; i < a.steps.size(); ++i) {
            EXPECT_NEAR(b.steps[i].loss, a.steps[i].loss, 1e-12 * a.steps[i].loss) << i;
            EXPECT_NEAR(b.steps[i].grad_norm, a.steps[i].grad_norm, 1e-12) << i;
            for (size_t n = 0; n < 3; ++n)
              EXPECT_NEAR(b.steps[i].losses[n].second, a.steps[i].losses[n].second, 1e-12) << n;
          }
          EXPECT_LT(distance(one.store(), many.store()), 1e-12) << second << k;
        }
      }
}

// In fp32, with a loss scale, and resumed in the middle of an epoch.
TEST(WindowTargets, HoldsWithALossScaleAndAfterAResume) {
  std::string folder = (std::filesystem::temp_directory_path() / "ortrain-targets-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Graph source = heads();
  const data::Dataset data = labelled(40);
  StepSpec spec = losses("cross_entropy");
  spec.compute = DType::kF32;
  TrainOptions o;
  o.epochs = 2;
  o.batch_size = 12;
  Trainer one(source, data, nullptr, spec, o);
  Recorder a, b, rest;
  one.run(a);
  spec.loss_scale = {.kind = LossScaleSpec::Kind::kDynamic, .init = 1024};
  o.batch_size = 4;
  o.accumulate = 3;
  o.checkpoint_folder = folder;
  o.checkpoint_every = 1;
  o.keep = 100;
  Trainer many(source, data, nullptr, spec, o);
  many.run(b);
  EXPECT_LT(distance(one.store(), many.store()), 2e-6);
  o.checkpoint_folder.clear();
  Trainer again(source, data, nullptr, spec, o);
  again.resume(folder + "/step-000003");
  again.run(rest);
  EXPECT_EQ(test::contents(again.store()), test::contents(many.store()));
  std::filesystem::remove_all(folder);
}

// A window in which no loss has a target changes nothing; one in which one loss has none goes on.
TEST(WindowTargets, ALossWithoutTargetsAddsNothing) {
  const Graph source = heads();
  const data::Dataset data = labelled(16);  // rows 8 to 15 of a are ignored
  StepSpec spec = losses("cross_entropy");
  TrainOptions o;
  o.epochs = 1;
  o.shuffle = false;
  o.batch_size = 4;
  o.accumulate = 2;
  Trainer t(source, data, nullptr, spec, o);
  Recorder r;
  t.run(r);
  ASSERT_EQ(r.steps.size(), 2u);
  EXPECT_GT(r.steps[0].losses[0].second, 0);
  EXPECT_EQ(r.steps[1].losses[0].second, 0);
  EXPECT_TRUE(r.steps[1].has_loss);
  EXPECT_TRUE(std::isfinite(r.steps[1].loss));
  spec.more_losses = {{.kind = "cross_entropy", .output = "b"}};
  spec.more_losses[0].ignore_index = 0;
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", data.array("x").clone());
  for (const char* name : {"a_label", "b_label"}) {
    HostTensor none(DType::kI64, {16});
    for (int64_t i = 0; i < 16; ++i) none.set_double(i, name[0] == 'a' ? -100 : 0);
    arrays.emplace_back(name, std::move(none));
  }
  const data::Dataset empty = data::Dataset::from_arrays(std::move(arrays));
  Trainer u(source, empty, nullptr, spec, o);
  const std::vector<char> before = test::contents(u.store());
  Recorder n;
  u.run(n);
  EXPECT_FALSE(n.steps[0].has_loss);
  EXPECT_EQ(u.store().get(kStepName).as_int(0), 0);
}

}  // namespace
}  // namespace ortrain
