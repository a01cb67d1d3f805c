// What tests of single passes share: the operator table, a typed graph from text, one pass run on
// it, and comparison of texts.
#pragma once

#include <gmock/gmock.h>

#include "graph/passes/passes.h"
#include "tests/graph/mini_ops.h"

namespace ortrain::mini {

inline const OpTable& ops() {
  static const OpTable t = table();
  return t;
}

inline Graph typed(const std::string& text) {
  Graph g = parse_graph(text, ops());
  for (NodeId n : g.topo()) g.infer(n);
  g.stage = Stage::kInferred;
  return g;
}

struct Ran {
  std::string did;
  std::vector<std::string> messages;
};

// Runs one pass, verifies, and says what the pass said.
inline Ran run_pass(void (*pass)(Graph&, PassContext&), Graph& g, const StepSpec& spec = {},
                    bool with_evaluate = true) {
  Ran ran;
  const Evaluate evaluator = with_evaluate ? Evaluate(mini::evaluate) : Evaluate();
  PassContext ctx{spec, evaluator, ran.messages, {}};
  pass(g, ctx);
  ran.did = ctx.did;
  EXPECT_EQ(verify(g), "") << print_graph(g);
  return ran;
}

// The text after one pass.
inline std::string after(void (*pass)(Graph&, PassContext&), const std::string& text,
                         const StepSpec& spec = {}) {
  Graph g = typed(text);
  run_pass(pass, g, spec);
  return normal(g);
}

// The message of the Error that f throws; checks its code.
template <class F>
std::string error_of(ErrorCode code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  return "no error";
}

}  // namespace ortrain::mini
