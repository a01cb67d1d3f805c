// docs/NODE_TESTS.md: what became of every ONNX node test, with a reason for each that is not run
// or does not pass.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ortrain::test {

struct NodeReport {
  int passed = 0, total = 0;
  std::string onnx_version;
  // Reason -> names. Of excluded.txt, of other types, of operators without a record.
  std::map<std::string, std::vector<std::string>> excluded, other_type, no_operator;
  std::string markdown() const;
};

// "Foo (domain ai.onnx, opset 13): no such operator in ortrain" or "...: refused: why" out of an
// importer's message; the message itself where it is none of them.
std::string operator_reason(const std::string& message);

}  // namespace ortrain::test
