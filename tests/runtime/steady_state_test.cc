// A step after the warm-up allocates nothing and touches no new page, the loader included: every
// malloc of every thread and library is counted, and the minor page faults of the process.
//
// Ours must be 0. What is left is oneDNN's: dnnl_primitive_execute() makes a map of its arguments
// and a context in every call (8 to 9 allocations of at most 136 bytes on average, scratch memory
// is ours), and its products allocate packing buffers (74 KiB a thread). It has no interface that
// avoids either. They are counted by themselves: at most 8 per kernel of the plan. Witness: the
// allocator's own entry points, which this executable replaces for all its libraries.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "graph/error.h"
#include "importers/onnx.h"
#include "ops/all_ops.h"
#include "ortrain_test_paths.h"
#include "runtime/buffer.h"
#include "runtime/threads.h"
#include "runtime/trainer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define ORTRAIN_OWN_MALLOC 0
#else
#define ORTRAIN_OWN_MALLOC 1
#endif

#if ORTRAIN_OWN_MALLOC
namespace {
constexpr int kFrames = 24, kKept = 64;
struct Seen {
  std::array<void*, kFrames> frames;
  int depth;
  size_t bytes;
};
std::atomic<bool> g_counting{false};
std::atomic<int> g_seen{0};
std::array<Seen, 1 << 16> g_calls;
thread_local bool g_inside = false;

void saw(size_t bytes) {
  if (!g_counting.load(std::memory_order_relaxed) || g_inside) return;
  g_inside = true;  // a walk of the stack may allocate
  const int at = g_seen.fetch_add(1);
  if (at < static_cast<int>(g_calls.size())) {
    Seen& s = g_calls[static_cast<size_t>(at)];
    s.depth = backtrace(s.frames.data(), kFrames);
    s.bytes = bytes;
  }
  g_inside = false;
}
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) { return saw(n), __libc_malloc(n); }
void* calloc(size_t n, size_t m) { return saw(n * m), __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { return saw(n), __libc_realloc(p, n); }
void* memalign(size_t a, size_t n) { return saw(n), __libc_memalign(a, n); }
void* aligned_alloc(size_t a, size_t n) { return saw(n), __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) {
  saw(n);
  void* got = __libc_memalign(a, n);
  if (got == nullptr) return ENOMEM;
  *p = got;
  return 0;
}
}
#endif

namespace ortrain {
namespace {

constexpr int64_t kCounted = 20;  // kCounted

int64_t minor_faults() {
  rusage r = {};
  getrusage(RUSAGE_SELF, &r);
  return r.ru_minflt;
}

struct Counted {
  int64_t ours = 0, library = 0, faults = 0;
  std::string text;  // of ours
};

#if ORTRAIN_OWN_MALLOC
// Whether one of the frames, up to the first of ours, belongs to oneDNN.
Counted count_calls() {
  Counted c;
  Dl_info self = {};
  dladdr(reinterpret_cast<void*>(&minor_faults), &self);
  const int n = std::min(g_seen.load(), static_cast<int>(g_calls.size()));
  for (int i = 0; i < n; ++i) {
    const Seen& s = g_calls[static_cast<size_t>(i)];
    bool library = false;
    std::string where;
    // Frames 0 and 1 are saw() and malloc().
    for (int f = 2; f < s.depth; ++f) {
      Dl_info info = {};
      void* const at = s.frames[static_cast<size_t>(f)];
      if (dladdr(at, &info) == 0 || info.dli_fname == nullptr) continue;
      library |= std::strstr(info.dli_fname, "dnnl") != nullptr;
      const auto offset =
          reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(info.dli_fbase);
      char text[300];
      std::snprintf(text, sizeof text, " %s+0x%zx", info.dli_fname, static_cast<size_t>(offset));
      where += text;
      if (info.dli_fbase == self.dli_fbase && f > 3) break;
    }
    if (library) {
      ++c.library;
    } else if (++c.ours <= 5) {
      c.text += cat("\n", s.bytes, " bytes:", where);
    }
  }
  return c;
}
#endif

struct Counter : Observer {
  explicit Counter(int64_t begin) : from(begin) {}
  // One after the other: the walk of a stack reads pages of the libraries' tables.
  void on_step(const StepInfo& s) override {
    if (s.step == from) faults = minor_faults();
    if (s.step == from + kCounted) {
      faults = minor_faults() - faults;
#if ORTRAIN_OWN_MALLOC
      g_seen = 0, g_counting = true;
#endif
    }
#if ORTRAIN_OWN_MALLOC
    if (s.step == from + 2 * kCounted) g_counting = false;
#endif
  }
  int64_t from, faults = 0;
};

class SteadyStateOf : public testing::TestWithParam<const char*> {};

TEST_P(SteadyStateOf, AllocatesNothing) {
  OpTable table;
  ops::register_all(table);
  const std::string folder = cat(test::kSourceDir, "/tests/golden/", GetParam());
  const auto file = OnnxFile::open(folder + "/model.onnx", table);
  const data::Dataset data = data::Dataset::open(folder + "/train.npz");
  StepSpec spec;
  spec.optimizer.name = "adamw";
  spec.optimizer.lr = 1e-3;
  TrainOptions options;
  options.batch_size = 16;
  options.last_batch = data::LastBatch::kWrap;
  options.select.threads = set_threads(2);
  // Pages of the data file are touched in the first epoch; the loader is still at work at the end.
  const int64_t from = data.samples() / options.batch_size + 10;
  options.steps = from + 2 * kCounted + 5;
  Trainer trainer(file->graph(), data, nullptr, spec, options);
  Counter counter(from);
#if ORTRAIN_OWN_MALLOC
  std::array<void*, 4> frames;
  backtrace(frames.data(), 4);  // loads its library
#endif
  trainer.run(counter);
  EXPECT_EQ(counter.faults, 0);
#if ORTRAIN_OWN_MALLOC
  const Counted c = count_calls();
  std::printf("%s: per step %.2f allocations of ours, %.2f of oneDNN, %zu kernels\n", GetParam(),
              static_cast<double>(c.ours) / kCounted, static_cast<double>(c.library) / kCounted,
              trainer.program().plan().steps.size());
  EXPECT_EQ(c.ours, 0) << c.text;
  EXPECT_LE(c.library, 8 * kCounted * static_cast<int64_t>(trainer.program().plan().steps.size()));
#endif
}

// The counts see what they are for.
TEST(SteadyState, CountsCanFail) {
#if ORTRAIN_OWN_MALLOC
  g_seen = 0, g_counting = true;
  std::string* volatile text = new std::string(100, 'x');
  g_counting = false;
  delete text;
  EXPECT_EQ(count_calls().ours, 2);
#endif
  const int64_t before = minor_faults();
  Buffer fresh(16 * 4096);
  fresh.prefault();
  EXPECT_GE(minor_faults() - before, 1);
}

INSTANTIATE_TEST_SUITE_P(Golden, SteadyStateOf,
                         testing::Values("mlp_digits", "cnn_digits", "resnet_tiny", "bert_tiny",
                                         "gpt_tiny", "lstm_tags"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ortrain
