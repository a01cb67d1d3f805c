// The support matrix: what ortrain does with each operator, read from the op records and the
// importer's tables and tried out where a record does not say (element types).
#pragma once

#include <string>
#include <vector>

#include "graph/op_def.h"

namespace ortrain::cli {

struct OpRow {
  std::string op, domain;  // "Tanh", "ai.onnx"
  int since = 1, newest = 1;
  std::string forward;                      // how it is computed
  std::string gradient;                     // in words
  std::vector<std::string> differentiable;  // inputs that receive a gradient
  std::vector<std::string> types;           // element types of its data that a kernel accepts
  std::string cpu, cuda;                    // kernels, best first
  std::string note;
  int examples = 0;  // each is run and its gradient checked by tests/ops
};

struct RefusedRow {
  std::string op, domain, reason;
};

// By domain (ai.onnx first), then name. Internal operators (ortrain.*) are left out.
std::vector<OpRow> op_rows(const OpTable& table);
std::vector<RefusedRow> refused_rows();

std::string ops_text(const OpTable& table);
std::string ops_markdown(const OpTable& table);
std::string ops_json(const OpTable& table);

}  // namespace ortrain::cli
