// FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv/): the one hash whose values are kept
// in files or decide random numbers, so that it must be the same on every machine.
//
// Promises: pieces hashed one after another give the hash of the whole. Refuses nothing; it is no
// protection against data made to collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ortrain {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325u;

// `h`: the hash of what came before.
inline uint64_t fnv1a(const void* data, size_t bytes, uint64_t h = kFnvBasis) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) h = (h ^ p[i]) * 0x100000001b3u;
  return h;
}
inline uint64_t fnv1a(std::string_view text, uint64_t h = kFnvBasis) {
  return fnv1a(text.data(), text.size(), h);
}

}  // namespace ortrain
