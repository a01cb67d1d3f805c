// See timeline.h. Format: "Trace Event Format" (Google, 2016), object form; times in microseconds.
#include "runtime/timeline.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "runtime/data/atomic_file.h"

namespace ortrain {
namespace {
using nlohmann::ordered_json;
constexpr size_t kMostThreads = 64;
constexpr double kLeastShare = 0.02;  // of an operator's time, for a slice of another thread

int64_t used_ns(clockid_t clock) {
  timespec t;
  if (clock_gettime(clock, &t) != 0) return -1;  // the thread has ended
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
// The clock of the CPU time of another thread (kernel: include/linux/posix-timers.h).
clockid_t clock_of(int thread) {
  constexpr unsigned kPerThread = 4, kSched = 2;
  return static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kPerThread | kSched);
}

// Bytes that lie in the arena while each step of the plan runs.
std::vector<int64_t> live_bytes(const Plan& plan) {
  std::vector<int64_t> live(plan.steps.size(), 0);
  // Values that share memory count once: by the furthest end of what is live, per address.
  std::vector<std::vector<std::pair<size_t, size_t>>> at(plan.steps.size());
  for (const PlanBlock& b : plan.blocks)
    for (int s = b.first; s <= b.last && s < static_cast<int>(at.size()); ++s)
      at[static_cast<size_t>(s)].emplace_back(b.offset, b.offset + b.bytes);
  for (size_t s = 0; s < at.size(); ++s) {
    std::sort(at[s].begin(), at[s].end());
    size_t end = 0;
    for (const auto& [from, to] : at[s]) {
      if (to > end) live[s] += static_cast<int64_t>(to - std::max(end, from));
      end = std::max(end, to);
    }
  }
  return live;
}
}  // namespace

void Timeline::find_threads() {
  threads_.clear();
  DIR* folder = opendir("/proc/self/task");
  if (!folder) return;
  while (const dirent* entry = readdir(folder)) {
    const int id = std::atoi(entry->d_name);
    if (id <= 0 || id == static_cast<int>(gettid()) || threads_.size() == kMostThreads) continue;
    Thread t{.id = id, .clock = clock_of(id), .used = used_ns(clock_of(id)), .name = {}};
    std::ifstream comm(cat("/proc/self/task/", id, "/comm"));
    std::getline(comm, t.name);
    threads_.push_back(std::move(t));
  }
  closedir(folder);
  std::string own;  // threads of a pool have the name of the thread that made them
  std::getline(std::ifstream("/proc/self/comm"), own);
  for (Thread& t : threads_)
    if (t.name == own) t.name.clear();
  std::sort(threads_.begin(), threads_.end(),
            [](const Thread& a, const Thread& b) { return a.id < b.id; });
}

bool Timeline::begin_step(int64_t step) {
  recording_ = seen_ >= skip_ && !done();
  ++seen_;
  if (!recording_) return false;
  if (steps_.empty()) {
    origin_ = Clock::now();
    find_threads();
  }
  steps_.push_back({cat("step ", step), Clock::now(), {}});
  return true;
}

void Timeline::end_step() {
  if (!recording_) return;
  steps_.back().end = Clock::now();
  recording_ = false;
}

void Timeline::begin_run(const Plan& plan) {
  plan_ = &plan;
  for (Thread& t : threads_) t.used = used_ns(t.clock);
}

void Timeline::op(size_t index, Clock::time_point begin, Clock::time_point end) {
  for (size_t i = 0; i < threads_.size(); ++i) {
    Thread& t = threads_[i];
    const int64_t now = used_ns(t.clock);
    if (now < 0) continue;
    if (now > t.used) busy_.push_back({ops_.size(), i, now - t.used});
    t.used = now;
  }
  ops_.push_back({plan_, index, begin, end});
}

void Timeline::span(const char* name, Clock::time_point begin, Clock::time_point end) {
  if (recording_) spans_.push_back({name, begin, end});
}

std::vector<Timeline::Total> Timeline::totals() const {
  std::map<std::string, Total> by_name;
  double all = 0;
  const double steps = std::max<double>(1, static_cast<double>(steps_.size()));
  for (const Op& o : ops_) {
    const PlanStep& s = o.plan->steps[o.index];
    Total& t = by_name[s.op + " " + s.chosen];
    const double ms = std::chrono::duration<double, std::milli>(o.end - o.begin).count();
    t.ms += ms / steps;
    all += ms / steps;
    ++t.calls;
  }
  std::vector<Total> out;
  for (auto& [name, t] : by_name)
    out.push_back({name, t.ms, all > 0 ? t.ms / all : 0,
                   std::max<int64_t>(1, t.calls / static_cast<int64_t>(steps))});
  std::sort(out.begin(), out.end(), [](const Total& a, const Total& b) { return a.ms > b.ms; });
  return out;
}

double Timeline::us(Clock::time_point t) const {
  return std::chrono::duration<double, std::micro>(t - origin_).count();
}

void Timeline::write(const std::string& path) const {
  const int process = static_cast<int>(getpid());
  data::AtomicFile file(path);
  file.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  bool first = true;
  const auto emit = [&](const ordered_json& event) {
    file.write((first ? "" : ",\n") +
               event.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    first = false;
  };
  const auto name_thread = [&](int id, const std::string& name, int order) {
    emit({{"ph", "M"},
          {"pid", process},
          {"tid", id},
          {"name", "thread_name"},
          {"args", {{"name", name}}}});
    emit({{"ph", "M"},
          {"pid", process},
          {"tid", id},
          {"name", "thread_sort_index"},
          {"args", {{"sort_index", order}}}});
  };
  const auto slice = [&](int id, const std::string& name, const char* kind, Clock::time_point begin,
                         Clock::time_point end, ordered_json args) {
    ordered_json e{{"ph", "X"},
                   {"pid", process},
                   {"tid", id},
                   {"name", name},
                   {"cat", kind},
                   {"ts", us(begin)},
                   {"dur", std::max(0.0, us(end) - us(begin))}};
    if (!args.empty()) e["args"] = std::move(args);
    emit(e);
  };
  emit({{"ph", "M"}, {"pid", process}, {"name", "process_name"}, {"args", {{"name", "ortrain"}}}});
  name_thread(process, "main", 0);
  for (size_t i = 0; i < threads_.size(); ++i) {
    const Thread& t = threads_[i];
    name_thread(t.id, t.name.empty() ? cat("compute ", i + 1) : t.name, static_cast<int>(i) + 1);
  }
  for (const Span& s : steps_) slice(process, s.name, "step", s.begin, s.end, {});
  for (const Span& s : spans_) slice(process, s.name, "wait", s.begin, s.end, {});
  std::map<const Plan*, std::vector<int64_t>> live;
  for (const Op& o : ops_)
    if (!live.contains(o.plan)) live[o.plan] = live_bytes(*o.plan);
  for (const Op& o : ops_) {
    const PlanStep& s = o.plan->steps[o.index];
    const double seconds = std::chrono::duration<double>(o.end - o.begin).count();
    ordered_json args{{"node", s.node}, {"kernel", s.chosen}, {"bytes", s.bytes}};
    if (seconds > 0) {
      if (s.flops > 0) args["GF/s"] = s.flops / seconds * 1e-9;
      args["GB/s"] = static_cast<double>(s.bytes) / seconds * 1e-9;
    }
    slice(process, s.op, "op", o.begin, o.end, std::move(args));
    emit({{"ph", "C"},
          {"pid", process},
          {"name", "arena"},
          {"ts", us(o.begin)},
          {"args", {{"bytes live", live[o.plan][o.index]}}}});
  }
  for (const Busy& b : busy_) {
    const Op& o = ops_[b.op];
    const double share =
        static_cast<double>(b.ns) /
        std::max(1.0, std::chrono::duration<double, std::nano>(o.end - o.begin).count());
    if (share < kLeastShare) continue;
    const Thread& t = threads_[b.thread];
    slice(t.id, t.name.empty() ? o.plan->steps[o.index].op : "busy", "thread", o.begin, o.end,
          {{"busy", std::min(1.0, share)}});
  }
  file.write("\n]}\n");
  file.commit();
}

}  // namespace ortrain
