// OnnxFile::State, shared by the parser (onnx.cc) and the export (onnx_export.cc).
#pragma once

#include "importers/onnx_import.h"

namespace ortrain {

struct OnnxFile::State {
  explicit State(std::string model_path, std::string folder)
      : path(std::move(model_path)), external(std::move(folder)) {}
  std::string path;  // "" = parsed from memory
  MappedFile mapping;
  std::vector<std::byte> memory;
  FileBytes file;
  FileIndex index;  // without the skeleton once imported
  DataFiles external;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Graph> trains;  // in its place; views into it
  std::vector<TensorSlot> slots;
  std::vector<TensorTie> ties;
  HeadReset head;
  ImportOptions options;
  std::map<std::string, std::string> metadata;
  std::string hash;
  std::vector<std::string> notes;
};

}  // namespace ortrain
