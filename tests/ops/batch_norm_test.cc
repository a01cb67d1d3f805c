// BatchNormalization's channels-last kernels against the reference kernels (which
// conv_pool_norm_test.cc holds against PyTorch): every way of going over rows and channels, f32 and
// 16-bit data, relu with and without an upper bound, residual; that forward and backward agree on
// what a relu lets through of values next to its bounds; rounding, NaN and denormals; and that
// results repeat bit for bit. For each instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "hwy/targets.h"
#include "ops/common/batch_norm_kernels.h"

namespace ortrain::test {
namespace {

struct Random {
  uint64_t state = 7;
  double next(double low, double high) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return low + (high - low) * static_cast<double>(state >> 40) * 0x1p-24;
  }
};

HostTensor uniform(DType dtype, const Dims& dims, double low, double high, Random& random) {
  HostTensor t(dtype, dims);
  for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, random.next(low, high));
  return t;
}
TensorDesc desc(const HostTensor& t) { return {t.dtype(), t.dims()}; }

// Once per instruction set that this CPU runs, but for those that the kernels are not compiled for.
class BatchNorm : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
std::vector<int64_t> targets() {
  std::vector<int64_t> all;
  const int64_t others = HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SCALAR;
  for (int64_t left = hwy::SupportedTargets() & ~others; left != 0; left &= left - 1)
    all.push_back(left & -left);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Targets, BatchNorm, testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

struct Setting {
  int64_t rows, c;
  DType dtype = DType::kF32;
  bool training = true, residual = false;
  int relu = 0;  // 1: from 0 on, 2: and up to 0.75
  int threads = 2;
  double epsilon = 1e-5;
};

Attrs attrs(const Setting& s) {
  Attrs a{{"channels_last", int64_t{1}}, {"epsilon", s.epsilon}};
  if (s.training) a.set("training_mode", int64_t{1}), a.set("unbiased", int64_t{1});
  if (s.relu) a.set("relu", int64_t{1});
  if (s.relu == 2) a.set("relu_max", 0.75);
  return a;
}

using Prepare = Kernel (*)(const KernelQuery&);
// Outputs of a kernel; `out` gives their types and shapes.
std::vector<HostTensor> run(Prepare prepare, const Setting& s, const std::vector<HostTensor>& in,
                            const std::vector<TensorDesc>& out) {
  KernelQuery q;
  q.attrs = attrs(s), q.threads = s.threads, q.out = out;
  for (const HostTensor& t : in) q.in.push_back(desc(t));
  q.constants.resize(q.in.size());
  const bool fast = prepare == ops::batch_norm_nhwc || prepare == ops::batch_norm_grad_nhwc;
  EXPECT_EQ(fast ? ops::batch_norm_reject(q) : "", "");
  const Kernel kernel = prepare(q);
  std::vector<double> workspace(kernel.workspace / 8 + 1, std::nan(""));
  std::vector<HostTensor> results;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const TensorDesc& d : out) results.emplace_back(d.dtype, d.dims);
  for (const HostTensor& t : in) from.push_back(t.raw());
  for (HostTensor& t : results) to.push_back(t.mutable_raw());
  Fault fault;
  kernel.run({from.data(), to.data(), workspace.data(), &fault});
  return results;
}

struct Case {
  std::vector<HostTensor> in, grad_in;  // gradient: y of the residual is added by the caller
  std::vector<TensorDesc> out, grad_out;
};
Case make(const Setting& s) {
  Random random;
  const Dims data{s.rows, s.c}, per{s.c};
  Case k;
  k.in.push_back(uniform(s.dtype, data, 2, 4, random));
  k.in.push_back(uniform(DType::kF32, per, -1.5, 1.5, random));
  k.in.push_back(uniform(DType::kF32, per, -0.5, 1, random));
  k.in.push_back(uniform(DType::kF32, per, 2.9, 3.1, random));
  k.in.push_back(uniform(DType::kF32, per, 0.2, 0.5, random));
  if (s.residual) k.in.push_back(uniform(s.dtype, data, -1, 1, random));
  const TensorDesc f32{DType::kF32, per}, f64{DType::kF64, per}, x = desc(k.in[0]);
  k.out = {x, f32, f32, f64, f64};
  k.grad_out = {x, f32, f32};
  if (s.residual && s.relu) k.grad_out.push_back(x);
  k.grad_in.push_back(uniform(s.dtype, data, -1, 1, random));
  return k;
}
// The gradient's inputs after a forward run of the reference.
std::vector<HostTensor> grad_inputs(const Setting& s, const Case& k,
                                    const std::vector<HostTensor>& forward) {
  std::vector<HostTensor> in;
  in.push_back(k.grad_in[0].clone());
  in.push_back(k.in[0].clone());
  in.push_back(k.in[1].clone());
  in.push_back(forward[3].clone());
  in.push_back(forward[4].clone());
  in.push_back(k.in[2].clone());
  if (s.residual && s.relu) in.push_back(forward[0].clone());
  return in;
}

