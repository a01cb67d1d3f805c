// Random generators: moments of their numbers, that these depend on seed, node and step alone, and
// the modes in which the file's training_mode decides (StepSpec::file_modes).
#include <gtest/gtest.h>

#include <cmath>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

constexpr int64_t kCount = 100000;

HostTensor numbers(const char* op, Attrs attrs, int64_t step, int threads = 1) {
  Graph g(all_ops());
  const HostTensor s = HostTensor::scalar<int64_t>(step);
  const ValueId vs = g.add_input("step", DType::kI64, Shape());
  attrs.set("dtype", "f64");
  attrs.set("shape", std::vector<int64_t>{kCount});
  const OpDef& def = all_ops().get(op);
  const NodeId n = g.add_node(def, {vs}, attrs, 1, "random");
  g.infer(n);
  return std::move(run_kernel(def.kernels.back(), query_of(g, n, threads), {&s})[0]);
}

// op(x) with x, steps = 1.
HostTensor drawn(const char* op, const HostTensor& x, Attrs attrs) {
  Graph g(all_ops());
  const HostTensor s = HostTensor::scalar<int64_t>(1);
  const ValueId vx = g.add_input("x", x.dtype(), Shape(x.dims())),
                vs = g.add_input("step", DType::kI64, Shape());
  const OpDef& def = all_ops().get(op);
  const NodeId n = g.add_node(def, {vx, vs}, std::move(attrs), 1, "random");
  g.infer(n);
  return std::move(run_kernel(def.kernels.back(), query_of(g, n), {&x, &s})[0]);
}

double moment(const HostTensor& t, double about, int power) {
  double sum = 0;
  for (int64_t i = 0; i < t.count(); ++i) sum += std::pow(t.as_double(i) - about, power);
  return sum / static_cast<double>(t.count());
}

int64_t equal(const HostTensor& a, const HostTensor& b) {
  int64_t n = 0;
  for (int64_t i = 0; i < a.count(); ++i) n += a.as_double(i) == b.as_double(i);
  return n;
}

// Bounds are five standard deviations of the estimate over 100,000 numbers.
TEST(Random, UniformMoments) {
  const HostTensor u = numbers("ortrain.RandomUniform", {{"low", -1.0}, {"high", 3.0}}, 7);
  for (int64_t i = 0; i < u.count(); ++i) {
    ASSERT_GE(u.as_double(i), -1);
    ASSERT_LT(u.as_double(i), 3);
  }
  EXPECT_NEAR(moment(u, 0, 1), 1, 5 * std::sqrt(16.0 / 12 / 1e5));
  EXPECT_NEAR(moment(u, 1, 2), 16.0 / 12, 5 * 16 * std::sqrt(1.0 / 180 / 1e5));
}

TEST(Random, NormalMoments) {
  const HostTensor z = numbers("ortrain.RandomNormal", {{"mean", 2.0}, {"scale", 0.5}}, 7);
  EXPECT_NEAR(moment(z, 0, 1), 2, 5 * 0.5 / std::sqrt(1e5));
  EXPECT_NEAR(moment(z, 2, 2), 0.25, 5 * 0.25 * std::sqrt(2 / 1e5));
  EXPECT_NEAR(moment(z, 2, 3), 0, 5 * 0.125 * std::sqrt(15 / 1e5));
  EXPECT_NEAR(moment(z, 2, 4), 3 * 0.0625, 5 * 0.0625 * std::sqrt(96 / 1e5));
  double pairs = 0;  // neighbours share a Box-Muller pair and must not be correlated
  for (int64_t i = 0; i + 1 < z.count(); ++i)
    pairs += (z.as_double(i) - 2) * (z.as_double(i + 1) - 2) / 0.25;
  EXPECT_NEAR(pairs / 1e5, 0, 5 / std::sqrt(1e5));
}

TEST(Random, BernoulliAndMultinomialShares) {
  HostTensor p(DType::kF32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) p.mutable_data<float>()[i] = 0.25f;
  const HostTensor y = drawn("ortrain.Bernoulli", p, {{"dtype", "bool"}});
  EXPECT_NEAR(moment(y, 0, 1), 0.25, 5 * std::sqrt(0.1875 / 1e5));
  // exp(logits) = 1, 2, 0, 5 of 8; -inf is never drawn.
  const HostTensor logits =
      HostTensor::of<double>({1, 4}, {0, std::log(2.0), -INFINITY, std::log(5.0)});
  const HostTensor m = drawn("ortrain.Multinomial", logits, {{"sample_size", kCount}});
  int64_t times[4] = {};
  for (int64_t i = 0; i < m.count(); ++i) ++times[m.as_int(i)];
  const double share[4] = {0.125, 0.25, 0, 0.625};
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(static_cast<double>(times[i]) / 1e5, share[i],
                5 * std::sqrt(share[i] * (1 - share[i]) / 1e5));
  HostTensor edge = HostTensor::of<float>({2}, {0, 1});
  const HostTensor sure = drawn("ortrain.Bernoulli", edge, {});
  EXPECT_EQ(sure.as_double(0), 0);
  EXPECT_EQ(sure.as_double(1), 1);
}

