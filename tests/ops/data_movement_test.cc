// What the generic engine cannot see of the data movement ops: symbolic shape chains, older opsets,
// indices out of range, the same bits at every thread count, tie and zero rules with literal values
// worked out by hand from PyTorch's documented formulas (scatter_reduce, topk).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/builder.h"
#include "graph/error.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using testing::ElementsAre;
using Ints = std::vector<int64_t>;

std::vector<double> numbers(const HostTensor& t) {
  std::vector<double> out;
  for (int64_t i = 0; i < t.count(); ++i) out.push_back(t.as_double(i));
  return out;
}
HostTensor floats(Dims dims, const std::vector<float>& v) {
  return HostTensor::from<float>(std::move(dims), v);
}
HostTensor longs(Dims dims, const Ints& v) { return HostTensor::from<int64_t>(std::move(dims), v); }

template <class... T>
std::vector<HostTensor> list(T... t) {
  std::vector<HostTensor> out;
  (out.push_back(std::move(t)), ...);
  return out;
}

// A graph of one node whose inputs are constants (an undefined tensor is an absent input).
struct One {
  Graph g{all_ops()};
  NodeId n = kNone;
  One(const std::string& op, std::vector<HostTensor> in, Attrs attrs = {}, int outputs = 1) {
    std::vector<ValueId> ids;
    for (HostTensor& t : in)
      ids.push_back(t.dtype() == DType::kUndefined ? kNone : g.add_const(std::move(t)));
    n = g.add_node(all_ops().get(op), ids, std::move(attrs), outputs, "node");
    g.infer(n);
  }
  // The outputs of one kernel, and the fault it raised.
  std::vector<HostTensor> run(const std::string& kernel, int threads, Fault& fault) {
    const KernelQuery q = query_of(g, n, threads);
    const OpDef& op = *g.node(n).op;
    const KernelEntry* entry = kernel == "ref" ? &op.kernels.back() : pick(op, kernel, q);
    EXPECT_TRUE(entry) << op.name << " has no kernel " << kernel;
    const Kernel k = entry->prepare(q);
    std::vector<HostTensor> out;
    std::vector<const void*> in;
    std::vector<void*> to;
    for (ValueId v : g.node(n).inputs) in.push_back(v == kNone ? nullptr : g.tensor(v)->raw());
    for (const TensorDesc& d : q.out) out.emplace_back(d.dtype, d.dims);
    for (HostTensor& t : out) to.push_back(t.mutable_raw());
    HostTensor workspace(DType::kU8, {static_cast<int64_t>(k.workspace)});
    k.run({in.data(), to.data(), workspace.mutable_raw(), &fault});
    return out;
  }
  std::vector<HostTensor> run(const std::string& kernel = "ref", int threads = 2) {
    Fault fault;
    auto out = run(kernel, threads, fault);
    EXPECT_FALSE(fault.raised);
    return out;
  }
};

// --- symbolic shapes
TEST(SymbolicShapes, ShapeGatherConcatReshapeFolds) {
  Graph g(all_ops());
  Builder b(g, "test");
  const Dim batch = Dim::symbol("B"), time = Dim::symbol("T");
  Expr x = b.wrap(g.add_input("x", DType::kF32, Shape{batch, time, 12}));
  Expr shape = b.op("Shape", {x});
  Expr rows = b.op("Gather", {shape, b.ints({0})});
  Expr steps = b.op("Slice", {shape, b.ints({1}), b.ints({2})});
  Expr target = b.concat({rows, steps, b.ints({3, -1})}, 0);
  Expr y = b.op("Reshape", {x, target});
  EXPECT_EQ(y.shape(), (Shape{batch, time, 3, 4}));
  Expr merged = b.op("Reshape", {y, b.concat({b.ints({-1}), b.ints({12})}, 0)});
  EXPECT_EQ(merged.shape(), (Shape{batch * time, 12}));
  // Scalar index, Unsqueeze, ConstantOfShape, Expand.
  Expr one = b.unsqueeze(b.op("Gather", {shape, b.constant(HostTensor::scalar<int64_t>(-2))}), {0});
  EXPECT_EQ(b.op("ConstantOfShape", {one}).shape(), Shape{time});
  EXPECT_EQ(b.op("Expand", {b.scalar(DType::kF32, 1), b.concat({one, rows}, 0)}).shape(),
            (Shape{time, batch}));
  EXPECT_EQ(b.op("Size", {x}).id() != kNone, true);
}

