// The codecs of the storage types (graph/dtype.h) against ml_dtypes: every code of every type,
// ties, overflow, NaN (tests/golden/storage_types/values.txt, made by make.py there), and ONNX
// Cast's table of saturation.
#include "graph/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "graph/tensor.h"
#include "ortrain_test_paths.h"

namespace ortrain {
namespace {

TEST(StorageTypes, AgreeWithMlDtypes) {
  std::ifstream in(std::string(test::kSourceDir) + "/tests/golden/storage_types/values.txt");
  ASSERT_TRUE(in);
  std::string what, name, text;
  int code = 0, lines = 0;
  while (in >> what >> name) {
    ++lines;
    const DType d = dtype_from_name(name).value();
    if (what == "decode") {
      in >> code >> text;
      const double want = std::strtod(text.c_str(), nullptr);
      const double got = storage_to_double(d, static_cast<uint8_t>(code));
      EXPECT_TRUE(std::isnan(want) ? std::isnan(got)
                                   : got == want && std::signbit(got) == std::signbit(want))
          << name << " code " << code << ": " << got << ", expected " << want;
      continue;
    }
    in >> text >> code;
    const double value = std::strtod(text.c_str(), nullptr);
    EXPECT_EQ(double_to_storage(d, value, false), code) << name << " of " << value;
  }
  EXPECT_GT(lines, 1500);
}

// ONNX Cast: [x] beyond the largest value becomes that value; NaN stays NaN.
TEST(StorageTypes, Saturate) {
  const std::pair<DType, double> largest[] = {{DType::kF8E4M3FN, 448},
                                              {DType::kF8E4M3FNUZ, 240},
                                              {DType::kF8E5M2, 57344},
                                              {DType::kF8E5M2FNUZ, 57344},
                                              {DType::kF4E2M1, 6}};
  for (const auto& [d, most] : largest) {
    const auto through = [d = d](double v) {
      return storage_to_double(d, double_to_storage(d, v));
    };
    EXPECT_EQ(through(INFINITY), most) << name_of(d);
    EXPECT_EQ(through(-1e30), -most) << name_of(d);
    EXPECT_EQ(std::isnan(through(NAN)), d != DType::kF4E2M1) << name_of(d);
  }
  const auto e8m0 = [](double v, bool saturate, E8M0Round round) {
    return double_to_storage(DType::kF8E8M0, v, saturate, round);
  };
  EXPECT_EQ(e8m0(INFINITY, true, E8M0Round::kUp), 0xfe);
  EXPECT_EQ(e8m0(0, true, E8M0Round::kUp), 0);
  EXPECT_EQ(e8m0(INFINITY, false, E8M0Round::kNearest), 0xff);
  EXPECT_EQ(e8m0(0, false, E8M0Round::kNearest), 0xff);
  EXPECT_EQ(e8m0(1.1, true, E8M0Round::kUp), 128);
  EXPECT_EQ(e8m0(1.9, true, E8M0Round::kDown), 127);
  EXPECT_EQ(e8m0(1.4, true, E8M0Round::kNearest), 127);
  EXPECT_EQ(e8m0(1.6, true, E8M0Round::kNearest), 128);
}

TEST(StorageTypes, HostTensorCastsThroughThem) {
  const HostTensor x = HostTensor::of<float>({4}, {-8, 7.9f, 0.3f, 3});
  EXPECT_EQ(x.cast(DType::kI4).as_ints(), (std::vector<int64_t>{-8, 7, 0, 3}));
  const HostTensor back = x.cast(DType::kF8E5M2).cast(DType::kF32);
  EXPECT_EQ(back.data<float>()[0], -8);
  EXPECT_EQ(back.data<float>()[2], 0.3125f);
}

}  // namespace
}  // namespace ortrain
