// Reading the values of flags that have parts: blanks, lists, numbers, NAME=VALUE.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ortrain::cli {

std::string trimmed(const std::string& s);
// Parts between `at`, without blanks around them; "" has one empty part.
std::vector<std::string> split(const std::string& text, char at);

// A whole text as a finite number, without blanks around it; false where it is none.
bool parse_number(const std::string& text, double& v);
std::string shown(double v);  // 16 digits at most, without zeros at the end

inline constexpr double kNoBound = 9e15;  // whole numbers are exact up to it
struct Range {
  double low = 0, high = kNoBound;
  bool whole = false;
  bool open = false;  // low itself is outside
};
// "a whole number from 1 to 99", "a number above 0".
std::string text_of(const Range& r);
bool holds(const Range& r, double v);
// Throws Error(kUsage): "WHERE: 'TEXT': expected a number from 0 to 1".
double number_in(const std::string& where, const std::string& text, const Range& range);

// NAME=VALUE; '-' and '_' are the same in names. Throws Error(kUsage).
std::pair<std::string, std::string> key_value(const std::string& where, const std::string& text);
// Throws Error(kUsage) where a name is given twice; `seen` are those so far.
void give_once(const std::string& where, const std::string& name, std::vector<std::string>& seen);

}  // namespace ortrain::cli
