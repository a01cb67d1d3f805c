// Names and arity of the elementwise codes, and the text form of programs.
#include "graph/ew.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "graph/error.h"
#include "graph/half.h"

namespace ortrain {

namespace {

struct Entry {
  Ew code;
  const char* name;
  int arity;
};

constexpr Entry kTable[] = {
    {Ew::kIdentity, "id", 1},
    {Ew::kAdd, "add", 2},
    {Ew::kSub, "sub", 2},
    {Ew::kMul, "mul", 2},
    {Ew::kDiv, "div", 2},
    {Ew::kPow, "pow", 2},
    {Ew::kMin, "min", 2},
    {Ew::kMax, "max", 2},
    {Ew::kMod, "mod", 2},
    {Ew::kNeg, "neg", 1},
    {Ew::kAbs, "abs", 1},
    {Ew::kSign, "sign", 1},
    {Ew::kSqrt, "sqrt", 1},
    {Ew::kRsqrt, "rsqrt", 1},
    {Ew::kReciprocal, "rcp", 1},
    {Ew::kExp, "exp", 1},
    {Ew::kLog, "log", 1},
    {Ew::kExpm1, "expm1", 1},
    {Ew::kLog1p, "log1p", 1},
    {Ew::kSin, "sin", 1},
    {Ew::kCos, "cos", 1},
    {Ew::kTanh, "tanh", 1},
    {Ew::kSigmoid, "sigmoid", 1},
    {Ew::kErf, "erf", 1},
    {Ew::kSoftplus, "softplus", 1},
    {Ew::kRelu, "relu", 1},
    {Ew::kFloor, "floor", 1},
    {Ew::kCeil, "ceil", 1},
    {Ew::kRound, "round", 1},
    {Ew::kTrunc, "trunc", 1},
    {Ew::kEqual, "eq", 2},
    {Ew::kGreater, "gt", 2},
    {Ew::kGreaterEqual, "ge", 2},
    {Ew::kLess, "lt", 2},
    {Ew::kLessEqual, "le", 2},
    {Ew::kNot, "not", 1},
    {Ew::kAnd, "and", 2},
    {Ew::kOr, "or", 2},
    {Ew::kXor, "xor", 2},
    {Ew::kWhere, "where", 3},
    {Ew::kCast, "cast", 1},
    {Ew::kGelu, "gelu", 1},
    {Ew::kGeluGrad, "gelu_grad", 2},
    {Ew::kGeluTanh, "gelu_tanh", 1},
    {Ew::kGeluTanhGrad, "gelu_tanh_grad", 2},
    {Ew::kReluGrad, "relu_grad", 2},
    {Ew::kIsNan, "isnan", 1},
    {Ew::kIsInf, "isinf", 1},
    {Ew::kTan, "tan", 1},
    {Ew::kAsin, "asin", 1},
    {Ew::kAcos, "acos", 1},
    {Ew::kAtan, "atan", 1},
    {Ew::kSinh, "sinh", 1},
    {Ew::kCosh, "cosh", 1},
    {Ew::kAsinh, "asinh", 1},
    {Ew::kAcosh, "acosh", 1},
    {Ew::kAtanh, "atanh", 1},
    {Ew::kFmod, "fmod", 2},
    {Ew::kToBool, "tobool", 1},
    {Ew::kLeakyRelu, "leaky_relu", 2},
    {Ew::kBitAnd, "bitand", 2},
    {Ew::kBitOr, "bitor", 2},
    {Ew::kBitXor, "bitxor", 2},
    {Ew::kBitNot, "bitnot", 1},
    {Ew::kShiftLeft, "shl", 2},
    {Ew::kShiftRight, "shr", 2},
};

const Entry* entry(Ew code) {
  for (const Entry& e : kTable)
    if (e.code == code) return &e;
  return nullptr;
}

std::string operand_text(const EwOperand& o) {
  if (o.kind == EwOperand::Kind::kInput) return cat('x', o.index);
  if (o.kind == EwOperand::Kind::kTemp) return cat('t', o.index);
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "#%.17g", o.value);
  return buffer;
}

EwOperand parse_operand(std::string_view word, size_t known) {
  const auto bad = [&] { fail(ErrorCode::kModel, "bad operand '", word, "' in a program"); };
  if (word.size() < 2) bad();
  if (word[0] == '#') {
    const std::string digits(word.substr(1));
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    if (*end != 0) bad();
    return EwOperand::constant(value);
  }
  int index = -1;
  const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), index);
  if (error != std::errc() || end != word.data() + word.size() || index < 0) bad();
  if (word[0] == 'x') return EwOperand::input(index);
  if (word[0] != 't' || static_cast<size_t>(index) >= known) bad();
  return EwOperand::temp(index);
}

}  // namespace

std::string_view ew_name(Ew code) {
  const Entry* e = entry(code);
  return e ? e->name : "none";
}

std::optional<Ew> ew_from_name(std::string_view name) {
  for (const Entry& e : kTable)
    if (name == e.name) return e.code;
  return std::nullopt;
}

int ew_arity(Ew code) {
  const Entry* e = entry(code);
  return e ? e->arity : 0;
}

std::vector<std::string> EwProgram::text() const {
  std::vector<std::string> out;
  for (const EwInstr& instr : code) {
    std::string line(ew_name(instr.code));
    if (instr.round != DType::kUndefined) line += cat(':', name_of(instr.round));
    for (int i = 0; i < ew_arity(instr.code); ++i)
      line += ' ' + operand_text(instr.args[static_cast<size_t>(i)]);
    out.push_back(std::move(line));
  }
  return out;
}

EwProgram EwProgram::parse(const std::vector<std::string>& text,
                           const std::vector<int64_t>& outputs) {
  EwProgram program;
  for (const std::string& line : text) {
    std::vector<std::string_view> words;
    for (size_t at = 0; at < line.size();) {
      const size_t end = std::min(line.find(' ', at), line.size());
      if (end > at) words.emplace_back(std::string_view(line).substr(at, end - at));
      at = end + 1;
    }
    std::string_view name = words.empty() ? std::string_view() : words[0];
    std::optional<DType> round = DType::kUndefined;
    if (const size_t colon = name.find(':'); colon != name.npos) {
      round = dtype_from_name(name.substr(colon + 1));
      name = name.substr(0, colon);
    }
    const auto code = ew_from_name(name);
    if (!code || !round || (*round != DType::kUndefined && !is_half(*round)) ||
        static_cast<int>(words.size()) != 1 + ew_arity(*code))
      fail(ErrorCode::kModel, "bad instruction '", line, "' in a program");
    EwInstr instr{*code, {}, *round};
    for (size_t i = 1; i < words.size(); ++i)
      instr.args[i - 1] = parse_operand(words[i], program.code.size());
    program.code.push_back(instr);
  }
  for (int64_t o : outputs) {
    if (o < 0 || o >= static_cast<int64_t>(program.code.size()))
      fail(ErrorCode::kModel, "a program's output ", o, " does not exist");
    program.outputs.push_back(static_cast<int>(o));
  }
  return program;
}

}  // namespace ortrain
