// TensorProto <-> HostTensor.
//
// Reads every numeric type in every encoding that ONNX allows: raw bytes, the typed fields, and
// external files, which must lie in the model's folder. Data that is aligned in the file becomes a
// view into the mapping, the rest is copied once (large tensors of mapped files into DataFiles).
// 4-bit and 2-bit elements, packed in files, become a byte each. Refuses strings and complex
// numbers by name; sizes are checked before anything is allocated.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "graph/tensor.h"
#include "importers/copies.h"
#include "importers/files.h"
#include "importers/onnx_index.h"

namespace onnx {
class TensorProto;
}

namespace ortrain {

DType dtype_from_onnx(int data_type);        // kUndefined: not supported
int dtype_to_onnx(DType dtype);              // TensorProto.DataType
std::string onnx_dtype_name(int data_type);  // "FLOAT8E5M2"

// Bytes that hold tensor data, and the mapping that they come from, if any.
struct FileBytes {
  std::span<const std::byte> bytes;
  const MappedFile* mapping = nullptr;
};

// The external data files of one model, mapped on first use, and the copies of large tensors that
// are not aligned there or in the model file.
class DataFiles {
 public:
  explicit DataFiles(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const { return folder_; }
  const MappedFile& open(const std::string& location, const std::string& what);
  const MappedFile* find(const std::string& location) const;
  void each(const std::function<void(const MappedFile&)>& f) const {
    for (const auto& [location, file] : files_) f(file);
  }
  Copies& copies() { return copies_; }

 private:
  std::string folder_;
  std::map<std::string, MappedFile> files_;  // by location
  Copies copies_;
};

// Where a tensor's external data lies. offset + bytes has been checked against the file's size.
struct ExternalData {
  std::string location;
  size_t offset = 0, bytes = 0;
};

// "tensor 'w'".
std::string tensor_label(const onnx::TensorProto& header);
// Null when the data is in the model file. Throws Error(kModel) on malformed entries.
std::optional<ExternalData> external_data(const onnx::TensorProto& header, DataFiles& files);
// `header` is the TensorProto of the skeleton, `site` its place in `file`. The result may be a view
// into `file` or into `external`, whose files and copies it needs.
HostTensor read_tensor(const onnx::TensorProto& header, const TensorSite& site,
                       const FileBytes& file, DataFiles& external);

// A serialized TensorProto, and one stored as a file of its own (input_0.pb of the ONNX node
// tests).
HostTensor read_tensor_bytes(std::span<const std::byte> bytes, const std::string& folder);
HostTensor read_tensor_file(const std::string& path);
// A serialized TensorProto with raw data.
std::string write_tensor(const std::string& name, const HostTensor& tensor);

// Elements [begin, begin + count) of `t` as `to`, appended as bytes.
void append_elements(const HostTensor& t, DType to, int64_t begin, int64_t count, std::string& out);

}  // namespace ortrain
