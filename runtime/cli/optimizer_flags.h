// The optimizer's settings from the flags. Defaults that differ by optimizer (momentum, betas, eps)
// are PyTorch's, or the paper's; so are the names in --optimizer-args and --schedule-args.
// Refuses (Error(kUsage)) arguments that the chosen optimizer or schedule does not have.
#pragma once

#include <string>

#include "graph/pipeline.h"
#include "runtime/cli/config.h"

namespace ortrain::cli {

OptimizerSpec optimizer_spec(const Config& c);

// "REGEX:lr=X,lr-factor=X,weight-decay=X", the groups separated by ';'.
std::vector<ParamGroup> parse_groups(const std::string& text);

}  // namespace ortrain::cli
