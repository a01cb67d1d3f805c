// Follows how crowded the CPUs are, and has OpenMP's threads wait accordingly.
//
// A thread of OpenMP that waits spins for about 100 us before it sleeps (runtime/threads.h). With a
// CPU for each thread that is best; where another process holds one, two of our threads share the
// other, and the one that spins keeps away the very one it waits for.
//
// A thread of its own looks every 50 ms at the time that the process's threads were ready but
// without a CPU (/proc/self/task/*/schedstat). Twice above 0.15 of the time that passed, it has
// libgomp spin for 100 pauses only, below 0.07 for as long as before: libgomp does so by itself
// while it counts more threads of its own than CPUs, so the watcher keeps a pool of sleeping
// threads beside the training's. Results do not change: only how a thread waits does.
//
// Nothing of this runs in the training thread. Does nothing where the system keeps no schedstat,
// the user has set OMP_WAIT_POLICY, or there are more CPUs than sleeping threads are worth (64).
#pragma once

#include <cstdint>
#include <thread>

namespace ortrain {

// The decision: on above kOn of the time in two calls running (one alone is any passing process),
// off below kOff, as it was between.
class Crowding {
 public:
  static constexpr double kOn = 0.15, kOff = 0.07;
  // Times in ns since the last call: waited without a CPU (summed over threads), and passed.
  // Returns whether it is crowded; nothing passed: as it was.
  bool update(int64_t waited, int64_t passed);
  bool crowded() const { return crowded_; }

 private:
  bool crowded_ = false, above_ = false;
};

// Watches from construction to destruction.
class CrowdingWatch {
 public:
  CrowdingWatch();

 private:
  std::jthread thread_;
};

}  // namespace ortrain
