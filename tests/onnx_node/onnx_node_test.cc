// The ONNX project's own node tests (pip's onnx ships them) as an outside witness for importer, ops
// and runtime together: import, compile for prediction, run, compare with the stored outputs; with
// the preferred kernels and again with the reference ones.
//
// Every test whose operators have records is run. It passes, or excluded.txt names it with a
// reason; an excluded test that passes is a failure too, so the list stays true. Tests of types
// that ortrain does not have (strings, 8-bit floats) are counted apart, by the
// importer's refusal. ORTRAIN_NODE_TEST=SUBSTRING runs a part and prints each result.
// docs/NODE_TESTS.md is the outcome; ORTRAIN_NODE_TESTS_MD=FILE writes it (tests/regenerate.sh).
#include <gtest/gtest.h>
#include <onnx/onnx-ml.pb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "graph/error.h"
#include "importers/onnx.h"
#include "importers/onnx_tensor.h"
#include "ops/all_ops.h"
#include "ortrain_test_paths.h"
#include "tests/onnx_node/node_case.h"
#include "tests/onnx_node/node_report.h"
#include "tests/ops/run_model.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

// Which inputs are known before the run: shapes, axes and the like must be, when the plan is made.
enum class Known { kNone, kIntegers, kAllButFirst, kAll };

onnx::ModelProto with_constants(const NodeCase& c, Known known, std::vector<bool>& is_constant) {
  onnx::ModelProto m = c.model;
  auto& g = *m.mutable_graph();
  is_constant.assign(c.inputs.size(), false);
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const bool take = known == Known::kAll || (known == Known::kAllButFirst && i > 0) ||
                      (known == Known::kIntegers && !is_float(c.inputs[i].second.dtype()));
    if (!take) continue;
    is_constant[i] = true;
    g.add_initializer()->ParseFromString(write_tensor(c.inputs[i].first, c.inputs[i].second));
  }
  return m;
}

std::map<std::string, HostTensor> run_case_as(const NodeCase& c, const std::string& folder,
                                              Known known, bool reference, const OpTable& ops) {
  std::vector<bool> is_constant;
  const std::string bytes = with_constants(c, known, is_constant).SerializeAsString();
  const auto file = OnnxFile::parse(std::as_bytes(std::span(bytes)), folder, ops);
  StepSpec spec;
  spec.mode = Mode::kPredict;
  spec.file_modes = true;
  std::map<std::string, const HostTensor*> data;
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (!is_constant[i]) data[c.inputs[i].first] = &c.inputs[i].second;
  return run_model(file->graph(), spec, data, reference);
}

struct Outcome {
  enum Kind { kPassed, kFailed, kNoOperator, kOtherType } kind = kPassed;
  std::string why;
};

// Tries with all inputs open, then with more and more of them known.
Outcome run_case(const fs::path& folder, const OpTable& ops) {
  NodeCase c;
  Outcome out;
  try {
    c = read_node_case(folder, folder / "test_data_set_0");
    if (!c.outside.empty()) return {Outcome::kOtherType, c.outside};
  } catch (const Error& e) {
    return {Outcome::kFailed, e.what()};
  }
  for (Known known : {Known::kNone, Known::kIntegers, Known::kAllButFirst, Known::kAll}) {
    try {
      for (const bool reference : {false, true}) {
        const auto got = run_case_as(c, folder.string(), known, reference, ops);
        for (const auto& [name, want] : c.outputs)
          if (const std::string d = difference(got, name, want); !d.empty())
            return {Outcome::kFailed,
                    cat("output '", name, reference ? "' (reference kernels): " : "': ", d)};
      }
      return {};
    } catch (const Error& e) {
      const std::string text = e.what();
      if (text.find("no such operator") != std::string::npos ||
          text.find("refused: ") != std::string::npos)
        return {Outcome::kNoOperator, text};
      if (text.find("not supported") != std::string::npos &&
          text.find("element type") != std::string::npos)
        return {Outcome::kOtherType, text};
      if (known == Known::kNone) out = {Outcome::kFailed, text};
    }
  }
  return out;
}

