// Plans and the executor on the toy operators: kernel choice, lowering, views, in-place, state
// updates, faults. The strongest test runs random graphs against an interpreter that gives every
// value memory of its own.
#include "runtime/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "graph/error.h"
#include "runtime/evaluate.h"
#include "runtime/lower.h"
#include "runtime/nan_search.h"
#include "runtime/profile.h"
#include "tests/runtime/toy_ops.h"

namespace ortrain {
namespace {
using test::add;
using test::toy_ops;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> floats_of(const HostTensor& t) {
  return {t.data<float>(), t.data<float>() + t.count()};
}
HostTensor vec(std::vector<float> v) {
  return HostTensor::from<float>({static_cast<int64_t>(v.size())}, v);
}

struct Bench {
  explicit Bench(Graph graph, SelectOptions options = {})
      : g(std::move(graph)), plan(make_plan(g, store, options)) {
    arena.reserve(plan.arena_bytes);
    arena.allocate();
    executor.emplace(plan, arena);
  }
  void operator()(std::vector<const void*> inputs = {}) { executor->run(inputs); }
  std::vector<float> out(int i = 0) { return floats_of(executor->output(i)); }
  std::vector<float> state(const char* name) { return floats_of(store.get(name)); }
  Graph g;
  ParamStore store;
  Plan plan;
  Arena arena;
  std::optional<Executor> executor;
};

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Plan, RunsAndRebindsInputs) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{3});
  const ValueId w = g.add_param(vec({1, 2, 3}), "w");
  g.add_output(add(g, "Mul", {x, w}), "y");
  Bench r(std::move(g));
  const float a[] = {1, 1, 2}, b[] = {-1, 0, 5};
  r({a});
  EXPECT_THAT(r.out(), ElementsAre(1, 2, 6));
  r({b});
  EXPECT_THAT(r.out(), ElementsAre(-1, 0, 15));
}

TEST(Plan, ViewsCostNothing) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2, 2});
  const ValueId y = add(g, "Flat", {add(g, "Neg", {add(g, "Flat", {x})})});
  g.add_output(y, "y");
  g.add_output(add(g, "Flat", {x}), "x2");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.steps.size(), 1u);
  EXPECT_EQ(r.plan.views, 3);
  const float a[] = {1, 2, 3, 4};
  r({a});
  EXPECT_THAT(r.out(0), ElementsAre(-1, -2, -3, -4));
  EXPECT_EQ(r.executor->output(1).raw(), a);
}

TEST(Plan, ChainRunsInPlace) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{16});
  ValueId v = x;
  for (int i = 0; i < 5; ++i) v = add(g, "Neg", {v});
  g.add_output(v, "y");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.in_place, 4);
  EXPECT_EQ(r.plan.arena_bytes, 64u);
  EXPECT_EQ(r.plan.peak_bytes(), 64u);
  const std::vector<float> a(16, 2.0f);
  r({a.data()});
  EXPECT_EQ(r.out(), std::vector<float>(16, -2.0f));
}

TEST(Plan, TwoReadersForbidInPlace) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{4});
  const ValueId a = add(g, "Neg", {x});
  const ValueId b = add(g, "Neg", {a});  // a is read again below
  g.add_output(add(g, "Mul", {a, b}), "y");
  Bench r(std::move(g));
  const float in[] = {1, 2, 3, 4};
  r({in});
  EXPECT_THAT(r.out(), ElementsAre(-1, -4, -9, -16));
}

TEST(Plan, OnlyOneOutputTakesTheInput) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  const ValueId n = add(g, "Neg", {x});
  const ValueId a = add(g, "Two", {n}, 2);
  g.add_output(a, "a");
  g.add_output(g.node(g.value(a).producer).outputs[1], "b");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.in_place, 1);
  const float in[] = {1, 2};
  r({in});
  EXPECT_THAT(r.out(0), ElementsAre(0, -1));
  EXPECT_THAT(r.out(1), ElementsAre(-2, -4));
}

