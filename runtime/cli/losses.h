// --loss and --class-weights: from text to LossSpecs.
//
// --loss is a list of terms with commas: [OUTPUT:]KIND[(LABEL)][*FACTOR]. A single term may leave
// everything but the kind to --output and --label; of several each names its output.
// --class-weights is "auto" or numbers with commas, for every loss; or "OUTPUT:..." parts joined by
// ';'. Refuses unknown kinds, an output named twice, numbers that are none (Error kUsage).
#pragma once

#include "graph/pipeline.h"
#include "runtime/cli/config.h"

namespace ortrain::cli {

void read_losses(const Config& config, StepSpec& spec);

}  // namespace ortrain::cli
