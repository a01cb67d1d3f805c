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

// Everything below `from` takes its place below `to`.
void move_files(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path target = to / entry.path().filename();
    if (entry.is_directory())
      move_files(entry.path(), target);
    else
      fs::rename(entry.path(), target);
  }
}

// Runs the first samples through an exported file; every output must have a value.
void run_once(const Context& c, const OnnxFile& file, const data::Dataset& sample) {
  std::vector<std::string> ignored;
  const int64_t batch = batch_size(c, sample.samples(), ignored);
  ParamStore store;
  Arena arena;
  Program p(file.graph(), spec_for_data(file.graph(), sample, make_spec(c, Mode::kPredict), batch),
            store, arena, select_options(c));
  file.release_copies();
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

// The file must hold the value that it was given, in the file's own type.
void compare(const std::string& name, const HostTensor& value, const HostTensor& read) {
  const HostTensor given = value.dtype() == read.dtype() ? value.share() : value.cast(read.dtype());
  if (given.dims() != read.dims() ||
      (given.bytes() && std::memcmp(given.raw(), read.raw(), given.bytes()) != 0))
    fail(ErrorCode::kModel, "the exported model does not hold the trained '", name,
         "': the disk or its file system gave back something else than was written");
}

}  // namespace

ExportDraft::ExportDraft(const Context& c, const ParamStore& store, const std::string& path,
                         const std::map<std::string, std::string>& metadata, const LoraExport& lora)
    : c_(c), path_(path), aside_(path_.parent_path() / (".export-" + path_.filename().string())) {
  try {
    fs::remove_all(aside_.path);  // of a run that was cut off
    fs::create_directories(aside_.path);
    write(store, metadata, lora);
  } catch (const fs::filesystem_error& e) {
    fail(ErrorCode::kIo, "cannot write the exported model beside ", path, ": ", e.what());
  }
}

ExportDraft::Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void ExportDraft::write(const ParamStore& store, const std::map<std::string, std::string>& metadata,
                        const LoraExport& lora) {
  std::map<std::string, HostTensor> kept;
  const FindTensor find = [&](const std::string& name) -> const HostTensor* {
    const auto it = kept.find(name);
    if (it != kept.end()) return &it->second;
    if (!store.find(name)) return nullptr;
    return &(kept[name] = store.get(name));
  };
  const std::map<std::string, HostTensor> merged = lora.merged(find);
  const FindTensor value = [&](const std::string& name) {
    const auto it = merged.find(name);
    return it == merged.end() ? find(name) : &it->second;
  };
  const std::string draft = (aside_.path / path_.filename()).string();
  c_.file->export_model(draft, value, metadata);
  std::vector<std::string> trained;
  for (const StoreEntry& e : store.entries())
    if (e.trainable) trained.push_back(e.name);
  lora.write((aside_.path / "adapters").string(), find, trained);
  ImportOptions options = c_.file->options();
  options.reset_head.clear();  // done
  again_ = open_model(c_, draft, options);
  if (again_->hash() != c_.file->hash())
    fail(ErrorCode::kModel, "the exported model has another structure than ", c_.model_path);
  const Graph& read = again_->graph();
  for (const StoreEntry& e : store.entries()) {
    const ValueId v = read.find(e.name);
    if (v == kNone || !read.tensor(v)) continue;  // a state, or adapters
    compare(e.name, *value(e.name), *read.tensor(v));
    kept.erase(e.name);
  }
}

void ExportDraft::publish(const data::Dataset& sample) {
  run_once(c_, *again_, sample);
  again_.reset();
  try {
    move_files(aside_.path, path_.parent_path());
  } catch (const fs::filesystem_error& e) {
    fail(ErrorCode::kIo, "cannot move the exported model to ", path_.string(), ": ", e.what());
  }
}

}  // namespace ortrain::cli
