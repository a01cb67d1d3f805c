// Dim: one extent of a shape, either an int64 or an interned integer expression over named symbols.
//
// Expressions are sums of products of symbols and of opaque terms (floordiv, mod, min, max) with
// integer coefficients, canonical on construction: two Dims that are equal as polynomials have the
// same id, so == is exact for them. prove_equal answers kYes, kNo (differ by a nonzero constant) or
// kUnknown. The intern table is process-wide and thread-safe; Dims are 16 bytes and cheap to copy.
// Symbols stand for integers >= 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ortrain {

enum class Tri : uint8_t { kNo, kYes, kUnknown };

using Binding = std::map<std::string, int64_t>;  // symbol -> value

class Dim {
 public:
  Dim() = default;
  Dim(int64_t value) : value_(value) {}  // NOLINT: implicit on purpose
  static Dim symbol(const std::string& name);
  // A symbol that occurs nowhere else; `hint` becomes part of its name ("hint?7").
  static Dim fresh(const std::string& hint);

  bool is_const() const { return id_ < 0; }
  int64_t value() const;  // only when is_const()
  std::string str() const;
  // Substitutes the symbols that the binding names.
  Dim bind(const Binding& binding) const;
  // Adds the names of all symbols inside to `out` (once each).
  void symbols(std::vector<std::string>& out) const;

  bool operator==(const Dim&) const = default;

 private:
  friend struct DimTable;
  int64_t value_ = 0;
  int32_t id_ = -1;  // index into the intern table, -1 for a constant
};

Dim operator+(Dim a, Dim b);
Dim operator-(Dim a, Dim b);
Dim operator*(Dim a, Dim b);
Dim floordiv(Dim a, Dim b);  // rounds towards minus infinity; exact when b divides every term of a
Dim ceildiv(Dim a, Dim b);
Dim mod(Dim a, Dim b);  // result has the sign of b
Dim min(Dim a, Dim b);
Dim max(Dim a, Dim b);
inline Dim ceil_to(Dim a, Dim multiple) { return ceildiv(a, multiple) * multiple; }
Tri prove_equal(Dim a, Dim b);

// Reads what str() prints. Throws Error(kModel) on anything else.
Dim parse_dim(std::string_view text);

}  // namespace ortrain
