// NameRegex against std::regex (ECMAScript) on random expressions and names, and what std::regex
// cannot do: long names, nested repeats.
#include "graph/name_regex.h"

#include <gmock/gmock.h>

#include <random>
#include <regex>

#include "graph/error.h"

namespace ortrain {
namespace {

std::string refusal(const std::string& text) {
  try {
    NameRegex r(text);
    return "accepted";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(NameRegex, FindsWhatStdRegexFinds) {
  const std::vector<std::string> atoms = {"a",      "b",      ".",    "[ab]",        "[^a]",
                                          "(a|bc)", "(?:ab)", "^",    "$",           "\\.",
                                          "\\w",    "\\d",    "\\b",  "\\B",         "1",
                                          "[a-c1]", "\\S",    "(|a)", "[[:digit:]]", "[-a]"},
                                 repeats = {"",  "",    "",      "*",    "+",
                                            "?", "{2}", "{1,2}", "{2,}", "*?"};
  std::mt19937 rng(4);
  const auto pick = [&](const std::vector<std::string>& list) { return list[rng() % list.size()]; };
  int found = 0, tried = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    const size_t parts = 1 + rng() % 4;
    for (size_t i = 0; i < parts; ++i) {
      std::string atom = pick(atoms);
      const bool place = atom == "^" || atom == "$" || atom == "\\b" || atom == "\\B";
      text += atom + (place ? "" : pick(repeats));
      if (i + 1 < parts && rng() % 6 == 0) text += "|";
    }
    std::string name;
    for (size_t i = rng() % 9; i > 0; --i) name += "abc.1 _"[rng() % 7];
    const bool want = std::regex_search(name, std::regex(text));
    EXPECT_EQ(NameRegex(text).found_in(name), want) << "'" << text << "' in '" << name << "'";
    found += want;
    ++tried;
  }
  EXPECT_GT(found, tried / 4);
  EXPECT_LT(found, tried);
}

TEST(NameRegex, TimeGrowsWithTheNameOnly) {
  const std::string name(300'000, 'a');  // std::regex overflows the stack
  EXPECT_TRUE(NameRegex(".*a$").found_in(name));
  EXPECT_FALSE(NameRegex("(a+)+b").found_in(name));  // 2^300000 ways
  EXPECT_FALSE(NameRegex("((a*)*)*b|(a|a)*c|(a?){30}x").found_in(name));
  EXPECT_TRUE(NameRegex("").found_in(""));
  EXPECT_TRUE(NameRegex("(|)*").found_in(""));
}

TEST(NameRegex, SaysWhatIsWrong) {
  using testing::HasSubstr;
  const std::pair<const char*, const char*> wrong[] = {
      {"(", "unbalanced '('"},      {")", "unbalanced ')'"},   {"[a", "unbalanced '['"},
      {"*a", "repeat of nothing"},  {"a**", "of a repeat"},    {"a{2,1}", "swapped"},
      {"a{", "number of times"},    {"a{1", "unbalanced '{'"}, {"[b-a]", "swapped"},
      {"a\\", "ends in"},           {"(a)\\1", "references"},  {"(?!a)", "lookaround"},
      {"[[:foo:]]", "no class"},    {"\\q", "unknown escape"}, {"a{1001}", "more than 1000"},
      {"(a{900}){900}", "unfolds"}, {"[\\d-z]", "each end"}};
  for (const auto& [text, why] : wrong) {
    EXPECT_THAT(refusal(text), HasSubstr(why)) << text;
    EXPECT_THAT(refusal(text), HasSubstr("not a regular expression")) << text;
  }
  EXPECT_THAT(refusal(std::string(500, '(')), HasSubstr("nested"));
  EXPECT_EQ(refusal("]}"), "accepted");
  EXPECT_EQ(refusal("((((a{0,9}){0,9}){0,9})b"),
            "'((((a{0,9}){0,9}){0,9})b' is not a regular "
            "expression for names: unbalanced '('");
}

}  // namespace
}  // namespace ortrain
