// Separable linear resampling: per axis a sparse matrix from input to output positions, applied one
// axis after another. The gradient is the same with every matrix transposed. Resize builds the
// matrices at prepare time; nothing about coordinates remains at run time.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/tensor.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

// Row r (output position) sums weight[k] * x[column[k]] for k in [first[r], first[r + 1]), plus
// bias[r] when there are biases.
struct AxisMatrix {
  int axis = 0;
  int64_t in = 0, out = 0;
  std::vector<int64_t> first{0}, column;
  std::vector<double> weight;
  std::vector<double> bias;

  void add_row(const std::vector<std::pair<int64_t, double>>& entries);  // duplicates are merged
  bool identity() const;
  bool selects() const;  // every row is one input position with weight 1
  AxisMatrix transposed() const;
};

// Applies `matrices` in the given order to a tensor of `dims`; T is f32 or f64 (others compute in
// f64). Returns a kernel from in[0] to out[0]. Sums run in column order whatever the thread count.
Kernel resample(std::vector<AxisMatrix> matrices, Dims dims, DType dtype, int threads);

}  // namespace ortrain::ops
