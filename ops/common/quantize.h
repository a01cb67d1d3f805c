// What QuantizeLinear, DequantizeLinear and fake quantization share: how scales spread over a
// tensor, and how a number becomes a code.
//
// A scale is one number, one per index of `axis`, or one per block of `block_size` along `axis`
// (ONNX, QuantizeLinear: granularities). Zero points have the scale's shape.
#pragma once

#include "graph/builder.h"
#include "ops/common/storage.h"

namespace ortrain::ops {

// Checks the shape of input `scale` (and of the zero point behind it, if any) against input 0.
void check_scale(InferCtx& c, int scale);

class ScaleMap {
 public:
  ScaleMap(const Attrs& a, const Dims& x, const Dims& scale);
  // The longest run of elements [at, at + count) of x, not beyond `end`, whose scales are `scale`,
  // `scale + step`, ...
  struct Run {
    int64_t count, scale;
    int64_t step;  // 0 or 1
  };
  Run run(int64_t at, int64_t end) const;

 private:
  enum class Kind { kTensor, kAxis, kBlock } kind_ = Kind::kTensor;
  int64_t n_ = 1, inner_ = 1, block_ = 1, blocks_ = 1;
};

// Calls f(at, count, scales, zeros, step) for runs of a tensor of `n` elements, spread over
// threads; scales and zeros are doubles (zeros 0 without a zero point), read with stride `step`.
template <class F>
void for_scaled_runs(int threads, int64_t n, const ScaleMap& map, DType scale_type,
                     const void* scale, DType zero_type, const void* zero, F&& f) {
  parallel_for(threads, n, 8 * kRun, [&](int64_t begin, int64_t end) {
    std::array<double, kRun> scales, zeros{};
    for (int64_t at = begin; at < end;) {
      const ScaleMap::Run r = map.run(at, std::min(end, at + kRun));
      const int64_t own = r.step ? r.count : 1;
      load_run(scale_type, scale, r.scale, own, scales.data());
      if (zero) load_run(zero_type, zero, r.scale, own, zeros.data());
      f(at, r.count, scales.data(), zeros.data(), r.step);
      at += r.count;
    }
  });
}

// Numbers to codes of a quantized type, codes as numbers.
struct Quantizer {
  // `precision`: the type whose rounding x / scale has.
  Quantizer(DType to, DType precision, bool saturate);
  double divide(double x, double scale) const;
  struct Code {
    double value;
    bool inside;  // the range of the type was not left
  };
  // Of v = x / scale. Integers round to nearest even, add the zero point and saturate, NaN gives
  // the smallest; floats add the zero point and round.
  Code code(double v, double zero) const;

  DType to, precision;
  bool integer, saturate;
  double low, high;
};

// The sum of `term` (x's shape) over all elements that share a scale, in the scale's shape.
Expr sum_to_scale(Builder& b, Expr term, const Attrs& a, const Shape& scale);

}  // namespace ortrain::ops
