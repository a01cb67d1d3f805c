// What the tests of convolution kernels share: numbers that repeat, and scratch memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortrain::test {

// n numbers in [-1, 1] without a period that an extent could meet.
inline std::vector<float> numbers(int64_t n, double seed) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(std::sin(seed + 12.9898 * double(i) + 1e-3 * double(i * i % 977)));
  return v;
}

// 64-byte aligned scratch memory that begins as NaN.
struct Space {
  explicit Space(size_t bytes) : data(bytes / 4 + 16, NAN) {}
  void* get() {
    auto* p = reinterpret_cast<std::byte*>(data.data());
    return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
  }
  std::vector<float> data;
};

}  // namespace ortrain::test
