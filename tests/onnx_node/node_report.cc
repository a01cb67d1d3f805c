// The text of docs/NODE_TESTS.md.
#include "tests/onnx_node/node_report.h"

#include <algorithm>
#include <cstdio>

#include "graph/error.h"

namespace ortrain::test {
namespace {

using Groups = std::map<std::string, std::vector<std::string>>;

int count(const Groups& groups) {
  int n = 0;
  for (const auto& [reason, names] : groups) n += static_cast<int>(names.size());
  return n;
}

std::string section(const char* title, const char* text, const Groups& groups) {
  std::string out = cat("\n## ", title, "\n\n", text, "\n\n");
  if (groups.empty()) return out + "None.\n";
  out += "| tests | reason | which |\n|--:|---|---|\n";
  std::vector<const Groups::value_type*> order;
  for (const auto& g : groups) order.push_back(&g);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.size() > b->second.size();
  });
  for (const auto* g : order) {
    out += cat("| ", g->second.size(), " | ", g->first, " | ");
    for (size_t i = 0; i < g->second.size(); ++i)
      out += (i ? ", " : "") + g->second[i].substr(g->second[i].starts_with("test_") ? 5 : 0);
    out += " |\n";
  }
  return out;
}

std::string percent(int part, int whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole ? 100.0 * part / whole : 0.0);
  return text;
}

}  // namespace

std::string NodeReport::markdown() const {
  const int left_out = count(excluded), other = count(other_type), none = count(no_operator);
  return cat("# ONNX node tests\n\nWritten by tests/onnx_node (`bash tests/regenerate.sh`); a test "
             "fails when it is stale.\n\nThe ",
             total, " node tests of onnx ", onnx_version, ": ", passed, " pass (",
             percent(passed, total), "), ", left_out, " are excluded (", percent(left_out, total),
             "), ", other, " are of types that ortrain does not have (", percent(other, total),
             "), ", none, " of operators without a record (", percent(none, total),
             "). Each passes with the preferred and with the reference kernels. Rule of "
             "comparison: "
             "onnx's own, |got - want| <= 1e-7 + 1e-3 |want|; integers exactly.\n") +
         section("Excluded", "tests/onnx_node/excluded.txt; one that passes fails the run.",
                 excluded) +
         section("Other types", "By the importer's refusal.", other_type) +
         section("Operators without a record", "By the importer's refusal.", no_operator);
}

std::string operator_reason(const std::string& message) {
  const size_t missing = message.find("no such operator"), refused = message.find("refused: ");
  const size_t at = std::min(missing, refused);
  if (at == std::string::npos) {  // the first line that names a node
    const size_t first = message.find("\n  ");
    const std::string line = first == std::string::npos ? message : message.substr(first + 3);
    return line.substr(0, std::min(line.find('\n'), line.find("; at '")));
  }
  const size_t begin = message.rfind('\n', at) + 1;  // npos + 1 is 0
  const std::string line = message.substr(begin, message.find('\n', begin) - begin);
  const size_t from = line.find_first_not_of(' ');
  const std::string op = line.substr(from, line.find(" (domain") - from);
  if (missing < refused) return op + ": no record";
  const size_t why = line.find("refused: ") + 9;
  return op + ": " + line.substr(why, line.find("; at '", why) - why);
}

}  // namespace ortrain::test
