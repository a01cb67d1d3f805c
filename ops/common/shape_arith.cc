// Elementwise arithmetic on carried shapes.
#include "ops/common/shape_arith.h"

#include <algorithm>

namespace ortrain::ops {

void carry_ints(InferCtx& c, DimFn f) {
  std::vector<Dim> sum;
  for (int i = 0; i < c.input_count(); ++i) {
    const auto x = c.ints(i);
    if (!x || c.rank(i) > 1) return;
    if (i == 0) {
      sum = *x;
      if (c.input_count() > 1) continue;
    }
    const size_t n = sum.size() == 1 ? x->size() : sum.size();
    if (sum.size() != n && sum.size() != 1) return;
    if (x->size() != n && x->size() != 1) return;
    std::vector<Dim> next;
    for (size_t k = 0; k < n; ++k) {
      const auto d = f(sum[sum.size() == 1 ? 0 : k], (*x)[x->size() == 1 ? 0 : k]);
      if (!d) return;
      next.push_back(*d);
    }
    sum = std::move(next);
  }
  c.out_ints(0, std::move(sum));
}

}  // namespace ortrain::ops
