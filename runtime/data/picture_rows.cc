// From pixels to rows; see picture_rows.h.
#include "runtime/data/picture_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"

namespace ortrain::data {
namespace {

bool channel_count(int64_t d) { return d == 1 || d == 3 || d == 4; }

class PictureRows : public RowSource {
 public:
  PictureRows(Pixels pixels, const Prepare& prepare, const PictureForm& form, bool training,
              uint64_t seed)
      : pixels_(std::move(pixels)),
        prepare_(prepare),
        form_(form),
        random_(training && prepare.augments()),
        seed_(seed) {
    const float scale = static_cast<float>(prepare.scale.value_or(255));
    for (int c = 0; c < form.channels; ++c) {
      const auto of = [&](const std::vector<double>& list, double missing) {
        return static_cast<float>(list.empty()       ? missing
                                  : list.size() == 1 ? list[0]
                                                     : list[static_cast<size_t>(c)]);
      };
      const float mean = of(prepare.mean, 0), deviation = of(prepare.std, 1);
      for (int v = 0; v < 256; ++v) {
        const float x = static_cast<float>(v) / scale;
        table_[c][v] = prepare.mean.empty() && prepare.std.empty() ? x : (x - mean) / deviation;
      }
    }
  }

  bool heavy() const override { return true; }

  void read(const RowRequest& row, std::byte* out) const override {
    DecodeOptions options;
    options.channels = form_.channels;
    options.background = prepare_.background;
    // At twice the final size the DCT's own reduction costs no quality that the filter would keep.
    if (random_ && prepare_.crop == Prepare::Crop::kResized) {
    } else if (prepare_.resize_height) {
      options.least_height = 2 * prepare_.resize_height;
      options.least_width = 2 * prepare_.resize_width;
    } else if (prepare_.resize_short) {
      options.least_height = options.least_width = 2 * prepare_.resize_short;
    }
    SampleRandom random(seed_, row.epoch, row.sample);
    Picture p = sized(pixels_(row.sample, options), random);
    if (random_) {
      if (prepare_.flip && random.uniform() < 0.5) flip_horizontally(p);
      if (prepare_.flip_vertical && random.uniform() < 0.5) flip_vertically(p);
      adjust_colour(p, colour(random));
    }
    write(p, out);
  }

 private:
  Picture resize(Picture p) const {
    if (prepare_.resize_height) return resized(p, prepare_.resize_height, prepare_.resize_width);
    const int s = prepare_.resize_short;
    if (!s) return p;
    // torchvision: the longer side is truncated.
    const int64_t low = std::min(p.height, p.width), high = std::max(p.height, p.width);
    const int other = static_cast<int>(std::min<int64_t>(s * high / low, 1 << 20));
    return p.height <= p.width ? resized(p, s, other) : resized(p, other, s);
  }

  // torchvision's RandomResizedCrop: area 8 % to 100 %, ratio 3/4 to 4/3; ten tries, then the
  // centre.
  Picture random_part(const Picture& p, SampleRandom& random) const {
    const double area = static_cast<double>(p.height) * p.width;
    int h = std::min(p.height, p.width), w = h, y = (p.height - h) / 2, x = (p.width - w) / 2;
    for (int i = 0; i < 10; ++i) {
      const double part = area * random.between(0.08, 1);
      const double ratio = std::exp(random.between(std::log(3.0 / 4), std::log(4.0 / 3)));
      const int tw = static_cast<int>(std::lround(std::sqrt(part * ratio)));
      const int th = static_cast<int>(std::lround(std::sqrt(part / ratio)));
      if (tw < 1 || th < 1 || tw > p.width || th > p.height) continue;
      h = th;
      w = tw;
      y = static_cast<int>(random.below(p.height - h + 1));
      x = static_cast<int>(random.below(p.width - w + 1));
      break;
    }
    return resized(cropped(p, y, x, h, w), form_.height, form_.width);
  }

