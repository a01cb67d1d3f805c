// Sequences and optionals: lists of values that pass infer keeps and dissolves
// (graph/passes/unroll.h). Positions and lengths must be known once sizes are bound. No kernels and
// no gradient rules: what is taken from a list is the value itself.
#include "ops/common/ref.h"
#include "ops/common/structural.h"

namespace ortrain::ops {
namespace {

void add(OpTable& table, std::string name, std::vector<std::string> inputs, int since,
         std::vector<GradRule> rules = {}) {
  table.add(structural(std::move(name), std::move(inputs), std::move(rules), since,
                       "a list of values known once sizes are bound; positions must be constant"));
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
