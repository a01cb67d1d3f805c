// The commands of the program; each returns the process's exit status or throws Error.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/op_def.h"
#include "importers/onnx.h"
#include "runtime/cli/config.h"
#include "runtime/data/dataset.h"

namespace ortrain::cli {

// What every command starts from.
struct Context {
  const OpTable& ops;
  CommandLine line;
  Config config;                         // complete once load_model() has run
  std::string model_path;                // "" for commands without a model
  std::unique_ptr<OnnxFile> file;        // likewise
  data::Vocabularies vocabularies = {};  // of the model or the run: classes and symbols by array
  std::vector<std::string> notes = {};   // of load_model(), to be told when training starts
  // Read in place of the recipe beside the model; empty text: no recipe.
  std::optional<std::pair<std::string, std::string>> instead = {};  // text, the file it is for
};

int run_train(Context&);
int run_init(Context&);
int run_inspect(Context&);
int run_eval(Context&);
int run_predict(Context&);
int run_grads(Context&);
int run_bench(Context&);
int run_export(Context&);
int run_ops(Context&);
int run_runs(Context&);
int run_compare(Context&);

// Writes a line to a file, "-": standard output. Error(kIo).
void write_json(const std::string& path, const std::string& text);

// Opens the model on the command line and reads all recipes into the config.
void load_model(Context&);
// Where the model's own recipe lies: MODEL.toml beside it.
std::string recipe_beside(const std::string& model);
// Opens the file again as the settings want it: --untie, --tie, --reset-head, --rebatch.
void apply_model_settings(Context&);
// A model as the settings want it: opened with `options`, then --rebatch.
std::unique_ptr<OnnxFile> open_model(const Context&, const std::string& path,
                                     const ImportOptions& options);

}  // namespace ortrain::cli
