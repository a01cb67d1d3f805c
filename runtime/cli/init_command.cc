// `ortrain init MODEL --data PATH`: looks at both and writes the recipe that trains them.
//
// The recipe goes beside the model as MODEL.toml, where `ortrain MODEL` finds it, or to --out.
// Promises: before it is written it is read back as a training run reads it, its data opened, its
// labels checked, its steps compiled; a recipe that is there stays unless --force. Refuses, with
// nothing written: no data, data that fits no input, labels that fit no output.
#include <cstdio>
#include <filesystem>

#include "graph/error.h"
#include "runtime/cli/init_parts.h"
#include "runtime/cli/setup.h"
#include "runtime/data/atomic_file.h"
#include "runtime/evaluation.h"
#include "runtime/program.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

std::string interface_text(const Context& c) {
  int64_t count = 0;
  const Graph& g = c.file->graph();
  for (const ValueId v : g.sources(Source::kParam))
    count += g.value(v).shape.is_const() ? element_count(g.value(v).shape.values()) : 0;
  std::string out = cat(c.model_path, ": ", count_text(count), " parameters; ");
  size_t i = 0;
  for (const ValueId v : g.inputs())
    if (const Value& x = g.value(v); !x.uses.empty())
      out += cat(i++ ? ", " : "", x.name, " ", name_of(x.dtype), x.shape.str());
  i = 0;
  for (const OutputLook& o : typed_outputs(c))
    out += cat(i++ ? ", " : " -> ", o.name, " ", data::describe(o.dtype, o.dims));
  return out;
}

// The recipe as a run reads it: everything that a run refuses before step 1 is refused here.
std::string tried(const Context& c, const std::string& text, const std::string& file) {
  Context v{c.ops, {}, {}, c.model_path, nullptr};
  v.instead = {text, file};
  load_model(v);
  std::string said;
  {
    const DataRun run(v, v.config.text("data"), Mode::kTrain, false);
    check_labels(find_targets(v.file->graph(), run.spec()), run.data());
    const std::string bytes = memory_text(run.program().plan());
    said = bytes.substr(0, bytes.find(" ("));
  }
  if (v.config.has("eval-data") || v.config.has("split")) {
    const std::string& paths = v.config.text(v.config.has("eval-data") ? "eval-data" : "data");
    const DataRun run(v, paths, Mode::kEval);
    check_labels(run.targets(), run.data());
  }
  return said;
}

}  // namespace

int run_init(Context& c) {
  const std::string beside = recipe_beside(c.model_path);
  const std::string file = c.config.has("out") ? c.config.text("out") : beside;
  std::error_code ignored;
  if (fs::exists(file, ignored) && !c.config.on("force"))
    fail(ErrorCode::kUsage, file,
         " is there already; write over it with --force, or to another "
         "file with --out FILE");
  RecipeWriter r(c, file);
  find_data(r);
  choose_model_settings(r);
  r.tell("model", interface_text(c));
  choose_reading(r);
  {
    const data::Dataset set = open_data(c, c.config.text("data"), DataUse::kPredict);
    choose_loss(r, set);
    tell_inputs(r, set);
    choose_training(r, set);
  }
  const std::string text = r.print();
  std::string memory;
  try {
    memory = tried(c, text, file);
  } catch (const Error& e) {
    throw Error(e.code(), cat(e.what(),
                              "\nno recipe was written; flags of ortrain train can be given to "
                              "ortrain init and become part of it"));
  }
  data::AtomicFile recipe(file);
  recipe.write(text);
  recipe.commit();
  std::printf("%smemory   %s\nrecipe   %s\n\nnext: ortrain %s%s\n", r.facts("").c_str(),
              memory.c_str(), file.c_str(), c.model_path.c_str(),
              file == beside ? "" : (" --config " + file).c_str());
  return 0;
}

}  // namespace ortrain::cli
