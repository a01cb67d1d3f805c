// The vector tile functions, for every instruction set that the build has and this CPU runs,
// against the C++ library in double precision: units in the last place over the whole range, exact
// edge values, and independence of a tile's position.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/targets.h"
#include "ops/common/ew_engine.h"

namespace ortrain::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

EwTable& table() {
  static EwTable current = ew_simd_table();
  return current;
}

// Runs `check` once per instruction set.
template <class F>
void on_every_target(F check) {
  const int64_t best = hwy::SupportedTargets();
  for (int64_t left = best; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    table() = ew_make_simd_table();
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  table() = ew_simd_table();
}

std::vector<float> run_code(Ew code, const std::vector<float>& a,
                            const std::vector<float>& b = {}) {
  std::vector<float> y(a.size());
  EwCall call;
  for (int i = 0; i < 3; ++i) call.x[i] = a.data(), call.step[i] = 0;
  call.step[0] = 1;
  if (!b.empty()) call.x[1] = b.data(), call.step[1] = 1;
  call.y = y.data();
  call.n = static_cast<int64_t>(a.size());
  table().fn[static_cast<size_t>(code)](call);
  return y;
}

double ulps(float got, double exact) {
  const float rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || rounded == 0) return got == rounded ? 0 : 1e9;
  const double spacing = std::max(
      static_cast<double>(std::nextafter(std::fabs(rounded), kInf)) - std::fabs(double{rounded}),
      double{std::numeric_limits<float>::denorm_min()});
  return std::fabs(static_cast<double>(got) - exact) / spacing;
}

// Every 997th float of both signs within [low, high].
std::vector<float> sweep(float low, float high) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 9973) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (v >= low && v <= high) x.push_back(v);
  }
  for (int i = 0; i <= 4000; ++i)
    x.push_back(std::max(low, -20.0f) +
                (std::min(high, 20.0f) - std::max(low, -20.0f)) * static_cast<float>(i) / 4000);
  return x;
}

struct Function {
  const char* name;
  Ew code;
  double (*exact)(double);
  float low, high;
  double limit;  // ulp
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double dexp(double x) { return std::exp(x); }
double dexpm1(double x) { return std::expm1(x); }
double dlog(double x) { return std::log(x); }
double dlog1p(double x) { return std::log1p(x); }
double dtanh(double x) { return std::tanh(x); }
double derf(double x) { return std::erf(x); }
double dtan(double x) { return std::tan(x); }
double dasin(double x) { return std::asin(x); }
double dacos(double x) { return std::acos(x); }
double datan(double x) { return std::atan(x); }
double dsinh(double x) { return std::sinh(x); }
double dcosh(double x) { return std::cosh(x); }
double dasinh(double x) { return std::asinh(x); }
double dacosh(double x) { return std::acosh(x); }
double datanh(double x) { return std::atanh(x); }
double drsqrt(double x) { return 1 / std::sqrt(x); }

const Function kFunctions[] = {
    {"exp", Ew::kExp, dexp, -kInf, kInf, 2},
    {"expm1", Ew::kExpm1, dexpm1, -kInf, kInf, 3},
    {"log", Ew::kLog, dlog, -kInf, kInf, 2},
    {"log1p", Ew::kLog1p, dlog1p, -kInf, kInf, 3},
    {"tanh", Ew::kTanh, dtanh, -kInf, kInf, 2},
    {"erf", Ew::kErf, derf, -kInf, kInf, 2},
    {"sigmoid", Ew::kSigmoid, sigmoid, -87, kInf, 3},
    {"softplus", Ew::kSoftplus, softplus, -80, kInf, 4},
    {"rsqrt", Ew::kRsqrt, drsqrt, 0, kInf, 2},
    {"tan", Ew::kTan, dtan, -100, 100, 4},
    {"asin", Ew::kAsin, dasin, -kInf, kInf, 4},
    {"acos", Ew::kAcos, dacos, -kInf, kInf, 4},
    {"atan", Ew::kAtan, datan, -kInf, kInf, 4},
    {"sinh", Ew::kSinh, dsinh, -kInf, kInf, 4},
    {"cosh", Ew::kCosh, dcosh, -kInf, kInf, 4},
    {"asinh", Ew::kAsinh, dasinh, -kInf, kInf, 4},
    {"acosh", Ew::kAcosh, dacosh, -kInf, kInf, 4},
    {"atanh", Ew::kAtanh, datanh, -kInf, kInf, 4},
};

class Accuracy : public testing::TestWithParam<Function> {};

TEST_P(Accuracy, WithinUlps) {
  on_every_target([&] {
    const Function& f = GetParam();
    const std::vector<float> x = sweep(f.low, f.high);
    const std::vector<float> y = run_code(f.code, x);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double u = ulps(y[i], f.exact(static_cast<double>(x[i])));
      if (u > worst) worst = u, at = x[i];
    }
    EXPECT_LE(worst, f.limit) << f.name << " at " << at << " gives " << run_code(f.code, {at})[0];
    RecordProperty("worst_ulp", std::to_string(worst));
  });
}
INSTANTIATE_TEST_SUITE_P(All, Accuracy, testing::ValuesIn(kFunctions),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(EwSimd, SineAndCosine) {
  on_every_target([&] {
    const std::vector<float> x = sweep(-1e6f, 1e6f);
    const std::vector<float> s = run_code(Ew::kSin, x), c = run_code(Ew::kCos, x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, std::fabs(double{s[i]} - std::sin(double{x[i]})));
      worst = std::max(worst, std::fabs(double{c[i]} - std::cos(double{x[i]})));
    }
    EXPECT_LE(worst, 1.2e-7);
    EXPECT_TRUE(std::isnan(run_code(Ew::kSin, {kInf})[0]));
    EXPECT_EQ(run_code(Ew::kSin, {0.0f, -0.0f}), (std::vector<float>{0.0f, -0.0f}));
    EXPECT_EQ(run_code(Ew::kCos, {0.0f}), (std::vector<float>{1.0f}));
  });
}

