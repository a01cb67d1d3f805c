// ctest-label: slow
// The perf mode of the operator engine: every operator and its gradient at a size that training
// meets (tests/ops/perf_table.cc), compiled, fused and planned as a training step is.
//
// The share of a row is the least time that its work can take (bytes of the graph's inputs and
// outputs at the rate of a plain scaling loop, or its multiply-adds at the rate of a matrix
// product, whichever is longer; both measured beside it) over the time that it took. Transposes to
// and from channels-last data are left out: in a network they stand at its borders.
// ORTRAIN_PERF=TEXT runs entries whose name holds it and prints their steps;
// ORTRAIN_PERF_THREADS=N. docs/performance.md lists what lies below a tenth. Fails when a share
// that is not listed there is below a twentieth: the same code differs by up to that factor of two
// between machines, as one's memory is faster in proportion to its cores than another's. What lies
// between is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/passes/passes.h"
#include "ortrain_test_paths.h"
#include "runtime/evaluate.h"
#include "runtime/executor.h"
#include "tests/ops/interpreter.h"
#include "tests/ops/perf_table.h"

namespace ortrain::test {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
int threads() {
  const char* n = std::getenv("ORTRAIN_PERF_THREADS");
  return n ? std::max(1, std::atoi(n)) : 2;
}

struct Random {
  uint64_t state = 42;
  double next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<double>(state >> 40) * 0x1p-24;
  }
};

HostTensor contents(const ExampleInput& e, Random& random) {
  using Kind = ExampleInput::Kind;
  const bool is_f = e.kind == Kind::kFloat || e.kind == Kind::kFloats;
  const DType dtype = e.dtype != DType::kUndefined ? e.dtype
                      : e.kind == Kind::kBool      ? DType::kBool
                      : is_f                       ? DType::kF32
                                                   : DType::kI64;
  HostTensor t(dtype, e.dims);
  const int64_t n = t.count();
  if (dtype == DType::kF32 && e.values.empty() && is_f) {
    for (int64_t i = 0; i < n; ++i)
      t.mutable_data<float>()[i] = static_cast<float>(e.low + (e.high - e.low) * random.next());
    return t;
  }
  for (int64_t i = 0; i < n; ++i) {
    double v = e.values.empty() ? e.low + (e.high - e.low) * random.next()
                                : e.values[static_cast<size_t>(i)];
    if (e.values.empty() && e.kind == Kind::kInts) v = std::floor(v);
    if (e.values.empty() && e.kind == Kind::kBool) v = random.next() < 0.7;
    t.set_double(i, v);
  }
  return t;
}

// A compiled graph, its plan and its memory.
class Measured {
 public:
  // Empty (no output) when nothing is differentiable and `gradient` is set.
  Measured(const PerfEntry& e, bool gradient) : g_(all_ops()) {
    Random random;
    std::vector<ValueId> in, leaves;
    for (size_t i = 0; i < e.use.in.size(); ++i) {
      const ExampleInput& x = e.use.in[i];
      if (x.kind == ExampleInput::Kind::kAbsent) {
        in.push_back(kNone);
        continue;
      }
      HostTensor t = contents(x, random);
      if (x.constant) {
        in.push_back(g_.add_const(std::move(t)));
      } else {
        in.push_back(g_.add_input(cat('x', i), t.dtype(), Shape(t.dims())));
        if (is_float(t.dtype())) leaves.push_back(in.back());
        memory_[in.back()] = std::move(t);
      }
    }
    const NodeId n = g_.add_node(all_ops().get(e.op), in, e.use.attrs, e.use.outputs, "op");
    g_.infer(n);
    const std::vector<ValueId> outs = g_.node(n).outputs;
    for (size_t i = 0; i < outs.size(); ++i) g_.add_output(outs[i], cat('y', i));
    g_.stage = Stage::kInferred;
    compile(gradient, leaves, random);
    if (g_.outputs().empty()) return;
    for (ValueId v = 0; v < g_.value_count(); ++v)
      if (g_.value(v).source != Source::kNode && !g_.value(v).uses.empty()) bytes += bytes_of(v);
    for (ValueId v : g_.outputs()) bytes += bytes_of(v);
    SelectOptions options;
    options.threads = threads();
    plan_ = make_plan(g_, store_, options);
    flops = std::max(plan_.flops, e.flops * (gradient ? 2 : 1));
    arena_.reserve(plan_.arena_bytes);
    arena_.allocate();
    executor_.emplace(plan_, arena_);
    for (ValueId v : g_.inputs()) inputs_.push_back(memory_.at(v).raw());
    steps.resize(plan_.steps.size(), 1e9);
  }
  bool empty() const { return plan_.steps.empty(); }