TEST(Random, AreAFunctionOfSeedKeyAndStep) {
  for (const char* op : {"ortrain.RandomUniform", "ortrain.RandomNormal"}) {
    const Attrs a{{"seed", 1}, {"key", 2}};
    const HostTensor y = numbers(op, a, 3);
    EXPECT_EQ(equal(y, numbers(op, a, 3, 2)), kCount);
    EXPECT_EQ(equal(y, numbers(op, a, 4)), 0);
    EXPECT_EQ(equal(y, numbers(op, {{"seed", 2}, {"key", 2}}, 3)), 0);
    EXPECT_EQ(equal(y, numbers(op, {{"seed", 1}, {"key", 3}}, 3)), 0);
  }
}

// The graph after canonicalize.
Graph canonical(const char* text, const StepSpec& spec) {
  Graph g = parse_graph(text, all_ops());
  for (NodeId n : g.topo()) g.infer(n);
  const Evaluate none;
  std::vector<std::string> messages;
  PassContext ctx{spec, none, messages, {}};
  pass_canonicalize(g, ctx);
  return g;
}

const char* const kNoise =
    "input %0:f32[2] \"x\"\n%1 = RandomNormalLike(%0) #a\n%2 = RandomNormalLike(%0) #b\n"
    "%3 = RandomUniform() {shape=[2], seed=1.5} #c\n%4 = RandomUniform() {shape=[2], seed=1.5} #d\n"
    "%5 = Sum(%0, %1, %2, %3, %4) #s\noutput %5 \"y\"\n";

TEST(Random, NodesAreKeyedByNameAndRunSeedOrTheirOwn) {
  StepSpec spec;
  spec.seed = 11;
  const Graph g = canonical(kNoise, spec);
  std::vector<int64_t> keys, seeds;
  bool steps = true;
  for (NodeId n : g.topo()) {
    const Node& x = g.node(n);
    if (!x.op->random) continue;
    keys.push_back(x.attrs.i("key", -1));
    seeds.push_back(x.attrs.i("seed", -1));
    steps &= g.value(x.inputs[0]).source == Source::kState;
  }
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_TRUE(steps) << print_graph(g);
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_EQ(seeds[0], 11);
  EXPECT_EQ(keys[2], keys[3]);
  EXPECT_EQ(seeds[2], seeds[3]);
  EXPECT_NE(seeds[2], 11);
}

const char* const kModes =
    "input %0:f32[4,2] \"x\"\nconst %1:f32[2] = {1, 1}\nstate %2:f32[2] \"m\" = {0, 0}\n"
    "state %3:f32[2] \"v\" = {1, 1}\nconst %4:f32[] = {0.5}\nconst %5:bool[] = {1}\n"
    "const %6:bool[] = {0}\n"
    "%7 = BatchNormalization(%0, %1, %1, %2, %3) {training_mode=1} #bn1\n"
    "%8 = BatchNormalization(%7, %1, %1, %2, %3) #bn2\n"
    "%9 = Dropout(%8, %4, %5) #d1\n%10 = Dropout(%9, %4, %6) #d2\n%11 = Dropout(%10, %4) #d3\n"
    "output %11 \"y\"\n";

TEST(FileModes, TrainingModeOfEachNodeDecides) {
  StepSpec spec;
  spec.file_modes = true;
  for (Mode mode : {Mode::kPredict, Mode::kGrads}) {
    spec.mode = mode;
    const Graph g = canonical(kModes, spec);
    std::vector<int64_t> norms;
    int drops = 0;
    for (NodeId n : g.topo()) {
      const Node& x = g.node(n);
      if (x.op->name == "BatchNormalization") {
        norms.push_back(x.attrs.i("training_mode", 0));
        EXPECT_EQ(x.attrs.i("unbiased", 0), 0);
      }
      drops += x.op->name == "ortrain.Dropout";
    }
    EXPECT_EQ(norms, (std::vector<int64_t>{1, 0}));
    EXPECT_EQ(drops, 1) << print_graph(g);
  }
  spec.file_modes = false;
  spec.mode = Mode::kGrads;
  const std::string text = print_graph(canonical(kModes, spec));
  size_t drops = 0;
  for (size_t at = 0; (at = text.find("ortrain.Dropout", at)) != text.npos; ++at) ++drops;
  EXPECT_EQ(drops, 3u) << text;
}

}  // namespace
}  // namespace ortrain::test