// In a child process, so that a crash is one failure and not the end of the run.
Outcome run_apart(const fs::path& folder, const OpTable& ops) {
  int ends[2];
  if (::pipe(ends) != 0) return {Outcome::kFailed, "no pipe"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::alarm(60);
    const Outcome o = run_case(folder, ops);
    const std::string text = std::to_string(o.kind) + o.why.substr(0, 2000);
    const ssize_t n = ::write(ends[1], text.data(), text.size());
    ::_exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (text.empty() || status != 0)
    return {Outcome::kFailed, cat("crashed, signal ", WTERMSIG(status))};
  return {static_cast<Outcome::Kind>(text[0] - '0'), text.substr(1)};
}

std::map<std::string, std::string> read_excluded() {
  std::map<std::string, std::string> out;
  std::ifstream in(fs::path(kSourceDir) / "tests/onnx_node/excluded.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    out[line.substr(0, space)] = space == std::string::npos ? "" : line.substr(space + 1);
  }
  return out;
}

// "element type FLOAT8E5M2", "sequences, optionals and maps": without the path and the node.
std::string type_reason(const std::string& why) {
  const size_t at = why.find("element type");
  if (at == std::string::npos) return why.substr(0, why.find('\n'));
  std::string reason = why.substr(at);
  return reason.substr(0, reason.find_first_of(";,\n"));
}

std::string onnx_version() {  // of the venv: onnx-1.22.0.dist-info beside the package
  const fs::path site = fs::path(kOnnxPythonDir).parent_path();
  for (const auto& e : fs::directory_iterator(site)) {
    const std::string name = e.path().filename().string();
    if (name.starts_with("onnx-") && name.ends_with(".dist-info"))
      return name.substr(5, name.size() - 5 - 10);
  }
  return "of unknown version";
}

TEST(OnnxNode, AllTestsOfKnownOperators) {
  const fs::path root = fs::path(kOnnxPythonDir) / "backend/test/data/node";
  if (std::string(kOnnxPythonDir).empty() || !fs::exists(root))
    GTEST_SKIP() << "pip's onnx with its node tests is not installed (tests/setup.sh)";
  OpTable ops;
  ops::register_all(ops);
  const char* only = std::getenv("ORTRAIN_NODE_TEST");
  std::vector<fs::path> folders;
  for (const auto& e : fs::directory_iterator(root))
    if (fs::exists(e.path() / "model.onnx") &&
        (!only || e.path().filename().string().find(only) != std::string::npos))
      folders.push_back(e.path());
  std::sort(folders.begin(), folders.end());
  ASSERT_FALSE(folders.empty());

  std::map<std::string, std::string> excluded = read_excluded();
  int passed = 0, failed = 0, left_out = 0, no_operator = 0, other_type = 0;
  NodeReport report;
  for (const fs::path& folder : folders) {
    const std::string name = folder.filename().string();
    const auto it = excluded.find(name);
    const Outcome o = run_apart(folder, ops);
    if (only) std::printf("%s: %d %s\n", name.c_str(), o.kind, o.why.c_str());
    switch (o.kind) {
      case Outcome::kPassed: ++passed; break;
      case Outcome::kNoOperator:
        ++no_operator;
        report.no_operator[operator_reason(o.why)].push_back(name);
        break;
      case Outcome::kOtherType:
        ++other_type;
        report.other_type[type_reason(o.why)].push_back(name);
        break;
      case Outcome::kFailed:
        if (it != excluded.end()) {
          EXPECT_FALSE(it->second.empty()) << name << " is excluded without a reason";
          ++left_out;
          report.excluded[it->second].push_back(name);
          break;
        }
        ++failed;
        ADD_FAILURE() << name << ": " << o.why;
    }
    if (it != excluded.end()) {
      EXPECT_NE(o.kind, Outcome::kPassed) << name << " passes; take it off excluded.txt";
      excluded.erase(it);
    }
  }
  if (!only)
    for (const auto& [name, reason] : excluded)
      ADD_FAILURE() << "excluded.txt names '" << name << "', which does not exist";
  std::printf(
      "ONNX node tests: %d passed, %d failed, %d excluded (excluded.txt), %d of operators without "
      "a "
      "record, %d of types without a counterpart; %zu in all\n",
      passed, failed, left_out, no_operator, other_type, folders.size());
  EXPECT_GT(passed, 0);
  if (only) return;
  report.passed = passed;
  report.total = static_cast<int>(folders.size());
  report.onnx_version = onnx_version();
  if (const char* path = std::getenv("ORTRAIN_NODE_TESTS_MD")) {
    std::ofstream(path) << report.markdown();
    return;
  }
  std::ifstream in(fs::path(kSourceDir) / "docs/NODE_TESTS.md");
  std::stringstream written;
  written << in.rdbuf();
  EXPECT_TRUE(written.str() == report.markdown())
      << "docs/NODE_TESTS.md is stale: bash tests/regenerate.sh";
}

}  // namespace
}  // namespace ortrain::test
