// report.html: one file that shows a run, or several side by side, in any browser and without a
// network. The page is runtime/cli/web/, built into the program; its data are JSON inside it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/plan.h"

namespace ortrain::cli {

// The page with its data. `kind`: "report" or "compare".
std::string page(const std::string& kind, const std::string& title,
                 const nlohmann::ordered_json& data);
// Atomically. Error(kIo).
void write_page(const std::string& path, const std::string& kind, const std::string& title,
                const nlohmann::ordered_json& data);

// What lies in the arena when, for the picture of it: {"bytes", "needed", "steps": [name],
// "blocks": [[name, offset, bytes, first, last, kind]], "left_out"}; kind: 0 value, 1 value that
// lives into the backward pass, 2 made in the backward pass, 3 scratch.
nlohmann::ordered_json memory_json(const Plan& plan);

}  // namespace ortrain::cli
