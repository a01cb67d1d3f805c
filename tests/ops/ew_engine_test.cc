// The elementwise engine and the reductions against plain loops over indices, on random shapes:
// every layout (flat, rows, blocks), broadcasts of any kind, several outputs, outputs in the memory
// of inputs, several threads.
#include "ops/common/ew_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "ops/common/reduce.h"
#include "ops/common/reduce_simd.h"

namespace ortrain::ops {
namespace {

struct Random {
  uint64_t state;
  uint64_t bits() {  // SplitMix64
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  template <class T, size_t n>
  T pick(const T (&from)[n]) {
    return from[below(n)];
  }
  float number() { return static_cast<float>(below(2001) - 1000) / 512.0f; }
};

Dims random_dims(Random& r) {
  static const int64_t kSizes[] = {1, 1, 2, 3, 5, 8, 17, 33, 64, 200, 500};
  Dims dims;
  int64_t total = 1;
  const int64_t rank = r.below(5);
  for (int64_t i = 0; i < rank; ++i) {
    int64_t n = r.pick(kSizes);
    if (total * n > 40000) n = 1 + r.below(3);
    dims.push_back(n);
    total *= n;
  }
  return dims;
}

// A shape that broadcasts to `dims`.
Dims broadcastable(const Dims& dims, Random& r) {
  Dims out = dims;
  for (int64_t& d : out)
    if (r.below(3) == 0) d = 1;
  if (r.below(4) == 0 && !out.empty())
    out.erase(out.begin(), out.begin() + r.below(out.size() + 1));
  return out;
}

// Offset in an array of shape `dims` of the element that index `flat` over `full` reads.
int64_t source(const Dims& full, const Dims& dims, int64_t flat) {
  int64_t offset = 0, stride = 1;
  for (size_t d = full.size(); d-- > 0;) {
    const int64_t at = flat % full[d];
    flat /= full[d];
    const size_t missing = full.size() - dims.size();
    if (d < missing) continue;
    const int64_t n = dims[d - missing];
    if (n != 1) offset += at * stride;
    stride *= n;
  }
  return offset;
}

float value(Ew code, float a, float b, float c) {
  switch (code) {
    case Ew::kAdd: return a + b;
    case Ew::kSub: return a - b;
    case Ew::kMul: return a * b;
    case Ew::kMax: return std::max(a, b);
    case Ew::kMin: return std::min(a, b);
    case Ew::kNeg: return -a;
    case Ew::kAbs: return std::fabs(a);
    case Ew::kRelu: return std::max(a, 0.0f);
    case Ew::kGreater: return a > b;
    case Ew::kWhere: return a != 0 ? b : c;
    default: return a;
  }
}

struct Trial {
  EwProgram program;
  std::vector<TensorDesc> in, out;
  std::vector<std::vector<float>> values;  // of the inputs
};

Trial random_trial(Random& r) {
  static const Ew kCodes[] = {Ew::kAdd,   Ew::kSub,  Ew::kMul, Ew::kMax,
                              Ew::kMin,   Ew::kNeg,  Ew::kAbs, Ew::kGreater,
                              Ew::kWhere, Ew::kRelu, Ew::kAdd, Ew::kIdentity};
  Trial t;
  const Dims dims = random_dims(r);
  const int64_t inputs = 1 + r.below(5), instructions = 1 + r.below(8);
  for (int64_t i = 0; i < inputs; ++i) {
    const Dims d = i == 0 ? dims : broadcastable(dims, r);
    t.in.push_back({r.below(5) == 0 ? DType::kBool : DType::kF32, d});
    t.values.emplace_back();
    for (int64_t k = 0; k < element_count(d); ++k)
      t.values.back().push_back(t.in.back().dtype == DType::kBool ? static_cast<float>(r.below(2))
                                                                  : r.number());
  }
  for (int64_t i = 0; i < instructions; ++i) {
    EwInstr instr{r.pick(kCodes), {}};
    for (int a = 0; a < ew_arity(instr.code); ++a) {
      EwOperand& o = instr.args[static_cast<size_t>(a)];
      const int64_t which = r.below(8);
      if (which == 0)
        o = EwOperand::constant(r.number());
      else if (which < 4 && i > 0)
        o = EwOperand::temp(static_cast<int>(r.below(i)));
      else
        o = EwOperand::input(static_cast<int>(r.below(inputs)));
    }
    t.program.code.push_back(instr);
  }
  const int64_t outputs = 1 + r.below(3);
  for (int64_t o = 0; o < outputs; ++o) {
    t.program.outputs.push_back(
        static_cast<int>(o == 0 ? instructions - 1 : r.below(instructions)));
    t.out.push_back({r.below(5) == 0 ? DType::kBool : DType::kF32, dims});
  }
  return t;
}

std::vector<std::vector<float>> plain(const Trial& t) {
  const Dims& dims = t.out[0].dims;
  std::vector<std::vector<float>> out(t.out.size());
  for (int64_t flat = 0; flat < element_count(dims); ++flat) {
    std::vector<float> temp;
    for (const EwInstr& instr : t.program.code) {
      float x[3] = {};
      for (size_t a = 0; a < 3; ++a) {
        const EwOperand& o = instr.args[a];
        const size_t k = static_cast<size_t>(o.index);
        if (o.kind == EwOperand::Kind::kInput)
          x[a] = t.values[k][static_cast<size_t>(source(dims, t.in[k].dims, flat))];
        if (o.kind == EwOperand::Kind::kTemp) x[a] = temp[k];
        if (o.kind == EwOperand::Kind::kConst) x[a] = static_cast<float>(o.value);
      }
      temp.push_back(value(instr.code, x[0], x[1], x[2]));
    }
    for (size_t o = 0; o < out.size(); ++o) {
      const float v = temp[static_cast<size_t>(t.program.outputs[o])];
      out[o].push_back(t.out[o].dtype == DType::kBool ? static_cast<float>(v != 0) : v);
    }
  }
  return out;
}

HostTensor tensor(const TensorDesc& d, const std::vector<float>& v) {
  HostTensor t(d.dtype, d.dims);
  for (size_t i = 0; i < v.size(); ++i)
    t.set_double(static_cast<int64_t>(i), static_cast<double>(v[i]));
  return t;
}

void run_and_compare(const Trial& t, bool simd, int threads, Random* alias) {
  const Kernel kernel = ew_prepare(t.program, DType::kF32, t.in, t.out, threads, simd);
  std::vector<HostTensor> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < t.in.size(); ++i) {
    inputs.push_back(tensor(t.in[i], t.values[i]));
    in.push_back(inputs.back().raw());
  }
  std::vector<bool> taken(t.in.size(), false);
  for (const TensorDesc& d : t.out) {
    outputs.emplace_back(d.dtype, d.dims);
    out.push_back(outputs.back().mutable_raw());
    if (!alias) continue;
    const size_t i = static_cast<size_t>(alias->below(static_cast<int64_t>(t.in.size())));
    if (t.in[i].bytes() == d.bytes() && d.bytes() > 0 && !taken[i])
      taken[i] = true, out.back() = inputs[i].mutable_raw();
  }
  Fault fault;
  kernel.run({in.data(), out.data(), nullptr, &fault});
  const std::vector<std::vector<float>> want = plain(t);
  for (size_t o = 0; o < out.size(); ++o) {
    const HostTensor got = HostTensor::view(t.out[o].dtype, t.out[o].dims, out[o]);
    for (size_t i = 0; i < want[o].size(); ++i)
      ASSERT_EQ(got.as_double(static_cast<int64_t>(i)), static_cast<double>(want[o][i]))
          << "output " << o << " element " << i << (simd ? " simd" : " ref") << " threads "
          << threads << " aliased " << (alias != nullptr);
  }
}

TEST(EwEngine, RandomPrograms) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random r{seed};
    const Trial t = random_trial(r);
    std::string text;
    for (const std::string& line : t.program.text()) text += line + "; ";
    for (const TensorDesc& d : t.in) {
      text += d.dtype == DType::kBool ? " bool[" : " [";
      for (int64_t n : d.dims) text += cat(n, ' ');
      text += ']';
    }
    SCOPED_TRACE(cat("seed ", seed, ": ", text));
    for (bool simd : {true, false}) {
      run_and_compare(t, simd, 1 + static_cast<int>(seed % 3), nullptr);
      run_and_compare(t, simd, 1 + static_cast<int>(seed % 3), &r);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(EwEngine, TextFormIsExact) {
  for (uint64_t seed = 1000; seed < 1100; ++seed) {
    Random r{seed};
    const Trial t = random_trial(r);
    const std::vector<int64_t> outputs(t.program.outputs.begin(), t.program.outputs.end());
    EXPECT_EQ(EwProgram::parse(t.program.text(), outputs), t.program);
  }
  EXPECT_THROW(EwProgram::parse({"add x0"}, {0}), Error);
  EXPECT_THROW(EwProgram::parse({"add x0 t0"}, {0}), Error);
  EXPECT_THROW(EwProgram::parse({"nothing x0"}, {0}), Error);
  EXPECT_THROW(EwProgram::parse({"neg x0"}, {1}), Error);
  EXPECT_THROW(EwProgram::parse({"neg #1x"}, {0}), Error);
}

TEST(Reductions, RandomShapesAndAxes) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random r{seed};
    const Dims dims = seed % 10 == 0 ? Dims{r.below(4000) + 1, r.below(40) + 1} : random_dims(r);
    std::vector<int> axes;
    for (size_t d = 0; d < dims.size(); ++d)
      if (r.below(2) == 0) axes.push_back(static_cast<int>(d));
    Dims kept = dims;
    for (int a : axes) kept[static_cast<size_t>(a)] = 1;
    const TensorDesc x{DType::kF32, dims};
    std::vector<float> values;
    for (int64_t i = 0; i < x.count(); ++i) values.push_back(r.number());
    const HostTensor input = tensor(x, values);
    for (Reduce op : {Reduce::kSum, Reduce::kMean, Reduce::kMax, Reduce::kMin}) {
      const auto results = static_cast<size_t>(element_count(kept));
      const double n = static_cast<double>(x.count()) / static_cast<double>(results);
      const bool sum = op == Reduce::kSum || op == Reduce::kMean;
      std::vector<double> want(results, sum ? 0 : op == Reduce::kMax ? -INFINITY : INFINITY);
      std::vector<double> size(results, 1);
      for (int64_t i = 0; i < x.count(); ++i) {
        const auto at = static_cast<size_t>(source(dims, kept, i));
        const double v = static_cast<double>(values[static_cast<size_t>(i)]);
        if (sum)
          want[at] += v, size[at] += std::fabs(v);
        else
          want[at] = op == Reduce::kMax ? std::max(want[at], v) : std::min(want[at], v);
      }
      if (op == Reduce::kMean)
        for (size_t i = 0; i < results; ++i) want[i] /= n, size[i] /= n;
      for (bool simd : {true, false}) {
        for (int threads : {1, 3}) {
          const Kernel kernel = prepare_reduce(op, x, axes, DType::kF32, threads, simd);
          std::vector<float> got(results);
          std::vector<double> space(kernel.workspace / sizeof(double) + 1);
          const void* in[] = {input.raw()};
          void* out[] = {got.data()};
          Fault fault;
          kernel.run({in, out, space.data(), &fault});
          for (size_t i = 0; i < results; ++i)
            ASSERT_NEAR(static_cast<double>(got[i]), want[i], 2e-7 * size[i])
                << "seed " << seed << " op " << static_cast<int>(op) << " simd " << simd
                << " threads " << threads << " result " << i << " of " << results;
        }
      }
    }
  }
}

// A million equal terms, the worst case for rounding errors: one by one in f32 they lose four
// digits.
TEST(Reductions, LongSumsStayAccurate) {
  const std::vector<float> x(1'000'003, 0.1f);
  const double exact = 1'000'003 * static_cast<double>(0.1f);
  EXPECT_NEAR(reduce_simd().sum(x.data(), 1'000'003) / exact, 1, 1e-6);
  double acc = 0;
  reduce_simd().sum_rows(x.data(), 1'000'003, 1, 1, &acc);
  EXPECT_NEAR(acc / exact, 1, 1e-6);
  const float nan[] = {1, NAN, 3};
  EXPECT_TRUE(std::isnan(reduce_simd().max(nan, 3)));
  EXPECT_FALSE(reduce_simd().all_finite(nan, 3));
}

}  // namespace
}  // namespace ortrain::ops
