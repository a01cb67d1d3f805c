// What is done to pixels: resize, crop, flip, colour; see picture.h.
#include "runtime/data/picture.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ortrain::data {
namespace {

// Pillow's resampling of 8-bit channels (src/libImaging/Resample.c): a triangle filter stretched by
// the scale where the picture shrinks, weights as 22-bit fixed point, one pass per axis.
constexpr int kBits = 32 - 8 - 2;

struct Weights {
  std::vector<int> first, count;  // per output position
  std::vector<int> weight;        // [output, most]
  int most = 0;
};

Weights bilinear(int in, int out) {
  const double scale = static_cast<double>(in) / out, stretch = std::max(scale, 1.0);
  Weights w;
  w.most = static_cast<int>(std::ceil(stretch)) * 2 + 1;
  w.weight.assign(static_cast<size_t>(w.most) * static_cast<size_t>(out), 0);
  std::vector<double> k(static_cast<size_t>(w.most));
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - stretch + 0.5));
    const int count = std::min(in, static_cast<int>(center + stretch + 0.5)) - first;
    double sum = 0;
    for (int x = 0; x < count; ++x) {
      const double distance = std::fabs((x + first - center + 0.5) * (1 / stretch));
      sum += k[static_cast<size_t>(x)] = distance < 1 ? 1 - distance : 0;
    }
    for (int x = 0; x < count; ++x)
      w.weight[static_cast<size_t>(i) * static_cast<size_t>(w.most) + static_cast<size_t>(x)] =
          static_cast<int>(0.5 + (sum != 0 ? k[static_cast<size_t>(x)] / sum : 0) * (1 << kBits));
    w.first.push_back(first);
    w.count.push_back(count);
  }
  return w;
}

// The loops below are integer sums in any order: the same bits with every instruction set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORTRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ORTRAIN_CLONES
#endif

using Four = int __attribute__((vector_size(16)));
using FourBytes = uint8_t __attribute__((vector_size(4)));

// One row of `width` outputs of C channels. Four channels are summed at a time, so up to three
// bytes behind the row of `in` and of `out` are read and written.
template <int C>
[[gnu::always_inline]] inline void resize_row(const uint8_t* in, uint8_t* out, int width,
                                              const int* first, const int* count, const int* weight,
                                              int most) {
  for (int x = 0; x < width; ++x, out += C, weight += most) {
    const uint8_t* from = in + static_cast<ptrdiff_t>(first[x]) * C;
    Four sum = Four{} + (1 << (kBits - 1));
    for (int i = 0; i < count[x]; ++i, from += C) {
      FourBytes bytes;
      std::memcpy(&bytes, from, 4);
      sum += __builtin_convertvector(bytes, Four) * weight[i];
    }
    sum >>= kBits;
    sum = sum < 0 ? Four{} : sum;
    sum = sum > 255 ? Four{} + 255 : sum;
    const FourBytes bytes = __builtin_convertvector(sum, FourBytes);
    std::memcpy(out, &bytes, 4);
  }
}

ORTRAIN_CLONES void resize_row_any(int channels, const uint8_t* in, uint8_t* out, int width,
                                   const int* first, const int* count, const int* weight,
                                   int most) {
  switch (channels) {
    case 1: return resize_row<1>(in, out, width, first, count, weight, most);
    case 2: return resize_row<2>(in, out, width, first, count, weight, most);
    case 3: return resize_row<3>(in, out, width, first, count, weight, most);
    default: return resize_row<4>(in, out, width, first, count, weight, most);
  }
}

void resize_rows(const Picture& in, Picture& out, const Weights& w) {
  const size_t from = static_cast<size_t>(in.width) * static_cast<size_t>(in.channels),
               to = static_cast<size_t>(out.width) * static_cast<size_t>(in.channels);
  std::vector<uint8_t> rows(from + to + 8);  // with room for what is touched behind a row
  uint8_t* made = rows.data() + from + 4;
  for (int y = 0; y < in.height; ++y) {
    std::memcpy(rows.data(), in.at(y, 0), from);
    resize_row_any(in.channels, rows.data(), made, out.width, w.first.data(), w.count.data(),
                   w.weight.data(), w.most);
    std::memcpy(out.at(y, 0), made, to);
  }
}

ORTRAIN_CLONES void add_scaled(int* sum, const uint8_t* from, int k, size_t n) {
#pragma omp simd
  for (size_t x = 0; x < n; ++x) sum[x] += from[x] * k;
}

ORTRAIN_CLONES void clip_row(uint8_t* to, const int* sum, size_t n) {
#pragma omp simd
  for (size_t x = 0; x < n; ++x) {
    const int v = sum[x] >> kBits, low = v < 0 ? 0 : v;
    to[x] = static_cast<uint8_t>(low > 255 ? 255 : low);
  }
}

