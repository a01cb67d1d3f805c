// LSTM, GRU and RNN in the forms that PyTorch and ONNX's node tests do not reach, against the
// equations of the ONNX text written out element by element: activations with parameters, clip,
// peepholes, coupled gates, both directions with lengths and layout 1. Also 16-bit floats.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/error.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using Fn = double (*)(double);
double sig(double x) { return 1 / (1 + std::exp(-x)); }
double hard(double x) { return std::max(0.0, std::min(1.0, 0.3 * x + 0.45)); }
double soft(double x) { return x / (1 + std::abs(x)); }
double plus(double x) { return std::log(std::exp(x) + 1); }
double scaled(double x) { return 1.3 * std::tanh(0.7 * x); }
double leaky(double x) { return x >= 0 ? x : 0.2 * x; }
double elu(double x) { return x >= 0 ? x : 0.6 * (std::exp(x) - 1); }

constexpr int64_t kB = 3, kT = 4, kI = 2, kH = 3;
const int64_t kLength[kB] = {4, 1, 3};

double value(int64_t i, int64_t salt) {
  return std::sin(1.7 * static_cast<double>(i) + static_cast<double>(salt));
}
HostTensor filled(Dims dims, int64_t salt, DType dtype) {
  HostTensor t(dtype, std::move(dims));
  for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, value(i, salt));
  return t;
}

struct Layer {
  std::string op;
  int64_t gates;
  Attrs attrs;
  Fn act[2][3];
  double clip = 1e30;
  bool peepholes = false, couple = false, before = false;
};

// Y [B,T,2,H] by the text's equations; everything batch first.
std::vector<double> expected(const Layer& l) {
  std::vector<double> y(static_cast<size_t>(kB * kT * 2 * kH), 0.0);
  const auto cut = [&](double x) { return std::max(-l.clip, std::min(l.clip, x)); };
  for (int64_t d = 0; d < 2; ++d)
    for (int64_t b = 0; b < kB; ++b) {
      double h[kH], c[kH];
      for (int64_t j = 0; j < kH; ++j)
        h[j] = value((b * 2 + d) * kH + j, 5), c[j] = value((b * 2 + d) * kH + j, 6);
      for (int64_t k = 0; k < kLength[b]; ++k) {
        const int64_t t = d ? kLength[b] - 1 - k : k;
        const auto x_part = [&](int64_t g, int64_t j) {
          double s = value(d * 2 * l.gates * kH + g * kH + j, 4);
          for (int64_t i = 0; i < kI; ++i)
            s += value((b * kT + t) * kI + i, 1) *
                 value((d * l.gates * kH + g * kH + j) * kI + i, 2);
          return s;
        };
        const auto h_part = [&](int64_t g, int64_t j, const double* from) {
          double s = value(d * 2 * l.gates * kH + (l.gates + g) * kH + j, 4);
          for (int64_t i = 0; i < kH; ++i)
            s += from[i] * value((d * l.gates * kH + g * kH + j) * kH + i, 3);
          return s;
        };
        const auto peep = [&](int64_t which, int64_t j) {
          return l.peepholes ? value(d * 3 * kH + which * kH + j, 7) : 0.0;
        };
        double next[kH], cell[kH], reset[kH];
        const Fn* f = l.act[d];
        for (int64_t j = 0; j < kH; ++j)
          if (l.op == "GRU") reset[j] = f[0](cut(x_part(1, j) + h_part(1, j, h))) * h[j];
        for (int64_t j = 0; j < kH; ++j) {
          if (l.op == "RNN") {
            next[j] = f[0](cut(x_part(0, j) + h_part(0, j, h)));
          } else if (l.op == "GRU") {
            const double z = f[0](cut(x_part(0, j) + h_part(0, j, h)));
            const double r = f[0](cut(x_part(1, j) + h_part(1, j, h)));
            const double n =
                f[1](cut(x_part(2, j) + (l.before ? h_part(2, j, reset) : r * h_part(2, j, h))));
            next[j] = (1 - z) * n + z * h[j];
          } else {
            const double i = f[0](cut(x_part(0, j) + h_part(0, j, h) + peep(0, j) * c[j]));
            const double forget =
                l.couple ? 1 - i : f[0](cut(x_part(2, j) + h_part(2, j, h) + peep(2, j) * c[j]));
            cell[j] = forget * c[j] + i * f[1](cut(x_part(3, j) + h_part(3, j, h)));
            const double o = f[0](cut(x_part(1, j) + h_part(1, j, h) + peep(1, j) * cell[j]));
            next[j] = o * f[2](cut(cell[j]));
          }
        }
        for (int64_t j = 0; j < kH; ++j) {
          h[j] = next[j];
          if (l.op == "LSTM") c[j] = cell[j];
          y[static_cast<size_t>(((b * kT + t) * 2 + d) * kH + j)] = h[j];
        }
      }
    }
  return y;
}

