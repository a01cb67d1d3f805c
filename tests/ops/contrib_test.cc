// com.microsoft operators against onnxruntime (tests/golden/contrib/make_contrib.py): import,
// compile for prediction, run, compare. Those without a CPU kernel there are compared with their
// formula in standard operators. Gradients: tests/ops/engine_test.cc, by the decompositions.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "graph/error.h"
#include "importers/onnx.h"
#include "ortrain_test_paths.h"
#include "runtime/data/npz.h"
#include "tests/ops/interpreter.h"
#include "tests/ops/run_model.h"

namespace ortrain::test {
namespace {

struct Case {
  HostTensor model;
  std::map<std::string, HostTensor> in, out;
};

std::map<std::string, Case> read_cases() {
  const std::string path = std::string(kSourceDir) + "/tests/golden/contrib/contrib.npz";
  data::ArrayFile file = data::open_npz(path);
  std::map<std::string, Case> cases;
  for (const data::StoredArray& a : file.arrays) {
    const size_t slash = a.name.find('/'), second = a.name.find('/', slash + 1);
    Case& c = cases[a.name.substr(0, slash)];
    const std::string kind = a.name.substr(slash + 1, second - slash - 1);
    HostTensor t = a.tensor().clone();
    if (kind == "model")
      c.model = std::move(t);
    else
      (kind == "in" ? c.in : c.out)[a.name.substr(second + 1)] = std::move(t);
  }
  return cases;
}

std::map<std::string, HostTensor> run_case(const Case& c) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(c.model.raw()),
                                         c.model.bytes());
  const auto file = OnnxFile::parse(bytes, ".", all_ops());
  StepSpec spec;
  spec.mode = Mode::kPredict;
  std::map<std::string, const HostTensor*> in;
  for (const auto& [name, t] : c.in) in[name] = &t;
  return run_model(file->graph(), spec, in);
}

void expect_close(const HostTensor& got, const HostTensor& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(got.dims(), want.dims()) << what;
  double scale = 1, worst = 0;
  for (int64_t i = 0; i < want.count(); ++i) {
    ASSERT_TRUE(std::isfinite(got.as_double(i))) << what << " element " << i;
    scale = std::max(scale, std::abs(want.as_double(i)));
    worst = std::max(worst, std::abs(got.as_double(i) - want.as_double(i)));
  }
  EXPECT_LE(worst, tolerance * scale) << what;
}

