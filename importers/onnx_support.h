// What the importer knows about operators beyond their records: the opsets it reads, the operators
// it dissolves itself, and those it refuses by name with the reason.
//
// One table each; the importer's errors and the support matrix (`ortrain ops`) both read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ortrain {

inline constexpr int kOldestOpset = 7, kNewestOpset = 27;  // of ai.onnx

// An operator without a record that an import leaves no node of.
struct DissolvedOp {
  std::string_view op;  // as in OpDef::name
  int since;            // its first opset
  std::string_view how;
};
const std::vector<DissolvedOp>& dissolved_ops();

// Why an operator cannot be had. `op` may be "DOMAIN.*": every operator of that domain.
struct RefusedOp {
  std::string_view op;
  std::string_view reason;  // what it is, then what would help
};
const std::vector<RefusedOp>& refused_ops();
// The reason for an operator by its full name (full_op_name), or "".
std::string_view refusal_of(std::string_view op);

}  // namespace ortrain
