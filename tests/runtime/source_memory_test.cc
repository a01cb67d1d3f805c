// What training takes beside its plan: the weights of the model file are held once. A model of
// 48 MiB of weights, most of them unaligned, is trained; the process grows by what was planned and
// 12 MiB (threads, kernels) at most. And a run whose file gave its copies back is bit for bit the
// other run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "graph/error.h"
#include "importers/onnx.h"
#include "runtime/threads.h"
#include "runtime/trainer.h"
#include "tests/importers/onnx_models.h"
#include "tests/ops/interpreter.h"
#include "tests/runtime/small_task.h"

namespace ortrain::test {
namespace {

// x[N,width] through `layers` matrices and Tanh; each begins at another place of the file.
onnx::ModelProto deep_model(int layers, int64_t width) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {-1, width});
  add_output(g, "logits");
  std::string x = "x", name = "w";
  for (int i = 1; i <= layers; ++i, name += "w") {
    std::vector<float> w(static_cast<size_t>(width * width));
    for (size_t k = 0; k < w.size(); ++k)
      w[k] = std::sin(static_cast<float>(k % 9973) + static_cast<float>(i)) * 0.02f;
    *g.add_initializer() = float_tensor(name, {width, width}, w, true);
    const std::string h = "h" + std::to_string(i), y = i == layers ? "logits" : h + "t";
    add_node(g, "MatMul", "", {x, name}, {i == layers ? "logits" : h});
    if (i < layers) add_node(g, "Tanh", "", {h}, {y});
    x = y;
  }
  return m;
}

data::Dataset rows(int64_t samples, int64_t width) {
  std::vector<float> x(static_cast<size_t>(samples * width));
  std::vector<int64_t> y(static_cast<size_t>(samples));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i));
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int64_t>(i) % 7;
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", HostTensor::from<float>({samples, width}, x));
  arrays.emplace_back("labels", HostTensor::from<int64_t>({samples}, y));
  return data::Dataset::from_arrays(std::move(arrays));
}

size_t status_bytes(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stoul(line.substr(std::strlen(key))) << 10;
  return 0;
}

TrainOptions options_for(const OnnxFile& file, bool release) {
  TrainOptions o;
  o.batch_size = 8;
  o.steps = 3;
  o.select.threads = set_threads(2);
  if (release)
    o.source_contents = [&file](bool needed) {
      needed ? void(file.graph()) : file.release_copies();
    };
  return o;
}

StepSpec adamw() {
  StepSpec spec;
  spec.optimizer.name = "adamw";
  spec.optimizer.lr = 1e-3;
  return spec;
}

TEST(SourceMemory, GivenBackCopiesChangeNothing) {
  TempFolder folder;
  write_file(folder.path("m.onnx"), deep_model(4, 160).SerializeAsString());
  const data::Dataset train = rows(20, 160), eval = rows(12, 160);  // with short batches
  std::vector<char> kept;
  std::vector<double> losses;
  for (const bool release : {false, true}) {
    const auto file = OnnxFile::open(folder.path("m.onnx"), all_ops());
    Trainer trainer(file->graph(), train, &eval, adamw(), options_for(*file, release));
    Recorder recorder;
    trainer.run(recorder);
    ASSERT_EQ(recorder.steps.size(), 3u);
    if (!release) {
      kept = contents(trainer.store());
      losses = recorder.losses();
      continue;
    }
    EXPECT_EQ(contents(trainer.store()), kept);
    EXPECT_EQ(recorder.losses(), losses);
  }
}

// Naming the file's node that went bad makes a program without fusions, in the middle of the run.
TEST(SourceMemory, SearchForABadNodeFetchesThem) {
  TempFolder folder;
  onnx::ModelProto m = deep_model(4, 160);
  *m.mutable_graph()->add_initializer() = float_tensor("b", {160}, std::vector<float>(160), true);
  m.mutable_graph()->mutable_node(0)->set_output(0, "sum");
  add_node(*m.mutable_graph(), "Add", "bias", {"sum", "b"}, {"h1"});
  for (int i = m.graph().node_size() - 1; i > 1; --i)
    m.mutable_graph()->mutable_node()->SwapElements(i, i - 1);
  write_file(folder.path("m.onnx"), m.SerializeAsString());
  std::string messages[2];
  int fetched = 0;
  for (const bool release : {false, true}) {
    const auto file = OnnxFile::open(folder.path("m.onnx"), all_ops());
    TrainOptions options = options_for(*file, release);
    if (release)
      options.source_contents = [&, inner = options.source_contents](bool needed) {
        fetched += needed;
        inner(needed);
      };
    HostTensor x(DType::kF32, {8, 160});
    x.set_double(3, std::numeric_limits<double>::quiet_NaN());
    std::vector<std::pair<std::string, HostTensor>> arrays;
    arrays.emplace_back("x", std::move(x));
    arrays.emplace_back("labels", HostTensor(DType::kI64, {8}));
    const data::Dataset train = data::Dataset::from_arrays(std::move(arrays));
    Trainer trainer(file->graph(), train, nullptr, adamw(), options);
    Recorder recorder;
    try {
      trainer.run(recorder);
      ADD_FAILURE() << "trained on NaN";
    } catch (const Error& e) {
      messages[release] = e.what();
    }
  }
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(fetched, 1);
}

TEST(SourceMemory, WeightsAreHeldOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is counted too";
#endif
  TempFolder folder;
  constexpr int64_t kWidth = 1774;  // 12 MiB a layer
  write_file(folder.path("m.onnx"), deep_model(4, kWidth).SerializeAsString());
  const data::Dataset train = rows(8, kWidth);
  const size_t before = status_bytes("RssAnon:");
  const auto file = OnnxFile::open(folder.path("m.onnx"), all_ops());
  Trainer trainer(file->graph(), train, nullptr, adamw(), options_for(*file, true));
  Recorder recorder;
  trainer.run(recorder);
  const size_t grown = status_bytes("RssAnon:") - before;
  std::printf("planned %zu KiB, grown by %zu KiB\n", trainer.memory_bytes() >> 10, grown >> 10);
  EXPECT_LE(grown, trainer.memory_bytes() + (size_t{12} << 20));
  EXPECT_GE(trainer.memory_bytes(), size_t{4 * 4 * 12} << 20);
}

}  // namespace
}  // namespace ortrain::test
