// `ortrain bench`: time per training step, samples per second, memory; --profile shows the nodes
// against this machine's peak, and writes --out FILE, a timeline.
//
// Batches are taken in file order and wrap around. The first steps (a fifth, at most 10) warm up
// and are left out of ms_per_step. first_step_s counts from the start of the process. --json writes
// {ms_per_step: [..], peak_rss_bytes, first_step_s, loss_first, loss, planned_bytes, flops,
// wait_share, load_cores}. Data that is made (pictures, prepared rows) is told of: what loading
// costs and whether the step waits for it. --loader takes the batches and does not train:
// {samples_per_second, load_cores, workers}.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/error.h"
#include "runtime/cli/machine.h"
#include "runtime/cli/setup.h"
#include "runtime/data/loader.h"

namespace ortrain::cli {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Seconds since this process was started (10 ms resolution: /proc/self/stat, field 22).
double since_start() {
  std::ifstream stat("/proc/self/stat"), up("/proc/uptime");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream fields(text.substr(close + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  double uptime = 0;
  up >> uptime;
  return uptime - std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}
int64_t minor_faults() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 8; ++i) fields >> field;
  return std::strtoll(field.c_str(), nullptr, 10);
}
double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// What the loader did from one moment to another of `wall` seconds.
struct Loading {
  double wait_share = 0, cores = 0;
  Loading(const data::LoaderStats& from, const data::LoaderStats& to, double wall)
      : wait_share((to.stall_seconds - from.stall_seconds) / wall),
        cores((to.cpu_seconds - from.cpu_seconds) / wall) {}
};

void write_json(const std::string& path, const nlohmann::ordered_json& j) {
  if (path == "-") {
    std::printf("%s\n", j.dump().c_str());
    return;
  }
  std::ofstream out(path);
  out << j.dump() << "\n";
  if (!out.flush()) fail(ErrorCode::kIo, "cannot write ", path);
}

// --loader: batches are taken as fast as they come.
int bench_loader(const Context& c, data::Loader& loader, int workers, int64_t steps,
                 int64_t warmup) {
  for (int64_t i = 0; i < warmup; ++i) loader.next();
  const data::LoaderStats before = loader.stats();
  const double begin = seconds();
  int64_t samples = 0;
  for (int64_t i = warmup; i < steps; ++i) samples += loader.next()->count;
  const double wall = std::max(seconds() - begin, 1e-9);
  const Loading loading(before, loader.stats(), wall);
  const double rate = static_cast<double>(samples) / wall;
  if (c.config.has("json")) {
    nlohmann::ordered_json j;
    j["samples_per_second"] = rate;
    j["load_cores"] = loading.cores;
    j["workers"] = workers;
    write_json(c.config.text("json"), j);
    if (c.config.text("json") == "-") return 0;
  }
  std::printf("loader alone: %.0f samples/s with %d %s, %.1f cores, %.3f ms of a core per sample\n",
              rate, workers, workers == 1 ? "worker" : "workers", loading.cores,
              loading.cores / rate * 1e3);
  return 0;
}

}  // namespace

