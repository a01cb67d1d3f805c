// Opens the model file and merges its recipes: metadata, MODEL.toml, --config, flags.
#include <filesystem>

#include "graph/error.h"
#include "graph/rebatch.h"
#include "runtime/cli/commands.h"
#include "runtime/evaluate.h"
#include "runtime/program.h"
#include "runtime/rebatch_check.h"

namespace ortrain::cli {

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

}  // namespace

std::unique_ptr<OnnxFile> open_model(const Context& c, const std::string& path,
                                     const ImportOptions& options) {
  auto file = OnnxFile::open(path, c.ops, options);
  if (c.config.on("rebatch")) rebatch_file(*file);
  return file;
}

void load_model(Context& c) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::exists(c.model_path, ignored)) {
    std::string hint;
    if (fs::exists(c.model_path + ".onnx", ignored))
      hint = "; did you mean " + c.model_path + ".onnx?";
    fail(ErrorCode::kIo, "no such file: ", c.model_path, hint);
  }
  if (fs::is_directory(c.model_path, ignored))
    fail(ErrorCode::kUsage, c.model_path, " is a folder; give the .onnx file in it");
  c.file = OnnxFile::open(c.model_path, c.ops);
  const fs::path folder = fs::path(c.model_path).parent_path();
  const auto& metadata = c.file->metadata();
  if (const auto it = metadata.find("ortrain.recipe"); it != metadata.end())
    c.config.read_toml(it->second, c.model_path + " (ortrain.recipe)", folder.string());
  const fs::path beside = fs::path(c.model_path).replace_extension(".toml");
  if (fs::exists(beside, ignored)) c.config.read_toml_file(beside.string());
  for (const auto& [key, value] : c.line.flags)
    if (key == "config") c.config.read_toml_file(value);
  for (const auto& [key, value] : c.line.flags) c.config.set(key, value, "--" + key);
  ImportOptions options;
  options.untie = c.config.text("untie") == "on";
  options.tie = c.config.text("tie");
  options.reset_head = c.config.text("reset-head");
  if (!options.reset_head.empty()) options.seed = static_cast<uint64_t>(c.config.integer("seed"));
  if (!(options == ImportOptions{}) || c.config.on("rebatch"))
    c.file = open_model(c, c.model_path, options);
}

}  // namespace ortrain::cli
