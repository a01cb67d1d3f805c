// See profile.h.
#include "runtime/profile.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "graph/error.h"

namespace ortrain {
namespace {

struct Sum {
  double ms = 0, flops = 0, bytes = 0;
  int steps = 0;
};

// The time that the machine would need at its best, as a share of the time taken.
std::string peak_text(const Sum& s, const MachinePeak& peak) {
  if (peak.gflops <= 0 || peak.gbytes <= 0 || s.ms <= 0) return {};
  const double compute = s.flops / peak.gflops * 1e-6, memory = s.bytes / peak.gbytes * 1e-6;
  char text[32];
  std::snprintf(text, sizeof text, " %5.1f %% %s", 100 * std::max(compute, memory) / s.ms,
                compute > memory ? "F" : "B");
  return text;
}

}  // namespace

std::string profile_text(const Executor& executor, const MachinePeak& peak, int slowest) {
  const Plan& plan = executor.plan();
  const std::vector<double>& ms = executor.step_ms();
  const double runs = std::max(1, executor.profiled_runs());
  const double total = std::accumulate(ms.begin(), ms.end(), 0.0);
  if (ms.empty() || total <= 0) return "no profile\n";
  const auto add = [&](Sum& s, size_t i) {
    s.ms += ms[i];
    s.flops += plan.steps[i].flops * runs;
    s.bytes += static_cast<double>(plan.steps[i].bytes) * runs;
    ++s.steps;
  };
  std::map<std::string, Sum> by_op;
  Sum all;
  for (size_t i = 0; i < ms.size(); ++i) {
    add(by_op[plan.steps[i].op + " " + plan.steps[i].chosen], i);
    add(all, i);
  }
  std::string out;
  char line[200];
  const auto row = [&](const std::string& label, const Sum& s) {
    std::snprintf(line, sizeof line, "%9.3f ms %5.1f %% %8.1f GF/s %7.2f GB/s", s.ms / runs,
                  100 * s.ms / total, s.ms > 0 ? s.flops / s.ms * 1e-6 : 0,
                  s.ms > 0 ? s.bytes / s.ms * 1e-6 : 0);
    out += line + peak_text(s, peak);
    std::snprintf(line, sizeof line, " %5d  ", s.steps);
    out += line + label + "\n";
  };
  const double whole = executor.run_ms() / runs;
  std::snprintf(line, sizeof line,
                "%.3f ms per step in kernels, %d runs; the whole step takes %.3f ms, %.1f %% of it "
                "in kernels\n",
                total / runs, executor.profiled_runs(), whole,
                whole > 0 ? 100 * total / runs / whole : 0);
  out += line;
  if (peak.gflops > 0) {
    std::snprintf(line, sizeof line,
                  "this machine, measured: %.1f GF/s (f32 product), %.1f GB/s (memory, read and "
                  "written); %% F of the one, %% B of the other\n",
                  peak.gflops, peak.gbytes);
    out += line;
  }
  out += "by operator and kernel:\n";
  std::vector<std::pair<std::string, Sum>> ops(by_op.begin(), by_op.end());
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  for (const auto& [name, sum] : ops) row(name, sum);
  row("all", all);
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
