// Checkpoints survive what can happen to a process and a disk: killed at every step of a save and
// at random instants, writes that fail after N bytes, damaged files. ctest-timeout: 120
#include "runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "graph/error.h"
#include "tests/runtime/toy_ops.h"

namespace ortrain {
namespace {
namespace fs = std::filesystem;
using checkpoint::RunState;
using testing::HasSubstr;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ortrain-checkpoint-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

// w (memory layout transposed), its moment, a running mean, the step counter.
Graph model(int64_t width = 50) {
  Graph g(test::toy_ops());
  const ValueId w = g.add_param(HostTensor(DType::kF32, {width, 40}), "w");
  g.params[w] = {.trainable = true, .reason = "", .perm = {1, 0}};
  g.add_state(HostTensor(DType::kF32, {width, 40}), "w/exp_avg");
  g.add_state(HostTensor(DType::kF32, {7}), "bn.running_mean");
  g.add_state(HostTensor::scalar<int64_t>(0), "ortrain/step");
  return g;
}

// Contents that are a function of the step, so that a loaded store can be checked against its step.
void fill(ParamStore& store, int64_t step) {
  for (const StoreEntry& e : store.entries()) {
    HostTensor t(e.dtype, e.file_dims());
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_double(i, static_cast<double>(step * 1000 + i + static_cast<int64_t>(e.name.size())));
    store.set(e.name, t);
  }
}

std::vector<char> contents(const ParamStore& store) {
  std::vector<char> out;
  for (const StoreEntry& e : store.entries())
    out.insert(out.end(), reinterpret_cast<const char*>(e.data),
               reinterpret_cast<const char*>(e.data) + e.bytes);
  return out;
}

ParamStore make_store(int64_t step = 0) {
  ParamStore store;
  store.add(model());
  fill(store, step);
  return store;
}

RunState at_step(int64_t step) {
  return {.step = step,
          .skipped = 2,
          .seed = 11,
          .shuffle = true,
          .batch_size = 8,
          .samples = 100,
          .graph_hash = 77,
          .extra = {{"best", "0.5"}}};
}

// The newest checkpoint is whole and holds what was saved at its step.
int64_t check_newest(const std::string& folder) {
  const auto path = checkpoint::newest(folder);
  if (!path) return -1;
  ParamStore loaded = make_store();
  const RunState run = checkpoint::load(*path, loaded, 77);
  EXPECT_EQ(contents(loaded), contents(make_store(run.step))) << *path;
  return run.step;
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST_F(Checkpoint, RoundTrip) {
  const ParamStore store = make_store(5);
  const std::string path = checkpoint::save(folder_, store, at_step(5));
  EXPECT_EQ(path, folder_ + "/step-000005");
  EXPECT_EQ(checkpoint::newest(folder_), path);
  EXPECT_EQ(check_newest(folder_), 5);
  const RunState run = checkpoint::read_run(path);
  EXPECT_EQ(run.seed, 11u);
  EXPECT_EQ(run.batch_size, 8);
  EXPECT_EQ(run.skipped, 2);
  EXPECT_EQ(run.extra.at("best"), "0.5");
  const auto params = checkpoint::read_params(path);
  ASSERT_EQ(params.size(), 2u);  // the running mean belongs to the model, the moment does not
  EXPECT_EQ(params.at("w").dims(), (Dims{40, 50}));
  EXPECT_EQ(params.at("w").as_double(3), 5004);
  EXPECT_EQ(params.at("bn.running_mean").as_double(0), 5015);
}

TEST_F(Checkpoint, AnotherLayoutAndFloatTypeLoads) {
  checkpoint::save(folder_, make_store(3), at_step(3));
  Graph g(test::toy_ops());
  g.add_param(HostTensor(DType::kF64, {40, 50}), "w");  // the file's layout, f64
  g.add_state(HostTensor(DType::kF64, {40, 50}), "w/exp_avg");
  g.add_state(HostTensor(DType::kF64, {7}), "bn.running_mean");
  g.add_state(HostTensor::scalar<int64_t>(0), "ortrain/step");
  ParamStore store;
  store.add(g);
  checkpoint::load(*checkpoint::newest(folder_), store, 77);
  EXPECT_EQ(store.get("w").as_double(3), 3004);
  EXPECT_EQ(store.get("w").as_double(1999), 3000 + 1999 + 1);
}

TEST_F(Checkpoint, KeepsTheNewestAndThePinned) {
  const ParamStore store = make_store();
  for (int64_t step = 10; step <= 60; step += 10)
    checkpoint::save(folder_, store, at_step(step), {.keep = 2, .pinned = "step-000020"});
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(folder_)) names.push_back(e.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("step-000020", "step-000050", "step-000060"));
}

TEST_F(Checkpoint, SameStepIsReplaced) {
  checkpoint::save(folder_, make_store(1), at_step(4));
  checkpoint::save(folder_, make_store(4), at_step(4));
  EXPECT_EQ(check_newest(folder_), 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Checkpoint, ListsAllMisfitsAndLeavesTheStore) {
  const std::string path = checkpoint::save(folder_, make_store(5), at_step(5));
  Graph g = model(51);
  g.add_param(HostTensor(DType::kF32, {2}), "extra");
  ParamStore other;
  other.add(g);
  const auto before = contents(other);
  const std::string said = error_of([&] { checkpoint::load(path, other, 78); });
  EXPECT_THAT(said, HasSubstr("another graph"));
  EXPECT_THAT(said, HasSubstr("'w' is f32[40,50], expected f32[40,51]"));
  EXPECT_THAT(said, HasSubstr("'extra' is missing"));
  EXPECT_EQ(contents(other), before);
  ParamStore fewer;
  Graph h(test::toy_ops());
  h.add_param(HostTensor(DType::kF32, {40, 50}), "w");
  fewer.add(h);
  EXPECT_THAT(error_of([&] { checkpoint::load(path, fewer, 77); }),
              HasSubstr("'bn.running_mean' is not part of this run"));
}

TEST_F(Checkpoint, DamageIsFoundAndTheOlderOneTaken) {
  std::mt19937 rng(3);
  for (int round = 0; round < 30; ++round) {
    fs::remove_all(folder_);
    checkpoint::save(folder_, make_store(1), at_step(1));
    const std::string path = checkpoint::save(folder_, make_store(2), at_step(2));
    const char* files[] = {"params.safetensors", "optimizer.safetensors"};
    const std::string file = path + "/" + files[round % 2];
    const auto size = fs::file_size(file);
    if (round % 3 == 0) {
      fs::resize_file(file, rng() % size);
    } else if (round % 3 == 1) {
      std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(static_cast<std::streamoff>(rng() % size));
      const auto at = f.tellg();
      const char c = static_cast<char>(f.peek() ^ (1 << (rng() % 8)));
      f.seekp(at);
      f.put(c);
    } else {
      fs::remove(round % 2 ? file : path + "/manifest.json");
    }
    std::vector<std::string> damaged;
    EXPECT_EQ(checkpoint::newest(folder_, &damaged), folder_ + "/step-000001");
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_THAT(damaged[0], HasSubstr("step-000002"));
    EXPECT_EQ(check_newest(folder_), 1);
  }
}

TEST_F(Checkpoint, BadManifestsAreErrors) {
  const std::string path = checkpoint::save(folder_, make_store(1), at_step(1));
  for (const char* text : {"", "{", "[]", "{\"format\": 1}", "{\"format\": 9}",
                           "{\"format\": 1, \"step\": \"x\"}", "{\"format\": \"a\"}"}) {
    std::ofstream(path + "/manifest.json") << text;
    EXPECT_NE(checkpoint::problem(path), "") << text;
    EXPECT_FALSE(checkpoint::newest(folder_)) << text;
  }
}

// Runs f in a child; returns its wait status.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(Checkpoint, DyingAtAnyStepOfASaveLosesNothing) {
  const char* points[] = {"write params", "write optimizer", "write manifest",
                          "rename",       "sync folder",     "remove old"};
  for (const bool same_step : {false, true})
    for (const char* point : points) {
      fs::remove_all(folder_);
      const int64_t second = same_step ? 1 : 2;
      checkpoint::save(folder_, make_store(1), at_step(1));
      in_child([&] {
        checkpoint::save(folder_, make_store(second), at_step(second),
                         {.keep = 1, .at = [&](std::string_view now) {
                            if (now == point) raise(SIGKILL);
                          }});
      });
      const bool renamed =
          std::string_view(point) == "sync folder" || std::string_view(point) == "remove old";
      EXPECT_EQ(check_newest(folder_), renamed ? second : 1) << point;
      // The next save cleans up and works.
      checkpoint::save(folder_, make_store(3), at_step(3), {.keep = 1});
      EXPECT_EQ(check_newest(folder_), 3) << point;
      EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1)
          << point;
    }
}

TEST_F(Checkpoint, AnErrorInTheMiddleLeavesNoTrace) {
  checkpoint::save(folder_, make_store(1), at_step(1));
  for (const char* point : {"write params", "write optimizer", "write manifest", "rename"}) {
    EXPECT_THROW(checkpoint::save(folder_, make_store(2), at_step(2),
                                  {.at =
                                       [&](std::string_view now) {
                                         if (now == point) fail(ErrorCode::kIo, "disk on fire");
                                       }}),
                 Error);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
    EXPECT_EQ(check_newest(folder_), 1);
  }
}

TEST_F(Checkpoint, WritesThatFailAfterNBytes) {
  checkpoint::save(folder_, make_store(1), at_step(1));
  for (const rlim_t bytes : {0, 1, 100, 400, 1000, 5000, 8000, 8100, 8200}) {
    const int status = in_child([&] {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
      try {
        checkpoint::save(folder_, make_store(2), at_step(2));
      } catch (const Error& e) {
        _exit(e.code() == ErrorCode::kIo ? 3 : 4);
      }
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 3) << bytes;
    EXPECT_EQ(check_newest(folder_), 1);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  }
}

TEST_F(Checkpoint, KilledAtRandomInstants) {
  std::mt19937 rng(5);
  int64_t last = 1;
  checkpoint::save(folder_, make_store(1), at_step(1));  // also warms the disk up
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) checkpoint::save(folder_, make_store(1), at_step(1));
  const auto three = std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::steady_clock::now() - start)
                         .count();
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      const auto from = checkpoint::newest(folder_);
      int64_t step = from ? checkpoint::read_run(*from).step : 0;
      for (;;) {
        ++step;
        checkpoint::save(folder_, make_store(step), at_step(step), {.keep = 2});
      }
    }
    usleep(rng() % static_cast<unsigned>(three * 2));  // up to about six saves
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const int64_t now = check_newest(folder_);
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, 10);
}

TEST(GraphHash, SeesStructureNotWeights) {
  const auto graph = [](const char* op, float weight, const char* name) {
    Graph g(test::toy_ops());
    const ValueId x = g.add_input("x", DType::kF32, Shape{Dim::symbol("N")});
    const ValueId w = g.add_param(HostTensor::of<float>({1}, {weight}), name);
    g.add_output(test::add(g, op, {x, w}), "y");
    return checkpoint::graph_hash(g);
  };
  EXPECT_EQ(graph("Add", 1, "w"), graph("Add", 2, "w"));
  EXPECT_NE(graph("Add", 1, "w"), graph("Sub", 1, "w"));
  EXPECT_NE(graph("Add", 1, "w"), graph("Add", 1, "v"));
}

}  // namespace
}  // namespace ortrain
