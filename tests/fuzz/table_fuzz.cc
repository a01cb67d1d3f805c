// libFuzzer entry for the CSV reader and the UTF-8 reader below it: only Error may come out, and
// every byte of every field must be readable.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "graph/error.h"
#include "runtime/data/table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  size_t sum = 0;
  try {
    ortrain::data::read_csv(text, data[0] & 1 ? ',' : '\t', "fuzz",
                            [&](const std::vector<std::string_view>& fields, int64_t line) {
                              sum += static_cast<size_t>(line);
                              for (const std::string_view f : fields)
                                for (const char c : f) sum += static_cast<size_t>(c);
                            });
  } catch (const ortrain::Error&) {
  }
  const volatile size_t used = sum;
  static_cast<void>(used);
  return 0;
}
