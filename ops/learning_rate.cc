// ortrain.LearningRate(step) -> f64: the schedules, as a node, so that the host decides nothing.
//
// `step` counts the updates applied before this one. Warm-up grows linearly, lr (step + 1) /
// warmup_steps for step < warmup_steps; then, with `done` the share of the steps between warm-up
// and total_steps (1 after them):
//   constant      lr
//   linear        lr + (min_lr - lr) done
//   cosine        min_lr + (lr - min_lr) (1 + cos(pi done)) / 2
//   polynomial    min_lr + (lr - min_lr) (1 - done)^power
//   step          lr gamma^floor((step - warmup_steps) / step_size), not below min_lr
//   inverse_sqrt  lr sqrt(max(warmup_steps, 1) / (step + 1)), not below min_lr
//   one_cycle     torch.optim.lr_scheduler.OneCycleLR with max_lr = lr, cosine annealing, two
//                 phases; without warm-up and min_lr, which it has itself
#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/error.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

enum class Schedule : uint8_t {
  kConstant,
  kLinear,
  kCosine,
  kPolynomial,
  kStep,
  kInverseSqrt,
  kOneCycle
};

Schedule schedule_of(const std::string& name) {
  const char* const names[] = {"constant", "linear",       "cosine",   "polynomial",
                               "step",     "inverse_sqrt", "one_cycle"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (name == names[i]) return static_cast<Schedule>(i);
  fail(ErrorCode::kUsage, "unknown schedule '", name, "'");
}

double cosine(double from, double to, double done) {
  return to + 0.5 * (from - to) * (1 + std::cos(std::numbers::pi * done));
}

struct Rate {
  Schedule schedule;
  double lr, min_lr, warmup, total, power, gamma, step_size, pct_start, div_factor, final_factor;

  double at(int64_t step) const {
    const double s = static_cast<double>(step);
    if (schedule == Schedule::kOneCycle) return one_cycle(s);
    if (s < warmup) return lr * (s + 1) / warmup;
    switch (schedule) {
      case Schedule::kConstant: return lr;
      case Schedule::kStep:
        return std::max(min_lr, lr * std::pow(gamma, std::floor((s - warmup) / step_size)));
      case Schedule::kInverseSqrt:
        return std::max(min_lr, lr * std::sqrt(std::max(warmup, 1.0) / (s + 1)));
      default: break;
    }
    if (total <= warmup) return lr;
    const double done = std::min(1.0, (s - warmup) / (total - warmup));
    if (schedule == Schedule::kLinear) return lr + (min_lr - lr) * done;
    if (schedule == Schedule::kPolynomial)
      return min_lr + (lr - min_lr) * std::pow(1 - done, power);
    return cosine(lr, min_lr, done);
  }
  double one_cycle(double s) const {
    const double first = lr / div_factor, last = first / final_factor;
    const double top = pct_start * total - 1, end = total - 1;  // steps of the highest rate, lowest
    if (s <= top && top > 0) return cosine(first, lr, s / top);
    return cosine(lr, last, end > top ? std::clamp((s - top) / (end - top), 0.0, 1.0) : 1);
  }
};

Kernel prepare(const KernelQuery& q) {
  const Attrs& a = q.attrs;
  const Rate r{.schedule = schedule_of(a.s("schedule", "constant")),
               .lr = a.f("lr", 1e-3),
               .min_lr = a.f("min_lr", 0),
               .warmup = static_cast<double>(a.i("warmup_steps", 0)),
               .total = static_cast<double>(a.i("total_steps", 0)),
               .power = a.f("power", 1),
               .gamma = a.f("gamma", 0.1),
               .step_size = static_cast<double>(std::max<int64_t>(a.i("step_size", 1), 1)),
               .pct_start = a.f("pct_start", 0.3),
               .div_factor = a.f("div_factor", 25),
               .final_factor = a.f("final_div_factor", 1e4)};
  return {.run = [r](const KernelArgs& args) { *args.y<double>(0) = r.at(*args.x<int64_t>(0)); }};
}

}  // namespace

void register_learning_rate(OpTable& table) {
  const auto at = [](int64_t step, const char* schedule) {
    return Example{.in = {ints({}, step, step + 1)},
                   .attrs = {{"schedule", std::string(schedule)},
                             {"lr", 0.5},
                             {"min_lr", 0.1},
                             {"warmup_steps", int64_t{4}},
                             {"total_steps", int64_t{10}},
                             {"step_size", int64_t{2}},
                             {"power", 2.0}}};
  };
  table.add({.name = "ortrain.LearningRate",
             .inputs = {"step"},
             .outputs = {"lr"},
             .infer =
                 [](InferCtx& c) {
                   if (c.dtype(0) != DType::kI64) c.fail("step must be i64");
                   c.out(0, DType::kF64, Shape());
                 },
             .fold = false,
             .precision = Precision::kNever16,
             .kernels = {{"cpu", "ref", nullptr, prepare}},
             .examples = {at(0, "constant"), at(3, "linear"), at(7, "linear"), at(7, "cosine"),
                          at(99, "cosine"), at(7, "polynomial"), at(7, "step"),
                          at(7, "inverse_sqrt"), at(2, "one_cycle"), at(7, "one_cycle")}});
}

}  // namespace ortrain::ops
