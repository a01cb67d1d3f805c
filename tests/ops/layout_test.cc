// The layout pass and fuse_forward's rules for products and batch norm, on real operators: what is
// left of the transposes, and that loss and gradients stay the same in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/autodiff.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using L = std::vector<int64_t>;

struct Net {
  Graph g{all_ops()};
  Builder b{g, "test"};
  std::map<ValueId, HostTensor> values;
  std::vector<ValueId> leaves;

  Expr leaf(Dims dims, double low = -1, double high = 1) {
    const ValueId v = g.add_input("x", DType::kF64, Shape(dims));
    HostTensor t(DType::kF64, dims);
    for (int64_t i = 0; i < t.count(); ++i)  // an irregular sequence in [low, high]
      t.set_double(i, low + (high - low) * (0.5 + 0.5 * std::sin(1.7 * v + 12.9898 * double(i))));
    values[v] = std::move(t);
    leaves.push_back(v);
    return b.wrap(v);
  }
  Expr conv(Expr x, int64_t channels, int64_t kernel, int64_t stride = 1) {
    const int64_t pad = kernel / 2;
    return b.op("Conv", {x, leaf({channels, x.shape()[1].value(), kernel, kernel})},
                {{"strides", L{stride, stride}}, {"pads", L{pad, pad, pad, pad}}});
  }
  Expr batch_norm(Expr x) {
    const int64_t c = x.shape()[1].value();
    return b.op("BatchNormalization",
                {x, leaf({c}), leaf({c}), b.constant(HostTensor(DType::kF64, {c})),
                 b.constant(HostTensor(DType::kF64, {c}))},
                {{"training_mode", int64_t{1}}});
  }
  Expr relu(Expr x) { return b.op("Relu", {x}); }
  void loss(Expr y) {
    y = b.sum(
        y * leaf(y.shape().values()),
        [&] {
          L axes;
          for (int i = 0; i < y.rank(); ++i) axes.push_back(i);
          return axes;
        }(),
        false);
    g.add_output(y.id(), "loss");
    g.stage = Stage::kInferred;
  }
  int count(std::string_view op) const {
    int n = 0;
    for (NodeId id : g.topo()) n += g.node(id).op->name == op;
    return n;
  }
  // Loss and gradients of all leaves.
  std::vector<HostTensor> results() {
    for (ValueId v : differentiate(g, g.outputs()[0], leaves)) g.add_output(v, "grad");
    return run_graph(g, values);
  }
};

void run(Net& net, const std::vector<void (*)(Graph&, PassContext&)>& passes) {
  const StepSpec spec;
  const Evaluate none;
  std::vector<std::string> messages;
  for (const auto pass : passes) {
    PassContext ctx{spec, none, messages, {}};
    pass(net.g, ctx);
    EXPECT_EQ(verify(net.g), "") << print_graph(net.g);
  }
}

// `make` builds the same network twice; one is compiled with the passes.
template <class Make>
Net expect_same(Make&& make, const std::vector<void (*)(Graph&, PassContext&)>& passes) {
  Net plain, passed;
  make(plain);
  make(passed);
  run(passed, passes);
  Net before = Net();
  before.g = passed.g.share();
  const std::vector<HostTensor> want = plain.results(), got = passed.results();
  EXPECT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i].dims(), got[i].dims());
    for (int64_t k = 0; k < want[i].count(); ++k)
      EXPECT_NEAR(want[i].as_double(k), got[i].as_double(k), 1e-9) << "result " << i << " at " << k;
  }
  return before;
}

void residual_net(Net& n) {
  Expr x = n.relu(n.batch_norm(n.conv(n.leaf({2, 3, 6, 5}), 4, 3)));
  const Expr y = n.batch_norm(n.conv(n.relu(n.batch_norm(n.conv(x, 4, 3))), 4, 3));
  x = n.relu(y + x);
  const Expr z = n.batch_norm(n.conv(x, 6, 3, 2));
  x = n.relu(z + n.batch_norm(n.conv(x, 6, 1, 2)));
  x = n.b.op("GlobalAveragePool", {x});
  x = n.b.reshape(x, {2, 6});
  n.loss(n.b.op("Gemm", {x, n.leaf({5, 6}), n.leaf({5})}, {{"transB", int64_t{1}}}));
}

TEST(Layout, ResidualNetKeepsOneTranspose) {
  const Net after = expect_same(residual_net, {pass_fuse_forward, pass_layout});
  EXPECT_EQ(after.count("Transpose"), 1);  // the image; pooled to 1x1, the rest is a Reshape
  EXPECT_EQ(after.count("Relu"), 0);       // all inside the norms
  EXPECT_EQ(after.count("Add"), 0);
  EXPECT_EQ(after.count("ortrain.Linear"), 1);
  for (NodeId id : after.g.topo()) {
    const Node& n = after.g.node(id);
    if (n.op->name == "Conv" || n.op->name == "BatchNormalization") {
      EXPECT_EQ(n.attrs.i("channels_last", 0), 1);
    }
  }
}

TEST(Layout, OffAndOnAgreeWithoutFusion) { expect_same(residual_net, {pass_layout}); }