  // Takes the least time seen of each step: what other processes do to one run does not count.
  void run_once() {
    executor_->set_profile(true);
    const std::vector<double> before = executor_->step_ms();
    executor_->run(inputs_);
    for (size_t i = 0; i < steps.size(); ++i)
      steps[i] = std::min(steps[i], (executor_->step_ms()[i] - before[i]) / 1e3);
  }
  void forget() { steps.assign(steps.size(), 1e9); }
  double seconds() const {
    double sum = 0;
    for (size_t i = 0; i < steps.size(); ++i)
      if (!border(i)) sum += steps[i];
    return sum;
  }
  void print_steps() const {
    for (size_t i = 0; i < steps.size(); ++i)
      std::printf("    %8.3f ms  %6.1f GB/s  %7.1f GFLOP/s  %-9s %s\n", steps[i] * 1e3,
                  static_cast<double>(plan_.steps[i].bytes) / steps[i] / 1e9,
                  plan_.steps[i].flops / steps[i] / 1e9, plan_.steps[i].chosen.c_str(),
                  plan_.steps[i].node.c_str());
  }
  // The slowest step: operator and kernel.
  std::string slowest() const {
    size_t i = 0;
    for (size_t k = 0; k < steps.size(); ++k)
      if (border(i) || (!border(k) && steps[k] > steps[i])) i = k;
    return cat(plan_.steps[i].op, ":", plan_.steps[i].chosen);
  }

  double bytes = 0, flops = 0;
  std::vector<double> steps;  // least seconds of each

 private:
  // A transpose that the layout pass put around the node.
  bool border(size_t i) const {
    return plan_.steps[i].op == "Transpose" &&
           plan_.steps[i].node.find("|layout") != std::string::npos;
  }
  double bytes_of(ValueId v) const {
    return static_cast<double>(g_.value(v).shape.count().value()) *
           static_cast<double>(size_of(g_.value(v).dtype));
  }
  void compile(bool gradient, const std::vector<ValueId>& leaves, Random& random) {
    StepSpec spec;
    spec.mode = gradient ? Mode::kGrads : Mode::kPredict;
    const Evaluate evaluate = make_evaluator();
    std::vector<std::string> messages;
    for (const Pass& pass : passes()) {
      const std::string name = pass.name;
      if (name == "attach_loss" || name == "check_trainable" || name == "optimizer") continue;
      if (name == "autodiff") {
        if (gradient) differentiate_all(leaves, random);
        continue;
      }
      if (pass.wanted && !pass.wanted(spec)) continue;
      PassContext ctx{spec, evaluate, messages, {}};
      pass.run(g_, ctx);
      const std::string problems = verify(g_);
      ORTRAIN_CHECK(problems.empty(), cat("after ", name, ":\n", problems, print_graph(g_)));
    }
  }
  // Leaves the gradients of the leaves as the only outputs, given a random one of each float
  // output.
  void differentiate_all(const std::vector<ValueId>& leaves, Random& random) {
    Builder b(g_, "seed");
    Expr loss;
    std::vector<std::pair<ValueId, ValueId>> seeds;
    for (ValueId y : std::vector<ValueId>(g_.outputs())) {
      const Value v = g_.value(y);
      if (!is_float(v.dtype)) continue;
      const ValueId dy = g_.add_input("dy", v.dtype, v.shape);
      ExampleInput e;
      e.dims = v.shape.values(), e.dtype = v.dtype;
      memory_[dy] = contents(e, random);
      const Expr product = b.wrap(y) * b.wrap(dy);
      std::vector<int64_t> axes(e.dims.size());
      for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
      const Expr sum = b.sum(product, axes, false);
      loss = loss ? loss + sum : sum;
      seeds.push_back({g_.value(product.id()).producer, dy});
    }
    g_.clear_outputs();
    if (!loss) return;
    g_.add_output(loss.id(), "loss");
    std::vector<ValueId> wanted;
    const PerValue<bool> reached = reaches(g_, {loss.id()});
    for (ValueId v : leaves)
      if (PerValue<bool>(reached)[v] && gradient_problems(g_, loss.id(), {v}).empty())
        wanted.push_back(v);  // refused ones are no work
    if (wanted.empty()) {
      g_.clear_outputs();
      return;
    }
    const std::vector<ValueId> grads = differentiate(g_, loss.id(), wanted);
    g_.clear_outputs();
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i] != kNone) g_.add_output(grads[i], cat("grad", i));
    for (NodeId n = 0; n < g_.node_count(); ++n) {  // dy * d loss / d product is dy
      const Node& node = g_.node(n);
      if (!node.op || node.op->name != "Mul" || node.origin != "seed|autodiff") continue;
      for (const auto& [product, dy] : seeds)
        if (std::find(node.inputs.begin(), node.inputs.end(), dy) != node.inputs.end()) {
          g_.replace_uses(node.outputs[0], dy);
          break;
        }
    }
    g_.erase_dead();
    g_.stage = Stage::kDifferentiated;
  }

  Graph g_;
  std::map<ValueId, HostTensor> memory_;
  ParamStore store_;
  Plan plan_;
  Arena arena_;
  std::optional<Executor> executor_;
  std::vector<const void*> inputs_;
};