std::vector<HostTensor> run(const Layer& l, DType dtype) {
  Graph g(all_ops());
  std::map<ValueId, HostTensor> values;
  std::vector<ValueId> in;
  const auto add = [&](HostTensor t) {
    in.push_back(g.add_input(cat("x", in.size()), t.dtype(), Shape(t.dims())));
    values[in.back()] = std::move(t);
  };
  add(filled({kB, kT, kI}, 1, dtype));
  add(filled({2, l.gates * kH, kI}, 2, dtype));
  add(filled({2, l.gates * kH, kH}, 3, dtype));
  add(filled({2, 2 * l.gates * kH}, 4, dtype));
  add(HostTensor::of<int32_t>({kB}, {4, 1, 3}));
  add(filled({kB, 2, kH}, 5, dtype));
  if (l.op == "LSTM") add(filled({kB, 2, kH}, 6, dtype));
  if (l.peepholes) add(filled({2, 3 * kH}, 7, dtype));
  Attrs attrs = l.attrs;
  attrs.set("direction", std::string("bidirectional"));
  attrs.set("layout", int64_t{1});
  const NodeId n = g.add_node(all_ops().get(l.op), in, attrs, 1, "layer");
  g.infer(n);
  g.add_output(g.node(n).outputs[0], "y");
  return run_graph(g, values);
}

using Names = std::vector<std::string>;
using Reals = std::vector<double>;
std::vector<Layer> layers() {
  return {{.op = "LSTM",
           .gates = 4,
           .attrs = {{"clip", 0.8}},
           .act = {{sig, std::tanh, std::tanh}, {sig, std::tanh, std::tanh}},
           .clip = 0.8,
           .peepholes = true},
          {.op = "LSTM",
           .gates = 4,
           .attrs = {{"input_forget", 1},
                     {"activations", Names{"HardSigmoid", "Softsign", "ScaledTanh", "Sigmoid",
                                           "LeakyRelu", "Softplus"}},
                     {"activation_alpha", Reals{0.3, 1.3, 0.2}},
                     {"activation_beta", Reals{0.45, 0.7}}},
           .act = {{hard, soft, scaled}, {sig, leaky, plus}},
           .peepholes = true,
           .couple = true},
          {.op = "GRU",
           .gates = 3,
           .attrs = {{"clip", 0.5},
                     {"activations", Names{"Sigmoid", "Elu", "Sigmoid", "Tanh"}},
                     {"activation_alpha", Reals{0.6}}},
           .act = {{sig, elu}, {sig, std::tanh}},
           .clip = 0.5,
           .before = true},
          {.op = "GRU",
           .gates = 3,
           .attrs = {{"linear_before_reset", 1},
                     {"activations", Names{"HardSigmoid", "Tanh", "Softsign", "Softplus"}},
                     {"activation_alpha", Reals{0.3}},
                     {"activation_beta", Reals{0.45}}},
           .act = {{hard, std::tanh}, {soft, plus}}},
          {.op = "RNN",
           .gates = 1,
           .attrs = {{"clip", 0.9}, {"activations", Names{"Softsign", "Tanh"}}},
           .act = {{soft}, {std::tanh}},
           .clip = 0.9}};
}

TEST(RecurrentForms, EquationsOfTheText) {
  const std::vector<Layer> all = layers();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<double> want = expected(all[i]);
    const std::vector<HostTensor> got = run(all[i], DType::kF64);
    ASSERT_EQ(got[0].dims(), (Dims{kB, kT, 2, kH}));
    for (size_t k = 0; k < want.size(); ++k)
      ASSERT_NEAR(got[0].as_double(static_cast<int64_t>(k)), want[k], 1e-12)
          << all[i].op << " " << i << " element " << k;
  }
}

TEST(RecurrentForms, NarrowFloats) {
  for (const Layer& l : layers()) {
    const std::vector<double> want = expected(l);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const std::vector<HostTensor> got = run(l, dtype);
      ASSERT_EQ(got[0].dtype(), dtype);
      // Half a unit in the last place of each input and of the result, through four steps.
      const double unit = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
      for (size_t k = 0; k < want.size(); ++k)
        ASSERT_NEAR(got[0].as_double(static_cast<int64_t>(k)), want[k], 20 * unit) << l.op;
    }
  }
}

}  // namespace
}  // namespace ortrain::test
