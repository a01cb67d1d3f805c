// The checked export.
#include "runtime/cli/export.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/data/loader.h"
#include "runtime/program.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

// Runs the first samples through an exported file; every output must have a value.
void run_once(const Context& c, const OnnxFile& file, const data::Dataset& sample) {
  std::vector<std::string> ignored;
  const int64_t batch = batch_size(c, sample.samples(), ignored);
  ParamStore store;
  Arena arena;
  Program p(file.graph(), spec_for_data(file.graph(), sample, make_spec(c, Mode::kPredict), batch),
            store, arena, select_options(c));
  arena.allocate();
  p.start(arena);
  const data::Sampler sampler({.samples = sample.samples(), .batch_size = batch, .shuffle = false});
  data::Loader loader(sample, p.arrays(), sampler, {.threaded = false});
  const data::Batch* b = loader.next();
  p.run(pointers(*b));
  for (size_t i = 0; i < p.plan().outputs.size(); ++i) {
    const HostTensor t = p.executor().output(static_cast<int>(i));
    if (!is_float(t.dtype())) continue;
    for (int64_t k = 0; k < t.count(); ++k)
      if (std::isnan(t.as_double(k)))
        fail(ErrorCode::kModel, "the exported model gives NaN in output '",
             p.plan().outputs[i].name, "' for the first samples of the data");
  }
}

}  // namespace

void export_trained(const Context& c, const ParamStore& store, const data::Dataset& sample,
                    const std::string& path, const std::map<std::string, std::string>& metadata,
                    const LoraExport& lora) {
  const fs::path folder = fs::path(path).parent_path();
  const fs::path aside = folder / (".export-" + fs::path(path).filename().string());
  std::error_code error;
  fs::remove_all(aside, error);
  fs::create_directories(aside, error);
  if (error) fail(ErrorCode::kIo, "cannot write into ", folder.string(), ": ", error.message());
  try {
    const std::string draft = (aside / fs::path(path).filename()).string();
    std::map<std::string, HostTensor> kept;
    const FindTensor find = [&](const std::string& name) -> const HostTensor* {
      if (!store.find(name)) return nullptr;
      return &(kept[name] = store.get(name));
    };
    const std::map<std::string, HostTensor> merged = lora.merged(find);
    c.file->export_model(
        draft,
        [&](const std::string& name) -> const HostTensor* {
          const auto it = merged.find(name);
          return it == merged.end() ? find(name) : &it->second;
        },
        metadata);
    ImportOptions options = c.file->options();
    options.reset_head.clear();  // done
    const auto again = open_model(c, draft, options);
    if (again->hash() != c.file->hash())
      fail(ErrorCode::kModel, "the exported model has another structure than ", c.model_path);
    run_once(c, *again, sample);
    for (const auto& entry : fs::directory_iterator(aside))
      fs::rename(entry.path(), folder / entry.path().filename());
    fs::remove_all(aside, error);
    std::vector<std::string> trained;
    for (const StoreEntry& e : store.entries())
      if (e.trainable) trained.push_back(e.name);
    lora.write((folder / "adapters").string(), find, trained);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(aside, error);
    fail(ErrorCode::kIo, "cannot move the exported model to ", path, ": ", e.what());
  } catch (...) {
    fs::remove_all(aside, error);
    throw;
  }
}

}  // namespace ortrain::cli
