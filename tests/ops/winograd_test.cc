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
  const ConvSums want(
      {s.n, s.h, s.w, s.cin, s.oh, s.ow, s.cout, 3, 3, 1, 1, 1, 1, s.top, s.left, s.threads}, x, w,
      bias, dy);

  std::vector<float> got(dy.size(), NAN);
  Space space(winograd_workspace(s));
  winograd(s, x.data(), w.data(), false, bias.data(), got.data(), space.get());
  expect_close(got, want.y, "y");

  const Winograd back{s.n, s.oh, s.ow, s.cout, s.h, s.w, s.cin, 2 - s.top, 2 - s.left, s.threads};
  std::vector<float> got_dx(x.size(), NAN);
  Space back_space(winograd_workspace(back));
  winograd(back, dy.data(), w.data(), true, nullptr, got_dx.data(), back_space.get());
  expect_close(got_dx, want.dx, "dx");

  std::vector<float> got_dw(w.size(), NAN), got_db(bias.size(), NAN), again(w.size());
  Space sums(winograd_weight_workspace(s));
  winograd_weight(s, x.data(), dy.data(), got_dw.data(), got_db.data(), sums.get());
  expect_close(got_dw, want.dw, "dw");
  expect_close(got_db, want.db, "db");
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