TEST(Layout, OneChannelImageNeedsNoTranspose) {
  const Net after = expect_same(
      [](Net& n) {
        Expr x = n.b.op("MaxPool", {n.relu(n.conv(n.leaf({2, 1, 8, 8}), 3, 5))},
                        {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}});
        n.loss(x);
      },
      {pass_layout});
  EXPECT_EQ(after.count("Transpose"), 1);  // in front of the loss's own channels-first product
}

TEST(Layout, ElementwiseSideInputsAreMovedOnlyWhenCheap) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr x = n.conv(n.leaf({2, 3, 4, 4}), 5, 3);
        Expr y = x * n.leaf({5, 1, 1}) + n.leaf({1, 5, 1, 1});  // per channel: reshaped
        y = n.b.op("Where", {n.b.op("Greater", {y, n.b.scalar(DType::kF64, 0)}), y, y * 0.1});
        n.loss(n.conv(y, 2, 1));
      },
      {pass_layout});
  EXPECT_EQ(after.count("Transpose"), 2);  // into the first convolution, out of the last
}

TEST(Layout, PatchEmbeddingEndsInAReshape) {
  const Net after = expect_same(
      [](Net& n) {
        Expr x = n.b.op("Conv", {n.leaf({2, 3, 8, 8}), n.leaf({5, 3, 4, 4}), n.leaf({5})},
                        {{"strides", L{4, 4}}});
        x = n.b.transpose(n.b.reshape(x, {2, 5, 4}), {0, 2, 1});
        n.loss(n.b.matmul(x, n.leaf({5, 3})));
      },
      {pass_layout, pass_simplify});
  EXPECT_EQ(after.count("Transpose"), 1);  // the image only
}

TEST(Layout, TransposedConvolutionAndResizeAndConcat) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr x = n.relu(n.conv(n.leaf({1, 3, 4, 4}), 4, 3));
        const Expr up =
            n.b.op("ConvTranspose", {x, n.leaf({4, 5, 3, 3}), n.leaf({5})},
                   {{"strides", L{2, 2}}, {"pads", L{1, 1, 1, 1}}, {"output_padding", L{1, 1}}});
        const Expr pooled =
            n.b.op("AveragePool", {up}, {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}});
        n.loss(n.conv(n.b.concat({pooled, x}, 1), 2, 1));
      },
      {pass_layout});
  EXPECT_EQ(after.count("Transpose"), 2);
}

TEST(Layout, GraphsWithoutConvolutionsStay) {
  Net n;
  n.loss(n.b.op("MaxPool", {n.leaf({1, 2, 4, 4})}, {{"kernel_shape", L{2, 2}}}));
  const std::string before = print_graph(n.g);
  run(n, {pass_layout});
  EXPECT_EQ(print_graph(n.g), before);
}

TEST(FuseLinear, TransposedWeightAndBiasOfOneRow) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr x = n.leaf({2, 3, 4});
        Expr y = n.b.matmul(x, n.b.transpose(n.leaf({5, 4}), {1, 0})) + n.leaf({1, 5});
        n.loss(n.leaf({6}) + n.b.matmul(y, n.leaf({5, 6})));
      },
      {pass_fuse_forward});
  EXPECT_EQ(after.count("ortrain.Linear"), 2);
  EXPECT_EQ(after.count("Transpose") + after.count("MatMul") + after.count("Add"), 0);
}

TEST(FuseLinear, AttentionProductsKeepTheirBatchAndLoseTheTranspose) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr q = n.leaf({2, 3, 4}), k = n.leaf({2, 5, 4});
        n.loss(n.b.matmul(q, n.b.swap_last_two(k)));
      },
      {pass_fuse_forward});
  EXPECT_EQ(after.count("MatMul"), 1);
  EXPECT_EQ(after.count("Transpose"), 0);
}

TEST(FuseLinear, ABiasThatIsNotOneStays) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr y = n.b.matmul(n.leaf({3, 4}), n.leaf({4, 5}));
        n.loss(y + n.leaf({3, 1}) + y);  // per row, and y is used twice
      },
      {pass_fuse_forward});
  EXPECT_EQ(after.count("ortrain.Linear"), 1);
  EXPECT_EQ(after.count("Add"), 2);
}

TEST(FuseBatchNorm, ClipBecomesABoundAndOtherClipsStay) {
  const auto net = [](double low) {
    return [low](Net& n) {
      const Expr x = n.batch_norm(n.leaf({2, 3, 4, 4}));
      n.loss(n.b.op("Clip", {x, n.b.scalar(DType::kF64, low), n.b.scalar(DType::kF64, 0.5)}));
    };
  };
  EXPECT_EQ(expect_same(net(0), {pass_fuse_forward}).count("Clip"), 0);
  EXPECT_EQ(expect_same(net(-0.25), {pass_fuse_forward}).count("Clip"), 1);
}

TEST(FuseBatchNorm, ASharedNormKeepsItsRelu) {
  const Net after = expect_same(
      [](Net& n) {
        const Expr x = n.batch_norm(n.leaf({2, 3, 4, 4}));
        n.loss(n.relu(x) * x);
      },
      {pass_fuse_forward});
  EXPECT_EQ(after.count("Relu"), 1);
}

}  // namespace
}  // namespace ortrain::test