// Both round the same number, known to some 1e-13, to the type: a last place of it, or of the sums.
void expect_close(const HostTensor& got, const HostTensor& want, const std::string& what) {
  const DType d = want.dtype();
  const double u = d == DType::kBF16 ? 0x1p-8 : d == DType::kF16 ? 0x1p-11 : 0x1p-24;
  const double tiny = d == DType::kF16 ? 0x1p-24 : 1e-10;
  ASSERT_EQ(got.count(), want.count());
  for (int64_t i = 0; i < want.count(); ++i) {
    const double a = got.as_double(i), b = want.as_double(i);
    ASSERT_LE(std::abs(a - b), (d == DType::kF64 ? 1e-11 : 2.001 * u) * std::abs(b) + tiny)
        << what << " at " << i << ": " << a << ", " << b;
  }
}

void check(const Setting& s) {
  const std::string label =
      cat(s.rows, "x", s.c, " ", name_of(s.dtype), s.training ? " training" : "",
          s.residual ? " residual" : "", " relu ", s.relu, " threads ", s.threads);
  SCOPED_TRACE(label);
  const Case k = make(s);
  const auto want = run(ops::batch_norm_ref, s, k.in, k.out);
  const auto got = run(ops::batch_norm_nhwc, s, k.in, k.out);
  for (size_t i = 0; i < want.size(); ++i) expect_close(got[i], want[i], cat("output ", i));
  if (testing::Test::HasFatalFailure() || (s.residual && !s.relu)) return;
  const auto in = grad_inputs(s, k, want);
  const auto dwant = run(ops::batch_norm_grad_ref, s, in, k.grad_out);
  const auto dgot = run(ops::batch_norm_grad_nhwc, s, in, k.grad_out);
  for (size_t i = 0; i < dwant.size(); ++i)
    expect_close(dgot[i], dwant[i], cat("gradient output ", i));
}

// Rows and channels: one of each, parts of vectors, folded rows with a rest, slices of channels
// with both passes (196 x 2048, 130 x 1030), tensors that are walked row by row, rows longer than a
// page.
const std::pair<int64_t, int64_t> kSizes[] = {
    {1, 1},      {7, 1},    {1, 5},     {3, 64},      {4099, 3},   {130, 17},
    {1999, 24},  {77, 100}, {50, 1001}, {196, 2048},  {130, 1030}, {37, 300},
    {5003, 256}, {33, 65},  {64, 512},  {11000, 144}, {1100, 1040}};

