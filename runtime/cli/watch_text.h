// How a report of the numerics watch is shown and logged.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/watch.h"

namespace ortrain::cli {

// A few lines: the layers furthest from the usual update/weight ratio, then warnings.
std::vector<std::string> watch_lines(const WatchReport& report);
// {"step", "watch": {"params": {name: {...}}, "nodes": {...}}}, everything.
nlohmann::ordered_json watch_json(const WatchReport& report);

}  // namespace ortrain::cli
