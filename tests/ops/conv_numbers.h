// What the tests of convolution kernels share: numbers that repeat, sums in double to compare with,
// and scratch memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/common/few_channels.h"

namespace ortrain::test {

// n numbers in [-1, 1] without a period that an extent could meet.
inline std::vector<float> numbers(int64_t n, double seed) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(std::sin(seed + 12.9898 * double(i) + 1e-3 * double(i * i % 977)));
  return v;
}

// A convolution of x and its gradients, term by term in double: y[o] = bias + sum of x w.
struct ConvSums {
  std::vector<double> y, dx, dw, db;
  ConvSums(const ops::FewChannels& s, const std::vector<float>& x, const std::vector<float>& w,
           const std::vector<float>& bias, const std::vector<float>& dy)
      : y(dy.size()), dx(x.size()), dw(w.size()), db(bias.size()) {
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = bias[i % bias.size()];
      db[i % bias.size()] += dy[i];
    }
    for (int64_t n = 0; n < s.n; ++n)
      for (int64_t i = 0; i < s.oh; ++i)
        for (int64_t j = 0; j < s.ow; ++j)
          for (int64_t t = 0; t < s.kh * s.kw; ++t) {
            const int64_t r = i * s.sh - s.top + t / s.kw * s.dh;
            const int64_t q = j * s.sw - s.left + t % s.kw * s.dw;
            if (r < 0 || r >= s.h || q < 0 || q >= s.w) continue;
            for (int64_t o = 0; o < s.cout; ++o)
              for (int64_t c = 0; c < s.cin; ++c) {
                const auto a = size_t(((n * s.h + r) * s.w + q) * s.cin + c);
                const auto b = size_t((o * s.cin + c) * s.kh * s.kw + t);
                const auto e = size_t(((n * s.oh + i) * s.ow + j) * s.cout + o);
                y[e] += double(x[a]) * w[b];
                dx[a] += double(dy[e]) * w[b];
                dw[b] += double(dy[e]) * x[a];
              }
          }
  }
};

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
