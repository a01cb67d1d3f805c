// fuse_forward: replaces groups of forward nodes by fused ones before autodiff, so that the fused
// op's own gradient is used. The rules live in files of their own; this file is their order.
#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/rewrite.h"

namespace ortrain {
namespace {

struct NamedRule {
  const char* name;
  Rule run;
};

// Declared in rewrite.h, one file each: {"attention", fuse_attention}, ...
const std::vector<NamedRule> kRules = {
    {"split", fuse_split},
    {"attention", fuse_attention},
    {"norm", fuse_norm},
    {"gelu", fuse_gelu},
    {"linear", fuse_linear},
    {"batch_norm", fuse_batch_norm},
    {"log_softmax", fuse_log_softmax},
};

}  // namespace

void pass_fuse_forward(Graph& g, PassContext& ctx) {
  // Scalars and buffers have become constants since canonicalize; patterns are told in their
  // simplest form.
  if (const int gone = simplify_graph(g, ctx.evaluate, 0); gone > 0)
    ctx.did = cat(gone, " nodes simplified away");
  for (const NamedRule& rule : kRules) {
    const int places = rule.run(g, ctx);
    if (places == 0) continue;
    g.erase_dead();
    ctx.did += cat(ctx.did.empty() ? "" : ", ", rule.name, " x", places);
  }
}

}  // namespace ortrain
