// Random numbers as pure functions of (seed, key, step, element): nothing is stored, so a gradient
// can draw them again and a resumed run sees the same. SplitMix64's finaliser is the hash.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/attrs.h"
#include "graph/fnv.h"

namespace ortrain::ops {

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

[[gnu::always_inline]] inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// What the attributes `seed` and `key` of a node make of its numbers.
inline uint64_t random_key(const Attrs& a) {
  return static_cast<uint64_t>(a.i("seed", 0)) * kGolden ^ static_cast<uint64_t>(a.i("key", 0));
}
inline uint64_t random_stream(uint64_t key, int64_t step) {
  return mix(key + mix(static_cast<uint64_t>(step)));
}
// 64 random bits for element i.
[[gnu::always_inline]] inline uint64_t random_bits(uint64_t stream, int64_t i) {
  return mix(stream + static_cast<uint64_t>(i + 1) * kGolden);
}
// In [0, 1), 53 bits.
inline double random_unit(uint64_t stream, int64_t i) {
  return static_cast<double>(random_bits(stream, i) >> 11) * 0x1p-53;
}

// The key of a node: a hash (FNV-1a) of its name in the file, whatever passes did to it.
inline int64_t key_of_origin(std::string_view origin) {
  return static_cast<int64_t>(fnv1a(origin.substr(0, origin.find('|'))) >> 1);
}

}  // namespace ortrain::ops
