// See executor.h.
#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>

#include "graph/error.h"

namespace ortrain {
namespace {
using Clock = std::chrono::steady_clock;

}  // namespace

Executor::Executor(const Plan& plan, const Arena& arena) : plan_(plan), arena_(arena) {
  ORTRAIN_CHECK(arena.bytes() >= plan.arena_bytes, "the arena was not allocated for this plan");
  size_t in = 0, out = 0;
  for (const PlanStep& s : plan.steps) in += s.in.size(), out += s.out.size();
  in_.reserve(in);  // pointers into these stay valid: filled to the reserved size only
  out_.reserve(out);
  calls_.reserve(plan.steps.size());
  for (const PlanStep& s : plan.steps) {
    KernelArgs args;
    args.in = in_.data() + in_.size();
    args.out = out_.data() + out_.size();
    args.workspace = s.kernel.workspace ? arena.data() + s.workspace : nullptr;
    args.fault = &fault_;
    for (const Place& p : s.in) {
      in_.push_back(resolve(p));
      if (p.kind == Place::Kind::kInput) patches_.push_back({&in_.back(), p.offset});
    }
    for (const PlanTensor& t : s.out) out_.push_back(const_cast<void*>(resolve(t.place)));
    calls_.push_back({&s.kernel, args});
  }
  moves_.reserve(plan.copies.size());
  for (const PlanCopy& c : plan.copies) {
    moves_.push_back({resolve(c.from), const_cast<void*>(resolve(c.to)), c.bytes});
    if (c.from.kind == Place::Kind::kInput)
      patches_.push_back({&moves_.back().from, c.from.offset});
  }
  outputs_.reserve(plan.outputs.size());
  for (const PlanTensor& t : plan.outputs) {
    outputs_.push_back(resolve(t.place));
    if (t.place.kind == Place::Kind::kInput) patches_.push_back({&outputs_.back(), t.place.offset});
  }
}

const void* Executor::resolve(const Place& p) const {
  switch (p.kind) {
    case Place::Kind::kArena: return arena_.data() + p.offset;
    case Place::Kind::kFixed: return p.fixed;
    default: return nullptr;
  }
}

void Executor::bind(std::span<const void* const> inputs) {
  ORTRAIN_CHECK(inputs.size() == plan_.inputs.size(),
                cat("a run got ", inputs.size(), " inputs, the plan has ", plan_.inputs.size()));
  for (const Patch& p : patches_) *p.slot = inputs[p.input];
  fault_.raised.store(false, std::memory_order_relaxed);
}

void Executor::run(std::span<const void* const> inputs) {
  bind(inputs);
  if (profile_) {
    ++profiled_runs_;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const auto start = Clock::now();
      calls_[i].kernel->run(calls_[i].args);
      step_ms_[i] += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      if (fault_.raised.load(std::memory_order_relaxed)) raise(i);
    }
  } else {
    for (size_t i = 0; i < calls_.size(); ++i) {
      calls_[i].kernel->run(calls_[i].args);
      if (fault_.raised.load(std::memory_order_relaxed)) raise(i);
    }
  }
  finish();
}

void Executor::finish() {
  for (const Move& m : moves_)
    if (m.bytes) std::memcpy(m.to, m.from, m.bytes);
}

void Executor::raise(size_t step) {
  fail(ErrorCode::kData, "index ", fault_.value, " at position ", fault_.position, " of ",
       plan_.steps[step].node, " is outside [", fault_.low, ", ", fault_.high, ")");
}

HostTensor Executor::output(int i) const {
  const PlanTensor& t = plan_.outputs[static_cast<size_t>(i)];
  return HostTensor::view(t.dtype, t.dims, outputs_[static_cast<size_t>(i)]);
}

void Executor::set_profile(bool on) {
  profile_ = on;
  if (on && step_ms_.empty()) step_ms_.assign(calls_.size(), 0);
}

bool Executor::run(std::span<const void* const> inputs, StepHook& hook) {
  bind(inputs);
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!hook.before(i, calls_[i].args)) continue;
    calls_[i].kernel->run(calls_[i].args);
    if (fault_.raised.load(std::memory_order_relaxed)) raise(i);
    if (!hook.after(i, calls_[i].args)) return false;
  }
  if (!hook.finish()) return false;
  finish();
  return true;
}

std::string profile_text(const Executor& executor, int slowest) {
  const Plan& plan = executor.plan();
  const std::vector<double>& ms = executor.step_ms();
  const double runs = std::max(1, executor.profiled_runs());
  const double total = std::accumulate(ms.begin(), ms.end(), 0.0);
  if (ms.empty() || total <= 0) return "no profile\n";
  struct Sum {
    double ms = 0, flops = 0, bytes = 0;
    int steps = 0;
  };
  std::map<std::string, Sum> by_op;
  const auto add = [&](Sum& s, size_t i) {
    s.ms += ms[i];
    s.flops += plan.steps[i].flops * runs;
    s.bytes += static_cast<double>(plan.steps[i].bytes) * runs;
    ++s.steps;
  };
  for (size_t i = 0; i < ms.size(); ++i)
    add(by_op[plan.steps[i].op + " " + plan.steps[i].chosen], i);
  std::string out;
  char line[160];
  const auto row = [&](const std::string& label, const Sum& s) {
    std::snprintf(line, sizeof line, "%9.3f ms %5.1f %% %8.1f GF/s %7.2f GB/s %5d  ", s.ms / runs,
                  100 * s.ms / total, s.ms > 0 ? s.flops / s.ms * 1e-6 : 0,
                  s.ms > 0 ? s.bytes / s.ms * 1e-6 : 0, s.steps);
    out += line + label + "\n";
  };
  std::vector<std::pair<std::string, Sum>> ops(by_op.begin(), by_op.end());
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::snprintf(line, sizeof line,
                "%.3f ms per step in kernels, %d runs\nby operator and kernel:\n", total / runs,
                executor.profiled_runs());
  out += line;
  for (const auto& [name, sum] : ops) row(name, sum);
  std::vector<size_t> steps(ms.size());
  std::iota(steps.begin(), steps.end(), size_t{0});
  std::stable_sort(steps.begin(), steps.end(), [&](size_t a, size_t b) { return ms[a] > ms[b]; });
  out += "slowest steps:\n";
  for (size_t i = 0; i < steps.size() && static_cast<int>(i) < slowest; ++i) {
    Sum s;
    add(s, steps[i]);
    row(plan.steps[steps[i]].node + " [" + plan.steps[steps[i]].chosen + "]", s);
  }
  return out;
}

}  // namespace ortrain
