// See checkpoint.h. Order of a save: clean up, write files into ".new-...", sync that folder,
// rename it to its name, sync the parent, remove old checkpoints.
#include "runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/error.h"
#include "graph/pipeline.h"
#include "runtime/data/atomic_file.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/safetensors.h"

namespace ortrain::checkpoint {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;
constexpr const char* kParams = "params.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr int64_t kFormat = 1;

std::string hex(uint64_t n) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(n));
  return text;
}
uint64_t from_hex(const std::string& text) {
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n, 16);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorCode::kData, "'", text, "' is not a hexadecimal number");
  return n;
}

// Step number of a folder name "step-000100", -1 for other names.
int64_t step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return -1;
  int64_t step = -1;
  const auto [end, error] =
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

std::vector<std::pair<int64_t, std::string>> list(const std::string& folder) {  // newest first
  std::vector<std::pair<int64_t, std::string>> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (const int64_t step = step_of(name); step >= 0) out.emplace_back(step, name);
  }
  std::sort(out.rbegin(), out.rend());
  return out;
}

// Read in pieces: mapped, the whole file would count as this process's memory.
uint64_t hash_file(const std::string& path, uint64_t* size) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kIo, "cannot open ", path, ": ", std::strerror(errno));
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(),
                                                                         &XXH64_freeState);
  XXH64_reset(state.get(), 0);
  std::vector<char> piece(1 << 20);
  *size = 0;
  do {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto got = static_cast<size_t>(in.gcount());
    XXH64_update(state.get(), piece.data(), got);
    *size += got;
  } while (in);
  if (in.bad()) fail(ErrorCode::kIo, "cannot read ", path, ": ", std::strerror(errno));
  return XXH64_digest(state.get());
}

bool is_saved(const StoreEntry& e) { return !e.name.starts_with(kWindowPrefix); }

// Whether a state belongs to the run (moments, counters) and not to the model (running statistics).
bool of_the_run(const ParamStore& store, const StoreEntry& e) {
  if (e.kind != Source::kState) return false;
  if (e.name.starts_with("ortrain/")) return true;
  const size_t slash = e.name.rfind('/');
  if (slash == std::string::npos) return false;
  const StoreEntry* owner = store.find(e.name.substr(0, slash));
  return owner && owner->kind == Source::kParam;
}

void rename_into_place(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno == ENOTEMPTY || errno == EEXIST) {
    // A checkpoint of that step exists: swap, then remove the old one.
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
    const std::string aside = from + ".old";
    if (std::rename(to.c_str(), aside.c_str()) == 0 && std::rename(from.c_str(), to.c_str()) == 0)
      return;
  }
  fail(ErrorCode::kIo, "cannot rename '", from, "' to '", to, "': ", std::strerror(errno));
}

Json manifest(const ParamStore& store, const RunState& run) {
  Json tensors = Json::array();
  for (const StoreEntry& e : store.entries()) {
    if (!is_saved(e)) continue;
    tensors.push_back({{"name", e.name},
                       {"kind", e.kind == Source::kParam ? "parameter" : "state"},
                       {"file", of_the_run(store, e) ? kOptimizer : kParams},
                       {"dtype", name_of(e.dtype)},
                       {"shape", e.file_dims()},
                       {"trainable", e.trainable}});
  }
  return {{"format", kFormat},
          {"step", run.step},
          {"skipped", run.skipped},
          {"seed", run.seed},
          {"sampler",
           {{"shuffle", run.shuffle},
            {"batch_size", run.batch_size},
            {"accumulate", run.accumulate},
            {"samples", run.samples}}},
          {"epoch", {{"loss", run.epoch_loss}, {"weight", run.epoch_weight}}},
          {"graph_hash", hex(run.graph_hash)},
          {"extra", run.extra},
          {"tensors", std::move(tensors)}};
}

Json read_manifest(const std::string& path) {
  const std::string where = path + "/" + kManifest;
  const data::MappedFile file(where);
  const char* text = reinterpret_cast<const char*>(file.bytes().data());
  Json m = Json::parse(text, text + file.size(), nullptr, /*allow_exceptions=*/false);
  if (!m.is_object()) fail(ErrorCode::kData, where, " is not JSON");
  return m;
}