// The rates that shares refer to, best of what was seen near an entry.
class Reference {
 public:
  Reference() : x_(kCount, 1.0f), y_(kCount, 1.0f), product_(entry(), false) {}
  void reset() {
    scale_ = 1e9;
    product_.forget();
  }
  void measure(bool with_product) {
    const auto start = Clock::now();
    parallel_for(threads(), kCount, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        y_[static_cast<size_t>(i)] = 1.5f * x_[static_cast<size_t>(i)];
    });
    scale_ = std::min(scale_, since(start));
    if (with_product) product_.run_once();
  }
  double bandwidth() const { return 8.0 * kCount / scale_; }
  double flops() const { return product_.flops / product_.seconds(); }

 private:
  static PerfEntry entry() {
    ExampleInput e;
    e.dims = {1024, 1024}, e.low = -1, e.high = 1;
    return {"MatMul", "", {{e, e}}};
  }
  static constexpr int64_t kCount = 6 << 20;  // 48 MiB in all
  std::vector<float> x_, y_;
  Measured product_;
  double scale_ = 1e9;
};

constexpr double kListed = 0.1, kFails = 0.05;  // shares

struct Row {
  std::string name;
  double ms, gbs, gflops, share;
  std::string slowest;
};

Row measure(const std::string& name, Measured& run, Reference& reference, bool print) {
  const bool product = run.flops > 0;
  reference.reset();
  run.run_once();
  run.forget();  // the first run meets cold memory
  const auto start = Clock::now();
  for (int i = 0; i < 3 || (i < 15 && since(start) < 0.2); ++i) {
    reference.measure(product && i < 5);
    run.run_once();
  }
  const double least =
      std::max(run.bytes / reference.bandwidth(), product ? run.flops / reference.flops() : 0);
  const double took = run.seconds();
  Row row{name,         took * 1e3,   run.bytes / took / 1e9, run.flops / took / 1e9,
          least / took, run.slowest()};
  if (print) {
    std::printf("%5.2f  %s: %.2f ms (scaling loop %.1f GB/s)\n", row.share, name.c_str(), row.ms,
                reference.bandwidth() / 1e9);
    run.print_steps();
  }
  return row;
}

std::string listed_text() {
  std::ifstream in(std::string(kSourceDir) + "/docs/performance.md");
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Perf, EveryOperatorIsMeasuredOrSaysWhyNot) {
  std::map<std::string, bool> has;
  for (const PerfEntry& e : perf_table()) has[e.op] = true;
  std::string missing;
  for (const OpDef* op : all_ops().all())
    if (!has[op->name] && !op->view && !op->name.starts_with("ortrain.") &&
        !perf_skips().contains(op->name))
      missing += "  " + op->name;
  EXPECT_EQ(missing, "") << "operators without an entry or a reason in tests/ops/perf_table.cc";
}

TEST(Perf, Shares) {
  const char* filter = std::getenv("ORTRAIN_PERF");
  const std::string docs = listed_text();
  Reference reference;
  std::vector<Row> rows;
  std::string slow, unlisted;
  for (const PerfEntry& e : perf_table())
    for (const bool gradient : {false, true}) {
      const std::string name =
          cat(e.op, e.label.empty() ? "" : " (" + e.label + ")", gradient ? " gradient" : "");
      if (filter && name.find(filter) == std::string::npos) continue;
      const auto listed = docs.find("`" + name + "`") != std::string::npos;
      try {
        Measured run(e, gradient);
        if (run.empty()) continue;
        Row row = measure(name, run, reference, filter != nullptr);
        // A busy neighbour slows either side for a while: what lies below the line is seen again.
        for (int again = 0; again < 4 && row.share < kFails && !listed; ++again) {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          const Row next = measure(name, run, reference, false);
          if (next.share > row.share) row = next;
        }
        if (row.share < kListed && !listed) unlisted += cat("  ", name, "\n");
        if (row.share < kFails && !listed) slow += cat("  ", name, "\n");
        rows.push_back(std::move(row));
      } catch (const std::exception& error) {
        ADD_FAILURE() << name << ": " << error.what();
      }
    }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.share < b.share; });
  std::printf("share       ms    GB/s  GFLOP/s  slowest step                     what\n");
  for (const Row& r : rows) {
    std::printf("%5.2f %8.2f  %6.1f  %7.1f  %-32s %s\n", r.share, r.ms, r.gbs, r.gflops,
                r.slowest.c_str(), r.name.c_str());
  }
  if (!unlisted.empty())
    std::printf("below a tenth here, and not listed in docs/performance.md:\n%s", unlisted.c_str());
  EXPECT_EQ(slow, "") << "below a twentieth, and not listed in docs/performance.md";
}

}  // namespace
}  // namespace ortrain::test
