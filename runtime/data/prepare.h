// What happens to a sample between its file and the graph input, as the recipe says it.
//
//   "pixels:resize=256,crop=224,flip,mean=0.485/0.456/0.406,std=0.229/0.224/0.225;
//   labels:one-hot=10"
//
// One entry per array (of the name it has in the graph; * = every picture), parts in any order, the
// order of work is fixed:
//   pictures  decode, channels, resize, crop, flips, jitter, scale, mean/std
//   numbers   fill, map, length, scale, mean/std, one-hot
// Random parts are drawn only while training; evaluation crops the centre. Errors: kUsage with the
// entry and what is allowed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ortrain::data {

struct Prepare {
  std::string name;
  // Pictures. resize=S: the shorter side, resize=HxW: both.
  int resize_short = 0, resize_height = 0, resize_width = 0;
  int crop_height = 0, crop_width = 0;
  enum class Crop : uint8_t { kCentre, kRandom, kResized } crop = Crop::kCentre;
  int border = 0;  // black around the picture before a random crop, training only
  bool flip = false, flip_vertical = false;
  std::array<double, 4> jitter = {0, 0, 0, 0};  // brightness, contrast, saturation, hue
  int channels = 0;                             // 0: what the input has
  std::string layout;                           // "chw", "hwc"; "": what the input has
  std::array<uint8_t, 3> background = {255, 255, 255};
  // Numbers: x / scale, then (x - mean) / std, in float32.
  std::optional<double> scale;
  std::vector<double> mean, std;
  // Labels.
  int64_t one_hot = 0;
  std::vector<std::pair<std::string, std::string>> map;  // map=cat>0/dog>1
  // Sequences: cut or padded to `length`; an array `mask` tells what is real.
  int64_t length = 0;
  double pad = 0;
  bool keep_end = false;  // truncate=left
  std::string mask;
  // Tables: text as symbols, and what stands for a missing value (a number, or "mean").
  std::string text;  // "bytes" or "chars"
  std::string fill;

  bool augments() const {
    return crop != Crop::kCentre || flip || flip_vertical || jitter != std::array<double, 4>{};
  }
  bool of_pictures() const {
    return resize_short || resize_height || crop_height || augments() || channels ||
           !layout.empty();
  }
  bool of_numbers() const {
    return scale || !mean.empty() || !std.empty() || one_hot || length || !map.empty();
  }
};

std::vector<Prepare> parse_prepare(const std::string& text);
std::string print_prepare(const std::vector<Prepare>& list);
// The entry of that name, else nullptr.
const Prepare* find_prepare(const std::vector<Prepare>& list, const std::string& name);

}  // namespace ortrain::data
