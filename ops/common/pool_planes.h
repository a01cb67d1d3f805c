// Max and average pooling of f32 planes (channels first, any number of spatial axes up to 3), a row
// of windows at a time: tap by tap over the windows that have the tap, so the inner loops are
// contiguous in the output and strided in the input. Planes are shared out to the threads.
//
// Gradients add in f32 into a plane that starts at zero, in the order of the windows.
#pragma once

#include <array>
#include <vector>

#include "ops/common/window.h"

namespace ortrain::ops {

class PoolPlanes {
 public:
  PoolPlanes(const Window& w, int threads);

  // arg8, arg32 and indices (row-major positions in the tensor) may be null.
  void max(const float* x, float* y, uint8_t* arg8, int32_t* arg32, int64_t* indices) const;
  // One of the two is given; taps outside of the tensor get nothing.
  void max_grad(const float* dy, const uint8_t* arg8, const int32_t* arg32, float* dx) const;
  // inverse[axis][window]: the product over the axes divides a window's sum.
  using Inverse = std::array<std::vector<float>, 3>;
  void average(const float* x, const Inverse& inverse, float* y) const;
  void average_grad(const float* dy, const Inverse& inverse, float* dx) const;

 private:
  struct Range {  // windows of the last axis that have the tap inside the tensor
    int64_t first, last;
  };
  struct Tap {
    int64_t at[3];  // offset along each axis, padding not counted
  };
  template <class Body>
  void planes(Body&& body) const;
  template <class Body>
  void rows(Body&& body) const;
  template <class Body>
  void taps(int64_t o0, int64_t o1, Body&& body) const;
  Window w_;
  int threads_;
  std::vector<Range> ranges_;
  std::vector<Tap> taps_;
};

}  // namespace ortrain::ops
