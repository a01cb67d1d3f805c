// See table.h. All fields of the columns that are used are kept as text first: whether a column
// holds numbers is known at the file's end.
#include "runtime/data/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/tokens.h"

namespace ortrain::data {

void read_csv(std::string_view text, char separator, const std::string& where,
              const std::function<void(const std::vector<std::string_view>&, int64_t)>& row) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<std::string_view> fields;
  std::deque<std::string> scratch;
  int64_t line = 1;
  const auto refuse = [&](int64_t at, const auto&... parts) {
    fail(ErrorCode::kData, where, ", line ", at, ", field ", fields.size() + 1, ": ", parts...);
  };
  for (size_t at = 0; at < text.size();) {
    const int64_t first = line;
    fields.clear();
    scratch.clear();
    for (bool more = true; more;) {
      const size_t start = at;
      std::string_view field;
      if (at < text.size() && text[at] == '"') {
        std::string plain;
        bool doubled = false;
        for (++at;; ++at) {
          if (at >= text.size()) refuse(first, "a quote is opened and not closed");
          if (text[at] == '\n') ++line;
          if (text[at] == '"') {
            if (at + 1 >= text.size() || text[at + 1] != '"') break;
            doubled = true;
            ++at;
          }
          plain += text[at];
        }
        field = doubled ? std::string_view(scratch.emplace_back(std::move(plain)))
                        : text.substr(start + 1, at - start - 1);
        ++at;
        if (at < text.size() && text[at] != separator && text[at] != '\n' && text[at] != '\r')
          refuse(line, "expected a separator or the line's end after a closing quote, got '",
                 text.substr(at, 1), "'");
      } else {
        while (at < text.size() && text[at] != separator && text[at] != '\n' && text[at] != '\r')
          ++at;
        field = text.substr(start, at - start);
      }
      for (size_t k = 0; k < field.size();) {
        uint32_t code = 0;
        const size_t bad = k;
        if (!next_character(field, k, code))
          refuse(line, "expected UTF-8, got the byte ",
                 static_cast<int>(static_cast<uint8_t>(field[bad])), "; convert the file");
      }
      fields.push_back(field);
      more = at < text.size() && text[at] == separator;
      if (more) ++at;
    }
    if (at < text.size() && text[at] == '\r') ++at;
    if (at < text.size() && text[at] == '\n') ++at;
    ++line;
    if (fields.size() == 1 && fields[0].empty()) continue;  // an empty line
    row(fields, first);
  }
}

namespace {

bool missing(std::string_view s) {
  for (const char* word : {"", "NA", "N/A", "nan", "NaN", "NAN", "null", "NULL", "None"})
    if (s == word) return true;
  return false;
}
std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}
bool number(std::string_view s, double& v) {
  if (s.starts_with('+')) s.remove_prefix(1);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  return error == std::errc() && end == s.data() + s.size() && std::isfinite(v);
}

struct Column {
  std::string name;
  std::vector<std::string> text;  // per row
  bool numbers = true, whole = true;
  std::vector<std::string> words;
  std::map<std::string, int64_t> index;
  const Prepare* prepare = nullptr;
  std::string fill;
};

class Table {
 public:
  explicit Table(OpenOptions& options) : options_(options) {}

