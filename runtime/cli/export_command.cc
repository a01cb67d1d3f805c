// `ortrain export MODEL`: the newest complete checkpoint of a run (--run, or the newest run of the
// model) as ONNX, or as safetensors when --out ends so.
#include <cstdio>
#include <filesystem>

#include "graph/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/cli/export.h"
#include "runtime/cli/lora.h"
#include "runtime/cli/run_recipe.h"
#include "runtime/cli/setup.h"
#include "runtime/data/safetensors.h"

namespace ortrain::cli {
namespace {

// Parameters of the file whose values in a checkpoint are others: what a run with adapters trained
// beside them.
std::vector<std::string> moved_parameters(const Graph& g, const FindTensor& find) {
  std::vector<std::string> names;
  for (ValueId v : g.sources(Source::kParam)) {
    const HostTensor *was = g.tensor(v), *now = find(g.value(v).name);
    if (!now || now->count() != was->count()) continue;
    for (int64_t i = 0; i < now->count(); ++i)
      if (now->as_double(i) != was->as_double(i)) {
        names.push_back(g.value(v).name);
        break;
      }
  }
  return names;
}

}  // namespace

int run_export(Context& c) {
  namespace fs = std::filesystem;
  const std::string run = run_on_disk(c);
  const std::string folder = (fs::path(run) / "checkpoints").string();
  std::vector<std::string> damaged;
  const auto newest = checkpoint::newest(folder, &damaged);
  for (const std::string& d : damaged) std::printf("note: %s\n", d.c_str());
  if (!newest)
    fail(ErrorCode::kData, "no complete checkpoint in ", folder, "; name the run with --run");
  const checkpoint::RunState state = checkpoint::read_run(*newest);
  if (state.graph_hash != checkpoint::graph_hash(c.file->graph()))
    fail(ErrorCode::kData, *newest, " belongs to another model than ", c.model_path);
  std::map<std::string, HostTensor> values = checkpoint::read_params(*newest);
  std::map<std::string, HostTensor> averages = checkpoint::read_averages(*newest);
  const std::string out =
      c.config.has("out") ? c.config.text("out") : (fs::path(run) / "model.onnx").string();
  std::map<std::string, std::string> metadata{{"ortrain.step", std::to_string(state.step)}};
  add_data_metadata(c, metadata);
  if (!averages.empty()) {
    metadata["ortrain.weights"] = "averages";
    for (auto& [name, t] : averages) values[name] = std::move(t);
    std::printf("the checkpoint holds averages of the weights (--ema); they are exported\n");
  }
  const FindTensor find = [&](const std::string& name) {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : &it->second;
  };
  if (const auto it = state.extra.find("lora"); it != state.extra.end()) {
    const LoraExport lora(c, parse_lora(it->second), c.config.text("lora-export"));
    const std::string apart = lora.write((fs::path(out).parent_path() / "adapters").string(), find,
                                         moved_parameters(c.file->graph(), find));
    if (!apart.empty()) std::printf("adapters: %s\n", apart.c_str());
    for (auto& [name, t] : lora.merged(find)) values[name] = t.clone();
    std::erase_if(values, [](const auto& v) { return is_lora_name(v.first); });
  }
  if (out.ends_with(".safetensors")) {
    std::vector<data::SafetensorsEntry> entries;
    for (const auto& [name, t] : values) entries.push_back({name, t.dtype(), t.dims(), t.raw()});
    data::write_safetensors(out, entries, metadata);
  } else {
    c.file->export_model(out, find, metadata);
  }
  std::printf("%s after step %lld: %s\n", newest->c_str(), static_cast<long long>(state.step),
              out.c_str());
  return 0;
}

}  // namespace ortrain::cli
