// PNG of one IDAT chunk, no filter (ISO/IEC 15948:2004).
#include "runtime/cli/png.h"

#include <zlib.h>

#include <vector>

#include "graph/error.h"

namespace ortrain::cli {
namespace {
void put32(std::string& out, uint32_t v) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(v >> shift & 255);
}
void chunk(std::string& out, const char* kind, const std::string& body) {
  put32(out, static_cast<uint32_t>(body.size()));
  const std::string covered = kind + body;
  out += covered;
  put32(out, static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(covered.data()),
                                         static_cast<uInt>(covered.size()))));
}
}  // namespace

std::string encode_png(int width, int height, int channels, std::span<const uint8_t> pixels) {
  const size_t row = static_cast<size_t>(width) * static_cast<size_t>(channels);
  ORTRAIN_CHECK((channels == 1 || channels == 3) && width > 0 && height > 0 &&
                    pixels.size() == row * static_cast<size_t>(height),
                "not a picture");
  std::string raw;
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    raw += '\0';
    raw.append(reinterpret_cast<const char*>(pixels.data()) + y * row, row);
  }
  uLongf size = compressBound(raw.size());
  std::string packed(size, '\0');
  const int done = compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                            reinterpret_cast<const Bytef*>(raw.data()), raw.size());
  ORTRAIN_CHECK(done == Z_OK, "zlib failed");
  packed.resize(size);
  std::string out = "\x89PNG\r\n\x1a\n", header;
  put32(header, static_cast<uint32_t>(width));
  put32(header, static_cast<uint32_t>(height));
  header += {8, static_cast<char>(channels == 1 ? 0 : 2), 0, 0, 0};
  chunk(out, "IHDR", header);
  chunk(out, "IDAT", packed);
  chunk(out, "IEND", {});
  return out;
}

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t v = 0;
    for (size_t k = 0; k < 3; ++k)
      v = v << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? kDigits[v >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace ortrain::cli
