// Sequences and optionals: lists of values that pass infer keeps and dissolves
// (graph/passes/unroll.h). Positions and lengths must be known once sizes are bound. No kernels and
// no gradient rules: what is taken from a list is the value itself.
#include "graph/structure.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

void add(OpTable& table, std::string name, std::vector<std::string> inputs, int since,
         std::vector<GradRule> rules = {}) {
  OpDef op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.outputs = {"output*"};
  op.since = since;
  op.infer = infer_dissolved;
  op.grad = std::move(rules);
  op.fold = false;
  op.note = "a list of values known once sizes are bound; positions must be constant";
  table.add(std::move(op));
}

}  // namespace

void register_sequence(OpTable& table) {
  add(table, "SequenceConstruct", {"inputs*"}, 11);
  add(table, "SequenceEmpty", {}, 11);
  add(table, "SequenceAt", {"sequence", "position"}, 11, {no_grad("position")});
  add(table, "SequenceInsert", {"sequence", "tensor", "position?"}, 11, {no_grad("position")});
  add(table, "SequenceErase", {"sequence", "position?"}, 11, {no_grad("position")});
  add(table, "SequenceLength", {"sequence"}, 11, {no_grad("sequence")});
  add(table, "SplitToSequence", {"input", "split?"}, 11, {no_grad("split")});
  add(table, "ConcatFromSequence", {"sequence"}, 11);
  add(table, "SequenceMap", {"sequence", "values*"}, 17);
  add(table, "Optional", {"input?"}, 15);
  add(table, "OptionalGetElement", {"input"}, 15);
  add(table, "OptionalHasElement", {"input?"}, 15, {no_grad("input")});
}

}  // namespace ortrain::ops
