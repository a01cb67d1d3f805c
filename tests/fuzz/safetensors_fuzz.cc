// libFuzzer entry for the safetensors reader: only Error may come out, and every byte that an
// accepted tensor claims must be readable.
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/error.h"
#include "runtime/data/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto content = ortrain::data::read_safetensors(bytes, "fuzz.safetensors");
    for (const ortrain::data::StoredArray& array : content.arrays) {
      const ortrain::HostTensor tensor = array.tensor();
      for (int64_t i = 0; i < tensor.count(); ++i) {
        const volatile double value = tensor.as_double(i);
        static_cast<void>(value);
      }
    }
  } catch (const ortrain::Error&) {
  }
  return 0;
}
