// If, Loop, Scan and what their bodies are made of in the graph (graph/structure.h). Pass infer
// dissolves them into plain nodes (graph/passes/unroll.h) before any kernel is asked for, so they
// have neither kernels nor gradient rules: gradients are those of the nodes that they become.
#include "ops/common/ref.h"
#include "ops/common/structural.h"

namespace ortrain::ops {
namespace {

void infer_gate(InferCtx& c) {
  infer_same_as_first(c);
  if (const auto contents = c.ints(0)) c.out_ints(0, *contents);
}

}  // namespace

void register_control_flow(OpTable& table) {
  table.add(structural(
      "If", {"cond", "values*"}, {no_grad("cond")}, 1,
      "a condition known once sizes are bound takes its branch; on run-time data both branches "
      "are computed and chosen from, the one not taken gets a gradient of exactly zero, but an "
      "index out of range in it is still "
      "an error"));
  table.add(structural(
      "Loop", {"M?", "cond?", "values*"}, {no_grad("M"), no_grad("cond")}, 1,
      "unrolled: the trip count must be known once sizes are bound; a condition on run-time data "
      "runs all iterations and keeps the values of the last that counts"));
  table.add(structural("Scan", {"values*"}, {}, 8, "unrolled over the length of the scanned axis"));
  table.add(structural(kBodyOp, {"values*"}, {}, 1, "the inputs of a body"));
  table.add(structural(kPerIterationOp, {"x", "token"}, {no_grad("token")}, 1,
                       "ties a random node to the iterations of its body"));
  table.add(structural(kMissingOp, {"values*"}, {}, 1, "what the importer could not bring in"));
  const ExampleInput active{.kind = ExampleInput::Kind::kBool, .values = {1}};
  table.add({
      .name = kGateOp,
      .inputs = {"x", "active"},
      .outputs = {"y"},
      .infer = infer_gate,
      .grad = {grad("x",
                    [](Grad& g) {
                      return g.b.where(g.x(1), g.dy(), g.b.scalar(g.dy().dtype(), 0));
                    }),
               no_grad("active")},
      .view = true,
      .fold = false,
      .examples = {{.in = {f({2, 3}), active}}, {.in = {f({0}), active}}},
      .note = "x; its gradient is exactly zero while not active, whatever comes from above",
  });
}

}  // namespace ortrain::ops