  void read(const std::string& path) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
    std::string_view head = text.substr(0, text.find('\n'));
    const auto count = [&](char c) { return std::count(head.begin(), head.end(), c); };
    const bool tabs = path.ends_with(".tsv") || (count('\t') > 0 && count(',') == 0);
    const char separator = tabs ? '\t' : count(';') > 0 && count(',') == 0 ? ';' : ',';
    bool first = true;
    read_csv(text, separator, "'" + path + "'", [&](const auto& fields, int64_t line) {
      if (first && header(fields, path)) {
        first = false;
        return;
      }
      first = false;
      ++seen_;
      if (fields.size() != columns_.size()) {
        bad(cat("'", path, "', line ", line, ": expected ", columns_.size(), " fields, got ",
                fields.size()));
        return;
      }
      for (size_t i = 0; i < fields.size(); ++i) columns_[i].text.emplace_back(trimmed(fields[i]));
      where_.push_back(cat("'", path, "', line ", line));
    });
  }

  std::vector<ColumnLook> look(int64_t& rows) {
    std::vector<ColumnLook> out;
    rows = seen_;
    for (Column& c : columns_) {
      look_at(c);
      ColumnLook l{.name = c.name, .numbers = c.numbers, .whole = c.whole, .some = {}};
      std::set<std::string_view> values;
      for (const std::string& s : c.text) {
        if (missing(s))
          ++l.missing;
        else if (values.insert(s).second && values.size() <= 4)
          l.some += cat(l.some.empty() ? "" : ", ", s);
      }
      l.different = static_cast<int64_t>(values.size());
      if (l.different > 4) l.some += ", ...";
      out.push_back(std::move(l));
    }
    return out;
  }

  Dataset arrays(const std::string& where) {
    if (where_.empty())
      fail(ErrorCode::kData, "'", where, "' holds no row",
           problems_.empty() ? "" : "; " + problems_[0]);
    for (Column& c : columns_) look_at(c);
    leave_out_columns();
    drop_bad_rows();
    Dataset out = Dataset::empty(where);
    for (const std::string& p : problems_) out.skips().add(p);
    out.notes = notes_;
    assign(out);
    return out;
  }

 private:
  void bad(const std::string& problem) {
    if (options_.strict) fail(ErrorCode::kData, problem, " (--strict)");
    problems_.push_back(problem);
  }

  // True where the row is a header; else columns get numbers for names.
  bool header(const std::vector<std::string_view>& fields, const std::string& path) {
    double v = 0;
    const bool names = !std::all_of(fields.begin(), fields.end(), [&](std::string_view f) {
      return missing(trimmed(f)) || number(trimmed(f), v);
    });
    std::vector<std::string> list;
    for (size_t i = 0; i < fields.size(); ++i)
      list.push_back(names ? std::string(trimmed(fields[i])) : cat("c", i));
    if (columns_.empty()) {
      for (std::string& name : list) {
        columns_.emplace_back().name = std::move(name);
        columns_.back().prepare = find_prepare(options_.prepare, columns_.back().name);
      }
      for (size_t i = 0; i < columns_.size(); ++i)
        for (size_t k = 0; k < i; ++k)
          if (columns_[i].name == columns_[k].name)
            fail(ErrorCode::kData, "'", path, "', line 1: two columns are called '",
                 columns_[i].name, "'");
      return names;
    }
    for (size_t i = 0; names && i < std::max(list.size(), columns_.size()); ++i)
      if (i >= list.size() || i >= columns_.size() || list[i] != columns_[i].name)
        fail(ErrorCode::kData, "'", path, "', line 1: other columns than the files before it");
    return names;
  }

  bool is_text(const Column& c) const { return c.prepare && !c.prepare->text.empty(); }

  void look_at(Column& c) {
    if (is_text(c)) return;
    double sum = 0, v = 0;
    int64_t present = 0;
    const bool known = options_.vocabularies.contains(c.name);
    for (const std::string& s : c.text) {
      if (missing(s)) continue;
      ++present;
      c.numbers &= !known && number(s, v);
      c.whole &= c.numbers && v == std::floor(v) && std::fabs(v) < 0x1p53;
      sum += v;
    }
    c.whole &= present > 0;
    if (c.prepare) c.fill = c.prepare->fill;
    if (c.fill == "mean") {
      if (!c.numbers)
        fail(ErrorCode::kUsage, "--prepare ", c.name, ":fill=mean: the column holds words");
      c.whole = false;
      c.fill = std::to_string(present ? sum / static_cast<double>(present) : 0);
      for (Prepare& p : options_.prepare)
        if (p.name == c.name) p.fill = c.fill;
    }
    if (c.numbers) return;
    if (known) {
      c.words = options_.vocabularies.at(c.name);
    } else {
      std::set<std::string> all;
      for (const std::string& s : c.text)
        if (!missing(s)) all.insert(s);
      c.words.assign(all.begin(), all.end());
    }
    for (size_t i = 0; i < c.words.size(); ++i) c.index[c.words[i]] = static_cast<int64_t>(i);
  }

  // With --map, a column that it does not take, that is no input and no label, and of which more
  // than a tenth is missing, costs no rows.
  void leave_out_columns() {
    const auto taken = [&](const Column& c) {
      if (is_label(c.name)) return true;
      for (const ArraySpec& s : options_.inputs)
        if (s.name == c.name) return true;
      for (const auto& [input, names] : options_.map)
        for (const std::string& n : names)
          if (n == c.name || (n.ends_with('*') && c.name.starts_with(n.substr(0, n.size() - 1))))
            return true;
      return false;
    };
    std::erase_if(columns_, [&](const Column& c) {
      if (options_.map.empty() || is_text(c) || !c.fill.empty() || taken(c)) return false;
      const auto gaps = std::count_if(c.text.begin(), c.text.end(),
                                      [](const std::string& s) { return missing(s); });
      const bool out = static_cast<size_t>(gaps) * 10 > c.text.size();
      if (out)
        notes_.push_back(cat("column '", c.name, "' is left out: no input takes it, ", gaps, " of ",
                             c.text.size(), " values are missing"));
      return out;
    });
  }

  void drop_bad_rows() {
    std::vector<bool> good(where_.size(), true);
    for (size_t r = 0; r < where_.size(); ++r) {
      for (const Column& c : columns_) {
        const std::string& s = c.text[r];
        std::string why;
        if (is_text(c)) continue;
        if (missing(s)) {
          if (c.fill.empty())
            why = "the value is missing (fill= in --prepare says what stands for it)";
        } else if (!c.numbers && !c.index.contains(s)) {
          why = cat("'", s, "' is not among the ", c.words.size(), " words of this model");
        }
        if (why.empty()) continue;
        bad(cat(where_[r], ", column '", c.name, "': ", why));
        good[r] = false;
        break;
      }
    }
    if (problems_.size() * 10 > static_cast<size_t>(seen_))
      fail(ErrorCode::kData, problems_.size(), " of ", seen_,
           " rows cannot be used; the first: ", problems_[0]);
    for (Column& c : columns_) {
      size_t kept = 0;
      for (size_t r = 0; r < good.size(); ++r)
        if (good[r]) std::swap(c.text[kept++], c.text[r]);
      c.text.resize(kept);
    }
    rows_ = static_cast<int64_t>(columns_[0].text.size());
  }

  double value(const Column& c, size_t row) const {
    const std::string& s = missing(c.text[row]) ? c.fill : c.text[row];
    double v = 0;
    if (c.numbers || missing(c.text[row]))
      number(s, v);
    else
      v = static_cast<double>(c.index.at(s));
    return v;
  }

  Column& find(const std::string& name, const std::string& why) {
    std::vector<std::string> names;
    for (Column& c : columns_) {
      if (c.name == name) return c;
      names.push_back(c.name);
    }
    const std::string nearest = nearest_name(name, names);
    fail(ErrorCode::kUsage, why, ": there is no column '", name, "'",
         nearest.empty() ? "" : "; nearest name: '" + nearest + "'");
  }

  // [N] of one column, [N, K] of several; f32, or i64 where all are whole and `integer`.
  void add(Dataset& out, const std::string& name, const std::vector<Column*>& from, bool flat,
           bool integer) {
    for (Column* c : from) used_.insert(c->name);
    StoredArray a;
    a.name = name;
    a.dtype = integer ? DType::kI64 : DType::kF32;
    a.dims = {rows_};
    if (!flat) a.dims.push_back(static_cast<int64_t>(from.size()));
    a.owned = allocate(a.dtype, a.dims, "column '" + name + "'");
    a.count = a.owned.count();
    int64_t at = 0;
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r)
      for (const Column* c : from) {
        const double v = value(*c, r);
        if (integer)
          a.owned.mutable_data<int64_t>()[at++] = static_cast<int64_t>(v);
        else
          a.owned.mutable_data<float>()[at++] = static_cast<float>(v);
      }
    out.add(std::move(a));
    for (const Column* c : from)
      if (!c->words.empty()) out.vocabularies[c->name] = c->words;
  }

  // Symbols of a text column, each row its own length; padded with 0 to the longest.
  void add_text(Dataset& out, const Column& c);

  void assign(Dataset& out) {
    const auto spec_of = [&](const std::string& name) -> const ArraySpec* {
      for (const ArraySpec& s : options_.inputs)
        if (s.name == name) return &s;
      return nullptr;
    };
    const auto add_for = [&](const std::string& name, const std::vector<Column*>& from) {
      const ArraySpec* s = spec_of(name);
      const bool words = std::all_of(from.begin(), from.end(),
                                     [](const Column* c) { return c->whole || !c->numbers; });
      const bool flat = s ? s->dims.size() == 1 : from.size() == 1;
      add(out, name, from, flat && from.size() == 1, s ? is_integer(s->dtype) && words : words);
    };
    for (const auto& [input, names] : options_.map) {
      std::vector<Column*> from;
      for (const std::string& name : names) {
        if (!name.ends_with('*')) {
          from.push_back(&find(name, "--map " + input));
          continue;
        }
        for (Column& c : columns_)
          if (c.name.starts_with(name.substr(0, name.size() - 1))) from.push_back(&c);
      }
      if (from.empty()) find(names[0], "--map " + input);
      if (!is_text(*from[0])) add_for(input, from);
    }
    std::vector<const ArraySpec*> open;
    for (const ArraySpec& s : options_.inputs) {
      if (out.has(s.name)) continue;
      const auto it = std::find_if(columns_.begin(), columns_.end(), [&](const Column& c) {
        return c.name == s.name && !is_text(c);
      });
      if (it != columns_.end())
        add_for(s.name, {&*it});
      else
        open.push_back(&s);
    }
    if (open.size() == 1 && open[0]->dims.size() == 2) {
      std::vector<Column*> from;
      const int64_t wanted = open[0]->dims[1];
      for (Column& c : columns_)
        if (!is_label(c.name) && !is_text(c) && !used_.contains(c.name)) from.push_back(&c);
      const bool last_is_label = static_cast<int64_t>(from.size()) == wanted + 1 &&
                                 std::none_of(columns_.begin(), columns_.end(),
                                              [&](const Column& c) { return is_label(c.name); });
      if (last_is_label) from.pop_back();
      if (!from.empty() && (wanted == -1 || static_cast<int64_t>(from.size()) == wanted)) {
        out.notes.push_back(cat("columns '", from.front()->name, "' to '", from.back()->name,
                                "' together are the input '", open[0]->name, "' (", from.size(),
                                ")"));
        add_for(open[0]->name, from);
      }
    }
    for (Column& c : columns_) {
      if (is_text(c)) {
        add_text(out, c);
      } else if (!used_.contains(c.name) && !out.has(c.name)) {
        add_for(c.name, {&c});
      }
    }
    for (const Column& c : columns_)
      if (c.prepare && !c.prepare->of_numbers() && (!c.fill.empty() || is_text(c)))
        out.prepared.push_back(*find_prepare(options_.prepare, c.name));
  }

  bool is_label(const std::string& name) const {
    if (!options_.label.empty()) return name == options_.label;
    for (const char* word : {"labels", "label", "targets", "target", "y"})
      if (name == word) return true;
    return false;
  }

  OpenOptions& options_;
  std::vector<Column> columns_;
  std::vector<std::string> where_;  // per row
  std::vector<std::string> problems_, notes_;
  std::set<std::string> used_;
  int64_t seen_ = 0, rows_ = 0;
};

