// Outputs and gradients of CumProd, Det, LRN, MaxUnpool, LpPool, Col2Im and AffineGrid at the
// points that central differences do not tell apart from their neighbours (zeros in a product,
// singular matrices, shared positions, norms of zero) and at ordinary ones, as PyTorch 2.15 gives
// them in double precision (literal numbers; the expression stands above each).
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using V = std::vector<double>;
using L = std::vector<int64_t>;

HostTensor tensor(DType dtype, Dims dims, const V& values) {
  HostTensor t(dtype, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) t.set_double(static_cast<int64_t>(i), values[i]);
  return t;
}
HostTensor f64(Dims dims, const V& values) { return tensor(DType::kF64, std::move(dims), values); }
HostTensor i64(const L& values) { return HostTensor::ints(values); }

template <class... T>
std::vector<HostTensor> list(T... tensors) {
  std::vector<HostTensor> all;
  (all.push_back(std::move(tensors)), ...);
  return all;
}

// y and dx of op(x, constants...) for dy (ones when empty).
std::pair<V, V> run(const char* op, HostTensor x, std::vector<HostTensor> constants, Attrs attrs,
                    V dy) {
  Graph g(all_ops());
  std::vector<ValueId> in{g.add_param(std::move(x), "x")};
  for (HostTensor& c : constants) in.push_back(g.add_const(std::move(c)));
  const NodeId n = g.add_node(all_ops().get(op), in, std::move(attrs), 1, op);
  g.infer(n);
  Builder b(g, "loss");
  const Expr y = b.wrap(g.node(n).outputs[0]);
  const Dims dims = y.shape().values();
  if (dy.empty()) dy.assign(static_cast<size_t>(element_count(dims)), 1);
  L axes;
  for (size_t i = 0; i < dims.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  const Expr weighted = y * b.constant(f64(dims, dy));
  g.add_output((axes.empty() ? weighted : b.sum(weighted, axes, false)).id(), "loss");
  g.add_output(y.id(), "y");
  const ValueId dx = differentiate(g, g.outputs()[0], {in[0]})[0];
  const ValueId out = g.outputs()[1];
  g.clear_outputs();
  g.add_output(out, "y");
  g.add_output(dx, "dx");
  const std::vector<HostTensor> results = run_graph(g, {});
  std::pair<V, V> both;
  for (int64_t i = 0; i < results[0].count(); ++i) both.first.push_back(results[0].as_double(i));
  for (int64_t i = 0; i < results[1].count(); ++i) both.second.push_back(results[1].as_double(i));
  return both;
}

void expect_near(const V& got, const V& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-11) << "element " << i;
}
V count(int n) {  // torch.arange(n)
  V v;
  for (int i = 0; i < n; ++i) v.push_back(i);
  return v;
}

// torch.cumprod(x, 1)
TEST(TorchSingular, CumProdWithZeros) {
  const auto [y, dx] = run("CumProd", f64({2, 4}, {2, 0, 3, .5, 0, 1.5, 0, 2}),
                           list(HostTensor::scalar<int64_t>(1)), {}, {1, 2, 3, 4, 5, 6, 7, 8});
  expect_near(y, {2, 0, 0, 0, 0, 0, 0, 0});
  expect_near(dx, {1, 34, 0, 0, 14, 0, 0, 0});
}

// torch.det
TEST(TorchSingular, DetOfSingularMatrices) {
  expect_near(run("Det", f64({3, 3}, {1, 2, 3, 2, 4, 6, 0, 1, 1}), {}, {}, {}).second,
              {-2, -2, 2, 1, 1, -1, 0, 0, 0});
  expect_near(run("Det", f64({3, 3}, {1, 2, 3, 2, 4, 6, 3, 6, 9}), {}, {}, {}).second, V(9, 0.0));
  expect_near(run("Det", f64({2, 2}, {0, 0, 0, 0}), {}, {}, {}).second, V(4, 0.0));
  const auto [y, dx] = run("Det", f64({2, 2}, {1, 2, 3, 4}), {}, {}, {});
  expect_near(y, {-2});
  expect_near(dx, {4, -3, -2, 1});
}

