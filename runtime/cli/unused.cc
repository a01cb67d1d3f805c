// See unused.h.
#include "runtime/cli/unused.h"

#include <algorithm>

#include "graph/error.h"
#include "runtime/cli/flags.h"

namespace ortrain::cli {
namespace {

struct Use {
  const char* flag;
  std::vector<const char*> of;
};

// The flags of `uses` that none of the chosen ones has.
void check(const Config& k, const std::vector<Use>& uses, const std::vector<std::string>& chosen) {
  std::string names;
  for (const std::string& c : chosen) names += (names.empty() ? "" : ", ") + c;
  for (const Use& u : uses) {
    std::string having;
    bool used = false;
    for (const char* name : u.of) {
      having += (having.empty() ? "" : ", ") + std::string(name);
      used |= std::count(chosen.begin(), chosen.end(), name) > 0;
    }
    refuse_unused(k, u.flag, used, cat("it is not for ", names, " but for ", having));
  }
}

}  // namespace

void refuse_unused(const Config& k, const std::string& flag, bool used, const std::string& why) {
  if (used || k.origin(flag) != "--" + flag || k.text(flag) == find_flag(flag)->fallback) return;
  fail(ErrorCode::kUsage, "--", flag, " ", k.text(flag), " has no effect: ", why);
}

void refuse_unused_optimizer_flags(const Config& k) {
  check(k,
        {{"momentum", {"sgd", "rmsprop", "muon"}},
         {"dampening", {"sgd"}},
         {"nesterov", {"sgd", "muon"}},
         {"betas", {"adam", "adamw", "lamb", "lion", "muon"}},
         {"eps", {"adam", "adamw", "adagrad", "rmsprop", "lamb", "muon"}}},
        {k.text("optimizer")});
  check(k, {{"min-lr", {"linear", "cosine", "polynomial", "step", "inverse_sqrt", "one_cycle"}}},
        {k.text("schedule")});
}

void refuse_unused_loss_flags(const Config& k, const std::vector<std::string>& kinds) {
  check(k,
        {{"label-smoothing", {"cross_entropy", "auto"}},
         {"ignore-index", {"cross_entropy", "nll", "focal", "ctc", "auto"}},
         {"huber-delta", {"huber", "smooth_l1"}},
         {"focal-gamma", {"focal"}},
         {"blank", {"ctc"}}},
        kinds);
}

}  // namespace ortrain::cli
