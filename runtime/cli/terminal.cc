// See terminal.h.
#include "runtime/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "graph/error.h"

namespace ortrain::cli {
namespace {
constexpr const char* kColours[] = {"36", "33", "35", "32", "34", "31"};

std::string utf8(unsigned c) {  // of three bytes
  return {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
          static_cast<char>(0x80 | (c & 63))};
}
std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", v);
  return text;
}
}  // namespace

Terminal Terminal::of_stdout() {
  Terminal t;
  t.live = isatty(STDOUT_FILENO) != 0;
  const char* none = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  t.colour = t.live && !(none && *none) && !(kind && !std::strcmp(kind, "dumb"));
  for (const char* key : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(key);
    if (!value || !*value) continue;
    t.unicode =
        std::strstr(value, "UTF-8") || std::strstr(value, "utf8") || std::strstr(value, "utf-8");
    break;
  }
  winsize size{};
  if (t.live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    t.columns = size.ws_col;
  return t;
}

std::string sparkline(const std::vector<double>& values, int width, const Terminal& t) {
  if (!t.unicode || width <= 0) return {};
  const size_t n = values.size(), wide = std::min(n, static_cast<size_t>(width));
  std::vector<double> bars;
  for (size_t b = 0; b < wide; ++b) {
    double sum = 0, count = 0;
    for (size_t i = b * n / wide; i < (b + 1) * n / wide; ++i)
      if (std::isfinite(values[i])) sum += values[i], count += 1;
    bars.push_back(count > 0 ? sum / count : NAN);
  }
  double low = INFINITY, high = -INFINITY;
  int finite = 0;
  for (const double v : bars)
    if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v), ++finite;
  if (finite < 2) return {};
  std::string out;
  for (const double v : bars) {
    const double share = high > low ? (v - low) / (high - low) : 0;
    out += std::isfinite(v) ? utf8(0x2581 + static_cast<unsigned>(share * 7 + 0.5)) : " ";
  }
  return out;
}

std::string paint(const std::string& text, size_t index, const Terminal& t) {
  return t.colour ? cat("\033[", kColours[index % std::size(kColours)], "m", text, "\033[0m")
                  : text;
}
std::string faint(const std::string& text, const Terminal& t) {
  return t.colour ? "\033[2m" + text + "\033[0m" : text;
}

std::string plot(const std::vector<Curve>& curves, int rows, const Terminal& t) {
  double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
  for (const Curve& c : curves)
    for (const auto& [x, y] : c.points) {
      if (!std::isfinite(y)) continue;
      left = std::min(left, x), right = std::max(right, x);
      low = std::min(low, y), high = std::max(high, y);
    }
  if (!(left <= right)) return "nothing to plot\n";
  if (high == low) high = low + (low == 0 ? 1 : std::abs(low));
  if (right == left) right = left + 1;
  const int columns = std::clamp(t.columns - 12, 20, 100);
  const int dx = t.unicode ? 2 : 1, dy = t.unicode ? 4 : 1;
  const int width = columns * dx, height = rows * dy;
  struct Cell {
    unsigned dots = 0;
    size_t curve = 0;
  };
  std::vector<Cell> cells(static_cast<size_t>(columns * rows));
  constexpr unsigned kDots[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};  // Unicode 15, Braille
  for (size_t c = 0; c < curves.size(); ++c) {
    std::vector<double> sum(static_cast<size_t>(width), 0), count(static_cast<size_t>(width), 0);
    for (const auto& [x, y] : curves[c].points) {
      if (!std::isfinite(y)) continue;
      const auto at = static_cast<size_t>((x - left) / (right - left) * (width - 1) + 0.5);
      sum[at] += y, count[at] += 1;
    }
    int before = -1;  // the dot of the last column that had a point
    int column = 0;
    for (int i = 0; i < width; ++i) {
      if (count[static_cast<size_t>(i)] == 0) continue;
      const double y = sum[static_cast<size_t>(i)] / count[static_cast<size_t>(i)];
      const int row = static_cast<int>((high - y) / (high - low) * (height - 1) + 0.5);
      for (int k = before < 0 ? i : column + 1; k <= i; ++k) {  // a line from the point before
        const double share =
            before < 0 || i == column ? 1 : static_cast<double>(k - column) / (i - column);
        const int at =
            before < 0 ? row : static_cast<int>(std::lround(before + (row - before) * share));
        Cell& cell = cells[static_cast<size_t>(at / dy * columns + k / dx)];
        cell.dots |= kDots[at % dy][k % dx];
        cell.curve = c;
      }
      before = row;
      column = i;
    }
  }
  std::string out;
  for (int r = 0; r < rows; ++r) {
    const double y = high - (high - low) * r / std::max(1, rows - 1);
    const std::string label = r % 4 == 0 || r + 1 == rows ? number(y) : "";
    out +=
        std::string(9 - std::min<size_t>(9, label.size()), ' ') + label + (t.unicode ? " │" : " |");
    for (int k = 0; k < columns; ++k) {
      const Cell& cell = cells[static_cast<size_t>(r * columns + k)];
      if (cell.dots == 0)
        out += ' ';
      else
        out += paint(t.unicode ? utf8(0x2800 + cell.dots)
                               : std::string(1, static_cast<char>('a' + cell.curve % 26)),
                     cell.curve, t);
    }
    while (out.ends_with(' ')) out.pop_back();
    out += '\n';
  }
  const std::string from = number(left), to = number(right);
  out += std::string(10, ' ') + (t.unicode ? "└" : "+") + from +
         std::string(static_cast<size_t>(
                         std::max<int>(1, columns - static_cast<int>(from.size() + to.size()))),
                     ' ') +
         to + "\n";
  return out;
}

}  // namespace ortrain::cli