TEST(Plan, StateUpdateInPlaceNeedsNoCopy) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  const ValueId w = g.add_param(vec({10, 20}), "w");
  g.add_output(add(g, "Mul", {x, w}), "y");
  g.add_update(w, add(g, "Sub", {w, x}));
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.direct_updates, 1);
  EXPECT_TRUE(r.plan.copies.empty());
  const float in[] = {1, 2};
  r({in});
  EXPECT_THAT(r.out(), ElementsAre(10, 40));
  EXPECT_THAT(r.state("w"), ElementsAre(9, 18));
  r({in});
  EXPECT_THAT(r.state("w"), ElementsAre(8, 16));
}

TEST(Plan, LateReaderOfTheStateForcesACopy) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  const ValueId w = g.add_param(vec({10, 20}), "w");
  g.add_update(w, add(g, "Sub", {w, x}));    // runs first
  g.add_output(add(g, "Mul", {x, w}), "y");  // must see the old w
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.direct_updates, 0);
  EXPECT_EQ(r.plan.copies.size(), 1u);
  const float in[] = {1, 2};
  r({in});
  EXPECT_THAT(r.out(), ElementsAre(10, 40));
  EXPECT_THAT(r.state("w"), ElementsAre(9, 18));
}

TEST(Plan, StatesSwapAndRotate) {
  Graph g(toy_ops());
  const ValueId a = g.add_state(vec({1}), "a"), b = g.add_state(vec({2}), "b"),
                c = g.add_state(vec({3}), "c"), d = g.add_state(vec({4}), "d");
  g.add_update(a, b);
  g.add_update(b, c);
  g.add_update(c, a);
  g.add_update(d, a);  // the old a
  g.add_output(a, "old_a");
  Bench r(std::move(g));
  r();
  EXPECT_THAT(r.state("a"), ElementsAre(2));
  EXPECT_THAT(r.state("b"), ElementsAre(3));
  EXPECT_THAT(r.state("c"), ElementsAre(1));
  EXPECT_THAT(r.state("d"), ElementsAre(1));
  EXPECT_THAT(r.out(), ElementsAre(1));
}

TEST(Plan, OneValueUpdatesTwoStates) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{1});
  const ValueId a = g.add_state(vec({1}), "a"), b = g.add_state(vec({2}), "b");
  const ValueId next = add(g, "Add", {a, x});
  g.add_update(a, next);
  g.add_update(b, next);
  g.add_output(add(g, "Neg", {next}), "y");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.direct_updates, 1);
  const float in[] = {5};
  r({in});
  EXPECT_THAT(r.state("a"), ElementsAre(6));
  EXPECT_THAT(r.state("b"), ElementsAre(6));
  EXPECT_THAT(r.out(), ElementsAre(-6));
}

TEST(Plan, WorkspaceIsPlanned) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{16});
  g.add_output(add(g, "Shift1", {x}), "y");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.workspace_bytes, 64u);
  EXPECT_EQ(r.plan.arena_bytes, 128u);
  std::vector<float> in(16);
  for (size_t i = 0; i < 16; ++i) in[i] = static_cast<float>(i);
  r({in.data()});
  EXPECT_EQ(r.out()[0], 15);
  EXPECT_EQ(r.out()[1], 0);
}

TEST(Plan, FaultNamesNodePositionAndRange) {
  Graph g(toy_ops());
  const ValueId table = g.add_param(HostTensor::of<float>({2, 2}, {1, 2, 3, 4}), "table");
  const ValueId i = g.add_input("i", DType::kI64, Shape{3});
  const ValueId rows = add(g, "Gather", {table, i}, 1, "emb");
  const ValueId total = add(g, "Sum", {rows});
  g.add_output(rows, "y");
  g.add_update(table, add(g, "Sub", {table, total}));
  Bench r(std::move(g));
  const int64_t good[] = {1, 0, 1}, bad[] = {0, 7, 1};
  r({good});
  EXPECT_THAT(r.out(), ElementsAre(3, 4, 1, 2, 3, 4));
  const auto before = r.state("table");
  EXPECT_EQ(error_of([&] { r({bad}); }), "index 7 at position 1 of Gather 'emb' is outside [0, 2)");
  EXPECT_EQ(r.state("table"), before);  // the update did not run
  r({good});
}

