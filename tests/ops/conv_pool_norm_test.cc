// Convolution, pooling and batch norm against literal values from PyTorch 2.15 (f32, CPU), forward
// and gradient: as the file has it on the reference kernels, and channels-last after the layout
// pass on the fast kernels. What the generic engine cannot see: PyTorch's own choices (ties in
// max-pooling, divisors in ceil mode, unbiased running variance).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using L = std::vector<int64_t>;

struct Result {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> more;
};

std::vector<float> values(const HostTensor& t) {
  std::vector<float> v;
  for (int64_t i = 0; i < t.count(); ++i) v.push_back(static_cast<float>(t.as_double(i)));
  return v;
}
void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
}

HostTensor tensor(const Dims& dims, const std::vector<float>& v) {
  return HostTensor::from<float>(dims, v);
}
// 1, 2, 3, ... times `step`.
HostTensor counting(const Dims& dims, float step = 1) {
  HostTensor t(DType::kF32, dims);
  for (int64_t i = 0; i < t.count(); ++i)
    t.mutable_data<float>()[i] = static_cast<float>(i + 1) * step;
  return t;
}

const Dims kXDims = {1, 2, 4, 5};
const std::vector<float> kX = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4,
                               6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5, 0, 2, 8, 8, 4, 1, 9, 7};

// Makes the layout pass act on a graph without convolutions: a 1x1 identity convolution in front.
Expr through_conv(Builder& b, Expr x) {
  const int64_t c = x.shape()[1].value();
  HostTensor eye(DType::kF32, {c, c, 1, 1});
  for (int64_t i = 0; i < c; ++i) eye.mutable_data<float>()[i * c + i] = 1;
  return b.op("Conv", {x, b.constant(std::move(eye))});
}

void layout(Graph& g) {
  const StepSpec spec;
  const Evaluate none;
  std::vector<std::string> messages;
  PassContext ctx{spec, none, messages, {}};
  pass_layout(g, ctx);
  EXPECT_EQ(verify(g), "");
}

// y and dx of a node on kX with the given output gradient.
template <class MakeNode>
Result run(bool channels_last, float step, MakeNode&& make,
           const std::vector<HostTensor>& wanted = {}) {
  Graph g(all_ops());
  const ValueId x = g.add_input("x", DType::kF32, Shape(kXDims));
  std::vector<ValueId> leaves = {x};
  std::map<ValueId, HostTensor> inputs;
  inputs[x] = tensor(kXDims, kX);
  Builder b(g, "test");
  std::vector<Expr> extra;
  for (const HostTensor& t : wanted) {
    const ValueId v = g.add_input("w", DType::kF32, Shape(t.dims()));
    leaves.push_back(v);
    inputs[v] = t.clone();
    extra.push_back(b.wrap(v));
  }
  Expr data = b.wrap(x);
  if (channels_last) data = through_conv(b, data);
  const std::vector<Expr> ys = make(b, data, extra);
  const int64_t n = element_count(ys[0].shape().values());
  const Expr loss =
      b.reshape(b.matmul(b.reshape(ys[0], {1, n}), b.constant(counting({n, 1}, step))), {});
  g.add_output(loss.id(), "loss");
  for (const Expr& y : ys) g.add_output(y.id(), "y");
  g.stage = Stage::kInferred;
  if (channels_last) layout(g);
  const std::vector<ValueId> grads = differentiate(g, g.outputs()[0], leaves);
  for (ValueId v : grads) g.add_output(v, "grad");
  const std::vector<HostTensor> out = run_graph(g, inputs, channels_last ? "nhwc" : "ref");
  Result r{values(out[1]), values(out[1 + ys.size()]), {}};
  for (size_t i = 2; i < out.size(); ++i)
    if (i != 1 + ys.size()) r.more.push_back(values(out[i]));
  return r;
}

class BothLayouts : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Layouts, BothLayouts, testing::Bool());

TEST_P(BothLayouts, MaxPoolGivesTheGradientToTheFirstMaximum) {
  const Result r = run(GetParam(), 1, [](Builder& b, Expr x, const auto&) {
    return std::vector<Expr>{b.op("MaxPool", {x},
                                  {{"kernel_shape", L{3, 3}},
                                   {"strides", L{2, 2}},
                                   {"pads", L{1, 1, 1, 1}},
                                   {"ceil_mode", int64_t{1}}})};
  });
  expect_near(r.y, {9, 6, 5, 9, 9, 9, 3, 8, 8, 8, 8, 7, 9, 9, 9, 8, 9, 9}, 0);
  expect_near(r.dx, {0, 0, 0, 0, 3, 5, 0,  2, 0, 0,  0,  0, 5, 0, 6, 7,  0, 0, 17, 0,
                     0, 0, 0, 0, 0, 0, 21, 0, 0, 12, 13, 0, 0, 0, 0, 16, 0, 0, 64, 0},
              0);
}

