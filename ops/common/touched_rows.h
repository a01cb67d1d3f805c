// The gradient of a table as the rows that were looked up: `rows` [capacity, inner] holds the sums
// of the touched rows in ascending order, `slots` [n] per row of the table the place of its sum in
// `rows`, -1 where the gradient is 0.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ortrain::ops {

// f(gradient, offset, count) over the elements [first, first + n) of the table: `gradient` points
// to `count` numbers, null where they are all 0; `offset` counts from `first`. Neighbouring rows of
// one kind come together, as `rows` is in order.
template <class T, class F>
void each_run(const int32_t* slots, const T* rows, int64_t inner, int64_t first, int64_t n, F f) {
  const int64_t end = first + n, rows_end = n > 0 ? (end + inner - 1) / inner : 0;
  for (int64_t at = first; at < end;) {
    const int64_t row = at / inner;
    const int32_t slot = slots[row];
    int64_t next = row + 1;
    while (next < rows_end && (slot < 0 ? slots[next] < 0 : slots[next] == slot + (next - row)))
      ++next;
    const int64_t stop = std::min(end, next * inner);
    f(slot < 0 ? nullptr : rows + slot * inner + (at - row * inner), at - first, stop - at);
    at = stop;
  }
}

}  // namespace ortrain::ops
