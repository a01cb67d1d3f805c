// See run_recipe.h.
#include "runtime/cli/run_recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "graph/error.h"
#include "runtime/cli/flags.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/words.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

// Samples and their order, the loss, and what tensors and states there are.
const std::set<std::string_view> kStays = {
    "label",   "batch-size",    "accumulate", "shuffle",    "last-batch", "seed",   "loss",
    "train",   "output",        "optimizer",  "ema",        "precision",  "lora",   "rebatch",
    "prepare", "map",           "split",      "window",     "stride",     "tokens", "text",
    "tie",     "training-mode", "freeze",     "reset-head", "loss-scale", "untie"};

bool same(const Flag& flag, const std::string& a, const std::string& b) {
  if (a == b) return true;
  double x = 0, y = 0;
  const bool number = flag.type == FlagType::kInt || flag.type == FlagType::kNumber;
  return number && parse_number(a, x) && parse_number(b, y) && x == y;
}

std::string shown(const std::string& value) { return value.empty() ? "not set" : value; }

}  // namespace

std::string run_on_disk(const Context& c) {
  if (c.line.command == "export")
    return c.config.has("run") ? c.config.text("run") : newest_run(c, "--run");
  const bool trains = c.line.command.empty() || c.line.command == "train";
  if (!trains || !c.config.on("resume")) return {};
  return run_folder(c, true);
}

std::string recipe_of(const std::string& run) { return (fs::path(run) / "recipe.toml").string(); }

void write_recipe(const Context& c, const std::string& run) {
  data::AtomicFile recipe(recipe_of(run));
  recipe.write(c.config.recipe());
  recipe.commit();
}

std::vector<std::string> changed_settings(const Config& was, const Config& now,
                                          const std::string& run) {
  std::vector<std::string> changes;
  std::string refused;
  for (const Flag& f : flag_table()) {
    const std::string &before = was.text(f.name), &after = now.text(f.name);
    if (!f.in_recipe || same(f, before, after)) continue;
    const std::string line = cat("--", f.name, " was ", shown(before), ", is ", shown(after));
    if (kStays.contains(f.name))
      refused += "\n  " + line;
    else
      changes.push_back(line);
  }
  if (!refused.empty())
    fail(ErrorCode::kUsage, "the run in ", run, " cannot go on with other settings:", refused,
         "\nLeave them out (its recipe.toml holds them), or start a run of its own with another "
         "--out");
  return changes;
}

}  // namespace ortrain::cli
