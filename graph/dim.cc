// The intern table of Dim and its polynomial arithmetic.
//
// A polynomial is a map from monomials (sorted atom ids) to coefficients; an atom is a symbol or an
// opaque operation over two Dims. Coefficient overflow is an Error(kShape): no real model reaches
// it.
#include "graph/dim.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "graph/error.h"

namespace ortrain {
namespace {

enum class Op : uint8_t { kSymbol, kFloorDiv, kMod, kMin, kMax };
const char* const kOpNames[] = {"", "floordiv", "mod", "min", "max"};

struct Atom {
  Op op = Op::kSymbol;
  std::string name;  // of a symbol
  Dim a, b;          // of an operation
};

using Monomial = std::vector<int32_t>;     // sorted atom ids, repeated for powers; empty = 1
using Poly = std::map<Monomial, int64_t>;  // no zero coefficients

int64_t mul_checked(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) fail(ErrorCode::kShape, "dimension arithmetic overflows");
  return r;
}
int64_t add_checked(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) fail(ErrorCode::kShape, "dimension arithmetic overflows");
  return r;
}
int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) fail(ErrorCode::kShape, "dimension arithmetic divides by zero");
  const int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

void add_term(Poly& p, const Monomial& m, int64_t c) {
  int64_t& slot = p[m];
  slot = add_checked(slot, c);
  if (slot == 0) p.erase(m);
}

}  // namespace

struct DimTable {
  std::mutex mutex;
  std::vector<Atom> atoms;
  std::map<std::string, int32_t> symbols;
  std::map<std::tuple<Op, std::string, std::string>, int32_t> operations;  // by operand text
  std::vector<Poly> polys;
  std::map<Poly, int32_t> ids;
  int64_t fresh_count = 0;

  static DimTable& get() {
    static DimTable* table = new DimTable;  // lives as long as the process
    return *table;
  }
  static int32_t id(Dim d) { return d.id_; }

  Poly poly(Dim d) {
    if (!d.is_const()) {
      const std::lock_guard lock(mutex);
      return polys[static_cast<size_t>(d.id_)];
    }
    Poly p;
    if (d.value_ != 0) p[{}] = d.value_;
    return p;
  }
  Dim intern(Poly p) {
    if (p.empty()) return Dim(0);
    if (p.size() == 1 && p.begin()->first.empty()) return Dim(p.begin()->second);
    const std::lock_guard lock(mutex);
    auto [it, inserted] = ids.try_emplace(std::move(p), static_cast<int32_t>(polys.size()));
    if (inserted) polys.push_back(it->first);
    Dim d;
    d.id_ = it->second;
    return d;
  }
  Dim atom_dim(int32_t atom) { return intern(Poly{{Monomial{atom}, 1}}); }
  Dim symbol(const std::string& name) {
    int32_t atom;
    {
      const std::lock_guard lock(mutex);
      auto [it, inserted] = symbols.try_emplace(name, static_cast<int32_t>(atoms.size()));
      if (inserted) atoms.push_back({Op::kSymbol, name, {}, {}});
      atom = it->second;
    }
    return atom_dim(atom);
  }
  Dim operation(Op op, Dim a, Dim b) {
    const auto key = std::make_tuple(op, a.str(), b.str());
    int32_t atom;
    {
      const std::lock_guard lock(mutex);
      auto [it, inserted] = operations.try_emplace(key, static_cast<int32_t>(atoms.size()));
      if (inserted) atoms.push_back({op, {}, a, b});
      atom = it->second;
    }
    return atom_dim(atom);
  }
  Atom atom(int32_t i) {
    const std::lock_guard lock(mutex);
    return atoms[static_cast<size_t>(i)];
  }
};

namespace {
DimTable& table() { return DimTable::get(); }

// a / b as polynomials when b is a single term that divides every term of a.
bool exact_divide(const Poly& a, const Poly& b, Poly& out) {
  if (b.size() != 1) return false;
  const auto& [divisor, coefficient] = *b.begin();
  for (const auto& [m, c] : a) {
    if (c % coefficient != 0 || !std::includes(m.begin(), m.end(), divisor.begin(), divisor.end()))
      return false;
    Monomial rest;
    std::set_difference(m.begin(), m.end(), divisor.begin(), divisor.end(),
                        std::back_inserter(rest));
    out[rest] = c / coefficient;
  }
  return true;
}

std::string atom_text(int32_t i) {
  const Atom a = table().atom(i);
  if (a.op == Op::kSymbol) return a.name;
  return cat(kOpNames[static_cast<int>(a.op)], "(", a.a.str(), ", ", a.b.str(), ")");
}
}  // namespace

Dim Dim::symbol(const std::string& name) { return table().symbol(name); }

Dim Dim::fresh(const std::string& hint) {
  int64_t n;
  {
    const std::lock_guard lock(table().mutex);
    n = table().fresh_count++;
  }
  return symbol(cat(hint, "?", n));
}

int64_t Dim::value() const {
  ORTRAIN_CHECK(is_const(), "symbolic dim " + str() + " used as a number");
  return value_;
}

std::string Dim::str() const {
  if (is_const()) return std::to_string(value_);
  std::string out;
  for (const auto& [m, c] : table().poly(*this)) {
    if (!out.empty())
      out += c < 0 ? "-" : "+";
    else if (c < 0)
      out += "-";
    const int64_t magnitude = c < 0 ? -c : c;
    if (m.empty() || magnitude != 1) out += std::to_string(magnitude);
    bool first = m.empty() || magnitude == 1;
    for (int32_t atom : m) {
      if (!first) out += "*";
      out += atom_text(atom);
      first = false;
    }
  }
  return out;
}

