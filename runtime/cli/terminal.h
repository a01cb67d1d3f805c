// Drawing on a terminal: sparklines, a plot of several curves, colours.
//
// Colours only on a terminal and without NO_COLOR (no-color.org); characters beyond ASCII only
// where the locale says UTF-8.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ortrain::cli {

struct Terminal {
  bool live = false;  // standard output is one
  bool colour = false, unicode = false;
  int columns = 80;
  static Terminal of_stdout();
};

// The newest `width` buckets of the values as bars of eight heights; "" where Unicode cannot be had
// or there are fewer than two finite values.
std::string sparkline(const std::vector<double>& values, int width, const Terminal& t);

// Wraps text into the colour of curve `index`, or returns it as it is.
std::string paint(const std::string& text, size_t index, const Terminal& t);
std::string faint(const std::string& text, const Terminal& t);

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x
};
// `rows` lines of curves with axes. Dots of 2 x 4 per character (Braille), or a letter per curve.
std::string plot(const std::vector<Curve>& curves, int rows, const Terminal& t);

}  // namespace ortrain::cli
