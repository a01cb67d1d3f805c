// Decoders, EXIF orientation, channels, resize and colour against Pillow and torchvision
// (tests/runtime/data/pictures/make_pictures.py), and damaged files.
#include "runtime/data/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ortrain_test_paths.h"
#include "runtime/data/npz.h"
#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using test::as_span;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

const std::string kFolder = std::string(test::kSourceDir) + "/tests/runtime/data/pictures/";

// Largest difference of any pixel value; 1000 where the sizes differ.
int difference(const Picture& p, const StoredArray& want) {
  const Dims dims = p.channels == 1 ? Dims{p.height, p.width} : Dims{p.height, p.width, p.channels};
  if (dims != want.dims) return 1000;
  int worst = 0;
  for (size_t i = 0; i < p.pixels.size(); ++i)
    worst = std::max(worst, std::abs(p.pixels[i] - static_cast<int>(want.data[i])));
  return worst;
}

TEST(Picture, EqualsPillow) {
  const ArrayFile expected = open_npz(kFolder + "expected.npz");
  const Picture rgb = decode_picture(as_span(read_file(kFolder + "rgb.png")), {}, "rgb.png");
  int seen = 0;
  for (const StoredArray& want : expected.arrays) {
    SCOPED_TRACE(want.name);
    const size_t slash = want.name.find('/');
    const std::string head = want.name.substr(0, slash), tail = want.name.substr(slash + 1);
    ++seen;
    if (head == "resize") {
      int h = 0, w = 0;
      ASSERT_EQ(std::sscanf(tail.c_str(), "%dx%d", &h, &w), 2);
      EXPECT_EQ(difference(resized(rgb, h, w), want), 0);
    } else if (head.find('.') == std::string::npos) {
      Picture p = rgb;
      Colour c;
      const float v = std::stof(tail);
      (head == "brightness" ? c.brightness
       : head == "contrast" ? c.contrast
       : head == "hue"      ? c.hue
                            : c.saturation) = v;
      adjust_colour(p, c);
      // Pillow turns hues in steps of 1/256 of a circle.
      EXPECT_LE(difference(p, want), head == "hue" ? 8 : 0);
    } else {
      const std::string bytes = read_file(kFolder + head);
      DecodeOptions options;
      options.channels = std::stoi(tail);
      const Picture p = decode_picture(as_span(bytes), options, head);
      // Adobe's CMYK has several ways to RGB.
      EXPECT_LE(difference(p, want), head == "cmyk.jpg" ? 1 : 0);
      const PictureHead h = read_picture_head(as_span(bytes), head);
      EXPECT_EQ(h.height, p.height);
      EXPECT_EQ(h.width, p.width);
    }
  }
  EXPECT_GT(seen, 50);
}

TEST(Picture, DecodesJpegReduced) {
  const std::string bytes = read_file(kFolder + "full.jpg");
  DecodeOptions options;
  options.least_height = 6;
  options.least_width = 8;
  const Picture p = decode_picture(as_span(bytes), options, "full.jpg");
  EXPECT_EQ(p.height, 7);
  EXPECT_EQ(p.width, 11);
}

TEST(Picture, CropsAndFlips) {
  Picture p(2, 3, 1);
  p.pixels = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(cropped(p, 1, 1, 1, 2).pixels, (std::vector<uint8_t>{5, 6}));
  EXPECT_EQ(cropped(p, -1, 2, 3, 2).pixels, (std::vector<uint8_t>{0, 0, 3, 0, 6, 0}));
  flip_horizontally(p);
  EXPECT_EQ(p.pixels, (std::vector<uint8_t>{3, 2, 1, 6, 5, 4}));
  flip_vertically(p);
  EXPECT_EQ(p.pixels, (std::vector<uint8_t>{6, 5, 4, 3, 2, 1}));
}

TEST(Picture, NamesWhatIsDamaged) {
  for (const char* name : {"rgb.jpg", "progressive.jpg", "rgb.png", "lossy.webp", "alpha.webp"}) {
    const std::string bytes = read_file(kFolder + name);
    for (const size_t keep :
         {size_t{0}, size_t{3}, size_t{20}, bytes.size() / 2, bytes.size() - 20}) {
      const std::string part = bytes.substr(0, keep);
      EXPECT_THAT(error_of([&] { decode_picture(as_span(part), {}, "file"); }), HasSubstr("file: "))
          << name << " of " << keep << " bytes";
    }
  }
  EXPECT_THAT(
      error_of([] { decode_picture(as_span("GIF89a......"), {}, "g"); }),
      HasSubstr("g: expected a JPEG, PNG or WebP picture, got 12 bytes that start with 47 49"));
  std::string huge = read_file(kFolder + "rgb.png");
  huge.replace(16, 8, std::string("\x00\x10\x00\x00\x00\x10\x00\x00", 8));
  EXPECT_THAT(error_of([&] { decode_picture(as_span(huge), {}, "huge"); }),
              HasSubstr("a picture of 1048576x1048576 pixels"));
}

}  // namespace
}  // namespace ortrain::data
