// libFuzzer entry for token streams and text: the file is opened with a window, a stride and
// numbers of the fuzzer's choice, and every window is read. Only Error may come out; a text that is
// accepted by characters is one symbol of its vocabulary per character.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "graph/error.h"
#include "runtime/data/row_source.h"
#include "runtime/data/stored_array.h"
#include "runtime/data/tokens.h"

using namespace ortrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  static const int file = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data + 3, size - 3, 0) < 0) return 0;
  data::OpenOptions options;
  options.token = data[0] & 1 ? DType::kU16 : DType::kU32;
  options.text = data[0] & 2 ? "chars" : data[0] & 4 ? "bytes" : "";
  options.window = data[1] % 16;
  options.stride = data[2] % 16;
  if (data[0] & 8) options.vocabularies["text"] = {"a", "b", "\n", "\xc3\xa4", "", "xy", "\xff"};
  try {
    const data::Dataset set =
        data[0] & 16 ? data::open_tokens(path, options) : data::open_text(path, options);
    for (const std::string& name : set.names()) {
      const data::StoredArray& a = set.stored(name);
      std::vector<std::byte> row(static_cast<size_t>(a.dims[1]) * size_of(a.dtype));
      for (int64_t i = 0; i < a.dims[0]; ++i) {
        a.rows->read({i, 0}, row.data());
        if (a.dtype != DType::kU32 || data[0] & 16) continue;
        const size_t symbols = set.vocabularies.at("text").size();
        for (const std::byte* p = row.data(); p < row.data() + row.size(); p += 4)
          if (*reinterpret_cast<const uint32_t*>(p) >= symbols) std::abort();
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