// Runs f on the manifest; JSON's own errors (missing or mistyped fields) become Error(kData).
template <class F>
auto with_manifest(const std::string& path, F f) {
  const Json m = read_manifest(path);
  try {
    const int64_t format = m.at("format").get<int64_t>();
    if (format != kFormat)
      fail(ErrorCode::kData, path, "/", kManifest, ": format ", format, ", this program reads ",
           kFormat);
    return f(m);
  } catch (const Json::exception& e) {
    fail(ErrorCode::kData, path, "/", kManifest, ": ", e.what());
  }
}

RunState run_of(const Json& m) {
  RunState run;
  run.step = m.at("step").get<int64_t>();
  run.skipped = m.at("skipped").get<int64_t>();
  run.seed = m.at("seed").get<uint64_t>();
  run.shuffle = m.at("sampler").at("shuffle").get<bool>();
  run.batch_size = m.at("sampler").at("batch_size").get<int64_t>();
  run.samples = m.at("sampler").at("samples").get<int64_t>();
  run.accumulate = m.at("sampler").value("accumulate", int64_t{1});
  if (m.contains("epoch")) {
    run.epoch_loss = m.at("epoch").at("loss").get<double>();
    run.epoch_weight = m.at("epoch").at("weight").get<double>();
  }
  run.graph_hash = from_hex(m.at("graph_hash").get<std::string>());
  run.extra = m.at("extra").get<std::map<std::string, std::string>>();
  return run;
}

void write_tensors(const std::string& path, const ParamStore& store, bool of_run) {
  std::vector<HostTensor> keep;  // copies where the layout differs
  std::vector<data::SafetensorsEntry> entries;
  for (const StoreEntry& e : store.entries()) {
    if (!is_saved(e) || of_the_run(store, e) != of_run) continue;
    keep.push_back(store.get(e.name));
    entries.push_back({e.name, e.dtype, e.file_dims(), keep.back().raw()});
  }
  data::write_safetensors(path, entries, {{"format", "pt"}});
}

// Leftovers of saves that were cut short.
void clean(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".new-step-") || name.starts_with(".gone-step-"))
      stale.push_back(entry.path());
  }
  for (const fs::path& p : stale) fs::remove_all(p, error);
}

// Renamed first, so that a half-removed folder never looks like a checkpoint.
void remove_checkpoint(const std::string& folder, const std::string& name) {
  const std::string gone = folder + "/.gone-" + name;
  std::error_code error;
  fs::rename(folder + "/" + name, gone, error);
  if (!error) fs::remove_all(gone, error);
}

}  // namespace

std::string save(const std::string& folder, const ParamStore& store, const RunState& run,
                 const SaveOptions& options) {
  const auto at = [&](const char* what) {
    if (options.at) options.at(what);
  };
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "cannot create folder '", folder, "': ", error.message());
  clean(folder);

  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(run.step));
  const std::string target = folder + "/" + name, aside = folder + "/.new-" + name;
  if (mkdir(aside.c_str(), 0777) != 0)
    fail(ErrorCode::kIo, "cannot create folder '", aside, "': ", std::strerror(errno));
  try {
    at("write params");
    write_tensors(aside + "/" + kParams, store, false);
    at("write optimizer");
    write_tensors(aside + "/" + kOptimizer, store, true);
    Json m = manifest(store, run);
    for (const char* file : {kParams, kOptimizer}) {
      uint64_t size = 0;
      const uint64_t sum = hash_file(aside + "/" + file, &size);
      m["files"][file] = {{"bytes", size}, {"xxh64", hex(sum)}};
    }
    at("write manifest");
    data::AtomicFile out(aside + "/" + kManifest);
    out.write(m.dump(1) + "\n");
    out.commit();
    data::sync_folder(aside);
    at("rename");
    rename_into_place(aside, target);
  } catch (...) {
    fs::remove_all(aside, error);
    throw;
  }
  at("sync folder");
  data::sync_folder(folder);
  at("remove old");
  fs::remove_all(aside, error);  // the one that was replaced, if any
  int kept = 0;
  for (const auto& [step, old] : list(folder)) {
    if (step > run.step || old == options.pinned) continue;
    if (options.keep > 0 && ++kept > options.keep) remove_checkpoint(folder, old);
  }
  return target;
}

