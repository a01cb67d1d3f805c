// See small_task.h.
#include "tests/runtime/small_task.h"

#include <cmath>
#include <limits>
#include <random>

#include "graph/builder.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {
HostTensor random(Dims dims, uint32_t seed, double scale) {
  std::mt19937 rng(seed);
  HostTensor t(DType::kF32, std::move(dims));
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, scale * (static_cast<double>(rng() % 2001) / 1000 - 1));
  return t;
}
}  // namespace

Graph small_model() {
  Graph g(all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape{Dim::symbol("N"), 6});
  Builder b(g, "net");
  const auto param = [&](const char* name, HostTensor t) {
    return b.wrap(g.add_param(std::move(t), name));
  };
  const Expr w1 = param("w1", random({6, 16}, 1, 0.5)), b1 = param("b1", random({16}, 2, 0.1));
  const Expr w2 = param("w2", random({16, 3}, 3, 0.5)), b2 = param("b2", random({3}, 4, 0.1));
  const Expr h = b.unary("Tanh", b.matmul(b.wrap(x), w1) + b1);
  g.add_output((b.matmul(h, w2) + b2).id(), "logits");
  return g;
}

data::Dataset small_data(int64_t samples, int64_t bad) {
  HostTensor x = random({samples, 6}, 9, 1), labels(DType::kI64, {samples});
  for (int64_t i = 0; i < samples; ++i) {
    const double a = x.as_double(i * 6), b = x.as_double(i * 6 + 1);
    labels.set_double(i, a > 0.3 ? 2 : a + b > 0 ? 1 : 0);
  }
  if (bad >= 0) x.set_double(bad * 6, std::numeric_limits<double>::quiet_NaN());
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", std::move(x));
  arrays.emplace_back("labels", std::move(labels));
  return data::Dataset::from_arrays(std::move(arrays));
}

StepSpec small_spec() {
  StepSpec s;
  s.loss.kind = "cross_entropy";
  s.optimizer.lr = 0.02;
  s.optimizer.schedule = "cosine";
  s.optimizer.clip_norm = 1;
  s.seed = 5;
  return s;
}

std::vector<char> contents(const ParamStore& store) {
  std::vector<char> out;
  for (const StoreEntry& e : store.entries())
    out.insert(out.end(), reinterpret_cast<const char*>(e.data),
               reinterpret_cast<const char*>(e.data) + e.bytes);
  return out;
}

std::vector<double> Recorder::losses() const {
  std::vector<double> out;
  for (const StepInfo& s : steps) out.push_back(s.loss);
  return out;
}

}  // namespace ortrain::test
