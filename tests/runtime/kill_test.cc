// A training process killed with SIGKILL at random instants, over and over, ends with the same bits
// as one that ran straight through. ctest-label: slow
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/small_task.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;

// Trains to the end in this process, from the newest checkpoint if there is one. A step takes at
// least `step_us`, so that kills fall everywhere.
void train(const std::string& folder, int64_t steps, unsigned step_us) {
  struct Slow : Observer {
    void on_step(const StepInfo&) override { usleep(us); }
    unsigned us = 0;
  } observer;
  observer.us = step_us;
  const Graph source = test::small_model();
  const data::Dataset data = test::small_data(70);
  TrainOptions o;
  o.batch_size = 8;
  o.steps = steps;
  o.checkpoint_folder = folder;
  o.checkpoint_every = 3;
  Trainer t(source, data, nullptr, test::small_spec(), o);
  if (const auto newest = checkpoint::newest(folder)) t.resume(*newest);
  t.run(observer);
}

// The parent starts no threads: every training runs in a child.
pid_t start(const std::string& folder, int64_t steps, unsigned step_us) {
  const pid_t child = fork();
  if (child == 0) {
    train(folder, steps, step_us);
    _exit(0);
  }
  return child;
}

std::string bytes(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}

TEST(Kill, FiftyRandomInstantsThenTheSameBits) {
  std::string root = (fs::temp_directory_path() / "ortrain-kill-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const int64_t steps = 400;
  int status = 0;
  waitpid(start(root + "/straight", steps, 0), &status, 0);
  ASSERT_EQ(status, 0);

  std::mt19937 rng(1);
  int killed = 0, rounds = 0;
  int64_t progress = 0;
  for (bool done = false; !done && rounds < 200; ++rounds) {
    const pid_t child = start(root + "/killed", steps, 1000);
    if (killed < 50) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + rng() % 200));
      kill(child, SIGKILL);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      ++killed;
    } else {
      ASSERT_EQ(status, 0);
      done = killed >= 50;
      if (!done) fs::remove_all(root + "/killed");  // finished early: begin again
    }
    if (const auto newest = checkpoint::newest(root + "/killed"))
      progress = checkpoint::read_run(*newest).step;
  }
  std::printf("%d kills in %d runs, ended at step %lld\n", killed, rounds,
              static_cast<long long>(progress));
  EXPECT_EQ(killed, 50);
  for (const char* file : {"params.safetensors", "optimizer.safetensors"}) {
    const std::string want = bytes(root + "/straight/step-000400/" + file);
    ASSERT_FALSE(want.empty());
    EXPECT_EQ(bytes(root + "/killed/step-000400/" + file), want) << file;
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace ortrain
