// The one table of command-line flags. Every flag is also a recipe key of the same name.
//
// Nothing else in the program knows a default, a range or a help text; `ortrain --help`, recipe
// checks, --print-config and error messages are all printed from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ortrain::cli {

enum class FlagType : uint8_t { kText, kPath, kInt, kNumber, kSwitch, kChoice, kList, kParts };
// kList: parts between commas, kParts: between semicolons; repeating a kParts flag adds parts.

struct Flag {
  const char* name;  // without "--"
  FlagType type;
  const char* fallback;  // default as text; "" = not set
  const char* group;     // heading in --help
  const char* help;
  double low = 0, high = 0;  // kInt, kNumber: allowed range when low < high
  std::vector<const char*> choices = {};
  bool in_recipe = true;   // false: only on the command line
  bool lasting = true;     // false: done by the first run; the trained model does not ask again
  const char* alone = "";  // what the flag means without a value; "": it needs one
};

const std::vector<Flag>& flag_table();
const Flag* find_flag(const std::string& name);

// Checks a value's text against the flag's type, range and choices; returns what is wrong, or "".
std::string check_value(const Flag& flag, const std::string& text);

// The nearest flag name within a sensible distance, or "".
std::string nearest_flag(const std::string& name);

// Help text for all flags, grouped.
std::string flags_help();

}  // namespace ortrain::cli
