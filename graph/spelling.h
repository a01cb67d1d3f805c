// The nearest name to a misspelt one, for error messages: inputs, arrays, flags, ops.
//
// Distance is Damerau-Levenshtein (adjacent swaps count as one edit) without regard to case.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ortrain {

// The candidate closest to `word`, or "" when none is within a third of the longer length
// (at least 1 edit). Ties: the first.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

}  // namespace ortrain
