// `ortrain runs [DIR]` lists the runs of a folder (runs/); `ortrain compare RUN RUN...` puts some
// side by side: a table and the loss curves; --out FILE.html writes both as a page.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "graph/error.h"
#include "ortrain_config.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/report.h"
#include "runtime/cli/run_file.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/terminal.h"
#include "runtime/data/atomic_file.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

std::string short_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return std::isfinite(v) ? text : "-";
}

// Characters of a UTF-8 text.
size_t length(const std::string& s) {
  return static_cast<size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Columns as wide as their widest cell, two blanks between; `painted` may colour a padded cell.
template <class Painted>
void print_table(const std::vector<std::vector<std::string>>& rows, const Painted& painted) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t k = 0; k < row.size(); ++k) {
      if (k == widths.size()) widths.push_back(0);
      widths[k] = std::max(widths[k], length(row[k]));
    }
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t k = 0; k < rows[r].size(); ++k) {
      std::string cell = rows[r][k];
      if (k + 1 < rows[r].size()) cell += std::string(widths[k] - length(cell) + 2, ' ');
      line += painted(cell, r, k);
    }
    std::printf("%s\n", line.c_str());
  }
}

std::string steps_text(const RunSummary& r) {
  return r.steps > 0 ? cat(r.step, "/", r.steps) : std::to_string(r.step);
}

// What a recipe of a run says, by key; "" where it says nothing.
std::string setting(const RunSummary& r, const char* key) {
  if (!r.json.is_object() || !r.json.contains(key)) return {};
  const ordered_json& v = r.json[key];
  return v.is_string() ? v.get<std::string>() : v.is_number() ? v.dump() : "";
}

struct Row {
  std::string name;
  std::vector<std::string> values;
  int best = -1;
};

std::vector<Row> table_of(const std::vector<RunSummary>& runs,
                          const std::vector<History>& histories) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const auto& text) {
    Row row{name, {}, -1};
    for (size_t i = 0; i < runs.size(); ++i) row.values.push_back(text(i));
    if (std::any_of(row.values.begin(), row.values.end(),
                    [](const std::string& v) { return !v.empty() && v != "-"; }))
      rows.push_back(std::move(row));
  };
  add("state", [&](size_t i) { return runs[i].state; });
  add("steps", [&](size_t i) { return steps_text(runs[i]); });
  add("time", [&](size_t i) { return duration_text(runs[i].seconds); });
  add("samples/s", [&](size_t i) { return short_number(histories[i].last("samples_per_s")); });
  add("last loss", [&](size_t i) { return short_number(runs[i].last_loss); });
  std::set<std::string> metrics;
  for (const RunSummary& r : runs)
    for (const auto& [name, at] : r.best) metrics.insert(name);
  for (const std::string& m : metrics) {
    add("best " + m, [&](size_t i) {
      const auto it = runs[i].best.find(m);
      return it == runs[i].best.end()
                 ? "-"
                 : cat(short_number(it->second.first), " (step ", it->second.second, ")");
    });
    int best = -1;
    bool tie = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto it = runs[i].best.find(m);
      if (it == runs[i].best.end()) continue;
      const double v = it->second.first,
                   w = best < 0 ? v : runs[static_cast<size_t>(best)].best.at(m).first;
      if (best < 0 || (higher_is_better(m) ? v > w : v < w))
        best = static_cast<int>(i), tie = false;
      else if (v == w)
        tie = true;
    }
    rows.back().best = tie ? -1 : best;
  }
  for (const char* key :
       {"model", "optimizer", "lr", "batch_size", "accumulate", "precision", "parameters"}) {
    std::set<std::string> values;
    for (const RunSummary& r : runs) values.insert(setting(r, key));
    if (values.size() > 1) add(key, [&](size_t i) { return setting(runs[i], key); });
  }
  return rows;
}

ordered_json page_data(const std::vector<RunSummary>& runs, const std::vector<History>& histories,
                       const std::vector<Row>& rows) {
  ordered_json j{{"version", kVersion},
                 {"runs", ordered_json::array()},
                 {"rows", ordered_json::array()},
                 {"plots", ordered_json::array()}};
  for (const RunSummary& r : runs)
    j["runs"].push_back({{"name", r.name}, {"folder", r.folder}, {"state", r.state}});
  for (const Row& r : rows)
    j["rows"].push_back({{"name", r.name}, {"values", r.values}, {"best", r.best}});
  const auto plot = [&](const std::string& title, bool dots, bool smooth, const auto& points_of) {
    ordered_json curves = ordered_json::array();
    for (size_t i = 0; i < runs.size(); ++i) {
      ordered_json points = ordered_json::array();
      for (const auto& [x, y] : points_of(histories[i])) points.push_back({x, rounded(y)});
      if (!points.empty()) curves.push_back({{"run", i}, {"points", std::move(points)}});
    }
    if (!curves.empty())
      j["plots"].push_back(
          {{"title", title}, {"dots", dots}, {"smooth", smooth}, {"curves", std::move(curves)}});
  };
  plot("Training loss", false, true, [](const History& h) { return h.curve("loss"); });
  std::set<std::string> metrics;
  for (const RunSummary& r : runs)
    for (const auto& [name, at] : r.best) metrics.insert(name);
  for (const std::string& m : metrics)
    plot("Evaluation " + m, true, false, [&](const History& h) { return h.evaluations(m); });
  plot("Learning rate", false, false, [](const History& h) { return h.curve("lr"); });
  plot("Samples per second", false, true,
       [](const History& h) { return h.curve("samples_per_s"); });
  return j;
}

}  // namespace

