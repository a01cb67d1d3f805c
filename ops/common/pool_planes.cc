// See pool_planes.h.
#include "ops/common/pool_planes.h"

#include <limits>

#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kBlock = 128;  // windows at a time while the maximum is sought

// The step along x is 1 or 2 almost always; as a constant the loads become vectors.
template <class Body>
[[gnu::always_inline]] inline void with_step(int64_t step, Body&& body) {
  if (step == 1) {
    body(std::integral_constant<int64_t, 1>());
  } else if (step == 2) {
    body(std::integral_constant<int64_t, 2>());
  } else {
    body(step);
  }
}

ORTRAIN_SIMD void add_row(const float* x, int64_t step, float* y, int64_t n) {
  with_step(
      step, [&](auto s) __attribute__((always_inline)) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] += x[i * s];
      });
}
ORTRAIN_SIMD void add_back(const float* g, int64_t step, float* x, int64_t n) {
  with_step(
      step, [&](auto s) __attribute__((always_inline)) {
        for (int64_t i = 0; i < n; ++i) x[i * s] += g[i];
      });
}
ORTRAIN_SIMD void scale_row(const float* x, const float* by, float scale, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (scale * by[i]);
}
ORTRAIN_SIMD void max_row(const float* x, int64_t step, int32_t tap, float* best, int32_t* which,
                          int64_t n) {
  with_step(
      step, [&](auto s) __attribute__((always_inline)) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float v = x[i * s];
          const bool take = (which[i] < 0) | (v > best[i]) | (v != v);
          best[i] = take ? v : best[i];
          which[i] = take ? tap : which[i];
        }
      });
}
// One window over n neighbours.
ORTRAIN_SIMD float sum_of(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}
ORTRAIN_SIMD float max_of(const float* x, int64_t n, bool* nan) {
  float top = -std::numeric_limits<float>::infinity();
  int bad = 0;
#pragma omp simd reduction(max : top) reduction(| : bad)
  for (int64_t i = 0; i < n; ++i) {
    top = x[i] > top ? x[i] : top;
    bad |= x[i] != x[i];
  }
  *nan = bad != 0;
  return top;
}
ORTRAIN_SIMD void add_constant(float v, float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] += v;
}

}  // namespace

PoolPlanes::PoolPlanes(const Window& w, int threads) : w_(w), threads_(threads) {
  const int64_t s = w.stride[2];
  for (int64_t t = 0; t < w.kernel[2]; ++t) {
    const int64_t at = t * w.dilation[2] - w.begin[2];  // of window 0
    const int64_t first = at < 0 ? (s - 1 - at) / s : 0;
    const int64_t last = w.in[2] - at > 0 ? std::min(w.out[2], (w.in[2] - at + s - 1) / s) : 0;
    ranges_.push_back({std::min(first, w.out[2]), std::max(std::min(first, w.out[2]), last)});
  }
  for (int64_t a = 0; a < w.kernel[0]; ++a)
    for (int64_t b = 0; b < w.kernel[1]; ++b)
      for (int64_t c = 0; c < w.kernel[2]; ++c)
        taps_.push_back({{a * w.dilation[0], b * w.dilation[1], c * w.dilation[2]}});
}

template <class Body>
void PoolPlanes::planes(Body&& body) const {
  const int64_t work = std::max<int64_t>(1, w_.in_count() + w_.out_count());
  parallel_for(threads_, w_.n * w_.cx, std::max<int64_t>(1, 8192 / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) body(p);
               });
}

// body(o0, o1, first window of the row)
template <class Body>
void PoolPlanes::rows(Body&& body) const {
  for (int64_t o0 = 0; o0 < w_.out[0]; ++o0)
    for (int64_t o1 = 0; o1 < w_.out[1]; ++o1) body(o0, o1, (o0 * w_.out[1] + o1) * w_.out[2]);
}

