// Small ONNX models for the importer's tests, built with the protobuf classes, and an operator
// table of records without kernels: the importer must not depend on what ops/ holds.
#pragma once

#include <onnx/onnx-ml.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/op_def.h"
#include "importers/onnx.h"

namespace ortrain::test {

// Records with the right name; BatchNormalization has states, Resize has constant inputs.
OpTable table_of(const std::vector<std::string>& names);
OpTable table_for(const onnx::ModelProto& model);  // every operator that the model names

onnx::ModelProto empty_model(int opset = 17);
void add_input(onnx::GraphProto& g, const std::string& name, const std::vector<int64_t>& dims,
               int type = onnx::TensorProto::FLOAT);
void add_output(onnx::GraphProto& g, const std::string& name);
onnx::NodeProto& add_node(onnx::GraphProto& g, const std::string& op, const std::string& name,
                          const std::vector<std::string>& in, const std::vector<std::string>& out);
onnx::TensorProto float_tensor(const std::string& name, const std::vector<int64_t>& dims,
                               const std::vector<float>& values, bool raw);
onnx::TensorProto int_tensor(const std::string& name, const std::vector<int64_t>& dims,
                             const std::vector<int64_t>& values);
void set_int(onnx::NodeProto& n, const std::string& name, int64_t value);
void set_tensor(onnx::NodeProto& n, const std::string& name, const onnx::TensorProto& value);

// y = Gemm(x, w, b) with w [2,3] and b [2] as raw initializers; x [batch, 3].
onnx::ModelProto linear_model();

std::unique_ptr<OnnxFile> parse(const onnx::ModelProto& m, const OpTable& ops,
                                const std::string& folder = "");
// The message of the Error that importing gives, with its code in front ("model: ..."); "" = none.
std::string import_error(const onnx::ModelProto& m, const OpTable& ops);
std::vector<float> floats_of(const HostTensor& t);
std::vector<std::string> names_of(const Graph& g, Source source);  // sorted

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

// A folder that is removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const;  // sorted names

 private:
  std::string path_;
};

}  // namespace ortrain::test
