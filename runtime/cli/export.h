// Writing a trained model back into the user's own ONNX file, checked before it counts.
#pragma once

#include <map>
#include <string>

#include "runtime/cli/commands.h"
#include "runtime/cli/lora.h"
#include "runtime/data/dataset.h"
#include "runtime/param_store.h"

namespace ortrain::cli {

// Exports to `path`: written aside, opened again, its parameters compared with the store bit for
// bit and one batch of `sample` run through it (finite where the original's outputs are), then
// moved into place with its external data. Throws Error(kIo) or, when the check fails,
// Error(kModel); a file that was there before then stays.
void export_trained(const Context& c, const ParamStore& store, const data::Dataset& sample,
                    const std::string& path, const std::map<std::string, std::string>& metadata,
                    const LoraExport& lora);

}  // namespace ortrain::cli
