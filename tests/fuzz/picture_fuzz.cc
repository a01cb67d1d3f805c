// libFuzzer entry for pictures: every input is looked at, decoded at full and reduced size and put
// through the changes that training makes. Only Error may come out.
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/error.h"
#include "runtime/data/picture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ortrain::data;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  exif_orientation(bytes);
  try {
    const PictureHead head = read_picture_head(bytes, "fuzz");
    if (int64_t{head.height} * head.width > 1 << 20) return 0;  // slow, and says nothing more
    for (const int channels : {1, 3, 4}) {
      DecodeOptions options;
      options.channels = channels;
      options.least_height = options.least_width = channels == 1 ? 4 : 0;
      Picture p = decode_picture(bytes, options, "fuzz");
      p = cropped(resized(p, 5, 7), -1, 2, 6, 6);
      adjust_colour(p, {0.5f, 1.5f, 0.2f, 0.1f});
      flip_horizontally(p);
    }
  } catch (const ortrain::Error&) {
  }
  return 0;
}
