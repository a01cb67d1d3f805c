// EwProgram: a chain of elementwise codes (op_def.h, Ew) as data, in a readable text form.
//
// Written by the pass fuse_late, run by ops/common/ew_engine.cc. Operands: xN = input N, tN = the
// result of instruction N, #V = a number. All arithmetic is done in one type (the attribute
// "class"); "add:bf16" rounds the result to a 16-bit type. Bool inputs count as 0 or 1, and a bool
// output stores "not zero".
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op_def.h"

namespace ortrain {

std::string_view ew_name(Ew code);  // "add", "tanh", ...
std::optional<Ew> ew_from_name(std::string_view name);
int ew_arity(Ew code);  // 0 (kNone) to 3

struct EwOperand {
  enum class Kind : uint8_t { kNone, kInput, kTemp, kConst };
  Kind kind = Kind::kNone;
  int index = 0;     // kInput, kTemp
  double value = 0;  // kConst
  static EwOperand input(int i) { return {Kind::kInput, i, 0}; }
  static EwOperand temp(int i) { return {Kind::kTemp, i, 0}; }
  static EwOperand constant(double v) { return {Kind::kConst, 0, v}; }
  bool operator==(const EwOperand&) const = default;
};

struct EwInstr {
  Ew code = Ew::kNone;
  std::array<EwOperand, 3> args = {};
  DType round = DType::kUndefined;  // f16, bf16: the result is rounded to it, kept in the class
  bool operator==(const EwInstr&) const = default;
};

struct EwProgram {
  std::vector<EwInstr> code;
  std::vector<int> outputs;  // the instruction whose result is output i
  bool operator==(const EwProgram&) const = default;

  std::vector<std::string> text() const;  // one string per instruction, "add x0 t1"
  // Throws Error(kModel) on malformed text, on operands that do not exist yet, on a bad output.
  static EwProgram parse(const std::vector<std::string>& text, const std::vector<int64_t>& outputs);
};

}  // namespace ortrain
