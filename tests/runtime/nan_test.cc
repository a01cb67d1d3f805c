// Steps whose loss or gradients are not finite: always noticed, before anything is updated, and the
// node where it began is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/builder.h"
#include "graph/error.h"
#include "runtime/trainer.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
using test::Recorder;
using testing::HasSubstr;
using testing::Not;

// y = sqrt(|x * w|) + v, x[N,4]: at x = 0 the loss is finite and the gradient of w is not.
Graph root_model() {
  Graph g(test::all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{Dim::symbol("N"), 4});
  const auto param = [&](const char* name) {
    HostTensor t(DType::kF32, {4});
    for (int64_t i = 0; i < 4; ++i) t.set_double(i, 0.5 + 0.1 * static_cast<double>(i));
    return g.add_param(std::move(t), name);
  };
  const ValueId w = param("w"), v = param("v");
  Builder scale(g, "scale"), root(g, "root"), shift(g, "shift");
  const Expr p = scale.wrap(x) * scale.wrap(w);
  const Expr r = root.unary("Sqrt", root.unary("Abs", root.wrap(p.id())));
  g.add_output((shift.wrap(r.id()) + shift.wrap(v)).id(), "y");
  return g;
}

// Sample `zero` holds zeros.
data::Dataset rows(int64_t samples, int64_t zero) {
  HostTensor x(DType::kF32, {samples, 4}), y(DType::kF32, {samples, 4});
  for (int64_t i = 0; i < x.count(); ++i) {
    x.set_double(i, i / 4 == zero ? 0 : 1 + 0.01 * static_cast<double>(i));
    y.set_double(i, 1);
  }
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", std::move(x));
  arrays.emplace_back("target", std::move(y));
  return data::Dataset::from_arrays(std::move(arrays));
}

StepSpec spec_of(const char* optimizer) {
  StepSpec s;
  s.loss.kind = "mse";
  s.optimizer.name = optimizer;
  s.optimizer.lr = 0.01;
  return s;
}

std::string error_of(Trainer& t, Recorder& r) {
  try {
    t.run(r);
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(ErrorCode::kNumeric));
    return e.what();
  }
  return "no error";
}

TEST(Nan, ABadGradientStopsBeforeTheUpdate) {
  const Graph source = root_model();
  for (const char* optimizer : {"sgd", "adamw", "adafactor", "lamb"})
    for (const int64_t accumulate : {1, 2, 4})
      for (const bool clip : {false, true}) {
        const data::Dataset data = rows(16, 9);
        StepSpec spec = spec_of(optimizer);
        if (clip) spec.optimizer.clip_norm = 1;
        TrainOptions o;
        o.shuffle = false;
        o.batch_size = 8 / accumulate;
        o.accumulate = accumulate;
        Trainer good(source, data, nullptr, spec, [&] {
          TrainOptions one = o;
          one.steps = 1;
          return one;
        }());
        Recorder r;
        good.run(r);
        if (spec.optimizer.total_steps == 0) spec.optimizer.total_steps = 1;
        Trainer t(source, data, nullptr, spec, o);
        Recorder s;
        const std::string said = error_of(t, s);
        EXPECT_THAT(said, HasSubstr("the gradients are not finite, though the loss is, at step 2"));
        EXPECT_THAT(said, HasSubstr("'root|autodiff' (backward, kernel"));
        EXPECT_THAT(said, HasSubstr("is 0 there"));
        ASSERT_EQ(s.steps.size(), 1u);
        for (const char* name : {"w", "v", kStepName})
          for (int64_t i = 0; i < t.store().get(name).count(); ++i)
            EXPECT_EQ(t.store().get(name).as_double(i), good.store().get(name).as_double(i))
                << name << optimizer << accumulate << clip;
      }
}

TEST(Nan, ABadGradientCanBeSkipped) {
  const Graph source = root_model();
  const data::Dataset data = rows(24, 9);
  TrainOptions o;
  o.shuffle = false;
  o.batch_size = 8;
  o.skip_bad_steps = true;
  Trainer t(source, data, nullptr, spec_of("adamw"), o);
  Recorder r;
  const TrainResult result = t.run(r);
  EXPECT_EQ(result.skipped, 1);
  EXPECT_TRUE(r.steps[1].this_skipped);
  EXPECT_EQ(t.store().get(kStepName).as_int(0), 2);
}

TEST(Nan, WithoutTheTestTheUpdateWouldRun) {  // what the tests above must not accept
  const Graph source = root_model();
  StepSpec spec = spec_of("sgd");
  spec.mode = Mode::kTrain;
  spec.optimizer.total_steps = 1;
  const data::Dataset data = rows(8, 3);
  for (const bool tested : {true, false}) {
    spec.skip_nonfinite = tested;
    ParamStore store;
    Arena arena;
    Program p(source, spec_for_data(source, data, spec, 8), store, arena, {});
    arena.allocate();
    p.start(arena);
    data::Loader loader(data, p.arrays(), data::Sampler({.samples = 8, .batch_size = 8}), {});
    p.run(pointers(*loader.next()));
    EXPECT_EQ(std::isfinite(store.get("w").as_double(0)), tested);
  }
}

TEST(Nan, NamesTheArrayThatHoldsIt) {
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(40, 17);
  for (const int64_t accumulate : {1, 2}) {
    TrainOptions o;
    o.shuffle = false;
    o.batch_size = 8 / accumulate;
    o.accumulate = accumulate;
    Trainer t(source, data, nullptr, test::small_spec(), o);
    Recorder r;
    const std::string said = error_of(t, r);
    EXPECT_THAT(said, HasSubstr("the loss is NaN at step 3"));
    EXPECT_THAT(said, HasSubstr("'net' (forward, kernel"));
    EXPECT_THAT(
        said, HasSubstr("input 'x' holds 1 NaN and 0 infinite values itself, the first at [1,0]"));
    EXPECT_THAT(said, HasSubstr("look at this array of the data"));
  }
}

// An overflow of fp16 names the product, not the loss that became NaN by it.
TEST(Nan, NamesAnOverflowOfFp16) {
  Graph source = test::small_model();
  for (ValueId v : source.sources(Source::kParam)) {
    if (source.value(v).name != "w2") continue;
    HostTensor big = source.tensor(v)->clone();
    for (int64_t i = 0; i < big.count(); ++i) big.set_double(i, 60000);
    source.set_tensor(v, std::move(big));
  }
  const data::Dataset data = test::small_data(16);
  StepSpec spec = test::small_spec();
  spec.narrow = DType::kF16;
  TrainOptions o;
  o.batch_size = 8;
  Trainer t(source, data, nullptr, spec, o);
  Recorder r;
  const std::string said = error_of(t, r);
  EXPECT_THAT(said, HasSubstr("(forward, kernel"));
  EXPECT_THAT(said, HasSubstr("fp16 ends at 65504"));
  EXPECT_THAT(said, Not(HasSubstr("First bad values: ortrain.CrossEntropy")));
}

}  // namespace
}  // namespace ortrain
