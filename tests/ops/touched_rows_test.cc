// Gradients of tables by touched rows: updates, norms and sums read them bit for bit as the dense
// gradient, and pass optimizer uses them where it may.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using testing::HasSubstr;
using testing::Not;

HostTensor numbers(DType dtype, Dims dims, double from, double seed) {
  HostTensor t(dtype, std::move(dims));
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, from + std::sin(seed + 0.7 * static_cast<double>(i)));
  return t;
}

// A table's gradient three ways: what was looked up, dense, and by touched rows.
struct Lookup {
  DType dtype;
  Dims table;
  HostTensor dy, indices, dense, rows, slots;

  Lookup(DType type, Dims dims, std::vector<int64_t> at) : dtype(type), table(std::move(dims)) {
    const auto count = static_cast<int64_t>(at.size());
    Dims picked = table;
    picked[0] = count;
    dy = numbers(dtype, picked, 0, 1);
    indices = HostTensor::from<int64_t>({count}, at);
    dense = std::move(run("ortrain.GatherGrad", {{"axis", int64_t{0}}, {"dims", table}}, 1)[0]);
    std::vector<HostTensor> out = run("ortrain.GatherGradRows", {{"dims", table}}, 2);
    rows = std::move(out[0]);
    slots = std::move(out[1]);
  }
  std::vector<HostTensor> run(const char* op, Attrs attrs, int outputs) {
    Graph g(all_ops());
    const ValueId x = g.add_input("dy", dtype, Shape(dy.dims()));
    const ValueId i = g.add_input("i", DType::kI64, Shape(indices.dims()));
    const NodeId n = g.add_node(all_ops().get(op), {x, i}, std::move(attrs), outputs, "n");
    g.infer(n);
    for (ValueId v : g.node(n).outputs) g.add_output(v, "y");
    std::map<ValueId, HostTensor> values;
    values[x] = dy.clone();
    values[i] = indices.clone();
    return run_graph(g, values, "first");
  }
};

std::vector<Lookup> lookups(DType dtype) {
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 300; ++i) many.push_back((i * i * 7) % 611 - 100);
  std::vector<Lookup> all;
  all.emplace_back(dtype, Dims{9, 5}, std::vector<int64_t>{3, 3, -1, 4, 3});
  all.emplace_back(dtype, Dims{700, 33}, many);
  all.emplace_back(dtype, Dims{2000, 40}, many);
  all.emplace_back(dtype, Dims{700}, many);
  all.emplace_back(dtype, Dims{6, 3000, 3}, std::vector<int64_t>{5, 2});
  return all;
}

void expect_same_bits(const HostTensor& a, const HostTensor& b, const std::string& what) {
  ASSERT_EQ(a.dims(), b.dims()) << what;
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << what;
}

TEST(TouchedRows, UpdatesAreThoseOfTheDenseGradient) {
  struct Rule {
    const char* op;
    int states;
    Attrs attrs;
  };
  const std::vector<Rule> rules = {
      {"ortrain.SGD", 0, {}},
      {"ortrain.SGDMomentum", 1, {{"momentum", 0.9}, {"nesterov", int64_t{1}}}},
      {"ortrain.AdamW", 2, {}},
      {"ortrain.AdamWMax", 3, {{"decoupled", int64_t{0}}}},
      {"ortrain.Adagrad", 1, {}},
      {"ortrain.RMSprop", 1, {}},
      {"ortrain.RMSpropCenteredMomentum", 3, {{"momentum", 0.9}, {"centered", int64_t{1}}}},
      {"ortrain.Lion", 1, {}}};
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const Lookup& l : lookups(dtype))
      for (const Rule& r : rules)
        for (const double decay : {0.0, 0.1}) {
          const OpDef& op = all_ops().get(r.op);
          const HostTensor lr = HostTensor::scalar(0.1), step = HostTensor::scalar<int64_t>(4),
                           apply = HostTensor::scalar(true);
          std::vector<HostTensor> states;
          for (int i = 0; i <= r.states; ++i)
            states.push_back(numbers(dtype, l.table, i == 0 ? 0 : 3.0 + (i == 1), i));
          const auto update = [&](bool touched) {
            std::vector<const HostTensor*> in{&lr,     &step,      &apply,
                                              nullptr, &states[0], touched ? &l.rows : &l.dense};
            for (int i = 1; i <= r.states; ++i) in.push_back(&states[static_cast<size_t>(i)]);
            Attrs attrs = r.attrs;
            attrs.set("weight_decay", std::vector<double>{decay});
            if (touched) {
              in.push_back(&l.slots);
              attrs.set("touched", std::vector<int64_t>{0});
            }
            Graph g(all_ops());
            std::vector<ValueId> ids;
            for (const HostTensor* t : in)
              ids.push_back(t ? g.add_input("x", t->dtype(), Shape(t->dims())) : kNone);
            const NodeId n = g.add_node(op, ids, attrs, r.states + 1, "n");
            g.infer(n);
            std::vector<std::pair<int, int>> alias{{0, 4}};
            for (int i = 1; i <= r.states; ++i) alias.emplace_back(i, 5 + i);
            return run_kernel(op.kernels[0], query_of(g, n), in, alias);
          };
          const std::vector<HostTensor> dense = update(false), touched = update(true);
          for (size_t i = 0; i < dense.size(); ++i)
            expect_same_bits(dense[i], touched[i], cat(r.op, " ", Shape(l.table).str(), " ", i));
        }
}

