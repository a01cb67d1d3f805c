// Fourier transforms of any length in O(n log n), in double: powers of two by Stockham's radix 2
// steps (no reordering pass, long contiguous inner loops), other lengths as a convolution of powers
// of two (Bluestein).
//
// Tables are made once per length; run() allocates nothing. Real and imaginary parts lie apart, so
// that the loops vectorise.
#pragma once

#include <cstdint>
#include <vector>

namespace ortrain::ops {

class Fft {
 public:
  // y_k = sum over m of x_m e^(-2 pi i k m / n), or e^(+...) when inverse (no division by n).
  // n in [1, 2^30].
  Fft(int64_t n, bool inverse);
  int64_t size() const { return n_; }
  int64_t scratch() const { return bluestein_ ? 4 * padded_ : 2 * n_; }  // doubles
  // In place; re and im have n elements.
  void run(double* re, double* im, double* scratch) const;

 private:
  int64_t n_, padded_;
  bool inverse_, bluestein_;
  std::vector<double> cos_, sin_;              // e^(-2 pi i k / padded), k < padded / 2
  std::vector<double> chirp_re_, chirp_im_;    // e^(-+ pi i k^2 / n)
  std::vector<double> filter_re_, filter_im_;  // transformed conjugate chirp, divided by padded
};

}  // namespace ortrain::ops