TEST(SymbolicShapes, SliceSplitTileResizeBindToNumbers) {
  Graph g(all_ops());
  Builder b(g, "test");
  const Dim n = Dim::symbol("N");
  Expr x = b.wrap(g.add_input("x", DType::kF32, Shape{n, 6}));
  const auto extent = [](Expr e, int64_t value) {
    return e.shape().bind({{"N", value}})[0].value();
  };
  Expr tail = b.op("Slice", {x, b.ints({-3}), b.ints({9223372036854775807})});
  EXPECT_EQ(extent(tail, 10), 3);
  EXPECT_EQ(extent(tail, 2), 2);
  Expr head = b.op("Slice", {x, b.ints({1}), b.ints({-1}), b.ints({0}), b.ints({2})});
  EXPECT_EQ(extent(head, 8), 3);
  EXPECT_EQ(extent(head, 1), 0);
  Expr back = b.op("Slice", {x, b.ints({-1}), b.ints({-2147483648}), b.ints({0}), b.ints({-1})});
  EXPECT_EQ(extent(back, 7), 7);
  const auto parts = b.ops("Split", {x}, {{"num_outputs", 3}}, 3);
  EXPECT_EQ(extent(parts[0], 7), 3);
  EXPECT_EQ(extent(parts[2], 7), 1);
  EXPECT_EQ(b.op("Tile", {x, b.ints({3, 1})}).shape(), (Shape{n * Dim(3), 6}));
  EXPECT_EQ(b.op("Pad", {x, b.ints({1, 0, 2, 0})}).shape(), (Shape{n + Dim(3), 6}));
}

TEST(SymbolicShapes, UnknownOnesAreRefusedByName) {
  Graph g(all_ops());
  Builder b(g, "test");
  Expr x = b.wrap(g.add_input("x", DType::kF32, Shape{4}));
  Expr s = b.wrap(g.add_input("s", DType::kI64, Shape{2}));
  for (const char* op : {"Reshape", "Expand"}) try {
      b.op(op, {x, s});
      FAIL() << op << " accepted a shape that depends on data";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << e.what();
    }
  EXPECT_THROW(b.op("NonZero", {x}), Error);
  EXPECT_THROW(b.op("Reshape", {x, b.ints({3})}), Error);
  EXPECT_THROW(b.op("Reshape", {x, b.ints({-1, -1})}), Error);
  EXPECT_THROW(b.op("Squeeze", {x, b.ints({0})}), Error);
}

// --- older opsets
struct Adapted {
  Graph g{all_ops()};
  RawNode raw;
  Adapted(const std::string& op, int opset, size_t inputs, Attrs attrs, size_t outputs = 1)
      : raw{g, opset, op, {}, std::vector<bool>(outputs, true), std::move(attrs)} {
    for (size_t i = 0; i < inputs; ++i)
      raw.inputs.push_back(g.add_input("x", DType::kF32, Shape{2, 3}));
    all_ops().get(op).adapt(raw);
  }
  Ints ints(size_t i) { return g.tensor(raw.inputs[i])->as_ints(); }
};