TEST(EwSimd, EdgeValues) {
  on_every_target([&] {
    const float nan = std::nanf("");
    EXPECT_EQ(run_code(Ew::kExp, {-kInf, kInf, 0, 89, -104.5f}),
              (std::vector<float>{0, kInf, 1, kInf, 0}));
    EXPECT_EQ(run_code(Ew::kLog, {0, 1, kInf}), (std::vector<float>{-kInf, 0, kInf}));
    EXPECT_TRUE(std::isnan(run_code(Ew::kLog, {-1})[0]));
    EXPECT_EQ(run_code(Ew::kTanh, {-kInf, kInf, 30}), (std::vector<float>{-1, 1, 1}));
    EXPECT_EQ(run_code(Ew::kErf, {-kInf, kInf, 9}), (std::vector<float>{-1, 1, 1}));
    EXPECT_EQ(run_code(Ew::kSigmoid, {-kInf, kInf, 0}), (std::vector<float>{0, 1, 0.5f}));
    EXPECT_EQ(run_code(Ew::kSign, {-2, 0, 3}), (std::vector<float>{-1, 0, 1}));
    EXPECT_EQ(run_code(Ew::kRound, {0.5f, 1.5f, 2.5f, -0.5f}),
              (std::vector<float>{0, 2, 2, -0.0f}));
    EXPECT_EQ(run_code(Ew::kToBool, {nan, 0, -0.0f, 2}), (std::vector<float>{1, 0, 0, 1}));
    EXPECT_EQ(run_code(Ew::kIsNan, {nan, 0, kInf}), (std::vector<float>{1, 0, 0}));
    EXPECT_EQ(run_code(Ew::kIsInf, {nan, -kInf, kInf}), (std::vector<float>{0, 1, 1}));
    for (Ew code : {Ew::kExp,      Ew::kLog,   Ew::kTanh,  Ew::kErf,  Ew::kSigmoid,  Ew::kRelu,
                    Ew::kSoftplus, Ew::kExpm1, Ew::kLog1p, Ew::kGelu, Ew::kGeluTanh, Ew::kSin,
                    Ew::kCos,      Ew::kTan,   Ew::kAsin,  Ew::kAcos, Ew::kAtan,     Ew::kSinh,
                    Ew::kCosh,     Ew::kAsinh, Ew::kAcosh, Ew::kAtanh})
      EXPECT_TRUE(std::isnan(run_code(code, {nan})[0])) << ew_name(code);
    for (Ew code : {Ew::kMin, Ew::kMax}) {
      EXPECT_TRUE(std::isnan(run_code(code, {nan}, {1})[0])) << ew_name(code);
      EXPECT_TRUE(std::isnan(run_code(code, {1}, {nan})[0])) << ew_name(code);
    }
  });
}

// The rest of a tile goes through the same arithmetic as full vectors.
TEST(EwSimd, ResultsDoNotDependOnPosition) {
  on_every_target([&] {
    std::vector<float> x;
    for (int i = 0; i < 100; ++i) x.push_back(static_cast<float>(i) * 0.137f - 6.5f);
    for (Ew code : {Ew::kExp, Ew::kTanh, Ew::kErf, Ew::kGelu, Ew::kSigmoid}) {
      const std::vector<float> all = run_code(code, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const float alone = run_code(code, {x[i]})[0];
        EXPECT_EQ(std::memcmp(&alone, &all[i], sizeof alone), 0) << ew_name(code) << " at " << x[i];
      }
    }
  });
}

}  // namespace
}  // namespace ortrain::ops
