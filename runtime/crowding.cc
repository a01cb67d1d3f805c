// See crowding.h. The tasks are listed with getdents64 into a buffer on the stack: no allocation.
#include "runtime/crowding.h"

#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <system_error>

namespace ortrain {
namespace {
// Time in ns that the process's threads have waited for a CPU, those of `self` left out; -1:
// unknown.
int64_t waited(int tasks, long self) {
  int64_t sum = 0;
  bool any = false;
  alignas(8) char names[4096];
  if (lseek(tasks, 0, SEEK_SET) != 0) return -1;
  for (long n; (n = syscall(SYS_getdents64, tasks, names, sizeof names)) > 0;) {
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const dirent64*>(names + at);
      at += entry->d_reclen;
      if (entry->d_name[0] == '.' || std::atol(entry->d_name) == self) continue;
      char path[300], text[96] = {};
      std::snprintf(path, sizeof path, "%s/schedstat", entry->d_name);
      const int fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;  // the thread has ended
      long long ran = 0, wait = 0;
      if (read(fd, text, sizeof text - 1) > 0 && std::sscanf(text, "%lld %lld", &ran, &wait) == 2)
        sum += wait, any = true;
      close(fd);
    }
  }
  return any ? sum : -1;
}

// Makes a pool of `n` threads that sleep, for libgomp to count.
void add_sleepers(int n) {
#pragma omp parallel num_threads(n)
  asm volatile("");  // a region that is empty may be left out
}

void watch(const std::stop_token& stop) {
  const int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (tasks < 0) return;
  const long self = syscall(SYS_gettid);
  const int cpus = omp_get_num_procs();
  using Clock = std::chrono::steady_clock;
  Crowding crowding;
  std::mutex mutex;
  std::condition_variable_any wake;
  auto then = Clock::now();
  int64_t before = waited(tasks, self);
  while (before >= 0 && !stop.stop_requested()) {
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, std::chrono::milliseconds(50), [] { return false; });
    const auto now = Clock::now();
    const int64_t after = waited(tasks, self);
    const bool was = crowding.crowded();
    const bool is = crowding.update(after - before, (now - then) / std::chrono::nanoseconds(1));
    if (is && !was) add_sleepers(cpus + 1);
    if (!is && was) omp_pause_resource(omp_pause_soft, omp_get_initial_device());
    before = after, then = now;
  }
  close(tasks);
}
}  // namespace

bool Crowding::update(int64_t waited, int64_t passed) {
  if (passed <= 0) return crowded_;
  const double share = static_cast<double>(waited) / static_cast<double>(passed);
  if (share > kOn && above_) crowded_ = true;
  above_ = share > kOn;
  if (share < kOff) crowded_ = false;
  return crowded_;
}

CrowdingWatch::CrowdingWatch() {
  if (std::getenv("OMP_WAIT_POLICY") || omp_get_num_procs() > 64) return;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);  // signals are for the training thread
  try {
    thread_ = std::jthread(watch);
  } catch (const std::system_error&) {  // no thread to be had: OpenMP waits as ever
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace ortrain