TEST(Plan, TraceNamesTheFirstNan) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{4});
  const ValueId log = add(g, "Log", {x}, 1, "bad_log");
  g.add_output(add(g, "Neg", {log}), "y");
  Bench r(std::move(g));
  const float good[] = {1, 2, 3, 4};
  const float bad[] = {1, 2, -3, 0};
  EXPECT_FALSE(find_bad_node(*r.executor, nullptr, std::vector<const void*>{good}));
  const auto said = find_bad_node(*r.executor, nullptr, std::vector<const void*>{bad});
  ASSERT_TRUE(said);
  EXPECT_THAT(said->text, HasSubstr("Log 'bad_log' (forward, kernel ref) made 1 NaN and "
                                    "1 infinite of 4 values, the first at [2]"));
  EXPECT_THAT(said->text, HasSubstr("input 0 f32[4] lies in [-3, 2], is -3 there"));
}

TEST(Plan, ProfileCountsFlops) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{8});
  g.add_output(add(g, "Add", {x, x}), "y");
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.flops, 8);
  r.executor->set_profile(true);
  const std::vector<float> in(8, 1.0f);
  r({in.data()});
  r({in.data()});
  EXPECT_EQ(r.executor->profiled_runs(), 2);
  EXPECT_THAT(profile_text(*r.executor), HasSubstr("Add ref"));
}

TEST(Plan, SharedStoreAndArena) {
  ParamStore store;
  const auto graph = [](int64_t batch) {
    Graph g(toy_ops());
    const ValueId x = g.add_input("x", DType::kF32, Shape{batch});
    const ValueId w = g.add_param(HostTensor::scalar<float>(3), "w");
    const ValueId one = g.add_const(HostTensor::scalar<float>(1));
    g.add_output(add(g, "Mul", {x, w}), "y");
    g.add_update(w, add(g, "Add", {w, one}));
    return g;
  };
  Graph big = graph(40), small = graph(2);
  const Plan p = make_plan(big, store, {}), q = make_plan(small, store, {});
  Arena arena;
  arena.reserve(p.arena_bytes);
  arena.reserve(q.arena_bytes);
  arena.allocate();
  EXPECT_EQ(arena.bytes(), 192u);
  EXPECT_EQ(store.param_bytes(), 64u);
  EXPECT_EQ(store.constant_bytes(), 64u);  // the same constant once
  Executor a(p, arena), b(q, arena);
  const std::vector<float> in(40, 2.0f);
  const void* inputs[] = {in.data()};
  a.run(inputs);
  b.run(inputs);
  EXPECT_EQ(b.output(0).as_double(1), 8);
  a.run(inputs);
  EXPECT_EQ(a.output(0).as_double(39), 10);
}

// --- choice and lowering ---
TEST(Select, FirstThatAcceptsAndWhyNot) {
  for (const int64_t count : {4, 5}) {
    Graph g(toy_ops());
    const ValueId x = g.add_input("x", DType::kF32, Shape{count});
    g.add_output(add(g, "Picky", {x}, 1, "p"), "y");
    Bench r(std::move(g));
    EXPECT_EQ(r.plan.kernels[0],
              count == 4 ? "Picky 'p': fast" : "Picky 'p': ref; refused: fast (odd count)");
    Graph g2(toy_ops());
    const ValueId x2 = g2.add_input("x", DType::kF32, Shape{count});
    g2.add_output(add(g2, "Picky", {x2}, 1, "p"), "y");
    Bench reference(std::move(g2), {.reference = true});
    EXPECT_EQ(reference.plan.kernels[0], "Picky 'p': ref");
  }
}

TEST(Lower, DecomposesWhatHasNoKernel) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  const ValueId n = add(g, "Neg", {x});
  const ValueId t = add(g, "Twice", {n}, 1, "t");
  g.add_output(add(g, "Neg", {t}), "y");
  g.order = g.topo();
  Bench r(std::move(g));
  EXPECT_EQ(r.plan.steps.size(), 3u);
  EXPECT_EQ(r.plan.steps[1].node, "Add 't|decompose'");
  const float in[] = {1, 2};
  r({in});
  EXPECT_THAT(r.out(), ElementsAre(2, 4));
}

