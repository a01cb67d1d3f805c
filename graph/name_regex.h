// Regular expressions over names: of parameters, nodes, outputs.
//
// Search in time proportional to name times expression, without recursion: expressions come from
// recipes inside model files, names from the files themselves (std::regex overflows the stack on a
// long name and takes exponential time on nested repeats). ECMAScript's syntax over bytes, without
// what would need backtracking: Error(kUsage) refuses back references and lookaround, says what is
// wrong with an expression, and refuses one that unfolds to more than kMostSteps.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ortrain {

class NameRegex {
 public:
  static constexpr size_t kMostSteps = 4000;
  explicit NameRegex(const std::string& text);
  // Whether the expression is found anywhere in the name.
  bool found_in(std::string_view name) const;

  enum class Kind : uint8_t { kByte, kSplit, kBegin, kEnd, kBoundary, kInside, kMatch };
  struct Step {
    Kind kind;
    int next = 0, other = 0;  // steps that follow; `other` of a kSplit
    std::bitset<256> bytes = {};
  };

 private:
  std::vector<Step> steps_;
};

}  // namespace ortrain
