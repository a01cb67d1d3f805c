// Channels-last f32 max-pooling and its gradient, rows at a time, with vectors over the channels.
// With few channels a vector runs on into the next pixels: what it reads there is ignored and what
// it writes there is written again by those pixels, in order; the last pixels of a row or tensor go
// element by element. Quicker ways, to the same bits: forward, 2x2 and 3x3 windows whole inside the
// tensor; gradient, windows 2 wide and 2 apart without padding along the rows.
#pragma once

#include <array>
#include <vector>

#include "ops/common/window.h"

namespace ortrain::ops {

// Divisions done once, per axis.
struct MaxPoolTables {
  struct Span {  // per window: position of tap 0 in x, taps inside the tensor
    int64_t start, first, last;
  };
  struct Cover {  // a window over a position of x, and the position's tap there
    int64_t window, tap;
  };
  std::array<std::vector<Span>, 3> spans;
  std::array<std::vector<Cover>, 3> covers;
  std::array<std::vector<int64_t>, 3> cover_begin;  // per position; one more at the end
  int64_t whole_begin = 0, whole_end = 0;  // windows of a row with all taps of the last axis inside
  explicit MaxPoolTables(const Window& w);
};

// Rows [begin, end) of n * out[0] * out[1]. The tap of the maximum goes to arg8 (windows of at most
// 255 taps) or arg32; both are null where nobody wants it.
void max_pool_rows(const Window& w, const MaxPoolTables& t, const float* x, float* y, uint8_t* arg8,
                   int32_t* arg32, int64_t begin, int64_t end);
// Rows [begin, end) of n * in[0] * in[1]; one of arg8 and arg32.
void max_pool_grad_rows(const Window& w, const MaxPoolTables& t, const float* dy,
                        const uint8_t* arg8, const int32_t* arg32, float* dx, int64_t begin,
                        int64_t end);

}  // namespace ortrain::ops
