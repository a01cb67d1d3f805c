// See executor.h.
#include "runtime/executor.h"

#include <chrono>
#include <cstring>

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
  if (profile_ || timeline_) return run_timed();
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].kernel->run(calls_[i].args);
    if (fault_.raised.load(std::memory_order_relaxed)) raise(i);
  }
  finish();
}

void Executor::run_timed() {
  const auto first = Clock::now();
  if (timeline_) timeline_->begin_run(plan_);
  for (size_t i = 0; i < calls_.size(); ++i) {
    const auto start = Clock::now();
    calls_[i].kernel->run(calls_[i].args);
    const auto end = Clock::now();
    if (timeline_) timeline_->op(i, start, end);
    if (profile_) step_ms_[i] += std::chrono::duration<double, std::milli>(end - start).count();
    if (fault_.raised.load(std::memory_order_relaxed)) raise(i);
  }
  finish();
  if (!profile_) return;
  ++profiled_runs_;
  run_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - first).count();
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

}  // namespace ortrain