Attrs average(int64_t include_pad) {
  return {{"kernel_shape", L{3, 2}},
          {"strides", L{2, 2}},
          {"pads", L{1, 1, 1, 1}},
          {"ceil_mode", int64_t{1}},
          {"count_include_pad", include_pad}};
}
TEST_P(BothLayouts, AveragePoolCountsPaddingButNotBeyondIt) {
  const Result r = run(GetParam(), 1, [](Builder& b, Expr x, const auto&) {
    return std::vector<Expr>{b.op("AveragePool", {x}, average(1))};
  });
  expect_near(r.y,
              {2, 2.16666675f, 2.33333325f, 2.83333325f, 5, 6, 0.75f, 1.25f, 3, 1.5f, 3.16666675f,
               2.66666675f, 3.33333325f, 3.5f, 5.83333349f, 2, 1.25f, 4},
              1e-6f);
  expect_near(r.dx,
              {0.1666667f, 0.3333333f, 0.3333333f, 0.5f,       0.5f,       0.8333334f, 1.1666666f,
               1.1666666f, 1.5f,       1.5f,       0.6666667f, 0.8333333f, 0.8333333f, 1.0f,
               1.0f,       2.4166667f, 2.8333333f, 2.8333333f, 3.25f,      3.25f,      1.6666666f,
               1.8333334f, 1.8333334f, 2.0f,       2.0f,       3.8333335f, 4.1666665f, 4.1666665f,
               4.5f,       4.5f,       2.1666667f, 2.3333333f, 2.3333333f, 2.5f,       2.5f,
               6.166667f,  6.583333f,  6.583333f,  7.0f,       7.0f},
              2e-6f);
}
TEST_P(BothLayouts, AveragePoolLeavesPaddingOut) {
  const Result r = run(GetParam(), 1, [](Builder& b, Expr x, const auto&) {
    return std::vector<Expr>{b.op("AveragePool", {x}, average(0))};
  });
  expect_near(r.y,
              {6, 3.25f, 3.5f, 5.66666651f, 5, 6, 3, 2.5f, 6, 4.5f, 4.75f, 4, 6.66666651f, 3.5f,
               5.83333349f, 8, 2.5f, 8},
              1e-6f);
  expect_near(r.dx,
              {0.5f,       0.5f,       0.5f,       0.75f,      0.75f,      1.8333334f, 1.3333333f,
               1.3333333f, 1.75f,      1.75f,      1.3333334f, 0.8333333f, 0.8333333f, 1.0f,
               1.0f,       8.333333f,  4.8333335f, 4.8333335f, 5.5f,       5.5f,       5.0f,
               2.75f,      2.75f,      3.0f,       3.0f,       9.333334f,  5.083333f,  5.083333f,
               5.5f,       5.5f,       4.3333335f, 2.3333333f, 2.3333333f, 2.5f,       2.5f,
               20.333334f, 10.833333f, 10.833333f, 11.5f,      11.5f},
              4e-6f);
}

