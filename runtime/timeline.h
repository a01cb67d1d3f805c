// Timeline: when each operator of some training steps ran, and on which threads; written as a
// Chrome trace, which ui.perfetto.dev and chrome://tracing open.
//
// Threads of a pool are not asked: after each operator the CPU time that every other thread of the
// process used meanwhile is read from the kernel (about 0.4 us per thread), so that compute threads
// and loader threads show without a word of theirs. A thread's slice has the operator's span and
// says what share of it the thread was busy. Costs nothing while no timeline is set.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace ortrain {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  // Records `steps` training steps after the first `skip` it is told of.
  explicit Timeline(int64_t steps, int64_t skip = 0) : wanted_(steps), skip_(skip) {}

  bool begin_step(int64_t step);  // whether it is recorded
  void end_step();
  bool recording() const { return recording_; }
  bool done() const { return seen_ >= skip_ + wanted_; }
  int64_t recorded() const { return static_cast<int64_t>(steps_.size()); }

  // Of the executor. The plan must outlive write().
  void begin_run(const Plan& plan);
  void op(size_t index, Clock::time_point begin, Clock::time_point end);
  // Anything else of the main thread: "waiting for data".
  void span(const char* name, Clock::time_point begin, Clock::time_point end);

  struct Total {
    std::string name;          // operator and kernel
    double ms = 0, share = 0;  // per step
    int64_t calls = 0;         // per step
  };
  std::vector<Total> totals() const;  // by time

  // Throws Error(kIo). Atomic: the file is complete or as it was.
  void write(const std::string& path) const;

 private:
  struct Thread {
    int id = 0;
    clockid_t clock = 0;
    int64_t used = 0;  // ns
    std::string name;  // empty: of the compute pool
  };
  struct Op {
    const Plan* plan;
    size_t index;
    Clock::time_point begin, end;
  };
  struct Busy {
    size_t op, thread;
    int64_t ns;
  };
  struct Span {
    std::string name;
    Clock::time_point begin, end;
  };
  void find_threads();
  double us(Clock::time_point t) const;

  int64_t wanted_, skip_, seen_ = 0;
  bool recording_ = false;
  const Plan* plan_ = nullptr;
  Clock::time_point origin_;
  std::vector<Thread> threads_;
  std::vector<Op> ops_;
  std::vector<Busy> busy_;
  std::vector<Span> steps_, spans_;
};

}  // namespace ortrain