// body(number of the first tap, row of the plane) for the rows that the windows of a row read.
template <class Body>
void PoolPlanes::taps(int64_t o0, int64_t o1, Body&& body) const {
  int64_t first[2], last[2];
  w_.valid(0, o0, first[0], last[0]);
  w_.valid(1, o1, first[1], last[1]);
  for (int64_t a = first[0]; a < last[0]; ++a)
    for (int64_t b = first[1]; b < last[1]; ++b) {
      const int64_t i0 = o0 * w_.stride[0] - w_.begin[0] + a * w_.dilation[0];
      const int64_t i1 = o1 * w_.stride[1] - w_.begin[1] + b * w_.dilation[1];
      body((a * w_.kernel[1] + b) * w_.kernel[2], (i0 * w_.in[1] + i1) * w_.in[2]);
    }
}

void PoolPlanes::average(const float* x0, const Inverse& inverse, float* y0) const {
  const bool single = w_.out[2] == 1 && w_.dilation[2] == 1;
  planes([&](int64_t p) {
    const float* x = x0 + p * w_.in_count();
    float* y = y0 + p * w_.out_count();
    rows([&](int64_t o0, int64_t o1, int64_t at) {
      float* row = y + at;
      std::fill_n(row, w_.out[2], 0.f);
      taps(o0, o1, [&](int64_t, int64_t from) {
        if (single) {
          int64_t first, last;
          w_.valid(2, 0, first, last);
          row[0] += sum_of(x + from - w_.begin[2] + first, last - first);
          return;
        }
        for (int64_t t = 0; t < w_.kernel[2]; ++t) {
          const Range r = ranges_[static_cast<size_t>(t)];
          const int64_t start = r.first * w_.stride[2] + t * w_.dilation[2] - w_.begin[2];
          if (r.last > r.first)
            add_row(x + from + start, w_.stride[2], row + r.first, r.last - r.first);
        }
      });
      const float outer = inverse[0][static_cast<size_t>(o0)] * inverse[1][static_cast<size_t>(o1)];
      scale_row(row, inverse[2].data(), outer, row, w_.out[2]);
    });
  });
}

void PoolPlanes::average_grad(const float* dy0, const Inverse& inverse, float* dx0) const {
  const bool single = w_.out[2] == 1 && w_.dilation[2] == 1;
  planes([&](int64_t p) {
    const float* dy = dy0 + p * w_.out_count();
    float* dx = dx0 + p * w_.in_count();
    std::fill_n(dx, w_.in_count(), 0.f);
    float g[kBlock];
    rows([&](int64_t o0, int64_t o1, int64_t at) {
      const float outer = inverse[0][static_cast<size_t>(o0)] * inverse[1][static_cast<size_t>(o1)];
      for (int64_t b = 0; b < w_.out[2]; b += kBlock) {
        const int64_t end = std::min(b + kBlock, w_.out[2]);
        scale_row(dy + at + b, inverse[2].data() + b, outer, g, end - b);
        taps(o0, o1, [&](int64_t, int64_t from) {
          if (single) {
            int64_t first, last;
            w_.valid(2, 0, first, last);
            add_constant(g[0], dx + from - w_.begin[2] + first, last - first);
            return;
          }
          for (int64_t t = 0; t < w_.kernel[2]; ++t) {
            const Range r = ranges_[static_cast<size_t>(t)];
            const int64_t first = std::max(r.first, b), last = std::min(r.last, end);
            const int64_t start = first * w_.stride[2] + t * w_.dilation[2] - w_.begin[2];
            if (last > first)
              add_back(g + first - b, w_.stride[2], dx + from + start, last - first);
          }
        });
      }
    });
  });
}