// relu(batch_norm(x) + z): fused by fuse_forward's rule.
TEST_P(BothLayouts, BatchNormWithResidualAndRelu) {
  HostTensor z(DType::kF32, kXDims);
  for (int i = 0; i < 40; ++i) z.mutable_data<float>()[i] = -1 + 2 * static_cast<float>(i) / 39;
  std::vector<HostTensor> leaves;
  leaves.push_back(tensor({2}, {1.5f, -0.5f}));
  leaves.push_back(tensor({2}, {0.25f, 0.5f}));
  leaves.push_back(std::move(z));
  const Result r = run(
      GetParam(), 0.1f,
      [](Builder& b, Expr x, const std::vector<Expr>& w) {
        std::vector<Expr> bn =
            b.ops("BatchNormalization",
                  {x, w[0], w[1], b.constant(tensor({2}, {1, 2})), b.constant(tensor({2}, {3, 4}))},
                  {{"training_mode", int64_t{1}}, {"unbiased", int64_t{1}}, {"epsilon", 1e-3}}, 3);
        bn[0] = b.op("Relu", {bn[0] + w[2]});
        const StepSpec spec;
        const Evaluate none;
        std::vector<std::string> messages;
        PassContext ctx{spec, none, messages, {}};
        EXPECT_EQ(fuse_batch_norm(b.graph(), ctx), 2);
        bn[0] = b.wrap(b.graph().node(b.graph().value(bn[1].id()).producer).outputs[0]);
        return bn;
      },
      leaves);
  expect_near(
      r.y, {0,         0,         0,         0,         0,         1.871348f, 0,         0.264319f,
            0,         0,         0,         1.609176f, 2.230322f, 1.141876f, 2.332886f, 0,
            0,         0,         1.96815f,  0,         0.316079f, 1.096274f, 0.418643f, 0.834381f,
            1.067892f, 1.119174f, 0.259314f, 1.221738f, 1.455248f, 0.595389f, 0.282214f, 1.062409f,
            2.024833f, 1.711658f, 0.669571f, 0.720853f, 1.501048f, 2.099015f, 0.692471f, 1.108209f},
      2e-6f);
  expect_near(r.dx,
              {-0.036349f, 0.192345f,  -0.150696f, 0.192345f,  -0.265043f, -0.380513f, 0.077998f,
               0.076501f,  -0.265043f, -0.036349f, -0.265043f, 0.075753f,  0.018392f,  0.304073f,
               0.132365f,  -0.036349f, 0.077998f,  -0.036349f, 0.474658f,  -0.150696f, 0.181259f,
               0.134716f,  0.144813f,  0.11243f,   0.087128f,  0.068905f,  0.086082f,  0.032459f,
               0.007156f,  0.024333f,  0.020271f,  -0.026272f, -0.079895f, -0.083958f, -0.059701f,
               -0.077924f, -0.124466f, -0.163929f, -0.125512f, -0.157895f},
              3e-6f);
  ASSERT_EQ(r.more.size(), 5u);
  expect_near(r.more[0], {1.38499999f, 2.28499985f}, 1e-6f);
  expect_near(r.more[1], {3.42921042f, 4.39236832f}, 1e-6f);
  expect_near(r.more[2], {10.5633898f, 2.13207316f}, 1e-5f);
  expect_near(r.more[3], {8.7f, 61.0f}, 1e-5f);
  expect_near(r.more[4],
              {0,    0,    0,    0,    0,    0.6f, 0,    0.8f, 0,    0,    0,    1.2f, 1.3f, 1.4f,
               1.5f, 0,    0,    0,    1.9f, 0,    2.1f, 2.2f, 2.3f, 2.4f, 2.5f, 2.6f, 2.7f, 2.8f,
               2.9f, 3.0f, 3.1f, 3.2f, 3.3f, 3.4f, 3.5f, 3.6f, 3.7f, 3.8f, 3.9f, 4.0f},
              1e-6f);
}

// torch.nn.functional.conv_transpose2d(..., stride=(2,3), padding=(1,0), output_padding=(1,2),
// groups=2, dilation=(1,2)): first two rows of channel 0 and the last row of channel 5.
TEST(ConvTranspose, GroupsDilationAndOutputPadding) {
  Graph g(all_ops());
  Builder b(g, "test");
  HostTensor w(DType::kF32, {4, 3, 3, 2});
  for (int i = 0; i < 72; ++i) w.mutable_data<float>()[i] = static_cast<float>(i % 7) / 5 - 0.5f;
  const ValueId x = g.add_input("x", DType::kF32, Shape({1, 4, 2, 3}));
  const Expr y = b.op("ConvTranspose",
                      {b.wrap(x), b.constant(std::move(w)),
                       b.constant(tensor({6}, {.1f, -.2f, .3f, .4f, .5f, .6f}))},
                      {{"strides", L{2, 3}},
                       {"pads", L{1, 0, 1, 0}},
                       {"output_padding", L{1, 2}},
                       {"group", int64_t{2}},
                       {"dilations", L{1, 2}}});
  g.add_output(y.id(), "y");
  std::map<ValueId, HostTensor> inputs;
  inputs[x] = counting({1, 4, 2, 3}, 0.1f);
  for (const char* kernel : {"ref", "onednn"}) {
    const std::vector<HostTensor> out = run_graph(g, inputs, kernel);
    ASSERT_EQ(out[0].dims(), (Dims{1, 6, 4, 11}));
    const std::vector<float> v = values(out[0]);
    expect_near({v.begin(), v.begin() + 22},
                {0.58f, 0.1f, -0.24f, 0.64f, 0.1f, -0.28f, 0.7f,   0.1f, -0.32f, 0.1f, 0.1f,
                 0.02f, 0.1f, 0.46f,  0.0f,  0.1f, 0.52f,  -0.02f, 0.1f, 0.58f,  0.1f, 0.1f},
                2e-6f);
    expect_near({v.end() - 11, v.end()},
                {-0.34f, 0.6f, 0.42f, -0.38f, 0.6f, 0.42f, -0.42f, 0.6f, 0.42f, 0.6f, 0.6f}, 2e-6f);
  }
}

// onnx 1.22's own shape inference says width 3; PyTorch and onnxruntime compute 2.
TEST(MaxPool, CeilModeIgnoresWindowsThatStartInThePadding) {
  Graph g(all_ops());
  Builder b(g, "test");
  const Expr y = b.op(
      "MaxPool", {b.constant(HostTensor(DType::kF32, {1, 1, 5}))},
      {{"kernel_shape", L{3}}, {"strides", L{3}}, {"pads", L{1, 1}}, {"ceil_mode", int64_t{1}}});
  EXPECT_EQ(y.shape().str(), "[1,1,2]");
}

}  // namespace
}  // namespace ortrain::test
