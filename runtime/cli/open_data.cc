// Data sets as the settings want them: the model's inputs, preparation, vocabularies, loader.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/error.h"
#include "importers/onnx_tensor.h"
#include "runtime/cli/setup.h"
#include "runtime/data/atomic_file.h"
#include "runtime/data/pick.h"
#include "runtime/threads.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kVocabularyKey = "ortrain.vocabulary";

// "INPUT:COLUMN,COLUMN; INPUT:COLUMN"
std::vector<std::pair<std::string, std::vector<std::string>>> parse_map(const std::string& text) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  const auto trim = [](const std::string& s) {
    const size_t a = s.find_first_not_of(" \t\n"), b = s.find_last_not_of(" \t\n");
    return a == std::string::npos ? std::string() : s.substr(a, b - a + 1);
  };
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ';');) {
    if (trim(entry).empty()) continue;
    const size_t colon = entry.find(':');
    std::vector<std::string> columns;
    if (colon != std::string::npos) {
      std::istringstream names(entry.substr(colon + 1));
      for (std::string name; std::getline(names, name, ',');)
        if (!trim(name).empty()) columns.push_back(trim(name));
    }
    if (columns.empty() || trim(entry.substr(0, colon)).empty())
      fail(ErrorCode::kUsage, "--map ", entry,
           ": expected INPUT:COLUMN or INPUT:COLUMN,COLUMN,...");
    out.emplace_back(trim(entry.substr(0, colon)), std::move(columns));
  }
  return out;
}

std::string vocabulary_json(const data::Vocabularies& all) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  for (const auto& [name, words] : all) j[name] = words;
  return j.dump(1);
}

data::Vocabularies read_vocabulary(const std::string& text, const std::string& where) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  data::Vocabularies out;
  bool good = j.is_object();
  for (auto it = j.begin(); good && it != j.end(); ++it) {
    good = it->is_array() &&
           std::all_of(it->begin(), it->end(), [](const auto& word) { return word.is_string(); });
    if (good) out[it.key()] = it->get<std::vector<std::string>>();
  }
  if (!good) fail(ErrorCode::kData, where, ": expected {\"ARRAY\": [\"WORD\", ...], ...}");
  return out;
}

}  // namespace

data::OpenOptions open_options(const Context& c, DataUse use) {
  data::OpenOptions o;
  o.inputs = input_specs(c.file->graph());
  o.prepare = data::parse_prepare(c.config.text("prepare"));
  o.map = parse_map(c.config.text("map"));
  o.vocabularies = c.vocabularies;
  o.label = c.config.text("label");
  o.window = c.config.has("window") ? c.config.integer("window") : 0;
  o.stride = c.config.has("stride") ? c.config.integer("stride") : 0;
  o.token = c.config.text("tokens") == "uint32" ? DType::kU32 : DType::kU16;
  o.text = c.config.text("text");
  o.read_pb = read_tensor_file;
  o.training = use == DataUse::kTrain;
  o.strict = c.config.on("strict");
  o.seed = static_cast<uint64_t>(c.config.integer("seed"));
  return o;
}

data::Dataset open_data(const Context& c, const std::string& paths, DataUse use) {
  data::Dataset set = data::Dataset::open(paths, open_options(c, use));
  // A held-out part of --data is what --eval-data would be.
  if (c.config.has("split") && !c.config.has("eval-data") && use != DataUse::kPredict) {
    set = data::held(std::move(set), c.config.text("split"), use == DataUse::kEval);
    set.notes.push_back(
        cat("--split ", c.config.text("split"), ": ", count_text(set.samples()),
            use == DataUse::kTrain ? " samples to train on" : " samples that were held out"));
  }
  share_inputs(c.file->graph(), set);
  return set;
}

void read_vocabularies(Context& c) {
  const auto& metadata = c.file->metadata();
  if (const auto it = metadata.find(kVocabularyKey); it != metadata.end())
    c.vocabularies = read_vocabulary(it->second, c.model_path + " (" + kVocabularyKey + ")");
}

void read_run_vocabularies(Context& c, const std::string& run) {
  const std::string path = (fs::path(run) / "vocabulary.json").string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const data::MappedFile file(path);
  c.vocabularies = read_vocabulary(
      std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size()), path);
}

void keep_data_settings(Context& c, const data::Dataset& data) {
  for (const auto& [name, words] : data.vocabularies) c.vocabularies[name] = words;
  const std::string prepared = data::print_prepare(data.prepared);
  if (!prepared.empty() && prepared != c.config.text("prepare"))
    c.config.set("prepare", prepared,
                 c.config.has("prepare") ? c.config.origin("prepare") : "data");
}

void write_vocabularies(const Context& c, const std::string& run) {
  if (c.vocabularies.empty()) return;
  data::AtomicFile file((fs::path(run) / "vocabulary.json").string());
  file.write(vocabulary_json(c.vocabularies) + "\n");
  file.commit();
}

void add_data_metadata(const Context& c, std::map<std::string, std::string>& metadata) {
  metadata["ortrain.recipe"] = c.config.print_portable();
  if (!c.vocabularies.empty()) metadata[kVocabularyKey] = vocabulary_json(c.vocabularies);
}

void write_skipped(const data::Dataset& data, const std::string& run) {
  const std::vector<std::string> list = data.skips().list();
  if (list.empty()) return;
  data::AtomicFile file((fs::path(run) / "skipped.txt").string());
  for (const std::string& line : list) file.write(line + "\n");
  file.commit();
}

LoaderSettings loader_settings(const Context& c, const data::Dataset& data) {
  const int compute = set_threads(static_cast<int>(c.config.integer("threads")));
  const std::vector<int> spare = spare_cpus(compute);
  LoaderSettings s;
  s.workers = static_cast<int>(c.config.integer("workers"));
  // A copy of rows keeps up from one thread. Pictures get the spare CPUs, or two threads that
  // share.
  if (s.workers == 0)
    s.workers = data.heavy() ? std::clamp(static_cast<int>(spare.size()), 2, 8) : 1;
  s.prefetch = static_cast<int>(c.config.integer("prefetch"));
  if (s.prefetch == 0) s.prefetch = data.heavy() ? 4 : 2;
  if (!c.config.on("pin-workers")) return s;
  if (spare.empty())
    s.note = cat("--pin-workers: the process may use no CPU beyond the ", compute,
                 compute == 1 ? " that computes" : " that compute",
                 "; loader threads share them (fewer --threads leave some)");
  s.cpus = spare;
  return s;
}

}  // namespace ortrain::cli