// local_response_norm(x, 3, alpha=0.6, beta=0.75, k=1.5)
TEST(TorchSingular, Lrn) {
  V x;
  for (int i = 1; i < 13; ++i) x.push_back(i * 0.25 - 1);
  const auto [y, dx] =
      run("LRN", f64({1, 6, 2}, x), {},
          {{"size", int64_t{3}}, {"alpha", 0.6}, {"beta", 0.75}, {"bias", 1.5}}, count(12));
  expect_near(y, {-0.521100199466, -0.359932639061, -0.172704648510, 0, 0.172704648510,
                  0.328618090542, 0.456698915181, 0.553583311650, 0.621735226983, 0.666384285456,
                  0.900542557744, 0.936548937055});
  expect_near(dx, {-0.047460819438, 0.685033087246, 1.397457461226, 2.108779969464, 2.641382096908,
                   2.881134363974, 2.799419808662, 2.455079057743, 1.321097412030, 0.605020413877,
                   2.167250258639, 1.683479623018});
}

// max_unpool2d(x, indices, 2, 2): the later of two values at position 5 stays, both get its
// gradient
TEST(TorchSingular, MaxUnpoolSharesPositions) {
  const auto [y, dx] = run("MaxUnpool", f64({1, 1, 2, 2}, {1, 2, 3, 4}),
                           list(tensor(DType::kI64, {1, 1, 2, 2}, {5, 5, 13, 15})),
                           {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}}, count(16));
  expect_near(y, {0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4});
  expect_near(dx, {5, 5, 13, 15});
}

// lp_pool2d(x, 2, 2)
TEST(TorchSingular, LpPoolOfZeros) {
  const auto [y, dx] = run("LpPool", f64({1, 1, 2, 4}, {0, 0, 1, -2, 0, 0, 3, 1}), {},
                           {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}}, {});
  expect_near(y, {0, 3.872983346207});
  expect_near(dx, {0, 0, 0.258198889747, -0.516397779494, 0, 0, 0.774596669241, 0.258198889747});
}

// fold(x, (3, 3), (2, 2))
TEST(TorchSingular, Col2Im) {
  const auto [y, dx] =
      run("Col2Im", f64({1, 8, 4}, count(32)), list(i64({3, 3}), i64({2, 2})), {}, count(18));
  expect_near(y, {0, 5, 5, 10, 30, 20, 10, 25, 15, 16, 37, 21, 42, 94, 52, 26, 57, 31});
  expect_near(dx, {0, 1,  3,  4,  1,  2,  4,  5,  3,  4,  6,  7,  4,  5,  7,  8,
                   9, 10, 12, 13, 10, 11, 13, 14, 12, 13, 15, 16, 13, 14, 16, 17});
}

// affine_grid(theta, size, align_corners)
TEST(TorchSingular, AffineGrid) {
  const V theta{1, .5, .2, 0, 2, -.1};
  const auto [row, drow] = run("AffineGrid", f64({1, 2, 3}, theta), list(i64({1, 1, 1, 3})),
                               {{"align_corners", int64_t{1}}}, {});
  expect_near(row, {-.8, -.1, .2, -.1, 1.2, -.1});
  expect_near(drow, {0, 0, 3, 0, 0, 3});
  const auto [y, dtheta] =
      run("AffineGrid", f64({1, 2, 3}, theta), list(i64({1, 1, 2, 2})), {}, count(8));
  expect_near(y, {-.55, -1.1, .45, -1.1, -.05, .9, .95, .9});
  expect_near(dtheta, {2, 4, 12, 2, 4, 16});
}

}  // namespace
}  // namespace ortrain::test