TEST(Contrib, AgreesWithOnnxruntime) {
  const std::map<std::string, Case> cases = read_cases();
  EXPECT_GE(cases.size(), 64u);
  for (const auto& [name, c] : cases) {
    SCOPED_TRACE(name);
    try {
      const std::map<std::string, HostTensor> got = run_case(c);
      for (const auto& [output, want] : c.out)
        expect_close(got.at(output), want, 2e-5, name + " " + output);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

// outputs of `text`, whose inputs are x0, x1, ...
std::vector<HostTensor> run_text(const char* text, const std::vector<HostTensor>& in) {
  Graph g = parse_graph(text, all_ops());
  std::map<ValueId, HostTensor> values;
  for (size_t i = 0; i < in.size(); ++i) values[g.inputs()[i]] = in[i].clone();
  for (NodeId n : g.topo()) g.infer(n);
  return run_graph(g, values);
}

HostTensor ramp(Dims dims, double from, double step) {
  HostTensor t(DType::kF64, std::move(dims));
  for (int64_t i = 0; i < t.count(); ++i)
    t.set_double(i, std::sin(from + step * static_cast<double>(i)));
  return t;
}

TEST(Contrib, FormulasOfOpsWithoutACpuKernel) {
  const std::vector<HostTensor> y = run_text(
      "input %0:f64[2,4,3,2] \"x\"\ninput %1:f64[3,2,2,2] \"w\"\ninput %2:f64[3] \"b\"\n"
      "%3 = com.microsoft.NhwcConv(%0, %1, %2) {pads=[1,0,0,1]} #n\n"
      "%4 = Transpose(%0) {perm=[0,3,1,2]} #t\n%5 = Conv(%4, %1, %2) {pads=[1,0,0,1]} #c\n"
      "%6 = Transpose(%5) {perm=[0,2,3,1]} #u\noutput %3 \"a\"\noutput %6 \"b\"\n",
      [] {
        std::vector<HostTensor> in;
        in.push_back(ramp({2, 4, 3, 2}, 0, 0.7));
        in.push_back(ramp({3, 2, 2, 2}, 1, 0.3));
        in.push_back(ramp({3}, 2, 1));
        return in;
      }());
  expect_close(y[0], y[1], 1e-14, "NhwcConv");
  const std::vector<HostTensor> s = run_text(
      "input %0:f64[2,2,3,4] \"x\"\ninput %1:f64[2,1,1,4] \"b\"\n"
      "%2 = com.microsoft.BiasSoftmax(%0, %1) {axis=3, is_inner_broadcast=1} #s\n"
      "%3 = Add(%0, %1) #a\n%4 = Softmax(%3) {axis=-1} #t\noutput %2 \"a\"\noutput %4 \"b\"\n",
      [] {
        std::vector<HostTensor> in;
        in.push_back(ramp({2, 2, 3, 4}, 0, 0.7));
        in.push_back(ramp({2, 1, 1, 4}, 1, 0.9));
        return in;
      }());
  expect_close(s[0], s[1], 1e-14, "BiasSoftmax");
}

// What onnxruntime 1.19's CPU kernels get wrong (see make_contrib.py).
TEST(Contrib, FormulasWhereTheWitnessIsWrong) {
  std::vector<HostTensor> in;
  in.push_back(ramp({2, 3, 4}, 0, 0.7));
  in.push_back(ramp({2, 3, 4}, 1, 0.3));
  in.push_back(ramp({4}, 2, 1));
  in.push_back(ramp({4}, 3, 1));
  const std::vector<HostTensor> n = run_text(
      "input %0:f64[2,3,4] \"x\"\ninput %1:f64[2,3,4] \"s\"\ninput %2:f64[4] \"g\"\n"
      "input %3:f64[4] \"b\"\n"
      "%4, %5, %6, %7 = com.microsoft.SkipSimplifiedLayerNormalization(%0, %1, %2, %3) "
      "{epsilon=0.5} #n\n"
      "%8 = Sum(%0, %1, %3) #a\n%9 = RMSNormalization(%8, %2) {epsilon=0.5} #r\n"
      "output %4 \"a\"\noutput %9 \"b\"\noutput %7 \"c\"\noutput %8 \"d\"\n",
      in);
  expect_close(n[0], n[1], 1e-14, "normalised");
  expect_close(n[2], n[3], 1e-14, "sum");
  in.clear();
  in.push_back(ramp({1, 4, 4}, 0, 0.7));
  in.push_back(ramp({1, 4, 2}, 1, 0.3));
  in.push_back(ramp({1, 4, 2}, 2, 1));
  const std::vector<HostTensor> w = run_text(
      "input %0:f64[1,4,4] \"q\"\ninput %1:f64[1,4,2] \"k\"\ninput %2:f64[1,4,2] \"v\"\n"
      "const %3:i32[1] = {3}\nconst %4:i32[] = {4}\n"
      "const %5:bool[4,4] = {1,0,0,0, 1,1,0,0, 0,1,1,0, 0,0,1,1}\n"
      "%6 = com.microsoft.GroupQueryAttention(%0, %1, %2, _, _, %3, %4) "
      "{num_heads=2, kv_num_heads=1, local_window_size=2, softcap=1.5} #g\n"
      "%7 = Attention(%0, %1, %2, %5) {q_num_heads=2, kv_num_heads=1, softcap=1.5} #a\n"
      "output %6 \"a\"\noutput %7 \"b\"\n",
      in);
  expect_close(w[0], w[1], 1e-14, "window");
  in.clear();
  in.push_back(ramp({2, 3, 4}, 0, 0.7));
  in.push_back(ramp({2, 5, 4}, 1, 0.3));
  const std::vector<HostTensor> m = run_text(
      "input %0:f64[2,3,4] \"q\"\ninput %1:f64[2,5,4] \"k\"\nconst %2:i32[2] = {4, 2}\n"
      "const %3:bool[2,1,1,5] = {1,1,1,1,0, 1,1,0,0,0}\n"
      "%4 = com.microsoft.MultiHeadAttention(%0, %1, %1, _, %2) {num_heads=2} #m\n"
      "%5 = Attention(%0, %1, %1, %3) {q_num_heads=2, kv_num_heads=2} #a\n"
      "output %4 \"a\"\noutput %5 \"b\"\n",
      in);
  expect_close(m[0], m[1], 1e-14, "lengths");
}

// dropout(x + b) + r: what the mask says, element by element, in a training compile.
TEST(Contrib, BiasDropoutTrains) {
  Graph g = parse_graph(
      "input %0:f32[4,50] \"x\"\ninput %1:f32[50] \"b\"\ninput %2:f32[4,50] \"r\"\n"
      "const %3:f32[] = {0.5}\nconst %4:bool[] = {1}\n"
      "%5, %6 = com.microsoft.BiasDropout(%0, %1, %2, %3, %4) #d\n"
      "output %5 \"y\"\noutput %6 \"mask\"\n",
      all_ops());
  StepSpec spec;
  spec.mode = Mode::kPredict;
  spec.file_modes = true;
  HostTensor x(DType::kF32, {4, 50}), b(DType::kF32, {50}), r(DType::kF32, {4, 50});
  for (int64_t i = 0; i < 200; ++i) x.set_double(i, 1), r.set_double(i, 10);
  for (int64_t i = 0; i < 50; ++i) b.set_double(i, 2);
  const auto out = run_model(g, spec, {{"x", &x}, {"b", &b}, {"r", &r}});
  const HostTensor &y = out.at("y"), &mask = out.at("mask");
  int64_t kept = 0;
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(y.as_double(i), mask.as_int(i) ? 16 : 10) << i;
    kept += mask.as_int(i);
  }
  EXPECT_NEAR(static_cast<double>(kept), 100, 40);
}

}  // namespace
}  // namespace ortrain::test
