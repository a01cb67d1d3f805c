// See words.h.
#include "runtime/cli/words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "graph/error.h"

namespace ortrain::cli {

std::string trimmed(const std::string& s) {
  const size_t begin = s.find_first_not_of(" \t\n"), end = s.find_last_not_of(" \t\n");
  return begin == std::string::npos ? std::string() : s.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

bool parse_number(const std::string& text, double& v) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(v);
}

std::string shown(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.16g", v);
  return buffer;
}

bool holds(const Range& r, double v) {
  return (r.open ? v > r.low : v >= r.low) && v <= r.high && (!r.whole || v == std::floor(v));
}

std::string text_of(const Range& r) {
  const bool bounded = r.high != kNoBound;
  return cat("a ", r.whole ? "whole " : "", "number ",
             r.open    ? "above "
             : bounded ? "from "
                       : "of at least ",
             shown(r.low),
             !bounded ? ""
             : r.open ? ", at most "
                      : " to ",
             bounded ? shown(r.high) : "");
}

double number_in(const std::string& where, const std::string& text, const Range& range) {
  double v = 0;
  if (!parse_number(text, v) || !holds(range, v))
    fail(ErrorCode::kUsage, where, ": '", text, "': expected ", text_of(range));
  return v;
}

std::pair<std::string, std::string> key_value(const std::string& where, const std::string& text) {
  const size_t eq = text.find('=');
  if (eq == std::string::npos)
    fail(ErrorCode::kUsage, where, ": '", text, "': expected NAME=VALUE");
  std::string key = trimmed(text.substr(0, eq));
  std::replace(key.begin(), key.end(), '-', '_');
  return {key, trimmed(text.substr(eq + 1))};
}

void give_once(const std::string& where, const std::string& name, std::vector<std::string>& seen) {
  if (std::count(seen.begin(), seen.end(), name) > 0)
    fail(ErrorCode::kUsage, where, ": ", name, " is given twice");
  seen.push_back(name);
}

}  // namespace ortrain::cli