  Picture sized(Picture p, SampleRandom& random) const {
    const int h = form_.height, w = form_.width;
    if (random_ && prepare_.crop == Prepare::Crop::kResized) return random_part(p, random);
    p = resize(std::move(p));
    if (random_ && prepare_.crop == Prepare::Crop::kRandom) {
      const int b = prepare_.border;
      const int64_t rows = std::max(0, p.height + 2 * b - h),
                    columns = std::max(0, p.width + 2 * b - w);
      const int y = static_cast<int>(random.below(rows + 1)) - b;
      const int x = static_cast<int>(random.below(columns + 1)) - b;
      return cropped(p, y, x, h, w);
    }
    if (p.height == h && p.width == w) return p;
    if (!prepare_.resize_short && !prepare_.resize_height && !prepare_.crop_height)
      fail(ErrorCode::kData, "a picture of ", p.height, "x", p.width, "; expected ", h, "x", w,
           " like the first, or resize= in --prepare");
    return cropped(p, (p.height - h) / 2, (p.width - w) / 2, h, w);
  }

  Colour colour(SampleRandom& random) const {
    const auto factor = [&](double j) {
      return j == 0 ? 1.0f : static_cast<float>(random.between(std::max(0.0, 1 - j), 1 + j));
    };
    Colour c;
    c.brightness = factor(prepare_.jitter[0]);
    c.contrast = factor(prepare_.jitter[1]);
    c.saturation = factor(prepare_.jitter[2]);
    if (const double hue = prepare_.jitter[3]; hue > 0)
      c.hue = static_cast<float>(random.between(-hue, hue));
    return c;
  }

  void write(const Picture& p, std::byte* out) const {
    const size_t n = static_cast<size_t>(p.height) * static_cast<size_t>(p.width);
    const auto channels = static_cast<size_t>(p.channels);
    const uint8_t* in = p.pixels.data();
    if (form_.dtype == DType::kU8 && (form_.hwc || channels == 1)) {
      std::memcpy(out, in, n * channels);
      return;
    }
    for (size_t c = 0; c < channels; ++c) {
      const float* table = table_[c];
      const size_t step = form_.hwc ? channels : 1;
      std::byte* to = out + (form_.hwc ? c : c * n) * size_of(form_.dtype);
      if (form_.dtype == DType::kU8)
        for (size_t i = 0; i < n; ++i) std::memcpy(to + i * step, in + i * channels + c, 1);
      else
        for (size_t i = 0; i < n; ++i)
          std::memcpy(to + 4 * i * step, table + in[i * channels + c], 4);
    }
  }

