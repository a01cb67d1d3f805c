// The settings of a run that stands on disk: RUN/recipe.toml, which `--resume` and `export` take
// over, so that no flag has to be said again.
//
// What decides which samples, which loss or which tensors a run has cannot change on the way;
// everything else may (--lr, --steps, ...), and is told.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/commands.h"

namespace ortrain::cli {

// The folder of the run that this command line goes on with or exports from; "" where it does
// neither. Throws Error(kUsage) where there is none yet.
std::string run_on_disk(const Context& c);

// Writes / finds RUN/recipe.toml.
void write_recipe(const Context& c, const std::string& run);
std::string recipe_of(const std::string& run);

// What `now` changes in the settings `was` of the run: one line each. Throws one Error(kUsage) that
// lists every change of what must stay.
std::vector<std::string> changed_settings(const Config& was, const Config& now,
                                          const std::string& run);

}  // namespace ortrain::cli