void write_json(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::printf("%s\n", text.c_str());
    return;
  }
  data::AtomicFile file(path);
  file.write(text + "\n");
  file.commit();
}

int run_runs(Context& c) {
  const std::string folder = c.line.positional.empty() ? "runs" : c.line.positional[0];
  std::error_code error;
  std::vector<RunSummary> runs;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory() && is_run(entry.path().string()))
      runs.push_back(read_run(entry.path().string()));
  if (error) fail(ErrorCode::kIo, "cannot list ", folder, ": ", error.message());
  std::sort(runs.begin(), runs.end(), [](const RunSummary& a, const RunSummary& b) {
    return std::pair(a.started, a.name) < std::pair(b.started, b.name);
  });
  if (c.config.has("json")) {
    ordered_json list = ordered_json::array();
    for (const RunSummary& r : runs) {
      ordered_json e{{"folder", r.folder},
                     {"state", r.state},
                     {"step", r.step},
                     {"steps", r.steps},
                     {"seconds", rounded(r.seconds)},
                     {"last_loss", rounded(r.last_loss)},
                     {"started", r.started},
                     {"best", ordered_json::object()}};
      for (const auto& [name, at] : r.best)
        e["best"][name] = {{"value", rounded(at.first)}, {"step", at.second}};
      list.push_back(std::move(e));
    }
    write_json(c.config.text("json"), list.dump());
    if (c.config.text("json") == "-") return 0;
  }
  if (runs.empty()) return std::printf("no runs in %s\n", folder.c_str()), 0;
  const Terminal t = Terminal::of_stdout();
  std::vector<std::vector<std::string>> rows{
      {"run", "state", "steps", "time", "last loss", "best evaluation", "started"}};
  for (const RunSummary& r : runs) {
    std::string started = r.started.substr(0, 16);
    if (started.size() == 16) started[10] = ' ';
    rows.push_back({r.name, r.state, steps_text(r), duration_text(r.seconds),
                    short_number(r.last_loss), headline(r), started});
  }
  print_table(rows, [&](const std::string& cell, size_t row, size_t) {
    return row == 0 ? faint(cell, t) : cell;
  });
  return 0;
}

int run_compare(Context& c) {
  if (c.line.positional.empty())
    fail(ErrorCode::kUsage, "which runs? usage: ortrain compare RUN RUN... [--out FILE.html]");
  std::vector<RunSummary> runs;
  std::vector<History> histories;
  for (const std::string& folder : c.line.positional) {
    runs.push_back(read_run(folder));
    histories.push_back(read_history(runs.back()));
  }
  for (RunSummary& r : runs)  // two folders of one name: the whole path tells them apart
    if (std::count_if(runs.begin(), runs.end(), [&](const RunSummary& o) {
          return fs::path(o.folder).lexically_normal().filename() ==
                 fs::path(r.folder).lexically_normal().filename();
        }) > 1)
      r.name = r.folder;
  const std::vector<Row> rows = table_of(runs, histories);
  const ordered_json data = page_data(runs, histories, rows);
  if (c.config.has("json")) {
    write_json(c.config.text("json"), data.dump());
    if (c.config.text("json") == "-") return 0;
  }
  const Terminal t = Terminal::of_stdout();
  std::vector<std::vector<std::string>> cells{{""}};
  for (size_t i = 0; i < runs.size(); ++i)
    cells[0].push_back(
        t.unicode ? runs[i].name
                  : cat(std::string(1, static_cast<char>('a' + i % 26)), " ", runs[i].name));
  for (const Row& r : rows) {
    cells.push_back({r.name});
    for (size_t i = 0; i < r.values.size(); ++i)
      cells.back().push_back(r.values[i] + (r.best == static_cast<int>(i) ? " *" : ""));
  }
  print_table(cells, [&](const std::string& cell, size_t row, size_t k) {
    return k == 0 ? faint(cell, t) : row == 0 ? paint(cell, k - 1, t) : cell;
  });
  std::vector<Curve> curves;
  for (size_t i = 0; i < runs.size(); ++i) {
    curves.push_back({runs[i].name, histories[i].curve("loss")});
    double mean = 0, mass = 0;  // as the page does: noise hides the way
    for (auto& [x, y] : curves.back().points) {
      mean = mean * 0.9 + y * 0.1;
      mass = mass * 0.9 + 0.1;
      y = mean / mass;
    }
  }
  std::printf("\ntraining loss (smoothed) by step\n%s", plot(curves, 14, t).c_str());
  if (c.config.has("out")) {
    write_page(c.config.text("out"), "compare", "ortrain compare", data);
    std::printf("page: %s\n", c.config.text("out").c_str());
  }
  return 0;
}

}  // namespace ortrain::cli