TEST(OlderOpsets, AttributesBecomeInputs) {
  Adapted slice("Slice", 9, 1, {{"starts", Ints{0}}, {"ends", Ints{2}}, {"axes", Ints{1}}});
  EXPECT_THAT(slice.ints(1), ElementsAre(0));
  EXPECT_THAT(slice.ints(2), ElementsAre(2));
  EXPECT_THAT(slice.ints(3), ElementsAre(1));
  EXPECT_TRUE(slice.raw.attrs.empty());
  Adapted squeeze("Squeeze", 11, 1, {{"axes", Ints{0}}});
  EXPECT_THAT(squeeze.ints(1), ElementsAre(0));
  Adapted unsqueeze("Unsqueeze", 11, 1, {{"axes", Ints{2}}});
  EXPECT_THAT(unsqueeze.ints(1), ElementsAre(2));
  Adapted pad("Pad", 10, 1, {{"pads", Ints{0, 1, 0, 1}}, {"value", 2.5}});
  EXPECT_THAT(pad.ints(1), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(pad.g.tensor(pad.raw.inputs[2])->as_double(0), 2.5);
  Adapted split("Split", 11, 1, {{"split", Ints{1, 2}}, {"axis", 1}}, 2);
  EXPECT_THAT(split.ints(1), ElementsAre(1, 2));
  Adapted equal("Split", 13, 1, {{"axis", 1}}, 3);
  EXPECT_EQ(equal.raw.attrs.i("num_outputs", 0), 3);
  Adapted top("TopK", 9, 1, {{"k", 2}}, 2);
  EXPECT_THAT(top.ints(1), ElementsAre(2));
  EXPECT_EQ(Adapted("Scatter", 10, 3, {}).raw.op, "ScatterElements");
  EXPECT_EQ(Adapted("GridSample", 16, 2, {{"mode", "bilinear"}}).raw.attrs.s("mode", ""), "linear");
}

TEST(OlderOpsets, UpsampleAndResize10AreAsymmetricFloor) {
  for (const char* op : {"Upsample", "Resize"}) {
    Adapted a(op, op[0] == 'U' ? 9 : 10, 2, {});
    EXPECT_EQ(a.raw.op, "Resize");
    EXPECT_EQ(a.raw.inputs[1], kNone);
    EXPECT_NE(a.raw.inputs[2], kNone);
    EXPECT_EQ(a.raw.attrs.s("coordinate_transformation_mode", ""), "asymmetric");
    EXPECT_EQ(a.raw.attrs.s("nearest_mode", ""), "floor");
  }
  Adapted seven("Upsample", 7, 1, {{"scales", std::vector<double>{1, 2}}, {"mode", "bilinear"}});
  EXPECT_EQ(seven.g.tensor(seven.raw.inputs[2])->as_double(1), 2);
  EXPECT_EQ(seven.raw.attrs.s("mode", ""), "linear");
  // Opset 11 and later stay as they are.
  EXPECT_TRUE(Adapted("Resize", 11, 3, {}).raw.attrs.empty());
}

// --- indices
TEST(Indices, OutOfRangeIsReportedAndReadsZero) {
  const auto check = [](One node, const std::string& kernel, const std::vector<double>& want,
                        int64_t at, int64_t value, int64_t limit) {
    Fault fault;
    const auto out = node.run(kernel, 2, fault);
    EXPECT_TRUE(fault.raised) << kernel;
    EXPECT_EQ(fault.position, at);
    EXPECT_EQ(fault.value, value);
    EXPECT_EQ(fault.low, -limit);
    EXPECT_EQ(fault.high, limit);
    EXPECT_EQ(numbers(out[0]), want);
  };
  const auto data = [] { return floats({3, 2}, {1, 2, 3, 4, 5, 6}); };
  for (const char* kernel : {"rows", "ref"}) {
    check(One("Gather", list(data(), longs({3}, {2, 3, -3}))), kernel, {5, 6, 0, 0, 1, 2}, 1, 3, 3);
    check(
        One("ortrain.GatherGrad", list(floats({3, 2}, {1, 2, 3, 4, 5, 6}), longs({3}, {1, -4, 1})),
            {{"axis", 0}, {"dims", Ints{3, 2}}}),
        kernel, {0, 0, 6, 8, 0, 0}, 1, -4, 3);
  }
  check(One("GatherElements", list(data(), longs({1, 2}, {2, 7}))), "ref", {5, 0}, 1, 7, 3);
  check(One("GatherND", list(data(), longs({2, 2}, {0, 1, 3, 0}))), "ref", {2, 0}, 2, 3, 3);
  check(
      One("ScatterElements", list(floats({3}, {1, 2, 3}), longs({2}, {0, 3}), floats({2}, {8, 9}))),
      "ref", {8, 2, 3}, 1, 3, 3);
}

TEST(Indices, EmbeddingGradientHasTheSameBitsAtEveryThreadCount) {
  for (const int64_t inner : {3, 96, 1000}) {
    std::vector<float> dy(static_cast<size_t>(700 * inner));
    Ints at(700);
    uint32_t seed = 1;
    const auto random = [&] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
    for (float& v : dy) v = static_cast<float>(random()) / 1e6f - 7;
    for (int64_t& v : at)
      v = static_cast<int64_t>(random() % 50) * static_cast<int64_t>(random() % 3);
    One node("ortrain.GatherGrad", list(floats({700, inner}, dy), longs({700}, at)),
             {{"axis", 0}, {"dims", Ints{300, inner}}});
    const auto want = node.run("ref", 1);
    for (int threads : {1, 2, 3, 5}) {
      const auto got = node.run("rows", threads);
      EXPECT_EQ(std::memcmp(got[0].raw(), want[0].raw(), want[0].bytes()), 0)
          << threads << " threads, rows of " << inner;
    }
  }
}

TEST(Indices, AreExactAbove24Bits) {
  One node("Gather", list(longs({1}, {5}), longs({1}, {0})));
  EXPECT_EQ(node.run()[0].as_int(0), 5);
  One hot("OneHot", list(longs({2}, {16777217, 16777216}), longs({1}, {16777218}),
                         HostTensor::of<uint8_t>({2}, {0, 1})));
  const auto out = hot.run();
  EXPECT_EQ(out[0].as_int(16777217), 1);
  EXPECT_EQ(out[0].as_int(16777216), 0);
  EXPECT_EQ(out[0].as_int(16777218 + 16777216), 1);
}

// --- layout
// The hook's node on transposed data gives the transposed result.
void expect_channels_last(const std::string& op, std::vector<HostTensor> in, Attrs attrs,
                          int outputs = 1) {
  One plain(op, std::move(in), std::move(attrs), outputs);
  const auto want = plain.run();
  const auto change = plain.g.node(plain.n).op->channels_last(plain.g, plain.n);
  ASSERT_TRUE(change) << op;
  const auto moved = [](const HostTensor& t, const Ints& perm) {
    return std::move(One("Transpose", list(t.clone()), {{"perm", perm}}).run()[0]);
  };
  for (int i : change->inputs) {
    const ValueId v = plain.g.node(plain.n).inputs[static_cast<size_t>(i)];
    plain.g.set_input(plain.n, i, plain.g.add_const(moved(*plain.g.tensor(v), {0, 2, 3, 1})));
  }
  plain.g.infer(plain.n);
  for (const char* kernel : {"ref", "first"}) {
    const auto got = plain.run(kernel);
    ASSERT_EQ(change->outputs.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const HostTensor back = moved(got[i], {0, 3, 1, 2});
      EXPECT_EQ(back.dims(), want[i].dims()) << op;
      for (int64_t k = 0; k < back.count(); ++k)
        ASSERT_NEAR(back.as_double(k), want[i].as_double(k), 1e-6) << op << " " << kernel;
    }
  }
}

TEST(ChannelsLast, AxesMoveWithTheData) {
  const auto data = [](Dims dims) {
    HostTensor t(DType::kF32, std::move(dims));
    for (int64_t i = 0; i < t.count(); ++i) t.set_double(i, static_cast<double>(i * 7 % 31));
    return t;
  };
  const auto x = [&] { return data({2, 3, 4, 5}); };
  expect_channels_last("Concat", list(x(), data({2, 1, 4, 5})), {{"axis", 1}});
  expect_channels_last("Concat", list(x(), data({2, 3, 4, 2})), {{"axis", -1}});
  expect_channels_last("Split", list(x()), {{"axis", 1}, {"num_outputs", 3}}, 3);
  expect_channels_last("Slice", list(x(), longs({2}, {0, 1}), longs({2}, {2, 3})), {});
  expect_channels_last(
      "Slice", list(x(), longs({1}, {3}), longs({1}, {-9}), longs({1}, {-2}), longs({1}, {-2})),
      {});
  expect_channels_last("Pad", list(x(), longs({8}, {0, 1, 2, 0, 0, 0, 1, 3})), {});
  expect_channels_last("Pad", list(x(), longs({4}, {1, 1, 2, 1}), HostTensor(), longs({2}, {3, 2})),
                       {{"mode", "reflect"}});
  const auto scales = [] { return floats({4}, {1, 1, 2, 3}); };
  expect_channels_last("Resize", list(x(), HostTensor(), scales()), {});
  expect_channels_last("Resize", list(x(), HostTensor(), scales()), {{"mode", "linear"}});
  expect_channels_last("Resize", list(x(), HostTensor(), HostTensor(), longs({2}, {7, 3})),
                       {{"mode", "cubic"}, {"axes", Ints{3, 2}}});
}

// --- literal values of the gradient rules
TEST(ScatterGradients, TiesOfMaxShareEvenly) {  // torch.scatter_reduce(..., "amax")
  One node("ortrain.ScatterGrad",
           list(floats({3}, {6, 9, 5}), longs({4}, {0, 0, 1, 1}), floats({3}, {4, 1, 7}),
                floats({4}, {4, 4, 2, 3})),
           {{"reduction", "max"}}, 2);
  const auto out = node.run();
  EXPECT_THAT(numbers(out[0]), ElementsAre(2, 0, 5));
  EXPECT_THAT(numbers(out[1]), ElementsAre(2, 2, 0, 9));
}

TEST(ScatterGradients, ProductsWithZerosAreExact) {  // "prod"
  One node("ortrain.ScatterGrad",
           list(floats({3}, {1, 1, 1}), longs({4}, {0, 0, 1, 2}), floats({3}, {2, 0, 0}),
                floats({4}, {0, 5, 3, 0})),
           {{"reduction", "mul"}}, 2);
  const auto out = node.run();
  EXPECT_THAT(numbers(out[0]), ElementsAre(0, 3, 0));
  EXPECT_THAT(numbers(out[1]), ElementsAre(10, 0, 0, 0));
}

TEST(ScatterGradients, OnlyTheWinningDuplicateGetsAGradient) {
  One node("ortrain.ScatterGrad", list(floats({3}, {1, 2, 3}), longs({3}, {1, 1, 2})), {}, 2);
  const auto out = node.run();
  EXPECT_THAT(numbers(out[0]), ElementsAre(1, 0, 0));
  EXPECT_THAT(numbers(out[1]), ElementsAre(0, 2, 3));
}

TEST(TopK, TiesKeepTheirOrderAndNanIsLargest) {
  One node("TopK", list(floats({6}, {1, 3, NAN, 3, -2, 3}), longs({1}, {4})), {}, 2);
  const auto out = node.run();
  EXPECT_TRUE(std::isnan(out[0].as_double(0)));
  EXPECT_THAT(numbers(out[1]), ElementsAre(2, 1, 3, 5));
  One small("TopK", list(floats({5}, {1, 0, 1, 0, NAN}), longs({1}, {5})), {{"largest", 0}}, 2);
  EXPECT_THAT(numbers(small.run()[1]), ElementsAre(1, 3, 0, 2, 4));
}

TEST(AllTypes, MovementKeepsEveryBit) {
  for (const DType d :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
        DType::kI8, DType::kU64, DType::kU32, DType::kU16, DType::kU8, DType::kBool}) {
    HostTensor x(d, {5, 7});
    for (int64_t i = 0; i < 35; ++i)
      x.set_double(i, d == DType::kBool ? static_cast<double>(i % 2) : static_cast<double>(i));
    for (const char* kernel : {"strided", "ref"}) {
      One node("Transpose", list(x.clone()));
      const auto y = node.run(kernel);
      for (int64_t i = 0; i < 35; ++i)
        EXPECT_EQ(y[0].as_double(i % 7 * 5 + i / 7), x.as_double(i)) << name_of(d) << " " << kernel;
    }
  }
}

}  // namespace
}  // namespace ortrain::test
