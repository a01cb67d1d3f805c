// Opens the model file and merges its recipes: metadata, MODEL.toml, --config, flags.
#include <filesystem>

#include "graph/error.h"
#include "graph/rebatch.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/run_recipe.h"
#include "runtime/cli/setup.h"
#include "runtime/evaluate.h"
#include "runtime/program.h"
#include "runtime/rebatch_check.h"

namespace ortrain::cli {
namespace fs = std::filesystem;

namespace {

// --rebatch, for a file with a fixed batch.
void rebatch_file(OnnxFile& file) {
  const std::optional<Dim> axis = batch_axis(file.graph());
  if (!axis || !axis->is_const()) return;
  Rebatched now = rebatch(file.graph(), axis->value(), make_evaluator(),
                          [&](const Rebatched& r) { check_rebatched(file.graph(), r); });
  std::string places;
  for (size_t i = 0; i < now.replaced.size() && i < 4; ++i)
    places += cat(i ? ", " : " at ", now.replaced[i]);
  const size_t count = now.replaced.size();
  std::string note =
      cat("--rebatch: any batch in place of ", now.was, ", proved by shapes and by running it; ",
          count, " built-in ", count == 1 ? "size" : "sizes", " replaced", places,
          count > 4 ? ", ..." : "", "; the export keeps the file's batch");
  file.replace_graph(std::move(now.graph), std::move(note));
}

void read_model_recipes(Context& c) {
  const auto& metadata = c.file->metadata();
  if (const auto it = metadata.find("ortrain.recipe"); it != metadata.end())
    c.config.read_toml(it->second, c.model_path + " (ortrain.recipe)",
                       fs::path(c.model_path).parent_path().string());
  const std::string beside = recipe_beside(c.model_path);
  std::error_code ignored;
  if (c.instead)
    c.config.read_toml(c.instead->first, c.instead->second,
                       fs::path(c.instead->second).parent_path().string());
  else if (fs::exists(beside, ignored))
    c.config.read_toml_file(beside);
}

void read_command_line(Context& c) {
  for (const auto& [key, value] : c.line.flags)
    if (key == "config") c.config.read_toml_file(value);
  for (const auto& [key, value] : c.line.flags) c.config.set(key, value, "--" + key);
}

// --resume and export take the run's own settings instead of the model's.
void go_on_with_run(Context& c) {
  const std::string run = run_on_disk(c);
  std::error_code ignored;
  if (run.empty() || !fs::exists(recipe_of(run), ignored)) return;
  Config own;
  own.read_toml_file(recipe_of(run));
  c.config = own;
  read_command_line(c);
  const auto given = [&](const char* key) { return c.config.text(key) != own.text(key); };
  if (given("epochs") && !given("steps")) c.config.set("steps", "", "--epochs");
  read_run_vocabularies(c, run);
  c.notes = changed_settings(own, c.config, run);
}

}  // namespace

std::unique_ptr<OnnxFile> open_model(const Context& c, const std::string& path,
                                     const ImportOptions& options) {
  auto file = OnnxFile::open(path, c.ops, options);
  if (c.config.on("rebatch")) rebatch_file(*file);
  return file;
}

std::string recipe_beside(const std::string& model) {
  return fs::path(model).replace_extension(".toml").string();
}

void apply_model_settings(Context& c) {
  ImportOptions options;
  options.untie = c.config.text("untie") == "on";
  options.tie = c.config.text("tie");
  options.reset_head = c.config.text("reset-head");
  if (!options.reset_head.empty()) options.seed = static_cast<uint64_t>(c.config.integer("seed"));
  if (!(options == ImportOptions{}) || c.config.on("rebatch"))
    c.file = open_model(c, c.model_path, options);
}

void load_model(Context& c) {
  std::error_code ignored;
  if (!fs::exists(c.model_path, ignored)) {
    std::string hint;
    if (fs::exists(c.model_path + ".onnx", ignored))
      hint = "; did you mean " + c.model_path + ".onnx?";
    fail(ErrorCode::kIo, "no such file: ", c.model_path, hint);
  }
  if (fs::is_directory(c.model_path, ignored))
    fail(ErrorCode::kUsage, c.model_path, " is a folder; give the .onnx file in it");
  if (c.line.command == "init") c.instead.emplace();  // it writes one
  c.file = OnnxFile::open(c.model_path, c.ops);
  read_vocabularies(c);
  read_model_recipes(c);
  read_command_line(c);
  go_on_with_run(c);
  apply_model_settings(c);
}

}  // namespace ortrain::cli
