// Convolution with few channels and its gradients against plain loops in double: channels 1 to 17
// and more, odd extents, strides, dilations, padding on either side, one and several samples, more
// threads than samples; and that bits repeat.
#include "ops/common/few_channels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/conv_numbers.h"

namespace ortrain::test {
namespace {

using ops::FewChannels;

// `got` has a guard of NaN behind it that must still be there.
void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size() + 16);
  double largest = 0;
  for (double v : want) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 4e-6 * largest) << what << " at " << i;
  for (size_t i = want.size(); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << what;
}

void check(const FewChannels& s) {
  SCOPED_TRACE(testing::Message() << s.n << "x" << s.h << "x" << s.w << "x" << s.cin << " > "
                                  << s.oh << "x" << s.ow << "x" << s.cout << " kernel " << s.kh
                                  << "x" << s.kw << " threads " << s.threads);
  const int64_t taps = s.kh * s.kw;
  const auto x = numbers(s.n * s.h * s.w * s.cin, 0.1), w = numbers(s.cout * s.cin * taps, 0.7);
  const auto dy = numbers(s.n * s.oh * s.ow * s.cout, 1.3), bias = numbers(s.cout, 2.9);
  const ConvSums want(s, x, w, bias, dy);

  std::vector<float> got(dy.size() + 16, NAN);
  Space space(few_channels_workspace(s));
  few_channels(s, x.data(), w.data(), false, bias.data(), got.data(), space.get());
  expect_close(got, want.y, "y");

  FewChannels back = s;
  std::swap(back.h, back.oh), std::swap(back.w, back.ow), std::swap(back.cin, back.cout);
  back.top = (s.kh - 1) * s.dh - s.top, back.left = (s.kw - 1) * s.dw - s.left;
  if (s.sh == 1 && s.sw == 1 && back.top >= 0 && back.left >= 0) {
    std::vector<float> got_dx(x.size() + 16, NAN);
    Space back_space(few_channels_workspace(back));
    few_channels(back, dy.data(), w.data(), true, nullptr, got_dx.data(), back_space.get());
    expect_close(got_dx, want.dx, "dx");
  }

  std::vector<float> got_dw(w.size() + 16, NAN), got_db(bias.size() + 16, NAN), again(w.size());
  Space sums(few_channels_weight_workspace(s));
  few_channels_weight(s, x.data(), dy.data(), got_dw.data(), got_db.data(), sums.get());
  expect_close(got_dw, want.dw, "dw");
  expect_close(got_db, want.db, "db");
  few_channels_weight(s, x.data(), dy.data(), again.data(), nullptr, sums.get());
  EXPECT_TRUE(std::equal(again.begin(), again.end(), got_dw.begin()));
}

TEST(FewChannels, EveryCountOfChannels) {
  for (int64_t in = 1; in <= 17; ++in)
    for (int64_t out = 1; out <= 17; ++out)
      check({in % 2 ? 5 : 1, 6, 5, in, 6, 5, out, 3, 3, 1, 1, 1, 1, 1, 1, 2});
  check({2, 5, 16, 20, 5, 16, 40, 3, 3, 1, 1, 1, 1, 1, 1, 2});  // several vectors
}

TEST(FewChannels, Windows) {
  check({3, 28, 28, 1, 28, 28, 6, 5, 5, 1, 1, 1, 1, 2, 2, 2});
  check({3, 14, 14, 6, 10, 10, 16, 5, 5, 1, 1, 1, 1, 0, 0, 2});  // read where it is
  check({5, 11, 9, 3, 6, 4, 7, 3, 2, 2, 2, 1, 1, 1, 0, 3});      // stride 2
  check({2, 13, 12, 2, 9, 6, 5, 3, 4, 1, 1, 2, 2, 0, 0, 2});     // dilation
  check({1, 13, 17, 5, 4, 5, 9, 2, 3, 3, 4, 4, 2, 1, 2, 4});     // everything
  check({1, 1, 43, 3, 1, 45, 4, 1, 3, 1, 1, 1, 1, 0, 2, 1});     // one axis
  check({2, 4, 4, 3, 9, 9, 2, 2, 2, 1, 1, 1, 1, 3, 3, 2});       // padding wider than windows
  check({1, 2, 2, 1, 1, 1, 3, 3, 3, 1, 1, 1, 1, 0, 1, 1});       // a window that hangs over
  check({2, 9, 9, 4, 4, 4, 4, 1, 1, 2, 2, 1, 1, 0, 0, 2});       // last rows unread
}

}  // namespace
}  // namespace ortrain::test