  const Pixels pixels_;
  const Prepare prepare_;
  const PictureForm form_;
  const bool random_;
  const uint64_t seed_;
  float table_[4][256] = {};
};

}  // namespace

bool takes_pictures(const ArraySpec& s) {
  if (s.dims.size() != 4 || !(is_float(s.dtype) || s.dtype == DType::kU8)) return false;
  const auto can = [](int64_t d) { return d == -1 || channel_count(d); };
  return can(s.dims[1]) || can(s.dims[3]);
}

PictureForm picture_form(const ArraySpec* wanted, Prepare& p, const PictureHead& first,
                         bool same_size) {
  PictureForm f;
  Dims want(4, -1);
  if (wanted) {
    if (!takes_pictures(*wanted))
      fail(
          ErrorCode::kData, "input '", wanted->name, "' takes ",
          describe(wanted->dtype, wanted->dims),
          "; expected [batch, channels, height, width] or [batch, height, width, channels] with 1, "
          "3 or 4 channels for pictures");
    want = wanted->dims;
    if (wanted->dtype == DType::kU8) f.dtype = DType::kU8;
  }
  if (p.layout.empty()) {
    const bool chw = channel_count(want[1]), hwc = channel_count(want[3]);
    p.layout = hwc && !chw ? "hwc" : "chw";
  }
  f.hwc = p.layout == "hwc";
  const int64_t c = want[f.hwc ? 3 : 1], h = want[f.hwc ? 1 : 2], w = want[f.hwc ? 2 : 3];
  if (!p.channels) p.channels = c > 0 ? static_cast<int>(c) : first.grey ? 1 : 3;
  f.channels = p.channels;
  const bool sized = h > 0 && w > 0;
  if (!p.resize_short && !p.resize_height && !p.crop_height) {
    if (sized) {
      p.resize_height = static_cast<int>(h);
      p.resize_width = static_cast<int>(w);
    } else if (!same_size) {
      fail(ErrorCode::kData,
           "the pictures have several sizes and the model takes any; say one: "
           "--prepare \"",
           p.name.empty() ? "NAME" : p.name, ":resize=HxW\"");
    }
  }
  if (p.resize_short && !p.crop_height) {
    p.crop_height = sized ? static_cast<int>(h) : p.resize_short;
    p.crop_width = sized ? static_cast<int>(w) : p.resize_short;
  }
  if (p.crop == Prepare::Crop::kResized && !p.resize_short && !p.resize_height)
    p.resize_short =
        static_cast<int>(std::lround(std::min(p.crop_height, p.crop_width) * 256 / 224.0));
  f.height = p.crop_height ? p.crop_height : p.resize_height ? p.resize_height : first.height;
  f.width = p.crop_width ? p.crop_width : p.resize_width ? p.resize_width : first.width;
  if ((c > 0 && c != f.channels) || (h > 0 && h != f.height) || (w > 0 && w != f.width))
    fail(ErrorCode::kUsage, "--prepare makes pictures of ", describe(f.dtype, f.dims(-1)),
         ", input '", wanted ? wanted->name : "", "' takes ",
         describe(wanted->dtype, wanted->dims));
  for (const std::vector<double>* list : {&p.mean, &p.std})
    if (list->size() > 1 && list->size() != static_cast<size_t>(f.channels))
      fail(ErrorCode::kUsage, "--prepare ", p.name, ": ", list->size(),
           " numbers in mean or std for ", f.channels, " channels");
  if (f.dtype == DType::kU8 && p.of_numbers())
    fail(ErrorCode::kUsage, "--prepare ", p.name,
         ": the model takes u8 pixels; scale, mean and std do not apply");
  if (f.dtype != DType::kU8 && !p.scale) p.scale = 255;
  return f;
}

Pixels pixels_of_array(const StoredArray& a, bool hwc) {
  const bool plain = a.dims.size() == 3;
  ORTRAIN_CHECK(a.dtype == DType::kU8 && (plain || a.dims.size() == 4) && a.data, "u8 pictures");
  const int c = plain ? 1 : static_cast<int>(a.dims[hwc ? 3 : 1]);
  const int h = static_cast<int>(a.dims[hwc || plain ? 1 : 2]),
            w = static_cast<int>(a.dims[hwc || plain ? 2 : 3]);
  return [&a, c, h, w, hwc](int64_t sample, const DecodeOptions& o) {
    Picture p(h, w, c);
    const auto* in =
        reinterpret_cast<const uint8_t*>(a.data) + static_cast<size_t>(sample) * p.pixels.size();
    const size_t n = static_cast<size_t>(h) * static_cast<size_t>(w);
    if (hwc || c == 1) {
      std::memcpy(p.pixels.data(), in, p.pixels.size());
    } else {
      for (size_t k = 0; k < static_cast<size_t>(c); ++k)
        for (size_t i = 0; i < n; ++i) p.pixels[i * static_cast<size_t>(c) + k] = in[k * n + i];
    }
    return with_channels(std::move(p), o.channels, o.background);
  };
}

std::unique_ptr<RowSource> picture_rows(Pixels pixels, const Prepare& prepare,
                                        const PictureForm& form, bool training, uint64_t seed) {
  return std::make_unique<PictureRows>(std::move(pixels), prepare, form, training, seed);
}

}  // namespace ortrain::data
