// Reads affinity, core topology and CPU quota from Linux; falls back to the affinity count.
#include "runtime/threads.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace ortrain {
namespace {
// First line of a file, "" when it is not there.
std::string read_line(const std::string& path) {
  std::FILE* f = std::fopen(path.c_str(), "r");
  if (f == nullptr) return {};
  char line[256] = {};
  const bool ok = std::fgets(line, sizeof line, f) != nullptr;
  std::fclose(f);
  return ok ? line : "";
}

// CPUs that the cgroup's quota allows, rounded up; 0 = no quota.
int quota() {
  long long amount = 0, period = 0;
  if (std::sscanf(read_line("/sys/fs/cgroup/cpu.max").c_str(), "%lld %lld", &amount, &period) !=
      2) {  // cgroup v1
    std::sscanf(read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str(), "%lld", &amount);
    std::sscanf(read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str(), "%lld", &period);
  }
  return amount > 0 && period > 0 ? static_cast<int>((amount + period - 1) / period) : 0;
}

// The process's CPUs, each with the physical core (package, core) it belongs to.
std::vector<std::pair<int, std::pair<std::string, std::string>>> usable_cpus() {
  std::vector<std::pair<int, std::pair<std::string, std::string>>> out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::string core = read_line(base + "core_id");
    out.push_back({cpu,
                   {read_line(base + "physical_package_id"),
                    core.empty() ? "cpu" + std::to_string(cpu) : core}});
  }
  return out;
}
}  // namespace

int available_threads() {
  std::set<std::pair<std::string, std::string>> cores;
  for (const auto& [cpu, core] : usable_cpus()) cores.insert(core);
  int n = static_cast<int>(cores.size());
  if (const int q = quota(); q > 0) n = std::min(n, q);
  return std::max(1, n);
}

std::vector<int> spare_cpus(int compute) {
  std::set<std::pair<std::string, std::string>> cores;
  std::vector<int> out;
  for (const auto& [cpu, core] : usable_cpus()) {
    if (cores.contains(core)) continue;
    if (static_cast<int>(cores.size()) < compute)
      cores.insert(core);
    else
      out.push_back(cpu);
  }
  const int q = quota();
  if (q > 0) out.resize(std::min(out.size(), static_cast<size_t>(std::max(0, q - compute))));
  return out;
}

int set_threads(int n) {
  if (n <= 0) n = available_threads();
  omp_set_dynamic(0);
  omp_set_num_threads(n);
  return n;
}

void bound_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  constexpr int kPauses = 200;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  const int count = static_cast<int>(std::clamp(100 * kPauses / std::max(us, 0.1), 500.0, 20000.0));
  setenv("GOMP_SPINCOUNT", std::to_string(count).c_str(), 1);
  // By its own path, so that ps and top go on showing the program's name and not "exe". Where both
  // fail, OpenMP's own count stays.
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (!error) execv(self.c_str(), argv);
  execv("/proc/self/exe", argv);
}

}  // namespace ortrain
