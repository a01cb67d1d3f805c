// Nearest-name search by edit distance; names are short, so the quadratic table is fine.
#include "graph/spelling.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace ortrain {
namespace {
constexpr size_t kMaxLength = 256;  // longer names are never suggested nor corrected

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}
}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = 0;
  if (word.size() > kMaxLength) return best;
  for (const std::string& candidate : candidates) {
    if (candidate.empty() || candidate.size() > kMaxLength) continue;
    const size_t allowed = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    const size_t distance = edit_distance(word, candidate);
    if (distance <= allowed && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace ortrain
