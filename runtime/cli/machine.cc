// See machine.h. Facts come from /proc, uname and the compiler's CPU test.
#include "runtime/cli/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "graph/builder.h"
#include "graph/error.h"
#include "runtime/buffer.h"
#include "runtime/step_memory.h"
#include "runtime/threads.h"

namespace ortrain::cli {
namespace {

// The value of "KEY ...: VALUE" in a file of /proc.
std::string field(const char* path, const char* key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    const size_t start =
        colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return {};
}

std::string simd_text() {
#if defined(__x86_64__)
  std::string out;
  const auto add = [&](bool has, const char* name) {
    if (has) out += cat(out.empty() ? "" : " ", name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("avx512f"), "avx512");
  add(__builtin_cpu_supports("avx512vnni"), "vnni");
  const std::string flags = " " + field("/proc/cpuinfo", "flags") + " ";
  add(flags.find(" avx512_bf16 ") != std::string::npos, "avx512_bf16");
  add(flags.find(" amx_bf16 ") != std::string::npos, "amx_bf16");
  return out.empty() ? "sse2" : out;
#else
  return {};
#endif
}

double copy_gbytes(int threads) {
  constexpr size_t kBytes = size_t{128} << 20;
  Buffer from(kBytes), to(kBytes);
  std::memset(from.data(), 1, kBytes);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(threads, static_cast<int64_t>(kBytes / 4096), 1, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin * 4096, from.data() + begin * 4096,
                  static_cast<size_t>(end - begin) * 4096);
    });
    const double s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / s * 1e-9);
  }
  return best;
}

}  // namespace

Machine this_machine() {
  Machine m;
  utsname u{};
  if (uname(&u) == 0) {
    m.host = u.nodename;
    m.system = cat(u.sysname, " ", u.release, " ", u.machine);
  }
  m.cpu = field("/proc/cpuinfo", "model name");
  m.simd = simd_text();
  m.cores = available_threads();
  m.memory = memory_limit();
  return m;
}

MachinePeak measure_peak(const OpTable& ops, const SelectOptions& select) {
  constexpr int64_t kSide = 1024;
  Graph g(ops);
  Builder b(g, "peak");
  const Expr x = b.wrap(g.add_input("x", DType::kF32, Shape(Dims{kSide, kSide})));
  const Expr y = b.wrap(g.add_input("y", DType::kF32, Shape(Dims{kSide, kSide})));
  const Expr product = b.matmul(x, y);
  g.add_output(product.id(), "product");
  double ms = 0;
  for (int i = 0; i < 3; ++i) {  // each takes the best of a few
    const double now = StepMemory(select).cost(g, g.value(product.id()).producer).ms;
    if (i == 0 || now < ms) ms = now;
  }
  return {2.0 * kSide * kSide * kSide / ms * 1e-6, copy_gbytes(select.threads)};
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  return std::strtoll(field("/proc/self/status", "VmHWM").c_str(), nullptr, 10) * 1024;
}

}  // namespace ortrain::cli