int run_bench(Context& c) {
  if (!c.config.has("data")) explain_missing_data(c, "bench");
  DataRun r(c, c.config.text("data"), Mode::kTrain, false);  // every batch is full: kWrap
  const int64_t batch = r.batch();
  const int64_t steps = c.config.has("steps") ? c.config.integer("steps") : 50;
  const int64_t warmup = std::min<int64_t>(10, steps / 5);
  const data::Sampler sampler({.samples = r.data().samples(),
                               .batch_size = batch,
                               .shuffle = false,
                               .last = data::LastBatch::kWrap});
  data::Loader loader(
      r.data(), r.program().arrays(), sampler,
      {.workers = r.loader().workers, .prefetch = r.loader().prefetch, .cpus = r.loader().cpus});
  if (c.config.on("loader")) return bench_loader(c, loader, r.loader().workers, steps, warmup);
  Executor& executor = r.program().executor();
  const Plan& plan = r.program().plan();
  const int loss = plan.output("loss");
  std::vector<double> ms;
  const bool profiled = c.config.integer("profile") > 0, timed = profiled && c.config.has("out");
  Timeline timeline(timed ? c.config.integer("profile") : 0, warmup);
  double loss_first = 0, loss_last = 0, first_step = 0;
  int64_t faults = 0;
  data::LoaderStats before;
  double measured_from = 0;
  for (int64_t i = 0; i < steps; ++i) {
    if (i == warmup) {
      faults = minor_faults();
      before = loader.stats();
      measured_from = seconds();
      executor.set_profile(profiled || r.program().recompute().copies > 0);
    }
    const double begin = seconds();
    executor.set_timeline(timed && timeline.begin_step(i + 1) ? &timeline : nullptr);
    r.run_one(*loader.next());
    timeline.end_step();
    loss_last = executor.output(loss).as_double(0);
    ms.push_back((seconds() - begin) * 1e3);
    if (i == 0) loss_first = loss_last, first_step = since_start();
  }
  const Loading loading(before, loader.stats(), std::max(seconds() - measured_from, 1e-9));
  const int64_t counted = steps - warmup;
  const double faults_per_step =
      static_cast<double>(minor_faults() - faults) / static_cast<double>(counted);
  ms.erase(ms.begin(), ms.begin() + warmup);
  const double mid = median(ms);
  if (c.config.has("json")) {
    nlohmann::ordered_json j;
    j["ms_per_step"] = ms;
    j["peak_rss_bytes"] = peak_resident_bytes();
    j["first_step_s"] = first_step;
    j["loss_first"] = loss_first;
    j["loss"] = loss_last;
    j["planned_bytes"] = plan.peak_bytes();
    j["flops_per_step"] = plan.flops;
    j["minor_faults_per_step"] = faults_per_step;
    j["wait_share"] = loading.wait_share;
    j["load_cores"] = loading.cores;
    write_json(c.config.text("json"), j);
    if (c.config.text("json") == "-") return 0;
  }
  std::printf("%.3f ms per step (median of %lld; %.3f to %.3f), %.1f samples/s, %.1f GFLOP/s\n",
              mid, static_cast<long long>(counted), *std::min_element(ms.begin(), ms.end()),
              *std::max_element(ms.begin(), ms.end()), static_cast<double>(batch) / mid * 1e3,
              plan.flops / mid / 1e6);
  std::printf("first step done after %.2f s; loss %.6g at step 1, %.6g at step %lld\n", first_step,
              loss_first, loss_last, static_cast<long long>(steps));
  std::printf("peak resident memory %s, planned %s; %.1f minor page faults per step\n",
              bytes_text(static_cast<size_t>(peak_resident_bytes())).c_str(),
              bytes_text(plan.peak_bytes()).c_str(), faults_per_step);
  if (r.data().heavy())
    std::printf("%s: waiting for data is %.0f %% of a step, loading takes %.2f cores\n",
                loading.wait_share < 0.1 ? "compute-bound" : "input-bound",
                100 * loading.wait_share, loading.cores);
  if (const RecomputeReport& again = r.program().recompute(); again.copies > 0)
    std::printf("%s; %zu bytes in all instead of %zu\n%s\n", recompute_text(again).c_str(),
                r.fit().used.total(), r.fit().unconstrained,
                measured_text(again, executor).c_str());
  std::printf("%s", window_text(c, r).c_str());
  if (profiled) {
    std::printf("\n%s", profile_text(executor, measure_peak(c.ops, select_options(c))).c_str());
    if (timed) {
      timeline.write(c.config.text("out"));
      std::printf("timeline of %lld steps: %s (open it in ui.perfetto.dev)\n",
                  static_cast<long long>(timeline.recorded()), c.config.text("out").c_str());
    }
  }
  return 0;
}

}  // namespace ortrain::cli
