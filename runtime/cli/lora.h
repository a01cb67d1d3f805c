// --lora: its text, and what a run with adapters writes at its end.
//
// merged: the model with W + alpha/r A B in place of each target (refused before training where a
// target exists only as integers). adapters: the model as it was, and adapters/ with
// adapter_model.safetensors and adapter_config.json, named and laid out as PEFT does (A [r,in], B
// [out,r]); what --train added to the adapters lies there too, under its own name.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "graph/lora.h"
#include "runtime/cli/commands.h"

namespace ortrain::cli {

// "r=8,alpha=16,dropout=0.05,targets=REGEX"; alpha is r unless given. Throws Error(kUsage).
LoraSpec parse_lora(const std::string& text);

using FindTensor = std::function<const HostTensor*(const std::string& name)>;

class LoraExport {
 public:
  // `how` as of --lora-export. Throws Error(kUsage) where it cannot be had.
  LoraExport(const Context& c, const LoraSpec& spec, const std::string& how);
  bool active() const { return !targets_.empty(); }
  // Merged weights by name; empty where adapters stay apart.
  std::map<std::string, HostTensor> merged(const FindTensor& find) const;
  // Writes the folder where adapters stay apart and returns its path; "" else. `trained`: names of
  // what else trains.
  std::string write(const std::string& folder, const FindTensor& find,
                    const std::vector<std::string>& trained) const;

 private:
  LoraSpec spec_;
  std::vector<LoraTarget> targets_;
  bool merge_ = false, apart_ = false;
  std::string model_;
};

}  // namespace ortrain::cli