TEST(Lower, ListsAllThatCannotRun) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  g.add_output(add(g, "Lonely", {x}, 1, "one"), "y");
  g.add_output(add(g, "Lonely", {x}, 1, "two"), "z");
  const std::string said = error_of([&] { decompose_missing(g, {}); });
  EXPECT_THAT(said, HasSubstr("Lonely 'one'"));
  EXPECT_THAT(said, HasSubstr("Lonely 'two'"));
}

TEST(Evaluate, RunsConstantsOnly) {
  Graph g(toy_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{2});
  const ValueId c = g.add_const(vec({1, 2})), d = g.add_const(vec({3, 5}));
  const ValueId folded = add(g, "Add", {c, d}), not_folded = add(g, "Add", {c, x});
  const Evaluate evaluate = make_evaluator();
  std::vector<HostTensor> out;
  ASSERT_TRUE(evaluate(g, g.value(folded).producer, out));
  EXPECT_THAT(floats_of(out[0]), ElementsAre(4, 7));
  EXPECT_FALSE(evaluate(g, g.value(not_folded).producer, out));
}

// --- layouts ---
TEST(ParamStore, PermutedParameterSpeaksTheFilesLayout) {
  Graph g(toy_ops());
  // File: 2x3x1; in memory axis i is file axis perm[i]: 3x1x2.
  const ValueId w = g.add_param(HostTensor::of<float>({3, 1, 2}, {1, 4, 2, 5, 3, 6}), "w");
  g.params[w] = {.trainable = true, .reason = "", .perm = {1, 2, 0}};
  g.add_state(HostTensor(DType::kF32, {3, 1, 2}), "w/exp_avg");
  ParamStore store;
  store.add(g);
  const HostTensor file = store.get("w");
  EXPECT_EQ(file.dims(), (Dims{2, 3, 1}));
  EXPECT_THAT(floats_of(file), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(store.get("w/exp_avg").dims(), (Dims{2, 3, 1}));
  store.set("w", HostTensor::of<float>({2, 3, 1}, {10, 20, 30, 40, 50, 60}));
  const StoreEntry* e = store.find("w");
  EXPECT_THAT(
      std::vector<float>(reinterpret_cast<float*>(e->data), reinterpret_cast<float*>(e->data) + 6),
      ElementsAre(10, 40, 20, 50, 30, 60));
  EXPECT_THAT(error_of([&] {
                store.set("w", vec({1, 2, 3}));
              }),
              HasSubstr("'w' is f32[2,3,1], got f32[3]"));
}

// --- random graphs against an interpreter ---
struct Interpreter {
  const Graph& g;
  std::map<ValueId, std::vector<float>> values;

  const std::vector<float>& of(ValueId v) {
    if (!values.contains(v)) compute(g.value(v).producer);
    return values.at(v);
  }
  void compute(NodeId n) {
    const Node& x = g.node(n);
    const std::vector<float> a = of(x.inputs[0]);
    const std::vector<float> b = x.inputs.size() > 1 ? of(x.inputs[1]) : std::vector<float>{};
    std::vector<float> y(a.size());
    const auto rhs = [&](size_t i) { return b[b.size() == 1 ? 0 : i]; };
    for (size_t i = 0; i < a.size(); ++i) {
      if (x.op->name == "Add") y[i] = a[i] + rhs(i);
      if (x.op->name == "Sub") y[i] = a[i] - rhs(i);
      if (x.op->name == "Mul") y[i] = a[i] * rhs(i);
      if (x.op->name == "Neg") y[i] = -a[i];
      if (x.op->name == "Flat") y[i] = a[i];
      if (x.op->name == "Two") y[i] = a[i] + 1;
      if (x.op->name == "Shift1") y[i] = a[(i + a.size() - 1) % a.size()];
    }
    if (x.op->name == "Sum") {
      float total = 0;
      for (float v : a) total += v;
      y = {total};
    }
    if (x.op->name == "Two") {
      std::vector<float> z(a.size());
      for (size_t i = 0; i < a.size(); ++i) z[i] = a[i] * 2;
      values[x.outputs[1]] = z;
    }
    values[x.outputs[0]] = y;
  }
};

TEST(Executor, RandomGraphsMatchSeparateMemory) {
  int in_place = 0, direct = 0, copies = 0, views = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 rng(seed);
    const auto below = [&](size_t n) { return rng() % static_cast<unsigned>(n); };
    Graph g(toy_ops());
    std::vector<ValueId> full;  // [2,3] or [6]: six numbers
    const ValueId x = g.add_input("x", DType::kF32, Shape{6});
    full.push_back(x);
    std::vector<ValueId> states;
    for (int i = 0; i < 3; ++i) {
      HostTensor t(DType::kF32, {6});
      for (int64_t k = 0; k < 6; ++k) t.set_double(k, static_cast<double>(below(5)));
      states.push_back(i ? g.add_state(std::move(t), "s" + std::to_string(i))
                         : g.add_param(std::move(t), "p"));
      full.push_back(states.back());
    }
    full.push_back(g.add_const(vec({1, -1, 2, 0, 1, 3})));
    std::vector<ValueId> scalars = {g.add_const(HostTensor::scalar<float>(2))};
    const char* binary[] = {"Add", "Sub", "Mul"};
    for (int i = 0; i < 14; ++i) {
      // Recent values are likelier, so that there are chains.
      const auto pick = [&] {
        return below(2) ? full[below(full.size())]
                        : full[full.size() - 1 - below(std::min<size_t>(3, full.size()))];
      };
      switch (below(7)) {
        case 0:
        case 1: full.push_back(add(g, binary[below(3)], {pick(), pick()})); break;
        case 2:
          full.push_back(add(g, binary[below(2)], {pick(), scalars[below(scalars.size())]}));
          break;
        case 3: full.push_back(add(g, below(2) ? "Neg" : "Flat", {pick()})); break;
        case 4: full.push_back(add(g, "Shift1", {pick()})); break;
        case 5: scalars.push_back(add(g, "Sum", {pick()})); break;
        default: {
          const ValueId a = add(g, "Two", {pick()}, 2);
          full.push_back(a);
          full.push_back(g.node(g.value(a).producer).outputs[1]);
        }
      }
    }
    for (ValueId s : states)
      if (below(4)) g.add_update(s, full[below(full.size())]);
    for (int i = 0; i < 3; ++i) g.add_output(full[below(full.size())], "y" + std::to_string(i));
    g.add_output(scalars.back(), "sum");
    g.erase_dead();

    ParamStore store;
    const Graph original = g.share();
    Plan plan = make_plan(g, store, {});
    in_place += plan.in_place;
    direct += plan.direct_updates;
    copies += static_cast<int>(plan.copies.size());
    views += plan.views;
    Arena arena;
    arena.reserve(plan.arena_bytes);
    arena.allocate();
    Executor executor(plan, arena);

    std::map<ValueId, std::vector<float>> kept;
    for (ValueId s : states) kept[s] = floats_of(*original.tensor(s));
    for (int step = 0; step < 3; ++step) {
      std::vector<float> in(6);
      for (float& f : in) f = static_cast<float>(below(7)) - 3;
      const std::vector<float> in_before = in;
      Interpreter right{original, {}};
      right.values = kept;
      right.values[x] = in;
      for (ValueId v : original.sources(Source::kConst))
        right.values[v] = floats_of(*original.tensor(v));
      std::vector<std::vector<float>> want;
      for (ValueId v : original.outputs()) want.push_back(right.of(v));
      for (const StateUpdate& u : original.updates()) kept[u.state] = right.of(u.next);

      const void* inputs[] = {in.data()};
      executor.run(inputs);
      ASSERT_EQ(in, in_before) << "seed " << seed;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_EQ(0, std::memcmp(executor.output(static_cast<int>(i)).raw(), want[i].data(),
                                 want[i].size() * 4))
            << "seed " << seed << " step " << step << " output " << i << "\n";
      for (ValueId s : states)
        ASSERT_EQ(0, std::memcmp(store.get(original.value(s).name).raw(), kept[s].data(), 24))
            << "seed " << seed << " step " << step << " " << original.value(s).name;
    }
  }
  // The cases were really there.
  EXPECT_GT(in_place, 200);
  EXPECT_GT(direct, 100);
  EXPECT_GT(copies, 100);
  EXPECT_GT(views, 100);
}

}  // namespace
}  // namespace ortrain
