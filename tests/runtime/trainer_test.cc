// The training loop: short batches, stop and resume bit for bit, bad batches, evaluation, labels.
// (That the numbers are PyTorch's is checked by tests/golden.)
#include "runtime/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "graph/error.h"
#include "tests/runtime/small_task.h"

// Counts allocations, for I7: running a plan allocates nothing.
namespace {
std::atomic<int64_t> allocations{0};
}
[[gnu::noinline]] void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace ortrain {
namespace {
namespace fs = std::filesystem;
using test::contents;
using test::Recorder;
using testing::HasSubstr;

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ortrain-trainer-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  TrainOptions options() {
    TrainOptions o;
    o.batch_size = 8;
    o.epochs = 3;
    o.checkpoint_folder = folder_;
    return o;
  }
  std::string folder_;
  Graph source_ = test::small_model();
};

TEST_F(TrainerTest, LearnsAndReports) {
  const data::Dataset data = test::small_data(100);
  TrainOptions o = options();
  o.epochs = 20;
  Trainer t(source_, data, &data, test::small_spec(), o);
  EXPECT_EQ(t.total_steps(), 20 * 13);
  Recorder r;
  const TrainResult result = t.run(r);
  EXPECT_EQ(result.step, 260);
  ASSERT_EQ(r.steps.size(), 260u);
  EXPECT_EQ(r.steps[12].samples, 4);  // the short last batch
  EXPECT_EQ(r.steps[12].epoch, 0);
  EXPECT_EQ(r.steps[13].epoch, 1);
  EXPECT_EQ(r.steps[0].lr, 0.02);
  EXPECT_GT(r.steps[0].grad_norm, 0);
  ASSERT_EQ(r.evals.size(), 20u);
  EXPECT_LT(r.evals.back().loss, 0.4 * r.steps[0].loss);
  EXPECT_EQ(r.evals.back().metrics[0].name, "accuracy");
  EXPECT_GT(r.evals.back().metrics[0].value, 0.9);
  EXPECT_EQ(r.checkpoints.size(), 1u);
  // Two batches of x and labels are buffered: 8 rows of 6 f32 and one i64.
  const size_t arena =
      std::max(t.program().plan().arena_bytes, t.eval_program()->plan().arena_bytes);
  EXPECT_EQ(t.memory_bytes(), t.store().bytes() + arena + 2 * 8 * (6 * 4 + 8));
}

TEST_F(TrainerTest, ResumeIsBitIdentical) {
  const data::Dataset data = test::small_data(30);
  Recorder straight;
  Trainer a(source_, data, nullptr, test::small_spec(), options());
  a.run(straight);
  ASSERT_EQ(straight.steps.size(), 12u);
  for (const int64_t stop : {1, 3, 4, 7, 11}) {
    fs::remove_all(folder_);
    Recorder first, second;
    first.stop_after = stop;
    Trainer b(source_, data, nullptr, test::small_spec(), options());
    EXPECT_TRUE(b.run(first).stopped);
    const auto path = checkpoint::newest(folder_);
    ASSERT_TRUE(path);
    Trainer c(source_, data, nullptr, test::small_spec(), options());
    c.resume(*path);
    EXPECT_EQ(c.step(), stop);
    c.run(second);
    EXPECT_EQ(contents(c.store()), contents(a.store())) << stop;
    std::vector<double> losses = first.losses();
    for (double loss : second.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, straight.losses()) << stop;
  }
}

TEST_F(TrainerTest, ResumeChecksTheRun) {
  const data::Dataset data = test::small_data(30), other = test::small_data(31);
  Trainer a(source_, data, nullptr, test::small_spec(), options());
  Recorder r;
  a.run(r);
  StepSpec spec = test::small_spec();
  spec.seed = 6;
  TrainOptions o = options();
  o.batch_size = 4;
  Trainer b(source_, other, nullptr, spec, o);
  const std::string said = error_of([&] { b.resume(r.checkpoints[0]); });
  EXPECT_THAT(said, HasSubstr("training samples was 30, is 31"));
  EXPECT_THAT(said, HasSubstr("--batch-size was 8, is 4"));
  EXPECT_THAT(said, HasSubstr("--seed was 5, is 6"));
  spec.seed = 5;
  spec.optimizer.name = "sgd";
  Trainer c(source_, data, nullptr, spec, options());
  EXPECT_THAT(error_of([&] { c.resume(r.checkpoints[0]); }),
              HasSubstr("'w1/exp_avg' is not part of this run"));
}

TEST_F(TrainerTest, NanStopsWithTheNodeAndUnchangedParameters) {
  const data::Dataset data = test::small_data(40, 17);
  TrainOptions o = options();
  o.shuffle = false;
  o.checkpoint_every = 1;
  Trainer t(source_, data, nullptr, test::small_spec(), o);
  Recorder r;
  const std::string said = error_of([&] { t.run(r); });
  EXPECT_THAT(said, HasSubstr("the loss is NaN at step 3"));
  EXPECT_THAT(said, HasSubstr("'net"));
  EXPECT_THAT(said, HasSubstr("step-000002"));
  ASSERT_EQ(r.steps.size(), 2u);
  // The state is that of the last good checkpoint.
  Trainer u(source_, data, nullptr, test::small_spec(), o);
  u.resume(*checkpoint::newest(folder_));
  EXPECT_EQ(u.step(), 2);
  EXPECT_EQ(contents(u.store()), contents(t.store()));
}

TEST_F(TrainerTest, NanIsLeftOut) {
  const data::Dataset data = test::small_data(40, 17);
  TrainOptions o = options();
  o.shuffle = false;
  o.epochs = 1;
  o.skip_bad_steps = true;
  struct Watch : Recorder {
    void on_step(const StepInfo& s) override {
      Recorder::on_step(s);
      if (s.step == 2) before = contents(*store);
      if (s.step == 3) after = contents(*store);
    }
    ParamStore* store = nullptr;
    std::vector<char> before, after;
  } r;
  Trainer t(source_, data, nullptr, test::small_spec(), o);
  r.store = &t.store();
  const TrainResult result = t.run(r);
  EXPECT_EQ(result.step, 5);
  EXPECT_EQ(result.skipped, 1);
  EXPECT_TRUE(r.steps[2].this_skipped);
  EXPECT_EQ(r.before, r.after);  // I14
  EXPECT_TRUE(std::isfinite(r.steps[4].loss));
  EXPECT_EQ(t.store().get(kStepName).as_int(0), 4);
}

TEST_F(TrainerTest, EvaluationIsTheExactMean) {
  const data::Dataset data = test::small_data(50);
  TrainOptions whole = options(), parts = options();
  whole.eval_batch = 50;
  parts.eval_batch = 7;  // a last batch of one
  Trainer a(source_, data, &data, test::small_spec(), whole);
  Trainer b(source_, data, &data, test::small_spec(), parts);
  const EvalResult x = a.evaluate(), y = b.evaluate();
  EXPECT_EQ(x.samples, 50);
  EXPECT_EQ(y.samples, 50);
  EXPECT_NEAR(x.loss, y.loss, 1e-6);
  EXPECT_EQ(x.metrics[0].value, y.metrics[0].value);
}

TEST_F(TrainerTest, LabelsOutOfRangeAreFoundAtTheStart) {
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", HostTensor(DType::kF32, {4, 6}));
  arrays.emplace_back("labels", HostTensor::of<int64_t>({4}, {0, 1, 3, 2}));
  const data::Dataset data = data::Dataset::from_arrays(std::move(arrays));
  const std::string said =
      error_of([&] { Trainer(source_, data, nullptr, test::small_spec(), options()); });
  EXPECT_THAT(said, HasSubstr("labels"));
  EXPECT_THAT(said, HasSubstr("3"));
}

TEST_F(TrainerTest, RunningAPlanAllocatesNothing) {
  const data::Dataset data = test::small_data(32);
  // oneDNN itself allocates a few small maps per call (dnnl_primitive_execute); nothing else may.
  TrainOptions o = options();
  o.select.reference = true;
  Trainer t(source_, data, nullptr, test::small_spec(), o);
  const HostTensor &x = data.array("x"), &y = data.array("labels");
  const std::vector<const void*> arrays{x.raw(), y.raw()};
  t.program().run(arrays);
  rusage first, last;
  getrusage(RUSAGE_SELF, &first);
  const int64_t before = allocations;
  for (int i = 0; i < 20; ++i) t.program().run(arrays);
  EXPECT_EQ(allocations - before, 0);
  getrusage(RUSAGE_SELF, &last);
  EXPECT_LE(last.ru_minflt - first.ru_minflt, 2);  // the arena is resident (2: getrusage's own)
}

}  // namespace
}  // namespace ortrain
