// Writing a trained model back into the user's own ONNX file, checked before it counts.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/cli/commands.h"
#include "runtime/cli/lora.h"
#include "runtime/data/dataset.h"
#include "runtime/param_store.h"

namespace ortrain::cli {

// A model for `path`, written aside, opened again and compared with the store, value by value.
// publish() moves it into place; until then, and where anything fails, a file that was there
// before stays. Throws Error(kIo) or, where a check fails, Error(kModel).
//
// The constructor reads the store and holds a copy of each parameter that lies in another layout;
// publish() holds the weights of the file twice. So that neither needs more than training did,
// give back the step's memory before the first, and the store before the second.
class ExportDraft {
 public:
  ExportDraft(const Context& c, const ParamStore& store, const std::string& path,
              const std::map<std::string, std::string>& metadata, const LoraExport& lora);
  // Runs the first batch of `sample` through the draft (no output may be NaN) and moves it, its
  // external data and adapters into place.
  void publish(const data::Dataset& sample);

 private:
  void write(const ParamStore& store, const std::map<std::string, std::string>& metadata,
             const LoraExport& lora);
  struct Folder {  // removed with what is left in it
    explicit Folder(std::filesystem::path at) : path(std::move(at)) {}
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder();
    const std::filesystem::path path;
  };
  const Context& c_;
  const std::filesystem::path path_;
  const Folder aside_;
  std::unique_ptr<OnnxFile> again_;
};

}  // namespace ortrain::cli