TEST(TouchedRows, NormAndSumAreThoseOfTheDenseGradient) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const Lookup& l : lookups(dtype)) {
      Graph g(all_ops());
      Builder b(g, "n");
      std::map<ValueId, HostTensor> values;
      const auto input = [&](const HostTensor& t) {
        const ValueId v = g.add_input("x", t.dtype(), Shape(t.dims()));
        values[v] = t.clone();
        return b.wrap(v);
      };
      const Expr dense = input(l.dense), rows = input(l.rows), slots = input(l.slots),
                 other = input(numbers(dtype, l.table, 0.3, 5));
      g.add_output(b.op("ortrain.GlobalNorm", {other, dense, other}).id(), "a");
      g.add_output(b.op("ortrain.GlobalNorm", {other, rows, slots, other}).id(), "b");
      g.add_output((other + dense).id(), "c");
      g.add_output(b.op("ortrain.AddRows", {other, rows, slots}).id(), "d");
      const std::vector<HostTensor> y = run_graph(g, values, "first");
      expect_same_bits(y[0], y[1], "norm of " + Shape(l.table).str());
      expect_same_bits(y[2], y[3], "sum of " + Shape(l.table).str());
    }
}

// %0 is only looked up, %1 is looked up and a factor too.
const char* const kTables =
    "graph \"g\" differentiated\n"
    "param %0:f32[9,2] \"table\"\nparam %1:f32[9,2] \"tied\"\n"
    "input %2:i64[4] \"ids\"\ninput %3:f32[4,2] \"dy\"\ninput %4:f32[] \"l\"\n"
    "%5:f32[9,2] = ortrain.GatherGrad(%3, %2) {axis=0, dims=[9, 2]} #a|autodiff\n"
    "%6:f32[9,2] = ortrain.GatherGrad(%3, %2) {axis=0, dims=[9, 2]} #b|autodiff\n"
    "%7:f32[9,2] = Exp(%1) #head|autodiff\n"
    "%8:f32[9,2] = Add(%7, %6) #b|autodiff\n"
    "output %4 \"loss\"\noutput %5 \"grad/table\"\noutput %8 \"grad/tied\"\n"
    "trainable %0 \"\"\ntrainable %1 \"\"\n";

std::string optimized(StepSpec s, const std::string& text = kTables) {
  Graph g = parse_graph(text, all_ops());
  const Evaluate evaluate;
  std::vector<std::string> messages;
  PassContext ctx{s, evaluate, messages, {}};
  pass_optimizer(g, ctx);
  EXPECT_EQ(verify(g), "");
  std::string lines;
  for (NodeId n : g.topo())
    if (g.node(n).op->name.starts_with("ortrain.Gather") ||
        g.node(n).op->name == "ortrain.AddRows" || g.node(n).op->name == "ortrain.GlobalNorm" ||
        g.node(n).attrs.has("weight_decay"))
      lines += cat(g.node(n).op->name, "/", g.node(n).inputs.size(),
                   g.node(n).attrs.has("touched") ? "t" : "", " ");
  return lines + "| " + ctx.did;
}

TEST(TouchedRows, OptimizerTakesRowsWhereItMay) {
  StepSpec s;
  s.optimizer.name = "adamw";
  s.optimizer.clip_norm = 1;
  EXPECT_EQ(optimized(s),
            "ortrain.GatherGradRows/2 ortrain.AddRows/3 ortrain.GatherGradRows/2 "
            "ortrain.GlobalNorm/3 ortrain.AdamW/13t | adamw: 2 parameters in 1 buckets, clipped by "
            "global norm, 1 by touched rows");
  for (const char* name : {"lamb", "adafactor"}) {
    s.optimizer.name = name;
    EXPECT_THAT(optimized(s), HasSubstr("ortrain.GatherGrad/2")) << name;
    EXPECT_THAT(optimized(s), Not(HasSubstr("by touched rows"))) << name;
  }
}

TEST(TouchedRows, NotWhereMostRowsAreLookedUp) {
  std::string text = kTables;
  for (size_t at = 0; (at = text.find("[9,2]", at)) != std::string::npos;) text[at + 1] = '7';
  for (size_t at = 0; (at = text.find("[9, 2]", at)) != std::string::npos;) text[at + 1] = '7';
  EXPECT_THAT(optimized({}, text), Not(HasSubstr("Rows")));
}

TEST(TouchedRows, WindowsAddThemToTheSum) {
  StepSpec s;
  s.window = {WindowSpec::Phase::kMiddle, 3, 4, 4};
  EXPECT_THAT(optimized(s), HasSubstr("ortrain.AddRows/3 ortrain.GatherGradRows/2 "));
  EXPECT_THAT(optimized(s), Not(HasSubstr("ortrain.GatherGrad/2")));
}

}  // namespace
}  // namespace ortrain::test