std::string problem(const std::string& path) {
  try {
    return with_manifest(path, [&](const Json& m) -> std::string {
      run_of(m);
      for (const char* file : {kParams, kOptimizer}) {
        const Json& want = m.at("files").at(file);
        uint64_t size = 0;
        const uint64_t sum = hash_file(path + "/" + file, &size);
        if (size != want.at("bytes").get<uint64_t>())
          return cat(path, "/", file, ": ", size, " bytes, ", want.at("bytes").get<uint64_t>(),
                     " were written");
        if (hex(sum) != want.at("xxh64").get<std::string>())
          return cat(path, "/", file, ": the checksum does not match");
      }
      return {};
    });
  } catch (const Error& e) {
    return e.what();
  }
}

std::optional<std::string> newest(const std::string& folder, std::vector<std::string>* damaged) {
  for (const auto& [step, name] : list(folder)) {
    const std::string path = folder + "/" + name, why = problem(path);
    if (why.empty()) return path;
    if (damaged) damaged->push_back(why);
  }
  return std::nullopt;
}

RunState read_run(const std::string& path) { return with_manifest(path, run_of); }

RunState load(const std::string& path, ParamStore& store, uint64_t graph_hash) {
  const RunState run = read_run(path);
  std::string problems;
  const auto problem = [&](const auto&... parts) { problems += cat("\n  ", parts...); };
  if (run.graph_hash != graph_hash)
    problem("it was made by another graph (", hex(run.graph_hash), ", this one is ",
            hex(graph_hash), ")");
  std::map<std::string, HostTensor> found;
  const data::ArrayFile params = data::open_safetensors(path + "/" + kParams),
                        optimizer = data::open_safetensors(path + "/" + kOptimizer);
  for (const data::ArrayFile* file : {&params, &optimizer})
    for (const data::StoredArray& a : file->arrays) found.emplace(a.name, a.tensor());
  for (const StoreEntry& e : store.entries()) {
    if (!is_saved(e)) continue;
    const auto it = found.find(e.name);
    if (it == found.end()) {
      problem("'", e.name, "' is missing");
      continue;
    }
    const HostTensor& t = it->second;
    const bool castable = is_float(t.dtype()) && is_float(e.dtype);
    if (t.dims() != e.file_dims() || (t.dtype() != e.dtype && !castable))
      problem("'", e.name, "' is ", data::describe(t.dtype(), t.dims()), ", expected ",
              data::describe(e.dtype, e.file_dims()));
  }
  for (const auto& [name, t] : found)
    if (!store.find(name)) problem("'", name, "' is not part of this run");
  if (!problems.empty())
    fail(ErrorCode::kData, "checkpoint '", path, "' does not fit:", problems,
         "\nresume with the model and the optimizer that it was made with");
  for (const auto& [name, t] : found) store.set(name, t);
  return run;
}

std::map<std::string, HostTensor> read_params(const std::string& path) {
  const data::ArrayFile file = data::open_safetensors(path + "/" + kParams);
  std::map<std::string, HostTensor> out;
  for (const data::StoredArray& a : file.arrays) out.emplace(a.name, a.tensor().clone());
  return out;
}

std::map<std::string, HostTensor> read_averages(const std::string& path) {
  const std::map<std::string, HostTensor> params = read_params(path);
  const data::ArrayFile file = data::open_safetensors(path + "/" + kOptimizer);
  const std::string_view suffix = kEmaSuffix;
  std::map<std::string, HostTensor> out;
  for (const data::StoredArray& a : file.arrays) {
    if (!a.name.ends_with(suffix)) continue;
    const std::string name = a.name.substr(0, a.name.size() - suffix.size());
    if (params.contains(name)) out.emplace(name, a.tensor().clone());
  }
  return out;
}

}  // namespace ortrain::checkpoint
