// check_trainable: tells every obstacle between the trainable parameters and the loss at once,
// before any time is spent: operators without a gradient rule, inputs that refuse one, and why.
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/passes/passes.h"

namespace ortrain {

void pass_check_trainable(Graph& g, PassContext& ctx) {
  std::vector<ValueId> wanted;
  for (const auto& [v, info] : g.params)
    if (info.trainable) wanted.push_back(v);
  const std::vector<std::string> problems = gradient_problems(g, g.outputs()[0], wanted);
  if (problems.empty()) {
    ctx.did = cat(wanted.size(), " parameters have a gradient");
    return;
  }
  std::string text = cat("this model cannot be trained as it is: ", problems.size(),
                         problems.size() == 1 ? " place stops" : " places stop", " the gradient");
  for (const std::string& p : problems) text += "\n  " + p;
  throw Error(ErrorCode::kUnsupported,
              text + "\n--freeze the parameters behind them, or train another output");
}

}  // namespace ortrain
