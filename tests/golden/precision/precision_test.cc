// ctest-label: slow
// ctest-timeout: 1200
// bf16 and fp16 runs of the golden cases: 200 steps against fp32, gradients against PyTorch's
// autocast. See check_precision.py, which this runs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ortrain {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int check(const std::string& cases) {
  const std::string script =
      variable("ORTRAIN_SOURCE") + "/tests/golden/precision/check_precision.py";
  return std::system(
      ("'" + variable("ORTRAIN_PYTHON") + "' '" + script + "' --cases " + cases).c_str());
}

TEST(Precision, GoldenCasesEndWhereFp32Ends) {
  if (variable("ORTRAIN_PYTHON").empty()) GTEST_SKIP() << "needs Python with numpy and onnx";
  EXPECT_EQ(check("mlp_digits,regression_multi,cnn_digits,autoencoder_conv,resnet_tiny,lstm_tags"),
            0);
}
TEST(Precision, TransformersEndWhereFp32Ends) {
  if (variable("ORTRAIN_PYTHON").empty()) GTEST_SKIP() << "needs Python with numpy and onnx";
  EXPECT_EQ(check("bert_tiny,gpt_tiny"), 0);
}

}  // namespace
}  // namespace ortrain
