// Which array serves which graph input, where names do not say so: by --map, else by type and shape
// where exactly one array fits exactly one input.
#include <algorithm>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/convert.h"
#include "runtime/data/dataset.h"

namespace ortrain::data {
namespace {

bool usual_label(const std::string& name) {
  for (const char* word : {"labels", "label", "targets", "target", "y"})
    if (name == word) return true;
  return false;
}

}  // namespace

void Dataset::match(const OpenOptions& options) {
  for (const auto& [input, columns] : options.map) {
    if (has(input) || columns.size() != 1) continue;
    if (!has(columns[0])) {
      const std::string nearest = nearest_name(columns[0], names_);
      fail(ErrorCode::kUsage, "--map ", input, ":", columns[0], ": ", where_, " has no '",
           columns[0], "'; it has ", summary(),
           nearest.empty() ? "" : "; nearest name: '" + nearest + "'");
    }
    rename(columns[0], input);
  }
  std::vector<const ArraySpec*> open;
  std::vector<const StoredArray*> free;
  for (const ArraySpec& spec : options.inputs)
    if (!has(spec.name)) open.push_back(&spec);
  for (const StoredArray* array : arrays_)
    if (!usual_label(array->name) &&
        std::none_of(options.inputs.begin(), options.inputs.end(),
                     [&](const ArraySpec& s) { return s.name == array->name; }))
      free.push_back(array);
  std::vector<std::pair<std::string, std::string>> found;
  for (const bool same_type : {true, false}) {
    const auto fits = [&](const StoredArray& array, const ArraySpec& spec) {
      return !misfit(array, spec, false) && (!same_type || array.dtype == spec.dtype);
    };
    for (const ArraySpec* spec : open) {
      std::vector<const StoredArray*> arrays;
      for (const StoredArray* array : free)
        if (fits(*array, *spec)) arrays.push_back(array);
      if (arrays.size() != 1) continue;
      const auto takers = std::count_if(open.begin(), open.end(),
                                        [&](const ArraySpec* s) { return fits(*arrays[0], *s); });
      if (takers == 1) found.emplace_back(arrays[0]->name, spec->name);
    }
    if (!found.empty()) break;
  }
  for (const auto& [from, to] : found) {
    notes.push_back(cat("'", from, "' is taken for the input '", to,
                        "': the only array of its type and shape"));
    rename(from, to);
  }
}

}  // namespace ortrain::data
