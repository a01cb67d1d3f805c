// See lora.h.
#include "runtime/cli/lora.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/words.h"
#include "runtime/data/atomic_file.h"
#include "runtime/data/safetensors.h"
#include "runtime/evaluate.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

// [a, b] -> [b, a]
HostTensor turned(const HostTensor& t) {
  const int64_t a = t.dims()[0], b = t.dims()[1];
  HostTensor out(t.dtype(), {b, a});
  for (int64_t i = 0; i < a; ++i)
    for (int64_t j = 0; j < b; ++j) out.set_double(j * a + i, t.as_double(i * b + j));
  return out;
}

const HostTensor& need(const FindTensor& find, const std::string& name) {
  const HostTensor* t = find(name);
  if (!t)
    fail(ErrorCode::kData, "there is no tensor '", name, "': the run was not one with this --lora");
  return *t;
}

}  // namespace

LoraSpec parse_lora(const std::string& text) {
  LoraSpec s;
  std::vector<std::pair<std::string, std::string>> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, std::min(equals, part.size()));
    const bool known = key == "r" || key == "alpha" || key == "dropout" || key == "targets";
    if (equals != std::string::npos && known)
      parts.emplace_back(key, part.substr(equals + 1));
    else if (!parts.empty() && parts.back().first == "targets")
      parts.back().second += "," + part;  // a comma of the regex
    else
      fail(ErrorCode::kUsage, "--lora '", part, "': expected r=8,alpha=16,dropout=0,targets=REGEX");
  }
  std::vector<std::string> seen;
  for (const auto& [key, value] : parts) {
    give_once("--lora", key, seen);
    const auto number = [&, k = key, v = value](const Range& range) {
      return number_in("--lora " + k, v, range);
    };
    if (key == "r") s.rank = static_cast<int64_t>(number({.low = 1, .high = 65536, .whole = true}));
    if (key == "alpha") s.alpha = number({.low = 1e-9, .high = 1e9});
    if (key == "dropout") s.dropout = number({.low = 0, .high = 0.999});
    if (key == "targets") s.targets = {value};
  }
  if (s.rank == 0) fail(ErrorCode::kUsage, "--lora '", text, "' gives no rank: r=8");
  if (s.alpha == 0) s.alpha = static_cast<double>(s.rank);
  return s;
}

LoraExport::LoraExport(const Context& c, const LoraSpec& spec, const std::string& how)
    : spec_(spec), model_(c.model_path) {
  if (spec.rank == 0) return;
  StepSpec step;
  step.lora = spec;
  targets_ = lora_targets_of_file(c.file->graph(), step, make_evaluator());
  merge_ = how != "adapters";
  apart_ = how != "merged";
  std::string apart_only;
  for (const LoraTarget& t : targets_)
    if (!t.mergeable && apart_only.size() < 300)
      apart_only += cat(apart_only.empty() ? "'" : ", '", t.weight, "'");
  if (merge_ && !apart_only.empty())
    fail(ErrorCode::kUsage, "--lora-export ", how, ": these weights are no float data of the file ",
         "(integers behind a scale), adapters cannot be merged into them: ", apart_only,
         "; use --lora-export adapters");
}

std::map<std::string, HostTensor> LoraExport::merged(const FindTensor& find) const {
  std::map<std::string, HostTensor> out;
  if (merge_)
    for (const LoraTarget& t : targets_)
      out[t.weight] =
          lora_merged(t, spec_, need(find, t.weight), need(find, t.a()), need(find, t.b()));
  return out;
}

std::string LoraExport::write(const std::string& folder, const FindTensor& find,
                              const std::vector<std::string>& trained) const {
  if (!apart_) return {};
  std::map<std::string, HostTensor> tensors;
  nlohmann::ordered_json targets = nlohmann::json::array(), saved = nlohmann::json::array();
  for (const LoraTarget& t : targets_) {
    targets.push_back(t.base);
    tensors["base_model.model." + t.a()] = turned(need(find, t.a()));
    tensors["base_model.model." + t.b()] = turned(need(find, t.b()));
  }
  for (const std::string& name : trained) {
    if (is_lora_name(name)) continue;
    saved.push_back(name);
    tensors["base_model.model." + name] = need(find, name).clone();
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "cannot create ", folder, ": ", error.message());
  std::vector<data::SafetensorsEntry> entries;
  for (const auto& [name, t] : tensors) entries.push_back({name, t.dtype(), t.dims(), t.raw()});
  data::write_safetensors((fs::path(folder) / "adapter_model.safetensors").string(), entries,
                          {{"format", "pt"}});
  nlohmann::ordered_json config{
      {"peft_type", "LORA"},       {"base_model_name_or_path", model_}, {"r", spec_.rank},
      {"lora_alpha", spec_.alpha}, {"lora_dropout", spec_.dropout},     {"bias", "none"},
      {"fan_in_fan_out", false},   {"target_modules", targets},         {"modules_to_save", saved}};
  data::AtomicFile file((fs::path(folder) / "adapter_config.json").string());
  file.write(config.dump(2) + "\n");
  file.commit();
  return folder;
}

}  // namespace ortrain::cli