void resize_columns(const Picture& in, Picture& out, const Weights& w) {
  const size_t row = static_cast<size_t>(in.width) * static_cast<size_t>(in.channels);
  std::vector<int> sum(row);
  for (int y = 0; y < out.height; ++y) {
    std::fill(sum.begin(), sum.end(), 1 << (kBits - 1));
    for (int i = 0; i < w.count[static_cast<size_t>(y)]; ++i) {
      const int k =
          w.weight[static_cast<size_t>(y) * static_cast<size_t>(w.most) + static_cast<size_t>(i)];
      add_scaled(sum.data(), in.at(w.first[static_cast<size_t>(y)] + i, 0), k, row);
    }
    clip_row(out.at(y, 0), sum.data(), row);
  }
}

// 16-bit ITU-R 601 grey, as Pillow's convert("L").
int grey_of(const uint8_t* p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

uint8_t blend(float base, uint8_t value, float factor) {  // Pillow's Blend.c: clamps, truncates
  return static_cast<uint8_t>(
      std::clamp(base + factor * (static_cast<float>(value) - base), 0.0f, 255.0f));
}

void turn_hue(uint8_t* p, float turn) {
  const float r = p[0], g = p[1], b = p[2];
  const float high = std::max({r, g, b}), low = std::min({r, g, b}), range = high - low;
  if (range == 0) return;
  float h = high == r ? (g - b) / range : high == g ? 2 + (b - r) / range : 4 + (r - g) / range;
  h = h / 6 + turn;
  h = (h - std::floor(h)) * 6;
  const float s = range / high, f = h - std::floor(h);
  const float x = high * (1 - s), y = high * (1 - s * f), z = high * (1 - s * (1 - f));
  const float out[6][3] = {{high, z, x}, {y, high, x}, {x, high, z},
                           {x, y, high}, {z, x, high}, {high, x, y}};
  const int sector = std::min(static_cast<int>(h), 5);
  for (int k = 0; k < 3; ++k) p[k] = static_cast<uint8_t>(out[sector][k] + 0.5f);
}

}  // namespace

namespace {
Picture resized_width(const Picture& in, int width) {
  if (width == in.width) return in;
  Picture out(in.height, width, in.channels);
  resize_rows(in, out, bilinear(in.width, width));
  return out;
}
Picture resized_height(const Picture& in, int height) {
  if (height == in.height) return in;
  Picture out(height, in.width, in.channels);
  resize_columns(in, out, bilinear(in.height, height));
  return out;
}
}  // namespace

Picture resized(const Picture& in, int height, int width) {
  // As Pillow 13: rows first, unless the height shrinks more than the width does.
  const bool columns_first = height < in.height && static_cast<int64_t>(height) * in.width <
                                                       static_cast<int64_t>(width) * in.height;
  return columns_first ? resized_width(resized_height(in, height), width)
                       : resized_height(resized_width(in, width), height);
}

Picture cropped(const Picture& in, int y, int x, int height, int width) {
  Picture out(height, width, in.channels);
  const int from = std::max(0, -x), to = std::min(width, in.width - x);
  for (int i = 0; i < height; ++i)
    if (i + y >= 0 && i + y < in.height && from < to)
      std::memcpy(out.at(i, from), in.at(i + y, from + x),
                  static_cast<size_t>(to - from) * static_cast<size_t>(in.channels));
  return out;
}

void flip_horizontally(Picture& p) {
  for (int y = 0; y < p.height; ++y)
    for (int x = 0, z = p.width - 1; x < z; ++x, --z)
      std::swap_ranges(p.at(y, x), p.at(y, x) + p.channels, p.at(y, z));
}

void flip_vertically(Picture& p) {
  const size_t row = static_cast<size_t>(p.width) * static_cast<size_t>(p.channels);
  for (int y = 0, z = p.height - 1; y < z; ++y, --z)
    std::swap_ranges(p.at(y, 0), p.at(y, 0) + row, p.at(z, 0));
}

void adjust_colour(Picture& p, const Colour& c) {
  const bool rgb = p.channels >= 3;
  const int colours = rgb ? 3 : 1;
  const size_t step = static_cast<size_t>(p.channels);
  const auto each = [&](auto&& change) {
    for (size_t i = 0; i < p.pixels.size(); i += step) change(p.pixels.data() + i);
  };
  const auto towards = [&](auto&& base, float factor) {
    each([&](uint8_t* pixel) {
      const float b = base(pixel);
      for (int k = 0; k < colours; ++k) pixel[k] = blend(b, pixel[k], factor);
    });
  };
  const auto grey = [&](const uint8_t* pixel) {
    return static_cast<float>(rgb ? grey_of(pixel) : pixel[0]);
  };
  if (c.brightness != 1) towards([](const uint8_t*) { return 0.0f; }, c.brightness);
  if (c.contrast != 1) {
    double sum = 0;
    each([&](const uint8_t* pixel) { sum += grey(pixel); });
    const float mean =
        std::floor(static_cast<float>(sum / static_cast<double>(p.pixels.size() / step)) + 0.5f);
    towards([&](const uint8_t*) { return mean; }, c.contrast);
  }
  if (c.saturation != 1 && rgb) towards(grey, c.saturation);
  if (c.hue != 0 && rgb) each([&](uint8_t* pixel) { turn_hue(pixel, c.hue); });
}

}  // namespace ortrain::data
