// A model of Loop, If and Scan with every byte damaged, imported and taken through the passes up to
// the gradients: an Error or a graph, never a crash and never a graph that grows without bound.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "graph/error.h"
#include "graph/pipeline.h"
#include "importers/onnx.h"
#include "ops/all_ops.h"
#include "ortrain_test_paths.h"
#include "runtime/evaluate.h"

namespace ortrain::test {
namespace {

TEST(ControlFlowHostile, EveryByteDamaged) {
  std::ifstream in(std::string(kSourceDir) + "/tests/golden/control_flow/model.onnx",
                   std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  ASSERT_GT(bytes.size(), 1000u);
  OpTable ops;
  ops::register_all(ops);
  StepSpec spec;
  spec.mode = Mode::kGrads;
  spec.input_dims["x"] = {2, 6, 4};
  spec.loss.kind = "cross_entropy";
  spec.loss.label = "labels";
  spec.loss.label_dtype = DType::kI64;
  spec.loss.label_dims = {2};
  int compiled = 0, refused = 0;
  const auto run = [&](const std::string& b) {
    try {
      const auto file = OnnxFile::parse(std::as_bytes(std::span(b)), "", ops);
      const CompileResult r =
          compile(file->graph(), spec, {.evaluate = make_evaluator(), .until = "autodiff"});
      EXPECT_LE(r.graph.node_count(), 2'000'000);
      ++compiled;
    } catch (const Error& e) {
      EXPECT_STRNE(e.what(), "");
      ++refused;
    }
  };
  run(bytes);
  ASSERT_EQ(compiled, 1);
  for (size_t n = 0; n < bytes.size(); ++n)
    for (int bit : {0x01, 0x10, 0x80}) {
      std::string b = bytes;
      b[n] = static_cast<char>(b[n] ^ bit);
      run(b);
    }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(compiled, 100);  // weights and names may be anything
}

}  // namespace
}  // namespace ortrain::test
