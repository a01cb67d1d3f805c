// Weight gradient of depthwise convolutions against plain sums in double: channels that do not fill
// the vectors, strides, dilations, padding on either side, strips, threads with blocks of channels
// and with samples of their own; and that bits repeat.
#include "ops/common/depthwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/ops/conv_numbers.h"

namespace ortrain::test {
namespace {

using ops::Depthwise;

void check(const Depthwise& s) {
  SCOPED_TRACE(testing::Message() << s.n << "x" << s.h << "x" << s.w << "x" << s.c << " > " << s.oh
                                  << "x" << s.ow << " kernel " << s.kh << "x" << s.kw);
  const auto x = numbers(s.n * s.h * s.w * s.c, 0.1), dy = numbers(s.n * s.oh * s.ow * s.c, 1.3);
  const int64_t taps = s.kh * s.kw;
  std::vector<double> dw(static_cast<size_t>(s.c * taps)), size(dw.size());
  std::vector<double> db(static_cast<size_t>(s.c)), size_b(db.size());
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t i = 0; i < s.oh; ++i)
      for (int64_t j = 0; j < s.ow; ++j)
        for (int64_t c = 0; c < s.c; ++c) {
          const double g = dy[static_cast<size_t>(((n * s.oh + i) * s.ow + j) * s.c + c)];
          db[static_cast<size_t>(c)] += g, size_b[static_cast<size_t>(c)] += std::abs(g);
          for (int64_t t = 0; t < taps; ++t) {
            const int64_t r = i * s.sh - s.top + t / s.kw * s.dh;
            const int64_t q = j * s.sw - s.left + t % s.kw * s.dw;
            if (r < 0 || r >= s.h || q < 0 || q >= s.w) continue;
            const double term =
                g * double(x[static_cast<size_t>(((n * s.h + r) * s.w + q) * s.c + c)]);
            dw[static_cast<size_t>(c * taps + t)] += term;
            size[static_cast<size_t>(c * taps + t)] += std::abs(term);
          }
        }
  std::vector<float> got(dw.size() + 16, NAN), got_b(db.size() + 16, NAN), again(dw.size());
  Space space(depthwise_weight_workspace(s));
  depthwise_weight(s, x.data(), dy.data(), got.data(), got_b.data(), space.get());
  // Each sum is of strips, and those of at most some thousand terms: far fewer than 64 roundings of
  // the sum of sizes.
  constexpr double kRoundings = 64 * 0x1p-24;
  for (size_t i = 0; i < dw.size(); ++i)
    ASSERT_NEAR(got[i], dw[i], kRoundings * size[i] + 1e-30) << "dw at " << i;
  for (size_t i = 0; i < db.size(); ++i)
    ASSERT_NEAR(got_b[i], db[i], kRoundings * size_b[i] + 1e-30) << "db at " << i;
  EXPECT_TRUE(std::isnan(got[dw.size()]) && std::isnan(got_b[db.size()])) << "written beyond";
  depthwise_weight(s, x.data(), dy.data(), again.data(), nullptr, space.get());
  EXPECT_EQ(std::memcmp(again.data(), got.data(), again.size() * sizeof(float)), 0);
}

TEST(Depthwise, Channels) {
  for (int64_t c : {2, 7, 8, 15, 16, 17, 24, 33, 64, 100})
    for (int threads : {1, 2, 3, 8}) check({5, 9, 8, c, 9, 8, 3, 5, 1, 1, 1, 1, 1, 2, threads});
}

TEST(Depthwise, Windows) {
  check({3, 48, 48, 24, 48, 48, 5, 5, 1, 1, 1, 1, 2, 2, 2});      // several strips
  check({2, 24, 80, 40, 12, 80, 5, 5, 2, 1, 1, 1, 2, 2, 2});      // stride on one axis
  check({2, 14, 14, 20, 7, 7, 7, 7, 2, 2, 1, 1, 3, 3, 2});        // three passes over kernel rows
  check({2, 15, 13, 16, 11, 5, 3, 5, 1, 1, 2, 2, 0, 0, 2});       // dilation
  check({1, 13, 17, 5, 4, 5, 2, 5, 3, 4, 4, 2, 1, 2, 4});         // everything
  check({2, 1, 43, 3, 1, 43, 1, 5, 1, 1, 1, 1, 0, 2, 1});         // one axis
  check({2, 4, 4, 18, 12, 12, 5, 5, 1, 1, 1, 1, 6, 6, 2});        // padding wider than windows
  check({1, 2, 2, 9, 1, 1, 3, 5, 1, 1, 1, 1, 0, 1, 1});           // a window that hangs over
  check({2, 9, 9, 12, 2, 2, 3, 5, 2, 2, 1, 1, 0, 0, 2});          // last rows and columns unread
  check({1, 200, 300, 16, 200, 300, 3, 5, 1, 1, 1, 1, 1, 2, 2});  // strips of few rows
}

}  // namespace
}  // namespace ortrain::test
