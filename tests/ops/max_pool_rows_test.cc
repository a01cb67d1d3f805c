// Channels-last max-pooling and its gradient, bit for bit against plain loops: 1 to 20 channels and
// more, whole windows and ones that hang over, with ties, -0, -inf and NaN (as PyTorch: the first
// maximum, NaN above all numbers), rows shared out in two parts of which the later comes first.
#include "ops/common/max_pool_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace ortrain::test {
namespace {

using ops::MaxPoolTables;
using ops::Window;
using I3 = std::array<int64_t, 3>;

Window window(int64_t n, int64_t channels, I3 in, I3 kernel, I3 stride, I3 dilation, I3 begin,
              I3 end) {
  Window w;
  w.nd = 3, w.n = n, w.cx = w.cy = channels, w.channels_last = true;
  w.in = in, w.kernel = kernel, w.stride = stride, w.dilation = dilation, w.begin = begin;
  for (size_t a = 0; a < 3; ++a)
    w.out[a] = (in[a] + begin[a] + end[a] - dilation[a] * (kernel[a] - 1) - 1) / stride[a] + 1;
  const auto strides = [&](const I3& e) {
    return Window::Strides{
        e[0] * e[1] * e[2] * channels, 1, {e[1] * e[2] * channels, e[2] * channels, channels}};
  };
  w.x = strides(w.in), w.y = strides(w.out);
  return w;
}

struct Reference {
  std::vector<float> y, dx;
  std::vector<uint8_t> arg;
};
Reference reference(const Window& w, const std::vector<float>& x, const std::vector<float>& dy) {
  Reference r{std::vector<float>(dy.size()), std::vector<float>(x.size()),
              std::vector<uint8_t>(dy.size())};
  for (size_t k = 0; k < dy.size(); ++k) {
    const auto at = static_cast<int64_t>(k), c = at % w.cx, o2 = at / w.cx % w.out[2];
    const int64_t o1 = at / w.y.s[1] % w.out[1], o0 = at / w.y.s[0] % w.out[0], n = at / w.y.n;
    size_t from = 0;
    int64_t taken = -1;
    for (int64_t t = 0; t < w.taps(); ++t) {
      const I3 o{o0, o1, o2},
          tap{t / w.kernel[2] / w.kernel[1], t / w.kernel[2] % w.kernel[1], t % w.kernel[2]};
      int64_t p = n * w.x.n + c;
      bool inside = true;
      for (size_t a = 0; a < 3; ++a) {
        const int64_t i = o[a] * w.stride[a] - w.begin[a] + tap[a] * w.dilation[a];
        inside = inside && i >= 0 && i < w.in[a];
        p += i * w.x.s[a];
      }
      if (!inside) continue;
      const float v = x[static_cast<size_t>(p)];
      if (taken >= 0 && !(v > x[from]) && !std::isnan(v)) continue;
      taken = t, from = static_cast<size_t>(p);
    }
    r.y[k] = x[from], r.arg[k] = static_cast<uint8_t>(taken);
    r.dx[from] += dy[k];
  }
  return r;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void check(const Window& w, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << w.n << " x " << w.in[0] << "x" << w.in[1] << "x" << w.in[2]
                                  << " x " << w.cx << ", windows " << w.kernel[0] << "x"
                                  << w.kernel[1] << "x" << w.kernel[2] << ", strides "
                                  << w.stride[0] << " " << w.stride[1] << " " << w.stride[2]);
  std::vector<float> x(static_cast<size_t>(w.n * w.x.n)), dy(static_cast<size_t>(w.n * w.y.n));
  constexpr float kRare[] = {-0.f, -std::numeric_limits<float>::infinity(), NAN};
  for (float& v : x) v = random() % 12 ? float(random() % 7) - 3 : kRare[random() % 3];
  for (float& v : dy) v = random() % 8 ? float(random() % 64) - 32 : -0.f;  // sums are exact
  const Reference want = reference(w, x, dy);
  const MaxPoolTables t(w);
  std::vector<float> y(dy.size()), alone(dy.size()), dx(x.size());
  std::vector<uint8_t> arg(dy.size());
  const int64_t rows = w.n * w.out[0] * w.out[1], back = w.n * w.in[0] * w.in[1];
  ops::max_pool_rows(w, t, x.data(), y.data(), arg.data(), nullptr, rows / 2, rows);
  ops::max_pool_rows(w, t, x.data(), y.data(), arg.data(), nullptr, 0, rows / 2);
  ops::max_pool_rows(w, t, x.data(), alone.data(), nullptr, nullptr, 0, rows);
  ops::max_pool_grad_rows(w, t, dy.data(), want.arg.data(), nullptr, dx.data(), back / 2, back);
  ops::max_pool_grad_rows(w, t, dy.data(), want.arg.data(), nullptr, dx.data(), 0, back / 2);
  EXPECT_TRUE(same(y, want.y));
  EXPECT_TRUE(same(alone, want.y));
  EXPECT_TRUE(same(arg, want.arg));
  EXPECT_TRUE(same(dx, want.dx));
}

TEST(MaxPoolRows, NanIsTheMaximum) {
  const Window w = window(1, 16, {1, 2, 2}, {1, 2, 2}, {1, 2, 2}, {1, 1, 1}, {}, {});
  std::vector<float> x(64, 1.f), y(16);
  std::vector<uint8_t> arg(16);
  x[16 + 5] = NAN;
  ops::max_pool_rows(w, MaxPoolTables(w), x.data(), y.data(), arg.data(), nullptr, 0, 1);
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(arg[5], 1);
  EXPECT_EQ(y[4], 1);
  EXPECT_EQ(arg[4], 0);
}

TEST(MaxPoolRows, EveryCountOfChannels) {
  std::mt19937 random(1);
  for (int64_t c : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 31, 33, 40}) {
    for (int64_t in : {2, 3, 7, 12})
      for (int64_t k : {2, 3})
        check(window(2, c, {1, in + 1, in + 1}, {1, k, k}, {1, 2, 2}, {1, 1, 1}, {}, {}), random);
    check(window(3, c, {1, 9, 8}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}), random);
    check(window(2, c, {1, 9, 9}, {1, 2, 2}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {0, 0, 0}), random);
    check(window(2, c, {1, 7, 9}, {1, 2, 2}, {1, 1, 3}, {1, 2, 3}, {0, 0, 1}, {0, 1, 1}), random);
    check(window(2, c, {4, 5, 6}, {2, 3, 2}, {2, 1, 2}, {1, 1, 1}, {}, {}), random);
    check(window(1, c, {1, 1, 23}, {1, 1, 2}, {1, 1, 2}, {1, 1, 1}, {}, {}), random);
  }
}

}  // namespace
}  // namespace ortrain::test
