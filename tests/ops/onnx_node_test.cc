// ctest-timeout: 900
// The ONNX project's own node tests (pip's onnx, backend/test/data/node) as an outside witness:
// every test whose operators all have a record and whose types we read must give the recorded
// outputs, on the reference kernels and on the first kernel that accepts. Inputs become constants,
// because a test feeds shapes as inputs. Left out are only the tests of kExcluded, each with its
// reason; the counts are printed.
#include <gtest/gtest.h>
#include <onnx/onnx-ml.pb.h>
#include <ortrain_test_paths.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <vector>

#include "graph/error.h"
#include "graph/passes/passes.h"
#include "graph/structure.h"
#include "importers/onnx.h"
#include "importers/onnx_tensor.h"
#include "runtime/evaluate.h"
#include "tests/onnx_node/node_case.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

struct Excluded {
  const char* prefix;  // of the test's name without "test_"; with $ at the end: the whole name
  const char* reason;
};
const char* const kWindow = "the length of a Range is a float that the test computes from an input";
const char* const kDropout = "the mask is drawn by numpy's generator";
const std::vector<Excluded> kExcluded = {
    {"blackmanwindow_expanded", kWindow},
    {"blackmanwindow_symmetric_expanded", kWindow},
    {"dft_inverse", "recorded in f32 by numpy: 1e-6 off where the exact value is 0"},
    {"hammingwindow_expanded", kWindow},
    {"hammingwindow_symmetric_expanded", kWindow},
    {"hannwindow_expanded", kWindow},
    {"hannwindow_symmetric_expanded", kWindow},
    {"training_dropout$", kDropout},
    {"training_dropout_default", kDropout},
    {"training_dropout_mask", kDropout},
    {"bernoulli", "the numbers are drawn by numpy's generator"},
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Why the test is outside of what ortrain reads, or "".
std::string outside(const onnx::ModelProto& m) {
  for (const auto& o : m.opset_import())
    if (o.domain().empty() && o.version() < 7) return "opset below 7";
  const auto& g = m.graph();
  for (const auto& io : {g.input(), g.output()})
    for (const auto& v : io) {
      if (!v.type().has_tensor_type()) continue;
      if (dtype_from_onnx(v.type().tensor_type().elem_type()) == DType::kUndefined)
        return "element type " + onnx_dtype_name(v.type().tensor_type().elem_type());
    }
  for (const auto& n : g.node()) {
    const std::string op = n.domain().empty() || n.domain() == "ai.onnx"
                               ? n.op_type()
                               : n.domain() + "." + n.op_type();
    if (op != "Constant" && !all_ops().find(op)) return "no record for " + op;
  }
  return "";
}

const char* excluded(const std::string& name) {
  for (const Excluded& e : kExcluded)
    if (name.starts_with(e.prefix) || name + "$" == e.prefix) return e.reason;
  return nullptr;
}

// numpy's allclose with the tolerances of ONNX's own runner; integers exactly.
std::string difference(const HostTensor& got, const HostTensor& want) {
  if (got.dtype() != want.dtype())
    return cat("type ", name_of(got.dtype()), ", expected ", name_of(want.dtype()));
  if (got.dims() != want.dims())
    return cat("shape ", Shape(got.dims()).str(), ", expected ", Shape(want.dims()).str());
  // Two units in the last place of the 16-bit types.
  const double relative = want.dtype() == DType::kF16    ? 2e-3
                          : want.dtype() == DType::kBF16 ? 1.6e-2
                                                         : 1e-3;
  for (int64_t i = 0; i < want.count(); ++i) {
    const double a = got.as_double(i), b = want.as_double(i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    const double tolerance = is_float(want.dtype()) ? 1e-7 + relative * std::abs(b) : 0;
    if (!(std::abs(a - b) <= tolerance)) return cat("element ", i, " is ", a, ", expected ", b);
  }
  return "";
}

// Integer contents that inference knows become constants, as the canonicalize pass does it.
void fold_integers(Graph& g, NodeId n) {
  const std::vector<ValueId> outputs = g.node(n).outputs;
  for (ValueId v : outputs) {
    if (v == kNone || !g.value(v).has_ints || !g.value(v).shape.is_const()) continue;
    const std::vector<Dim> ints = g.value(v).ints;
    if (!std::all_of(ints.begin(), ints.end(), [](Dim d) { return d.is_const(); })) continue;
    HostTensor t(g.value(v).dtype, g.value(v).shape.values());
    for (size_t i = 0; i < ints.size(); ++i)
      t.set_double(static_cast<int64_t>(i), static_cast<double>(ints[i].value()));
    g.replace_uses(v, g.add_const(std::move(t)));
  }
}

// Pass infer dissolves control flow and sequences. It may evaluate what conditions and positions
// are made of, but leaves the arithmetic to the kernels under test.
void dissolve(Graph& g) {
  const Evaluate small = [all = make_evaluator()](const Graph& graph, NodeId n,
                                                  std::vector<HostTensor>& out) {
    for (ValueId v : graph.node(n).outputs)
      if (v != kNone && element_count(graph.value(v).shape.values()) > 1) return false;
    return all(graph, n, out);
  };
  StepSpec spec;
  spec.mode = Mode::kPredict;
  std::vector<std::string> messages;
  PassContext ctx{spec, small, messages, {}};
  pass_infer(g, ctx);
}

// Runs the model of one test on one data set; returns what is wrong, or "".
std::string run(const fs::path& test, const fs::path& data, const std::string& kernel) {
  try {
    const NodeCase c = read_node_case(test, data);
    const auto& want = c.outputs;
    const std::string bytes = c.model.SerializeAsString();
    const auto file = OnnxFile::parse(std::as_bytes(std::span(bytes)), test.string(), all_ops());
    Graph g = file->graph().share();
    const std::vector<ValueId> inputs = g.inputs();
    if (inputs.size() != c.inputs.size())
      return cat(c.inputs.size(), " input files for ", inputs.size(), " inputs");
    for (ValueId v : inputs)
      for (const auto& [name, tensor] : c.inputs)
        if (name == g.value(v).name) {
          g.set_source(v, Source::kConst);
          g.set_tensor(v, tensor.clone());
        }
    const std::vector<NodeId> order = g.topo();
    if (std::any_of(order.begin(), order.end(),
                    [&](NodeId n) { return is_structural(*g.node(n).op); })) {
      dissolve(g);
    } else {
      for (NodeId n : order) {
        g.infer(n);
        fold_integers(g, n);
      }
    }
    for (size_t i = 0; i < g.outputs().size(); ++i) {
      const Value& v = g.value(g.outputs()[i]);
      if (i < want.size() && v.shape.is_const() && v.shape.values() != want[i].second.dims())
        return cat("inferred shape ", v.shape.str(), ", expected ",
                   Shape(want[i].second.dims()).str());
    }
    const std::vector<HostTensor> got = run_graph(g, {}, kernel);
    if (got.size() != want.size()) return cat(got.size(), " outputs, expected ", want.size());
    for (size_t i = 0; i < got.size(); ++i)
      if (const std::string d = difference(got[i], want[i].second); !d.empty())
        return cat("output ", i, ": ", d);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(OnnxNodeTests, RecordedOutputs) {
  const fs::path root = fs::path(kOnnxPythonDir) / "backend/test/data/node";
  if (std::string_view(kOnnxPythonDir).empty() || !fs::exists(root))
    GTEST_SKIP() << "pip's onnx is not installed (tests/setup.sh installs it)";
  std::vector<fs::path> tests;
  for (const auto& e : fs::directory_iterator(root))
    if (e.is_directory()) tests.push_back(e.path());
  std::sort(tests.begin(), tests.end());
  const char* const only = std::getenv("ORTRAIN_NODE_TEST");  // part of a name, for debugging
  int passed = 0, failed = 0;
  std::map<std::string, int> left_out;
  for (const fs::path& test : tests) {
    const std::string name = test.filename().string().substr(5);
    if (only && name.find(only) == name.npos) continue;
    onnx::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(read(test / "model.onnx"))) << test;
    std::string reason = outside(model);
    if (reason.empty())
      if (const char* why = excluded(name)) reason = why;
    if (!reason.empty()) {
      ++left_out[reason];
      continue;
    }
    std::string wrong;
    for (const auto& data : fs::directory_iterator(test)) {
      if (!data.is_directory()) continue;
      for (const char* kernel : {"ref", "first"})
        if (wrong.empty()) wrong = run(test, data.path(), kernel);
    }
    wrong.empty() ? ++passed : ++failed;
    if (!wrong.empty()) ADD_FAILURE() << name << ": " << wrong;
  }
  std::cout << "ONNX node tests: " << passed << " passed, " << failed << " failed, left out:\n";
  for (const auto& [reason, n] : left_out) std::cout << "  " << n << "  " << reason << "\n";
  EXPECT_TRUE(only || passed > 100) << passed;
}

}  // namespace
}  // namespace ortrain::test