class TextRows : public RowSource {
 public:
  explicit TextRows(std::vector<std::vector<int32_t>> rows) : rows_(std::move(rows)) {
    for (const auto& r : rows_) longest_ = std::max(longest_, r.size());
  }
  int64_t longest() const { return static_cast<int64_t>(std::max<size_t>(1, longest_)); }
  void read(const RowRequest& row, std::byte* out) const override {
    const auto& symbols = rows_[static_cast<size_t>(row.sample)];
    std::memset(out, 0, 4 * static_cast<size_t>(longest()));
    if (!symbols.empty()) std::memcpy(out, symbols.data(), 4 * symbols.size());
  }
  int64_t length(int64_t sample) const override {
    return static_cast<int64_t>(rows_[static_cast<size_t>(sample)].size());
  }

 private:
  const std::vector<std::vector<int32_t>> rows_;
  size_t longest_ = 0;
};

void Table::add_text(Dataset& out, const Column& c) {
  const bool chars = c.prepare->text == "chars";
  std::vector<std::string> words;
  std::map<std::string, int32_t> number;
  const auto known = options_.vocabularies.find(c.name);
  const auto each = [&](const std::string& s, const auto& f) {
    for (size_t at = 0; at < s.size();) {
      const size_t start = at;
      uint32_t code = 0;
      if (!chars || !next_character(s, at, code)) at = start + 1;
      f(s.substr(start, at - start));
    }
  };
  if (chars) {
    if (known != options_.vocabularies.end()) {
      words = known->second;
    } else {
      std::set<std::string> all;
      for (const std::string& s : c.text) each(s, [&](const std::string& w) { all.insert(w); });
      words.assign(all.begin(), all.end());
    }
    for (size_t i = 0; i < words.size(); ++i) number[words[i]] = static_cast<int32_t>(i);
    out.vocabularies[c.name] = words;
  }
  std::vector<std::vector<int32_t>> rows;
  for (const std::string& s : c.text) {
    std::vector<int32_t>& row = rows.emplace_back();
    each(s, [&](const std::string& w) {
      if (!chars) return row.push_back(static_cast<uint8_t>(w[0]));
      const auto it = number.find(w);
      if (it == number.end())
        fail(ErrorCode::kData, out.where(), ", column '", c.name, "', row ", rows.size(), ": '", w,
             "' is not among the ", words.size(), " characters of this model");
      row.push_back(it->second);
    });
  }
  auto made = std::make_unique<TextRows>(std::move(rows));
  const int64_t longest = made->longest();
  out.add_rows(c.name, DType::kI32, {rows_, longest}, std::move(made));
}

}  // namespace

std::vector<ColumnLook> look_at_columns(const std::vector<std::string>& paths, OpenOptions& options,
                                        int64_t& rows) {
  Table table(options);
  for (const std::string& path : paths) table.read(path);
  return table.look(rows);
}

Dataset open_table(const std::vector<std::string>& paths, OpenOptions& options) {
  Table table(options);
  std::string where;
  for (const std::string& path : paths) {
    table.read(path);
    where += (where.empty() ? "" : ",") + path;
  }
  return table.arrays(where);
}

}  // namespace ortrain::data
