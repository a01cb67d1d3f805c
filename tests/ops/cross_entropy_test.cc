// Cross entropy and LogSoftmax of logits so large that max + log(sum) would swallow the log,
// against PyTorch 2.15 (torch.nn.functional.cross_entropy and log_softmax in float32, literal
// numbers).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

TEST(CrossEntropy, LargeEqualLogitsKeepTheLog) {
  for (const char* kernel : {"first", "ref"}) {
    Graph g(all_ops());
    const ValueId x = g.add_input("x", DType::kF32, Shape(Dims{2, 3}));
    const ValueId t = g.add_const(HostTensor::ints({0, 2}), "t");
    const NodeId n = g.add_node(all_ops().get("ortrain.CrossEntropy"), {x, t}, {}, 3, "loss");
    g.infer(n);
    Builder b(g, "gradient");
    const std::vector<ValueId> dys{b.scalar(DType::kF32, 1).id(), kNone, kNone};
    Grad context{Builder(g, "gradient"), n, 0, dys};
    g.add_output(g.node(n).outputs[0], "loss");
    g.add_output(g.node(n).op->grad_rule(0)->formula(context).id(), "dx");
    const NodeId l = g.add_node(all_ops().get("LogSoftmax"), {x}, {}, 1, "log");
    g.infer(l);
    g.add_output(g.node(l).outputs[0], "log");
    std::map<ValueId, HostTensor> in;
    in[x] = HostTensor::of<float>({2, 3}, {3e7f, 3e7f, 3e7f, -2e8f, -2e8f, -2e8f});
    const auto out = run_graph(g, in, kernel);
    EXPECT_NEAR(out[0].as_double(0), 1.0986123085, 1e-6) << kernel;
    const double third = 1.0 / 6, rest = -1.0 / 3;
    const double expected[] = {rest, third, third, third, third, rest};
    for (int i = 0; i < 6; ++i) {
      EXPECT_NEAR(out[1].as_double(i), expected[i], 1e-6) << kernel << " " << i;
      EXPECT_NEAR(out[2].as_double(i), -1.0986123085, 1e-6) << kernel << " " << i;
    }
  }
}

}  // namespace
}  // namespace ortrain::test
