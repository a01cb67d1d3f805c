// The loops and tables of Fft.
#include "ops/common/fft.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

// One step over n elements: pairs at distance n/2 of blocks of m go to neighbouring blocks.
// w: e^(-2 pi i j m / n) at index j * m.
ORTRAIN_SIMD void step(int64_t n, int64_t m, const double* cosines, const double* sines,
                       const double* re, const double* im, double* to_re, double* to_im) {
  const int64_t half = n / 2;
  for (int64_t j = 0; j < half; j += m) {
    const double c = cosines[j], s = sines[j];
    const double *ar = re + j, *ai = im + j, *br = ar + half, *bi = ai + half;
    double *yr = to_re + 2 * j, *yi = to_im + 2 * j;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const double dr = ar[k] - br[k], di = ai[k] - bi[k];
      yr[k] = ar[k] + br[k], yi[k] = ai[k] + bi[k];
      yr[m + k] = dr * c - di * s, yi[m + k] = dr * s + di * c;
    }
  }
}

// n a power of two; the result lies in re, im. spare: 2 n.
void powers_of_two(int64_t n, const double* cosines, const double* sines, double* re, double* im,
                   double* spare) {
  double *from_re = re, *from_im = im, *to_re = spare, *to_im = spare + n;
  for (int64_t m = 1; m < n; m *= 2) {
    step(n, m, cosines, sines, from_re, from_im, to_re, to_im);
    std::swap(from_re, to_re);
    std::swap(from_im, to_im);
  }
  if (from_re == re) return;
  std::copy_n(from_re, n, re);
  std::copy_n(from_im, n, im);
}

ORTRAIN_SIMD void multiply(int64_t n, const double* br, const double* bi, double* re, double* im) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double r = re[i] * br[i] - im[i] * bi[i];
    im[i] = re[i] * bi[i] + im[i] * br[i];
    re[i] = r;
  }
}

}  // namespace

Fft::Fft(int64_t n, bool inverse) : n_(n), padded_(1), inverse_(inverse) {
  bluestein_ = (n & (n - 1)) != 0;
  const int64_t least = bluestein_ ? 2 * n - 1 : n;
  while (padded_ < least) padded_ *= 2;
  cos_.resize(static_cast<size_t>(padded_ / 2));
  sin_.resize(cos_.size());
  for (size_t k = 0; k < cos_.size(); ++k) {
    const double angle =
        -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(padded_);
    cos_[k] = std::cos(angle), sin_[k] = std::sin(angle);
  }
  if (!bluestein_) return;
  // k m = (k^2 + m^2 - (k - m)^2) / 2: a convolution with the conjugate chirp.
  const auto count = static_cast<size_t>(n), wide = static_cast<size_t>(padded_);
  chirp_re_.resize(count), chirp_im_.resize(count);
  filter_re_.assign(wide, 0), filter_im_.assign(wide, 0);
  for (size_t k = 0; k < count; ++k) {
    const auto square = static_cast<double>(k * k % (2 * count));  // exact: n is at most 2^30
    const double angle = -std::numbers::pi * square / static_cast<double>(n);
    chirp_re_[k] = std::cos(angle), chirp_im_[k] = std::sin(angle);
    const size_t mirror = k ? wide - k : 0;
    filter_re_[k] = filter_re_[mirror] = chirp_re_[k] / static_cast<double>(padded_);
    filter_im_[k] = filter_im_[mirror] = -chirp_im_[k] / static_cast<double>(padded_);
  }
  std::vector<double> spare(2 * wide);
  powers_of_two(padded_, cos_.data(), sin_.data(), filter_re_.data(), filter_im_.data(),
                spare.data());
}

void Fft::run(double* re, double* im, double* scratch) const {
  // With the parts exchanged a transform runs the other way round.
  if (inverse_) std::swap(re, im);
  if (!bluestein_) return powers_of_two(n_, cos_.data(), sin_.data(), re, im, scratch);
  double *wr = scratch, *wi = scratch + padded_, *spare = scratch + 2 * padded_;
  std::copy_n(re, n_, wr), std::copy_n(im, n_, wi);
  std::fill(wr + n_, wr + padded_, 0), std::fill(wi + n_, wi + padded_, 0);
  multiply(n_, chirp_re_.data(), chirp_im_.data(), wr, wi);
  powers_of_two(padded_, cos_.data(), sin_.data(), wr, wi, spare);
  multiply(padded_, filter_re_.data(), filter_im_.data(), wr, wi);
  powers_of_two(padded_, cos_.data(), sin_.data(), wi, wr, spare);  // back: parts exchanged
  multiply(n_, chirp_re_.data(), chirp_im_.data(), wr, wi);
  std::copy_n(wr, n_, re), std::copy_n(wi, n_, im);
}

}  // namespace ortrain::ops
