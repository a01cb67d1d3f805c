// libFuzzer entry for the .npz and .npy readers. Every input is read as a zip (without checksums,
// which would hide what lies behind them) and as a bare array; only Error may come out, and every
// byte that an accepted array claims must be readable.
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/error.h"
#include "runtime/data/npy.h"
#include "runtime/data/npz.h"

using ortrain::data::StoredArray;

namespace {
void touch(const StoredArray& array) {
  const ortrain::HostTensor tensor = array.tensor();
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const volatile double value = tensor.as_double(i);
    static_cast<void>(value);
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const StoredArray& array : ortrain::data::read_npz(bytes, "fuzz.npz", false)) touch(array);
  } catch (const ortrain::Error&) {
  }
  try {
    touch(ortrain::data::parse_npy(bytes, "fuzz", "fuzz.npy"));
  } catch (const ortrain::Error&) {
  }
  return 0;
}
