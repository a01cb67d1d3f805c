// Pictures: JPEG, PNG and WebP bytes to 8-bit pixels, and what is done to pixels before training.
//
// Promises: pixels are those of Pillow (libjpeg-turbo's exact DCT, libpng, libwebp) and resize() is
// Pillow's bilinear filter bit by bit; EXIF orientation is applied; grey, palette, 16-bit, CMYK and
// alpha come out as the number of channels asked for. Sizes are checked before anything is
// allocated (kMostPixels). Refuses (kData, message starting with `where`): other kinds of files,
// damaged or truncated ones, animations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ortrain::data {

inline constexpr int64_t kMostPixels = int64_t{1} << 28;

struct Picture {
  int height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels]

  Picture() = default;
  Picture(int h, int w, int c)
      : height(h), width(w), channels(c), pixels(static_cast<size_t>(h) * w * c) {}
  uint8_t* at(int y, int x) {
    return pixels.data() + (static_cast<size_t>(y) * width + x) * channels;
  }
  const uint8_t* at(int y, int x) const { return const_cast<Picture*>(this)->at(y, x); }
};

struct PictureHead {
  int height = 0, width = 0;  // as shown: orientation applied
  bool grey = false;
};

// Looks at the header only.
PictureHead read_picture_head(std::span<const std::byte> bytes, const std::string& where);

struct DecodeOptions {
  int channels = 3;  // 1 grey (ITU-R 601), 3 RGB, 4 RGBA
  // What lies under transparent pixels where alpha is not asked for.
  std::array<uint8_t, 3> background = {255, 255, 255};
  // JPEG: decode at 1/2, 1/4 or 1/8 where that still leaves both sides this large; 0 = full size.
  int least_height = 0, least_width = 0;
};
Picture decode_picture(std::span<const std::byte> bytes, const DecodeOptions& options,
                       const std::string& where);
// From pixels of 1 (grey), 2 (grey, alpha), 3 or 4 channels.
Picture with_channels(Picture picture, int channels, std::array<uint8_t, 3> background);

// The EXIF orientation (1 to 8) of TIFF bytes; 1 where there is none.
int exif_orientation(std::span<const std::byte> tiff);
Picture oriented(Picture picture, int orientation);

Picture resized(const Picture& picture, int height, int width);
// Rows [y, y + height) and columns [x, x + width); what lies outside is zero.
Picture cropped(const Picture& picture, int y, int x, int height, int width);
void flip_horizontally(Picture& picture);
void flip_vertically(Picture& picture);

// torchvision's adjust_* on 1 or 3 channels: blends with black, the mean grey and the grey picture
// (factor 1 changes nothing), then turns the hue by `hue` of a full circle.
struct Colour {
  float brightness = 1, contrast = 1, saturation = 1, hue = 0;
};
void adjust_colour(Picture& picture, const Colour& colour);

}  // namespace ortrain::data
