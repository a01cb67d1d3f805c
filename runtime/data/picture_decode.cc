// Decoders and EXIF orientation; see picture.h. libjpeg-turbo (TurboJPEG), libpng's simplified
// reader and libwebp are called with sizes checked first; what they report as a warning about the
// data (a truncated JPEG) is an error here.
#include <png.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "graph/error.h"
#include "runtime/data/picture.h"

namespace ortrain::data {
namespace {

using Bytes = std::span<const std::byte>;
enum class Kind : uint8_t { kJpeg, kPng, kWebp };

const uint8_t* raw(Bytes b) { return reinterpret_cast<const uint8_t*>(b.data()); }
bool has(Bytes b, size_t at, std::string_view text) {
  return b.size() >= at + text.size() && std::memcmp(raw(b) + at, text.data(), text.size()) == 0;
}
uint32_t big(Bytes b, size_t at, int size) {  // 0 beyond the end
  uint32_t v = 0;
  for (int i = 0; i < size; ++i) v = v << 8 | (at + i < b.size() ? raw(b)[at + i] : 0u);
  return v;
}
uint32_t little(Bytes b, size_t at, int size) {
  uint32_t v = 0;
  for (int i = size; i-- > 0;) v = v << 8 | (at + i < b.size() ? raw(b)[at + i] : 0u);
  return v;
}

Kind kind_of(Bytes b, const std::string& where) {
  if (has(b, 0, "\xff\xd8\xff")) return Kind::kJpeg;
  if (has(b, 0, "\x89PNG\r\n\x1a\n")) return Kind::kPng;
  if (has(b, 0, "RIFF") && has(b, 8, "WEBP")) return Kind::kWebp;
  if (b.empty())
    fail(ErrorCode::kData, where,
         ": expected a JPEG, PNG or WebP picture, got an "
         "empty file");
  std::string start;
  for (size_t i = 0; i < std::min<size_t>(4, b.size()); ++i) {
    char text[8];
    std::snprintf(text, sizeof text, "%s%02x", i ? " " : "", raw(b)[i]);
    start += text;
  }
  fail(ErrorCode::kData, where, ": expected a JPEG, PNG or WebP picture, got ", b.size(),
       " bytes that start with ", start);
}

void check_size(int64_t width, int64_t height, const std::string& where) {
  if (width < 1 || height < 1 || width > kMostPixels / height)
    fail(ErrorCode::kData, where, ": a picture of ", width, "x", height, " pixels; expected 1 to ",
         kMostPixels, " in all");
}

// The APP1 segment of a JPEG that holds EXIF, without its "Exif\0\0".
Bytes exif_of_jpeg(Bytes b) {
  for (size_t at = 2; at + 4 <= b.size() && raw(b)[at] == 0xff;) {
    const uint32_t marker = raw(b)[at + 1], length = big(b, at + 2, 2);
    if (marker == 0xff) {
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9 || length < 2 || length > b.size() - at - 2) break;
    if (marker == 0xe1 && length >= 8 && has(b, at + 4, std::string_view("Exif\0\0", 6)))
      return b.subspan(at + 10, length - 8);
    at += 2 + length;
  }
  return {};
}

Bytes exif_of_png(Bytes b) {
  for (size_t at = 8; at + 12 <= b.size();) {
    const size_t length = big(b, at, 4);
    if (length > b.size() - at - 12) break;
    if (has(b, at + 4, "eXIf")) return b.subspan(at + 8, length);
    at += 12 + length;
  }
  return {};
}

Bytes exif_of_webp(Bytes b) {
  for (size_t at = 12; at + 8 <= b.size();) {
    const size_t length = little(b, at + 4, 4);
    if (length > b.size() - at - 8) break;
    if (has(b, at, "EXIF")) {
      const Bytes chunk = b.subspan(at + 8, length);
      return has(chunk, 0, std::string_view("Exif\0\0", 6)) ? chunk.subspan(6) : chunk;
    }
    at += 8 + length + (length & 1);
  }
  return {};
}

int orientation_of(Bytes b, Kind kind) {
  return exif_orientation(kind == Kind::kJpeg  ? exif_of_jpeg(b)
                          : kind == Kind::kPng ? exif_of_png(b)
                                               : exif_of_webp(b));
}

// --- JPEG ---
struct FreeTurbo {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Turbo = std::unique_ptr<void, FreeTurbo>;

struct JpegHead {
  int width = 0, height = 0, subsampling = 0, colours = 0;
};

JpegHead jpeg_head(const Turbo& turbo, Bytes b, const std::string& where) {
  JpegHead h;
  if (!turbo) fail(ErrorCode::kMemory, where, ": no memory for a JPEG decoder");
  if (tjDecompressHeader3(turbo.get(), raw(b), b.size(), &h.width, &h.height, &h.subsampling,
                          &h.colours) != 0)
    fail(ErrorCode::kData, where, ": damaged JPEG: ", tjGetErrorStr2(turbo.get()));
  check_size(h.width, h.height, where);
  return h;
}

Picture decode_jpeg(Bytes b, int least_height, int least_width, const std::string& where) {
  const Turbo turbo(tjInitDecompress());
  const JpegHead h = jpeg_head(turbo, b, where);
  int width = h.width, height = h.height;
  for (const int part : {8, 4, 2}) {
    const int w = TJSCALED(h.width, (tjscalingfactor{1, part})),
              t = TJSCALED(h.height, (tjscalingfactor{1, part}));
    if (least_height < 1 || least_width < 1 || w < least_width || t < least_height) continue;
    width = w;
    height = t;
    break;
  }
  const bool cmyk = h.colours == TJCS_CMYK || h.colours == TJCS_YCCK;
  const int format = cmyk ? TJPF_CMYK : h.colours == TJCS_GRAY ? TJPF_GRAY : TJPF_RGB;
  Picture p(height, width, tjPixelSize[format]);
  // LIMITSCANS: a small progressive file can otherwise take minutes.
  if (tjDecompress2(turbo.get(), raw(b), b.size(), p.pixels.data(), width, 0, height, format,
                    TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0)
    fail(ErrorCode::kData, where, ": damaged JPEG: ", tjGetErrorStr2(turbo.get()));
  if (!cmyk) return p;
  Picture rgb(height, width, 3);  // Adobe stores CMYK inverted: 255 is no ink
  for (size_t i = 0, n = p.pixels.size() / 4; i < n; ++i)
    for (size_t k = 0; k < 3; ++k)
      rgb.pixels[3 * i + k] =
          static_cast<uint8_t>((p.pixels[4 * i + k] * p.pixels[4 * i + 3] + 127) / 255);
  return rgb;
}

// --- PNG ---
struct PngReader {
  PngReader(Bytes b, const std::string& where) {
    image.version = PNG_IMAGE_VERSION;
    // The simplified reader trusts the header's size when it allocates rows.
    check_size(big(b, 16, 4), big(b, 20, 4), where);
    if (!png_image_begin_read_from_memory(&image, b.data(), b.size())) fails(where);
    check_size(image.width, image.height, where);
    image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  }
  ~PngReader() { png_image_free(&image); }
  PngReader(const PngReader&) = delete;
  [[noreturn]] void fails(const std::string& where) const {
    fail(ErrorCode::kData, where, ": damaged PNG: ", static_cast<const char*>(image.message));
  }
  png_image image = {};
};

Picture decode_png(Bytes b, const std::string& where) {
  PngReader png(b, where);
  const bool colour = png.image.format & PNG_FORMAT_FLAG_COLOR,
             alpha = png.image.format & PNG_FORMAT_FLAG_ALPHA;
  png.image.format = (colour ? PNG_FORMAT_FLAG_COLOR : 0u) | (alpha ? PNG_FORMAT_FLAG_ALPHA : 0u);
  Picture p(static_cast<int>(png.image.height), static_cast<int>(png.image.width),
            (colour ? 3 : 1) + (alpha ? 1 : 0));
  if (!png_image_finish_read(&png.image, nullptr, p.pixels.data(), 0, nullptr)) png.fails(where);
  if (png.image.warning_or_error & 2u) png.fails(where);
  return p;
}

// --- WebP ---
WebPBitstreamFeatures webp_head(Bytes b, const std::string& where) {
  WebPBitstreamFeatures f;
  if (const int status = WebPGetFeatures(raw(b), b.size(), &f); status != VP8_STATUS_OK)
    fail(ErrorCode::kData, where, ": damaged WebP (status ", status, " of libwebp)");
  check_size(f.width, f.height, where);
  if (f.has_animation) fail(ErrorCode::kData, where, ": an animated WebP; expected one picture");
  return f;
}

Picture decode_webp(Bytes b, const std::string& where) {
  const WebPBitstreamFeatures f = webp_head(b, where);
  Picture p(f.height, f.width, f.has_alpha ? 4 : 3);
  const int stride = f.width * p.channels;
  const auto decode = f.has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (!decode(raw(b), b.size(), p.pixels.data(), p.pixels.size(), stride))
    fail(ErrorCode::kData, where, ": damaged or truncated WebP");
  return p;
}

}  // namespace

int exif_orientation(Bytes tiff) {
  const bool le = has(tiff, 0, "II");
  if (!le && !has(tiff, 0, "MM")) return 1;
  const auto number = [&](size_t at, int size) {
    return le ? little(tiff, at, size) : big(tiff, at, size);
  };
  const size_t directory = number(4, 4);
  const uint32_t entries = number(directory, 2);
  for (uint32_t i = 0; i < entries && i < 1000; ++i) {
    const size_t entry = directory + 2 + 12 * static_cast<size_t>(i);
    if (entry + 12 > tiff.size()) break;
    if (number(entry, 2) != 0x112 || number(entry + 2, 2) != 3) continue;  // Orientation, SHORT
    const uint32_t value = number(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Picture oriented(Picture p, int orientation) {
  if (orientation <= 1) return p;
  const bool turned = orientation >= 5;
  Picture out(turned ? p.width : p.height, turned ? p.height : p.width, p.channels);
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      int sy = turned ? x : y, sx = turned ? y : x;
      // EXIF 2.32, table of tag 0x112: where row 0 and column 0 are shown.
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
        sx = p.width - 1 - sx;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
        sy = p.height - 1 - sy;
      std::memcpy(out.at(y, x), p.at(sy, sx), static_cast<size_t>(p.channels));
    }
  }
  return out;
}

Picture with_channels(Picture p, int channels, std::array<uint8_t, 3> background) {
  if (p.channels == channels) return p;
  Picture out(p.height, p.width, channels);
  const bool grey = p.channels <= 2, alpha = p.channels == 2 || p.channels == 4;
  const size_t n = static_cast<size_t>(p.height) * static_cast<size_t>(p.width);
  const uint8_t* in = p.pixels.data();
  uint8_t* to = out.pixels.data();
  for (size_t i = 0; i < n; ++i, in += p.channels, to += channels) {
    int rgb[3] = {in[0], in[grey ? 0 : 1], in[grey ? 0 : 2]};
    const int a = alpha ? in[p.channels - 1] : 255;
    if (channels == 4) {
      to[3] = static_cast<uint8_t>(a);
    } else if (a != 255) {
      for (int k = 0; k < 3; ++k) rgb[k] = (rgb[k] * a + background[k] * (255 - a) + 127) / 255;
    }
    if (channels == 1)  // ITU-R 601-2 in 16 bits, as Pillow
      to[0] =
          static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
    else
      for (int k = 0; k < 3; ++k) to[k] = static_cast<uint8_t>(rgb[k]);
  }
  return out;
}

PictureHead read_picture_head(Bytes b, const std::string& where) {
  const Kind kind = kind_of(b, where);
  PictureHead head;
  if (kind == Kind::kJpeg) {
    const Turbo turbo(tjInitDecompress());
    const JpegHead h = jpeg_head(turbo, b, where);
    head = {h.height, h.width, h.colours == TJCS_GRAY};
  } else if (kind == Kind::kPng) {
    const PngReader png(b, where);
    head = {static_cast<int>(png.image.height), static_cast<int>(png.image.width),
            !(png.image.format & PNG_FORMAT_FLAG_COLOR)};
  } else {
    const WebPBitstreamFeatures f = webp_head(b, where);
    head = {f.height, f.width, false};
  }
  if (orientation_of(b, kind) >= 5) std::swap(head.height, head.width);
  return head;
}

Picture decode_picture(Bytes b, const DecodeOptions& o, const std::string& where) {
  const Kind kind = kind_of(b, where);
  const int orientation = orientation_of(b, kind);
  const bool turned = orientation >= 5;
  Picture p = kind == Kind::kJpeg  ? decode_jpeg(b, turned ? o.least_width : o.least_height,
                                                turned ? o.least_height : o.least_width, where)
              : kind == Kind::kPng ? decode_png(b, where)
                                   : decode_webp(b, where);
  return oriented(with_channels(std::move(p), o.channels, o.background), orientation);
}

}  // namespace ortrain::data
