// A hash (graph/fnv.h) over names, types, sizes and samples.
#include "runtime/data/fingerprint.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "graph/error.h"
#include "graph/fnv.h"

namespace ortrain::data {
namespace {
class Hash {
 public:
  void add(const void* data, size_t bytes) { state_ = fnv1a(data, bytes, state_); }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = kFnvBasis;
};

void add_row(Hash& hash, const StoredArray& array, int64_t sample, std::vector<std::byte>& row) {
  if (!array.rows) {
    hash.add(array.data + static_cast<size_t>(sample) * row.size(), row.size());
    return;
  }
  try {
    array.rows->read({.sample = sample}, row.data());
    hash.add(row.data(), row.size());
  } catch (const Error&) {
    hash.add("unreadable");
  }
}
}  // namespace

std::string fingerprint(const Dataset& data) {
  Hash hash;
  for (const std::string& key : data.keys) hash.add(key);
  for (const std::string& name : data.names()) {
    const StoredArray& array = data.stored(name);
    hash.add(cat(name, " ", describe(array.dtype, array.dims)));
    const int64_t samples = array.dims.empty() ? 1 : array.dims[0];
    if (array.count == 0) continue;
    std::vector<std::byte> row(array.bytes() / static_cast<size_t>(samples));
    const int64_t most = array.rows && array.rows->heavy() ? 16 : 64;
    const int64_t reads = std::min(samples, most);
    for (int64_t i = 0; i < reads; ++i)
      add_row(hash, array, reads == 1 ? 0 : i * (samples - 1) / (reads - 1), row);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash.value());
  return text;
}

}  // namespace ortrain::data
