// Opens the model file and merges its recipes: metadata, MODEL.toml, --config, flags.
#include <filesystem>

#include "graph/error.h"
#include "runtime/cli/commands.h"

namespace ortrain::cli {

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
  if (!(options == ImportOptions{})) c.file = OnnxFile::open(c.model_path, c.ops, options);
}

}  // namespace ortrain::cli
