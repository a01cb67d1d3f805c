// Reading and printing the text form of preparations; see prepare.h.
#include "runtime/data/prepare.h"

#include <charconv>
#include <cmath>

#include "graph/error.h"

namespace ortrain::data {
namespace {

constexpr const char* kParts =
    "resize=S or HxW, crop=S or HxW, random-crop=S, border=P, random-resized-crop=S, flip, vflip, "
    "jitter=B/C/S/H, channels=1|3|4, layout=chw|hwc, background=R/G/B, scale=X, mean=X/X/.., "
    "std=X/X/.., one-hot=N, map=A>B/C>D, length=N, pad=X, truncate=left|right, mask=NAME, "
    "text=bytes|chars, fill=X|mean";

std::string trimmed(const std::string& s) {
  const size_t begin = s.find_first_not_of(" \t\n"), end = s.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : s.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    out.push_back(trimmed(text.substr(begin, end - begin)));
  out.push_back(trimmed(text.substr(begin)));
  return out;
}

struct Part {
  std::string entry, key, value;
  [[noreturn]] void refuse(const std::string& expected) const {
    fail(ErrorCode::kUsage, "--prepare ", entry, ": ", key, value.empty() ? "" : "=", value,
         ": expected ", expected);
  }
  double number(const std::string& text, double low, double high) const {
    double v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc() || end != text.data() + text.size() || !(v >= low && v <= high))
      refuse(cat("a number from ", low, " to ", high));
    return v;
  }
  int64_t whole(double low, double high) const {
    const double v = number(value, low, high);
    if (v != std::floor(v)) refuse("a whole number");
    return static_cast<int64_t>(v);
  }
  std::vector<double> numbers(double low, double high) const {
    std::vector<double> out;
    for (const std::string& s : split(value, '/')) out.push_back(number(s, low, high));
    return out;
  }
  // "S" gives {S, 0}, "HxW" {H, W}.
  std::pair<int, int> size() const {
    const size_t x = value.find('x');
    const int h = static_cast<int>(number(value.substr(0, x), 1, 32768));
    return {h,
            x == std::string::npos ? 0 : static_cast<int>(number(value.substr(x + 1), 1, 32768))};
  }
  std::string choice(const char* a, const char* b) const {
    if (value != a && value != b) refuse(cat(a, " or ", b));
    return value;
  }
};

void read_crop(const Part& part, Prepare& p, Prepare::Crop kind) {
  const auto [h, w] = part.size();
  p.crop = kind;
  p.crop_height = h;
  p.crop_width = w ? w : h;
}

void read_part(const Part& part, Prepare& p) {
  const std::string& k = part.key;
  if (k == "resize") {
    const auto [h, w] = part.size();
    (w ? p.resize_height : p.resize_short) = h;
    p.resize_width = w;
  } else if (k == "crop") {
    read_crop(part, p, Prepare::Crop::kCentre);
  } else if (k == "random-crop") {
    read_crop(part, p, Prepare::Crop::kRandom);
  } else if (k == "random-resized-crop") {
    read_crop(part, p, Prepare::Crop::kResized);
  } else if (k == "border") {
    p.border = static_cast<int>(part.whole(0, 4096));
  } else if (k == "flip" || k == "vflip") {
    if (!part.value.empty() && part.value != "true") part.refuse("no value");
    (k == "flip" ? p.flip : p.flip_vertical) = true;
  } else if (k == "jitter") {
    const std::vector<double> v = part.numbers(0, 1);
    if (v.size() > 4) part.refuse("brightness/contrast/saturation/hue");
    for (size_t i = 0; i < v.size(); ++i) p.jitter[i] = v[i];
    if (p.jitter[3] > 0.5) part.refuse("a hue of at most 0.5");
  } else if (k == "channels") {
    p.channels = static_cast<int>(part.whole(1, 4));
    if (p.channels == 2) part.refuse("1, 3 or 4");
  } else if (k == "layout") {
    p.layout = part.choice("chw", "hwc");
  } else if (k == "background") {
    const std::vector<double> v = part.numbers(0, 255);
    if (v.size() != 3) part.refuse("red/green/blue");
    for (size_t i = 0; i < 3; ++i) p.background[i] = static_cast<uint8_t>(v[i]);
  } else if (k == "scale") {
    p.scale = part.number(part.value, 1e-30, 1e30);
  } else if (k == "mean") {
    p.mean = part.numbers(-1e30, 1e30);
  } else if (k == "std") {
    p.std = part.numbers(1e-30, 1e30);
  } else if (k == "one-hot") {
    p.one_hot = part.whole(1, 1e7);
  } else if (k == "map") {
    for (const std::string& pair : split(part.value, '/')) {
      const size_t arrow = pair.find('>');
      if (arrow == std::string::npos) part.refuse("VALUE>NUMBER/VALUE>NUMBER/...");
      p.map.emplace_back(pair.substr(0, arrow), pair.substr(arrow + 1));
    }
  } else if (k == "length") {
    p.length = part.whole(1, 1e8);
  } else if (k == "pad") {
    p.pad = part.number(part.value, -1e30, 1e30);
  } else if (k == "truncate") {
    p.keep_end = part.choice("left", "right") == "left";
  } else if (k == "mask") {
    p.mask = part.value;
  } else if (k == "text") {
    p.text = part.choice("bytes", "chars");
  } else if (k == "fill") {
    if (part.value != "mean") part.number(part.value, -1e30, 1e30);
    p.fill = part.value;
  } else {
    part.refuse(cat("one of: ", kParts));
  }
}

std::string text_of(double v) {
  char buffer[40];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr);
}
template <class List>
std::string joined(const List& list) {
  std::string out;
  for (const auto v : list) out += (out.empty() ? "" : "/") + text_of(static_cast<double>(v));
  return out;
}

}  // namespace