Dim Dim::bind(const Binding& binding) const {
  if (is_const()) return *this;
  Dim sum = 0;
  for (const auto& [m, c] : table().poly(*this)) {
    Dim product = c;
    for (int32_t i : m) {
      const Atom a = table().atom(i);
      Dim factor;
      if (a.op == Op::kSymbol) {
        const auto it = binding.find(a.name);
        factor = it == binding.end() ? Dim::symbol(a.name) : Dim(it->second);
      } else {
        const Dim x = a.a.bind(binding), y = a.b.bind(binding);
        factor = a.op == Op::kFloorDiv ? floordiv(x, y)
                 : a.op == Op::kMod    ? mod(x, y)
                 : a.op == Op::kMin    ? min(x, y)
                                       : max(x, y);
      }
      product = product * factor;
    }
    sum = sum + product;
  }
  return sum;
}

void Dim::symbols(std::vector<std::string>& out) const {
  if (is_const()) return;
  for (const auto& [m, c] : table().poly(*this))
    for (int32_t i : m) {
      const Atom a = table().atom(i);
      if (a.op == Op::kSymbol) {
        if (std::find(out.begin(), out.end(), a.name) == out.end()) out.push_back(a.name);
      } else {
        a.a.symbols(out);
        a.b.symbols(out);
      }
    }
}

Dim operator+(Dim a, Dim b) {
  if (a.is_const() && b.is_const()) return add_checked(a.value(), b.value());
  Poly p = table().poly(a);
  for (const auto& [m, c] : table().poly(b)) add_term(p, m, c);
  return table().intern(std::move(p));
}
Dim operator-(Dim a, Dim b) { return a + b * Dim(-1); }
Dim operator*(Dim a, Dim b) {
  if (a.is_const() && b.is_const()) return mul_checked(a.value(), b.value());
  Poly p;
  const Poly pb = table().poly(b);
  for (const auto& [ma, ca] : table().poly(a))
    for (const auto& [mb, cb] : pb) {
      Monomial m;
      std::merge(ma.begin(), ma.end(), mb.begin(), mb.end(), std::back_inserter(m));
      add_term(p, m, mul_checked(ca, cb));
    }
  return table().intern(std::move(p));
}
Dim floordiv(Dim a, Dim b) {
  if (a.is_const() && b.is_const()) return floor_div(a.value(), b.value());
  if (b == Dim(1)) return a;
  if (a == b) return 1;
  Poly quotient;
  if (exact_divide(table().poly(a), table().poly(b), quotient))
    return table().intern(std::move(quotient));
  return table().operation(Op::kFloorDiv, a, b);
}
Dim ceildiv(Dim a, Dim b) {
  if (a.is_const() && b.is_const()) return -floor_div(-a.value(), b.value());
  return floordiv(a + b - Dim(1), b);
}
Dim mod(Dim a, Dim b) {
  if (a.is_const() && b.is_const()) return a.value() - floor_div(a.value(), b.value()) * b.value();
  Poly quotient;
  if (exact_divide(table().poly(a), table().poly(b), quotient)) return 0;
  return table().operation(Op::kMod, a, b);
}
Dim min(Dim a, Dim b) {
  const Dim d = a - b;
  if (d.is_const()) return d.value() <= 0 ? a : b;
  if (b.str() < a.str()) std::swap(a, b);
  return table().operation(Op::kMin, a, b);
}
Dim max(Dim a, Dim b) {
  const Dim d = a - b;
  if (d.is_const()) return d.value() >= 0 ? a : b;
  if (b.str() < a.str()) std::swap(a, b);
  return table().operation(Op::kMax, a, b);
}

Tri prove_equal(Dim a, Dim b) {
  const Dim d = a - b;
  if (!d.is_const()) return Tri::kUnknown;
  return d.value() == 0 ? Tri::kYes : Tri::kNo;
}

namespace {
// expr := ['-'] term {('+'|'-') term};  term := factor {'*' factor};  factor := int | op '(' expr
// ', ' expr ')' | name
struct Parser {
  std::string_view s;
  size_t i = 0;
  int depth = 0;

  [[noreturn]] void bad() const { fail(ErrorCode::kModel, "cannot read dimension '", s, "'"); }
  bool eat(char c) {
    while (i < s.size() && s[i] == ' ') ++i;
    if (i < s.size() && s[i] == c) return ++i, true;
    return false;
  }
  Dim expr() {
    if (++depth > 64) bad();
    Dim sum = eat('-') ? Dim(0) - term() : term();
    for (;;) {
      if (eat('+'))
        sum = sum + term();
      else if (eat('-'))
        sum = sum - term();
      else
        break;
    }
    --depth;
    return sum;
  }
  Dim term() {
    Dim product = factor();
    while (eat('*')) product = product * factor();
    return product;
  }
  Dim factor() {
    while (i < s.size() && s[i] == ' ') ++i;
    const size_t start = i;
    while (i < s.size() && std::string_view("+-*(), ").find(s[i]) == std::string_view::npos) ++i;
    const std::string word(s.substr(start, i - start));
    if (word.empty()) bad();
    if (word.find_first_not_of("0123456789") == std::string::npos) {
      if (word.size() > 18) bad();
      return std::stoll(word);
    }
    if (!eat('(')) return Dim::symbol(word);
    const Dim a = expr();
    if (!eat(',')) bad();
    const Dim b = expr();
    if (!eat(')')) bad();
    if (word == "floordiv") return floordiv(a, b);
    if (word == "mod") return mod(a, b);
    if (word == "min") return min(a, b);
    if (word == "max") return max(a, b);
    bad();
  }
};
}  // namespace

Dim parse_dim(std::string_view text) {
  Parser p{text};
  const Dim d = p.expr();
  if (p.i != text.size()) p.bad();
  return d;
}

}  // namespace ortrain