TEST_P(BatchNorm, EverySizeAsTheReference) {
  for (const auto& [rows, c] : kSizes)
    for (int threads : {1, 3}) check({rows, c, DType::kF32, true, false, 1, threads});
}
TEST_P(BatchNorm, EveryFormAsTheReference) {
  for (const auto& [rows, c] : {std::pair<int64_t, int64_t>{130, 17}, {203, 96}, {130, 1030}})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const bool training : {false, true})
        for (const bool residual : {false, true})
          for (const int relu : {0, 1, 2}) check({rows, c, dtype, training, residual, relu});
}
TEST_P(BatchNorm, HalfSizesAsTheReference) {
  for (const auto& [rows, c] : kSizes)
    if (rows * c < 600'000) check({rows, c, DType::kBF16, true, true, 1});
}

// v = (x - mean) scale + bias lies within a rounding, in double, of a bound of the relu: its side
// hangs on each operation. Or it is so small that f32 makes 0 of it. The gradient passes where y is
// strictly between the bounds, and nowhere else: dbias counts it, and dx is scale or 0.
TEST_P(BatchNorm, ForwardAndBackwardAgreeNextToTheBounds) {
  for (const int relu : {1, 2})
    for (const int64_t c : {17, 64, 96}) {
      const Setting s{300, c, DType::kF32, false, false, relu};
      const Dims data{s.rows, c}, per{c};
      Random random;
      Case k;
      k.in.push_back(HostTensor(DType::kF32, data));
      for (const auto& [low, high] : {std::pair{0.1, 2.0}, {0.0, 0.0}, {-1.0, 1.0}, {0.2, 3.0}})
        k.in.push_back(uniform(DType::kF64, per, low, high, random));
      k.grad_in.push_back(uniform(DType::kF32, data, 1, 1, random));
      for (int64_t j = 0; j < c; ++j) {
        const double bound = relu == 2 && j % 2 ? 0.75 : 0, mean = k.in[3].as_double(j);
        const bool small = j % 5 == 0;
        if (small) k.in[1].set_double(j, std::ldexp(k.in[1].as_double(j), -148));
        const double scale = k.in[1].as_double(j) / std::sqrt(k.in[4].as_double(j) + 1e-5);
        for (int64_t r = 0; r < s.rows; ++r)
          k.in[0].set_double(r * c + j, mean + random.next(-1, 1));
        // Exactly at the bound without a rounding, for the last row.
        const double d = k.in[0].as_double((s.rows - 1) * c + j) - mean;
        k.in[2].set_double(j, small ? bound : bound - d * scale);
        for (int64_t r = 0; r < s.rows && !small; ++r)
          if (r % 3 == 0) k.in[0].set_double(r * c + j, mean + d);
      }
      const TensorDesc f32{DType::kF32, per}, f64{DType::kF64, per}, x = desc(k.in[0]);
      k.out = {x, f64, f64, f64, f64};
      const auto forward = run(ops::batch_norm_nhwc, s, k.in, k.out);
      const auto in = grad_inputs(s, k, forward);
      const auto got = run(ops::batch_norm_grad_nhwc, s, in, {x, f64, f64});
      int64_t near = 0;
      for (int64_t j = 0; j < c; ++j) {
        int64_t open = 0;
        for (int64_t r = 0; r < s.rows; ++r) {
          const double y = forward[0].as_double(r * c + j);
          const bool passes = y > 0 && (relu == 1 || y < 0.75);
          open += passes;
          if (j % 5 != 0) {
            ASSERT_EQ(got[0].as_double(r * c + j) != 0, passes) << y;
          }
          near += y > 0 && y < 1e-15;
        }
        EXPECT_EQ(got[2].as_double(j), static_cast<double>(open)) << "channel " << j;
      }
      EXPECT_GT(near, 100);
    }
}

// Every 16-bit number times some factors (mean and bias 0, variance and epsilon together 1):
// rounded once to f32 and once to the type, ties to even; denormals kept, NaN of any payload stays
// NaN.
TEST_P(BatchNorm, RoundsAndKeepsNaN) {
  const double factors[] = {
      1,       1.5,    1 + 0x1p-8, 1 + 0x1p-11,
      1.0 / 3, 0x1p-3, -0x1p20,    static_cast<double>(std::bit_cast<float>(0x7fffffffu))};
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t c : {64, 31}) {
      Setting s{1 + 65536 / c, c, dtype, false};
      s.epsilon = 0x1p-20;
      std::vector<HostTensor> in;
      in.push_back(HostTensor(dtype, {s.rows, c}));
      for (int64_t i = 0; i < s.rows * c; ++i)
        static_cast<uint16_t*>(in[0].mutable_raw())[i] = static_cast<uint16_t>(i);
      for (const double v : {1.0, 0.0, 0.0, 1.0 - 0x1p-20}) {
        in.push_back(HostTensor(DType::kF64, {c}));
        for (int64_t j = 0; j < c; ++j) in.back().set_double(j, v);
      }
      for (const double factor : factors) {
        for (int64_t j = 0; j < c; ++j) in[1].mutable_data<double>()[j] = factor;
        const TensorDesc f64{DType::kF64, {c}};
        const auto y = run(ops::batch_norm_nhwc, s, in, {desc(in[0]), f64, f64, f64, f64});
        HostTensor want(dtype, {1});
        for (int64_t i = 0; i < s.rows * c; ++i) {
          want.set_double(0, static_cast<double>(static_cast<float>(in[0].as_double(i) * factor)));
          const double w = want.as_double(0), got = y[0].as_double(i);
          ASSERT_TRUE(std::isnan(w) ? std::isnan(got) : w == got)
              << in[0].as_double(i) << " times " << factor << ": " << w << ", " << got;
        }
      }
    }
}

TEST_P(BatchNorm, RepeatsBitForBit) {
  for (const auto& [rows, c] : {std::pair<int64_t, int64_t>{4099, 24}, {196, 2048}, {3000, 256}}) {
    Setting s{rows, c, DType::kF32, true, false, 1};
    const Case k = make(s);
    const auto first = run(ops::batch_norm_nhwc, s, k.in, k.out);
    const auto in = grad_inputs(s, k, first);
    const auto dfirst = run(ops::batch_norm_grad_nhwc, s, in, k.grad_out);
    for (int i = 0; i < 3; ++i) {
      const auto again = run(ops::batch_norm_nhwc, s, k.in, k.out);
      const auto dagain = run(ops::batch_norm_grad_nhwc, s, in, k.grad_out);
      for (size_t j = 0; j < first.size(); ++j)
        EXPECT_EQ(std::memcmp(again[j].raw(), first[j].raw(), first[j].bytes()), 0) << j;
      for (size_t j = 0; j < dfirst.size(); ++j)
        EXPECT_EQ(std::memcmp(dagain[j].raw(), dfirst[j].raw(), dfirst[j].bytes()), 0) << j;
    }
  }
}

}  // namespace
}  // namespace ortrain::test