void PoolPlanes::max(const float* x0, float* y0, uint8_t* arg8, int32_t* arg32,
                     int64_t* indices) const {
  const bool single = w_.out[2] == 1 && w_.dilation[2] == 1;
  planes([&](int64_t p) {
    const float* x = x0 + p * w_.in_count();
    const int64_t plane = p * w_.out_count();
    float best[kBlock];
    int32_t which[kBlock];
    rows([&](int64_t o0, int64_t o1, int64_t at) {
      for (int64_t b = 0; b < w_.out[2]; b += kBlock) {
        const int64_t end = std::min(b + kBlock, w_.out[2]);
        std::fill_n(which, end - b, -1);
        std::fill_n(best, end - b, 0.f);
        taps(o0, o1, [&](int64_t tap, int64_t from) {
          if (single) {
            int64_t first, last;
            w_.valid(2, 0, first, last);
            const float* v = x + from - w_.begin[2];
            bool nan;
            const float top = max_of(v + first, last - first, &nan);
            if (!nan && which[0] >= 0 && !(top > best[0])) return;
            for (int64_t t = first; t < last; ++t)
              if (which[0] < 0 || v[t] > best[0] || v[t] != v[t]) {
                best[0] = v[t], which[0] = static_cast<int32_t>(tap + t);
                if (!nan && v[t] == top) return;
              }
            return;
          }
          for (int64_t t = 0; t < w_.kernel[2]; ++t) {
            const Range r = ranges_[static_cast<size_t>(t)];
            const int64_t first = std::max(r.first, b), last = std::min(r.last, end);
            const int64_t start = first * w_.stride[2] + t * w_.dilation[2] - w_.begin[2];
            if (last > first)
              max_row(x + from + start, w_.stride[2], static_cast<int32_t>(tap + t),
                      best + first - b, which + first - b, last - first);
          }
        });
        const int64_t to = plane + at + b, n = end - b;
        std::copy_n(best, n, y0 + to);
        if (arg8)
          for (int64_t i = 0; i < n; ++i)
            arg8[to + i] = static_cast<uint8_t>(std::max(which[i], 0));
        if (arg32) std::copy_n(which, n, arg32 + to);
        if (!indices) continue;
        for (int64_t i = 0; i < n; ++i) {
          const Tap& t = taps_[static_cast<size_t>(std::max(which[i], 0))];
          const int64_t i0 = o0 * w_.stride[0] - w_.begin[0] + t.at[0];
          const int64_t i1 = o1 * w_.stride[1] - w_.begin[1] + t.at[1];
          const int64_t i2 = (b + i) * w_.stride[2] - w_.begin[2] + t.at[2];
          indices[to + i] =
              which[i] < 0 ? 0 : p * w_.in_count() + (i0 * w_.in[1] + i1) * w_.in[2] + i2;
        }
      }
    });
  });
}

void PoolPlanes::max_grad(const float* dy0, const uint8_t* arg8, const int32_t* arg32,
                          float* dx0) const {
  const auto inside = [](int64_t i, int64_t n) {
    return static_cast<uint64_t>(i) < static_cast<uint64_t>(n);
  };
  planes([&](int64_t p) {
    float* dx = dx0 + p * w_.in_count();
    std::fill_n(dx, w_.in_count(), 0.f);
    rows([&](int64_t o0, int64_t o1, int64_t at) {
      const int64_t s0 = o0 * w_.stride[0] - w_.begin[0], s1 = o1 * w_.stride[1] - w_.begin[1];
      at += p * w_.out_count();
      for (int64_t i = 0; i < w_.out[2]; ++i) {
        const int64_t which = arg8 ? arg8[at + i] : arg32[at + i];
        if (!inside(which, static_cast<int64_t>(taps_.size()))) continue;
        const Tap& t = taps_[static_cast<size_t>(which)];
        const int64_t i0 = s0 + t.at[0], i1 = s1 + t.at[1];
        const int64_t i2 = i * w_.stride[2] - w_.begin[2] + t.at[2];
        if (inside(i0, w_.in[0]) && inside(i1, w_.in[1]) && inside(i2, w_.in[2]))
          dx[(i0 * w_.in[1] + i1) * w_.in[2] + i2] += dy0[at + i];
      }
    });
  });
}

}  // namespace ortrain::ops
