// Flags of the command line that the chosen optimizer, schedule or loss has no use for: refused,
// with those that have. What a recipe says besides is left alone: it may serve several.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/config.h"

namespace ortrain::cli {

// Throws Error(kUsage) where the flag was given on the command line, with another value than its
// default, and is not used; `why` ends the message.
void refuse_unused(const Config& k, const std::string& flag, bool used, const std::string& why);
void refuse_unused_optimizer_flags(const Config& k);
void refuse_unused_loss_flags(const Config& k, const std::vector<std::string>& kinds);

}  // namespace ortrain::cli
