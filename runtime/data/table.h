// CSV and TSV files as arrays.
//
// RFC 4180: fields between separators, quoted where they hold separators, quotes (doubled) or line
// ends. The first row is the header unless all of it is numbers (then columns are c0, c1, ...).
// A column of whole numbers becomes i64, of numbers f32, of anything else the number of its word in
// a vocabulary (sorted, or the model's own). Columns go to graph inputs by options.map, else by
// name; a single input [N, K] takes K columns together, in file order, when all but the label are
// K. Rows with another number of fields, missing values without fill=, or words that the model does
// not know are left out and listed with their line (refused under strict, and where they are more
// than a tenth). Refuses (kData): open quotes, bytes that are not UTF-8; line and column named.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"

namespace ortrain::data {

// Calls `row` for every record with its fields and the line it starts on. Fields view `text`, or
// `scratch` where quotes had to be undone (valid until the next record).
void read_csv(
    std::string_view text, char separator, const std::string& where,
    const std::function<void(const std::vector<std::string_view>& fields, int64_t line)>& row);

// What a column holds, for those who choose columns.
struct ColumnLook {
  std::string name;
  bool numbers = true, whole = true;  // else words
  int64_t missing = 0, different = 0;
  std::string some;  // a few of its values
};
// `rows`: of the files, whether they can be used or not.
std::vector<ColumnLook> look_at_columns(const std::vector<std::string>& paths, OpenOptions& options,
                                        int64_t& rows);

// Several files follow each other; their headers must agree. Entries of options.prepare with
// fill=mean get the mean found here.
Dataset open_table(const std::vector<std::string>& paths, OpenOptions& options);

}  // namespace ortrain::data