std::vector<Prepare> parse_prepare(const std::string& text) {
  std::vector<Prepare> out;
  for (const std::string& entry : split(text, ';')) {
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (colon == std::string::npos || colon == 0)
      fail(ErrorCode::kUsage, "--prepare ", entry,
           ": expected NAME:PART,PART,...; a PART is one of ", kParts);
    Prepare p;
    p.name = trimmed(entry.substr(0, colon));
    if (find_prepare(out, p.name)) fail(ErrorCode::kUsage, "--prepare: '", p.name, "' comes twice");
    for (const std::string& word : split(entry.substr(colon + 1), ',')) {
      if (word.empty()) continue;
      const size_t equals = word.find('=');
      read_part({entry, word.substr(0, equals),
                 equals == std::string::npos ? "" : word.substr(equals + 1)},
                p);
    }
    if (!p.std.empty() && !p.mean.empty() && p.std.size() != p.mean.size())
      fail(ErrorCode::kUsage, "--prepare ", entry, ": mean has ", p.mean.size(), " numbers, std ",
           p.std.size());
    out.push_back(std::move(p));
  }
  return out;
}

std::string print_prepare(const std::vector<Prepare>& list) {
  std::string out;
  for (const Prepare& p : list) {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ",") + part; };
    const auto size = [](int h, int w) { return w ? cat(h, "x", w) : cat(h); };
    if (p.channels) add(cat("channels=", p.channels));
    if (!p.layout.empty()) add("layout=" + p.layout);
    if (p.resize_short) add(cat("resize=", p.resize_short));
    if (p.resize_height) add("resize=" + size(p.resize_height, p.resize_width));
    if (p.border) add(cat("border=", p.border));
    if (p.crop_height)
      add(cat(p.crop == Prepare::Crop::kCentre   ? "crop="
              : p.crop == Prepare::Crop::kRandom ? "random-crop="
                                                 : "random-resized-crop=",
              size(p.crop_height, p.crop_width)));
    if (p.flip) add("flip");
    if (p.flip_vertical) add("vflip");
    if (p.jitter != std::array<double, 4>{}) add("jitter=" + joined(p.jitter));
    if (p.background != std::array<uint8_t, 3>{255, 255, 255})
      add("background=" + joined(p.background));
    if (!p.text.empty()) add("text=" + p.text);
    if (!p.fill.empty()) add("fill=" + p.fill);
    std::string pairs;
    for (const auto& [from, to] : p.map) pairs += (pairs.empty() ? "" : "/") + from + ">" + to;
    if (!pairs.empty()) add("map=" + pairs);
    if (p.length) add(cat("length=", p.length));
    if (p.pad != 0) add("pad=" + text_of(p.pad));
    if (p.keep_end) add("truncate=left");
    if (!p.mask.empty()) add("mask=" + p.mask);
    if (p.scale) add("scale=" + text_of(*p.scale));
    if (!p.mean.empty()) add("mean=" + joined(p.mean));
    if (!p.std.empty()) add("std=" + joined(p.std));
    if (p.one_hot) add(cat("one-hot=", p.one_hot));
    if (!text.empty()) out += cat(out.empty() ? "" : "; ", p.name, ":", text);
  }
  return out;
}

const Prepare* find_prepare(const std::vector<Prepare>& list, const std::string& name) {
  for (const Prepare& p : list)
    if (p.name == name) return &p;
  return nullptr;
}

}  // namespace ortrain::data
