// Winograd's convolution and its gradients against plain loops in double: odd extents, asymmetric
// and missing padding, channels that fill no vector, one image, more threads than blocks; and that
// bits repeat.
#include "ops/common/winograd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/conv_numbers.h"

namespace ortrain::test {
namespace {

using ops::Winograd;

// f(x index, weight index, y index) over every term of y[o] = sum of x w.
template <class F>
void each_term(const Winograd& s, F f) {
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t i = 0; i < s.oh; ++i)
      for (int64_t j = 0; j < s.ow; ++j)
        for (int64_t t = 0; t < 9; ++t) {
          const int64_t y = i - s.top + t / 3, x = j - s.left + t % 3;
          if (y < 0 || y >= s.h || x < 0 || x >= s.w) continue;
          for (int64_t o = 0; o < s.cout; ++o)
            for (int64_t c = 0; c < s.cin; ++c)
              f(size_t(((n * s.h + y) * s.w + x) * s.cin + c), size_t((o * s.cin + c) * 9 + t),
                size_t(((n * s.oh + i) * s.ow + j) * s.cout + o));
        }
}

void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (double v : want) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 4e-6 * largest) << what << " at " << i;
}

void check(const Winograd& s) {
  SCOPED_TRACE(testing::Message() << s.n << "x" << s.h << "x" << s.w << "x" << s.cin << " > "
                                  << s.oh << "x" << s.ow << "x" << s.cout << " pad " << s.top << ","
                                  << s.left << " threads " << s.threads);
  const auto x = numbers(s.n * s.h * s.w * s.cin, 0.1), w = numbers(s.cout * s.cin * 9, 0.7);
  const auto dy = numbers(s.n * s.oh * s.ow * s.cout, 1.3), bias = numbers(s.cout, 2.9);
  std::vector<double> y(dy.size()), dx(x.size()), dw(w.size()), db(bias.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = bias[i % bias.size()];
    db[i % bias.size()] += dy[i];
  }
  each_term(s, [&](size_t a, size_t b, size_t c) {
    y[c] += double(x[a]) * w[b], dx[a] += double(dy[c]) * w[b], dw[b] += double(dy[c]) * x[a];
  });

  std::vector<float> got(y.size(), NAN);
  Space space(winograd_workspace(s));
  winograd(s, x.data(), w.data(), false, bias.data(), got.data(), space.get());
  expect_close(got, y, "y");

  const Winograd back{s.n, s.oh, s.ow, s.cout, s.h, s.w, s.cin, 2 - s.top, 2 - s.left, s.threads};
  std::vector<float> got_dx(x.size(), NAN);
  Space back_space(winograd_workspace(back));
  winograd(back, dy.data(), w.data(), true, nullptr, got_dx.data(), back_space.get());
  expect_close(got_dx, dx, "dx");

  std::vector<float> got_dw(w.size(), NAN), got_db(bias.size(), NAN), again(w.size());
  Space sums(winograd_weight_workspace(s));
  winograd_weight(s, x.data(), dy.data(), got_dw.data(), got_db.data(), sums.get());
  expect_close(got_dw, dw, "dw");
  expect_close(got_db, db, "db");
  winograd_weight(s, x.data(), dy.data(), again.data(), nullptr, sums.get());
  EXPECT_EQ(again, got_dw);
}

TEST(Winograd, MatchesPlainLoops) {
  check({1, 8, 8, 32, 8, 8, 32, 1, 1, 1});
  check({2, 7, 5, 17, 7, 5, 19, 1, 1, 2});       // odd extents, no whole vector
  check({1, 9, 10, 33, 7, 8, 65, 0, 0, 2});      // no padding
  check({3, 6, 7, 5, 7, 6, 70, 2, 0, 2});        // padding (2, 0) and (0, 1)
  check({1, 5, 6, 130, 4, 7, 1, 0, 2, 3});       // padding (0, 2) and (1, 1), one channel out
  check({1, 2, 2, 1, 1, 1, 3, 0, 1, 1});         // one output, a window that hangs over
  check({2, 40, 37, 64, 40, 37, 100, 1, 1, 2});  // several blocks a thread
  check({1, 3, 40, 600, 3, 40, 32, 1, 1, 4});    // wide rows: small blocks
}

}  // namespace
}  // namespace ortrain::test
