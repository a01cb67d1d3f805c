// A parser to a tree, the tree unfolded to steps, and the simulation of all ways through the steps
// at once (Thompson, "Regular expression search algorithm", CACM 1968).
#include "graph/name_regex.h"

#include <cctype>
#include <utility>

#include "graph/error.h"

namespace ortrain {
namespace {

using Bytes = std::bitset<256>;
using Kind = NameRegex::Kind;
using Step = NameRegex::Step;
constexpr int kDeepest = 100;     // nested groups
constexpr int64_t kEndless = -1;  // no upper bound of a repeat
constexpr int64_t kMostTimes = 1000;

struct Tree {
  enum class Form : uint8_t { kStep, kSequence, kChoice, kRepeat } form = Form::kSequence;
  Step step = {Kind::kByte};     // kStep
  std::vector<Tree> parts = {};  // kRepeat: one
  int64_t low = 0, high = 0;     // kRepeat
};

constexpr std::pair<std::string_view, int (*)(int)> kClasses[] = {
    {"alpha", ::isalpha}, {"digit", ::isdigit}, {"alnum", ::isalnum}, {"space", ::isspace},
    {"upper", ::isupper}, {"lower", ::islower}, {"punct", ::ispunct}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

template <class Test>
Bytes bytes_where(Test&& test) {
  Bytes out;
  for (int c = 0; c < 256; ++c) out[static_cast<size_t>(c)] = test(c);
  return out;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Tree parse() {
    Tree t = choice(0);
    if (!done()) refuse("unbalanced ')'");
    return t;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    fail(ErrorCode::kUsage, "'", text_, "' is not a regular expression for names: ", why);
  }

 private:
  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(std::string_view s) {
    if (text_.compare(at_, s.size(), s) != 0) return false;
    at_ += s.size();
    return true;
  }

  Tree choice(int depth) {
    if (depth > kDeepest) refuse("too many nested groups");
    Tree out{.form = Tree::Form::kChoice};
    do out.parts.push_back(sequence(depth));
    while (take("|"));
    return out;
  }

  Tree sequence(int depth) {
    Tree out;
    while (!done() && peek() != '|' && peek() != ')') {
      Tree item = atom(depth);
      repeat(item);
      out.parts.push_back(std::move(item));
    }
    return out;
  }

  void repeat(Tree& item) {
    int64_t low = 0, high = kEndless;
    if (take("+")) {
      low = 1;
    } else if (take("?")) {
      high = 1;
    } else if (take("{")) {
      low = high = times();
      if (take(",")) high = peek() == '}' ? kEndless : times();
      if (!take("}")) refuse("unbalanced '{'");
      if (high != kEndless && high < low) refuse("a repeat whose bounds are swapped");
    } else if (!take("*")) {
      return;
    }
    take("?");  // how much a repeat takes does not change whether something is found
    if (!done() && std::string_view("*+?{").find(peek()) != std::string_view::npos)
      refuse("a repeat of a repeat");
    Tree out{.form = Tree::Form::kRepeat, .low = low, .high = high};
    out.parts.push_back(std::move(item));
    item = std::move(out);
  }

  int64_t times() {
    int64_t n = 0;
    const size_t start = at_;
    for (; std::isdigit(static_cast<unsigned char>(peek())) && n <= kMostTimes; ++at_)
      n = n * 10 + (peek() - '0');
    if (at_ == start) refuse("'{' without a number of times");
    if (n > kMostTimes) refuse(cat("more than ", kMostTimes, " times"));
    return n;
  }

  Tree one(Kind kind, Bytes bytes = {}) const {
    return {.form = Tree::Form::kStep, .step = {kind, 0, 0, bytes}};
  }

  Tree atom(int depth) {
    if (take("(")) {
      if (peek() == '?' && !take("?:")) refuse("lookaround is not supported");
      Tree inner = choice(depth + 1);
      if (!take(")")) refuse("unbalanced '('");
      return inner;
    }
    if (take("[")) return one(Kind::kByte, set());
    if (take("^")) return one(Kind::kBegin);
    if (take("$")) return one(Kind::kEnd);
    if (take("\\b")) return one(Kind::kBoundary);
    if (take("\\B")) return one(Kind::kInside);
    if (take("."))
      return one(Kind::kByte, bytes_where([](int c) { return c != '\n' && c != '\r'; }));
    if (std::string_view("*+?{").find(peek()) != std::string_view::npos)
      refuse("a repeat of nothing");
    return one(Kind::kByte, literal_or_class());
  }

  // A character, an escaped one, or \d and its like.
  Bytes literal_or_class() {
    Bytes out;
    const char c = text_[at_++];
    if (c != '\\') {
      out.set(static_cast<unsigned char>(c));
      return out;
    }
    if (done()) refuse("it ends in '\\'");
    const char e = text_[at_++];
    const auto letter = static_cast<char>(std::tolower(static_cast<unsigned char>(e)));
    if (letter == 'd' || letter == 'w' || letter == 's') {
      out = bytes_where([&](int b) {
        return letter == 'd'   ? std::isdigit(b) != 0
               : letter == 's' ? std::isspace(b) != 0
                               : is_word(static_cast<char>(b));
      });
      return e == letter ? out : ~out;
    }
    if (e >= '1' && e <= '9') refuse("back references are not supported");
    constexpr std::string_view kNames = "tnrfv0", kBytes{"\t\n\r\f\v\0", 6};
    const size_t known = kNames.find(e);
    if (known == std::string_view::npos && is_word(e) && e != '_')
      refuse(cat("unknown escape '\\", std::string(1, e), "'"));
    out.set(static_cast<unsigned char>(known == std::string_view::npos ? e : kBytes[known]));
    return out;
  }

  // After '['.
  Bytes set() {
    Bytes out;
    const bool negated = take("^");
    for (bool first = true; first || peek() != ']'; first = false) {
      if (first && peek() == ']') break;
      if (done()) refuse("unbalanced '['");
      const Bytes low = member();
      if (peek() != '-' || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
        out |= low;
        continue;
      }
      ++at_;
      const Bytes high = member();
      if (low.count() != 1 || high.count() != 1) refuse("a range needs a character at each end");
      if (low._Find_first() > high._Find_first()) refuse("a range whose ends are swapped");
      for (size_t b = low._Find_first(); b <= high._Find_first(); ++b) out.set(b);
    }
    if (!take("]")) refuse("unbalanced '['");
    return negated ? ~out : out;
  }

  Bytes member() {
    if (done()) refuse("unbalanced '['");
    if (!take("[:")) return literal_or_class();
    const size_t end = text_.find(":]", at_);
    const std::string name = end == std::string::npos ? "" : text_.substr(at_, end - at_);
    int (*test)(int) = nullptr;
    for (const auto& [known, function] : kClasses)
      if (name == known) test = function;
    if (!test) refuse(cat("no class is called [:", name, ":]"));
    at_ = end + 2;
    return bytes_where([&](int c) { return test(c) != 0; });
  }

  const std::string& text_;
  size_t at_ = 0;
};

// Appends the steps of a tree; the last of them lead to the step behind.
void unfold(const Tree& t, std::vector<Step>& steps, const Parser& parser) {
  if (steps.size() > NameRegex::kMostSteps)
    parser.refuse(cat("it unfolds to more than ", NameRegex::kMostSteps, " steps"));
  const auto here = [&] { return static_cast<int>(steps.size()); };
  const auto split = [&] {
    steps.push_back({Kind::kSplit, here() + 1, 0});
    return steps.size() - 1;
  };
  switch (t.form) {
    case Tree::Form::kStep:
      steps.push_back(t.step);
      steps.back().next = here();
      return;
    case Tree::Form::kSequence:
      for (const Tree& part : t.parts) unfold(part, steps, parser);
      return;
    case Tree::Form::kChoice: {
      std::vector<size_t> ends;
      for (size_t i = 0; i < t.parts.size(); ++i) {
        const bool last = i + 1 == t.parts.size();
        const size_t fork = last ? 0 : split();
        unfold(t.parts[i], steps, parser);
        if (last) break;
        ends.push_back(split());
        steps[fork].other = here();
      }
      for (size_t end : ends) steps[end].next = steps[end].other = here();
      return;
    }
    case Tree::Form::kRepeat: {
      for (int64_t i = 0; i < t.low; ++i) unfold(t.parts[0], steps, parser);
      if (t.high == kEndless) {
        const size_t fork = split();
        unfold(t.parts[0], steps, parser);
        steps.push_back({Kind::kSplit, static_cast<int>(fork), static_cast<int>(fork)});
        steps[fork].other = here();
        return;
      }
      std::vector<size_t> forks;
      for (int64_t i = t.low; i < t.high; ++i) {
        forks.push_back(split());
        unfold(t.parts[0], steps, parser);
      }
      for (size_t fork : forks) steps[fork].other = here();
      return;
    }
  }
}

}  // namespace

NameRegex::NameRegex(const std::string& text) {
  Parser parser(text);
  unfold(parser.parse(), steps_, parser);
  steps_.push_back({Kind::kMatch});
}

bool NameRegex::found_in(std::string_view name) const {
  std::vector<int> now, then, stack;
  std::vector<size_t> seen(steps_.size(), 0);  // position + 1 at which a step was last reached
  for (size_t at = 0;; ++at) {
    const bool end = at == name.size();
    const bool before = at > 0 && is_word(name[at - 1]), after = !end && is_word(name[at]);
    now.push_back(0);  // it may begin anywhere
    then.clear();
    for (stack.assign(now.rbegin(), now.rend()); !stack.empty();) {
      const int i = stack.back();
      stack.pop_back();
      if (seen[static_cast<size_t>(i)] == at + 1) continue;
      seen[static_cast<size_t>(i)] = at + 1;
      const Step& s = steps_[static_cast<size_t>(i)];
      switch (s.kind) {
        case Kind::kMatch: return true;
        case Kind::kByte:
          if (!end && s.bytes[static_cast<unsigned char>(name[at])]) then.push_back(s.next);
          break;
        case Kind::kSplit:
          stack.push_back(s.other);
          stack.push_back(s.next);
          break;
        case Kind::kBegin:
          if (at == 0) stack.push_back(s.next);
          break;
        case Kind::kEnd:
          if (end) stack.push_back(s.next);
          break;
        case Kind::kBoundary:
          if (before != after) stack.push_back(s.next);
          break;
        case Kind::kInside:
          if (before == after) stack.push_back(s.next);
          break;
      }
    }
    if (end) return false;
    now.swap(then);
  }
}

}  // namespace ortrain
