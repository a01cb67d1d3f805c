// See quantize.h.
#include "ops/common/quantize.h"

#include <cmath>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// Axis of the scales; a vector has one axis whatever the attribute says (ONNX).
int scale_axis(const Attrs& a, int rank) {
  return rank == 1 ? 0 : normalize_axis(a.i("axis", 1), rank);
}
int64_t blocks_of(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

}  // namespace

void check_scale(InferCtx& c, int i) {
  const Shape &x = c.shape(0), &s = c.shape(i);
  const int64_t block = c.attrs().i("block_size", 0);
  if (block < 0 || block > int64_t{1} << 40) c.fail(cat("block_size is ", block));
  if (c.has(i + 1) && c.shape(i + 1).is_const() && s.is_const() &&
      c.shape(i + 1).values() != s.values() &&
      !(c.shape(i + 1).count() == Dim(1) && s.count() == Dim(1)))
    c.fail(cat("the zero point has shape ", c.shape(i + 1).str(), ", the scale ", s.str()));
  if (s.is_const() && s.count() == Dim(1)) return;
  if (x.rank() == 0) c.fail(cat("a scale of shape ", s.str(), " for a scalar"));
  const int axis = scale_axis(c.attrs(), x.rank());
  if (block == 0) {
    if (s.rank() != 1 || prove_equal(s[0], x[axis]) == Tri::kNo)
      c.fail(cat("the scale has shape ", s.str(), "; x ", x.str(), " has extent ", x[axis].str(),
                 " along axis ", axis));
    return;
  }
  bool fits = s.rank() == x.rank();
  for (int d = 0; fits && d < x.rank(); ++d)
    fits = d == axis ? !(x[d].is_const() && s[d].is_const()) ||
                           blocks_of(x[d].value(), block) == s[d].value()
                     : prove_equal(x[d], s[d]) != Tri::kNo;
  if (!fits)
    c.fail(cat("the scale has shape ", s.str(), ", which blocks of ", block, " along axis ", axis,
               " of x ", x.str(), " do not give"));
}

ScaleMap::ScaleMap(const Attrs& a, const Dims& x, const Dims& scale) {
  const int rank = static_cast<int>(x.size());
  if (rank == 0 || element_count(scale) == 1) return;
  const int axis = scale_axis(a, rank);
  n_ = x[static_cast<size_t>(axis)];
  inner_ = product(x, axis + 1, rank);
  block_ = a.i("block_size", 0);
  kind_ = block_ > 0 ? Kind::kBlock : Kind::kAxis;
  if (block_ > 0) blocks_ = blocks_of(n_, block_);
}

ScaleMap::Run ScaleMap::run(int64_t at, int64_t end) const {
  const int64_t left = end - at;
  if (kind_ == Kind::kTensor) return {left, 0, 0};
  const int64_t column = at % inner_, row = at / inner_, i = row % n_, outer = row / n_;
  if (kind_ == Kind::kAxis) {
    if (inner_ == 1) return {std::min(left, n_ - i), i, 1};
    return {std::min(left, inner_ - column), i, 0};
  }
  const int64_t block = outer * blocks_ + i / block_;
  if (inner_ == 1) return {std::min({left, n_ - i, block_ - i % block_}), block, 0};
  return {std::min(left, inner_ - column), block * inner_ + column, 1};
}

Quantizer::Quantizer(DType type, DType prec, bool sat)
    : to(type), precision(prec), integer(!is_storage_float(type)), saturate(sat) {
  const IntRange r = int_range(to);
  low = r.low, high = r.high;
  if (integer) return;
  high = storage_to_double(to, double_to_storage(to, 1e300));
  low = -high;
}

double Quantizer::divide(double x, double scale) const {
  const double v = x / scale;
  switch (precision) {
    case DType::kF64: return v;
    case DType::kF16: return static_cast<float>(f16(static_cast<float>(v)));
    case DType::kBF16: return static_cast<float>(bf16(static_cast<float>(v)));
    default: return static_cast<float>(v);
  }
}

Quantizer::Code Quantizer::code(double v, double zero) const {
  if (integer) {
    const double c = std::nearbyint(v) + zero;
    const bool inside = c >= low && c <= high;
    return {inside ? c : c > high ? high : low, inside};
  }
  v += zero;
  return {storage_to_double(to, double_to_storage(to, v, saturate)), v >= low && v <= high};
}

Expr sum_to_scale(Builder& b, Expr term, const Attrs& a, const Shape& scale) {
  const Dims dims = term.shape().values(), target = scale.values();
  const int rank = static_cast<int>(dims.size());
  std::vector<int64_t> axes;
  if (rank == 0 || element_count(target) == 1) {
    for (int d = 0; d < rank; ++d) axes.push_back(d);
    return b.reshape(axes.empty() ? term : b.sum(term, axes), target);
  }
  const int axis = scale_axis(a, rank);
  const int64_t block = a.i("block_size", 0);
  if (block == 0) {
    for (int d = 0; d < rank; ++d)
      if (d != axis) axes.push_back(d);
    return b.reshape(axes.empty() ? term : b.sum(term, axes), target);
  }
  const auto at = static_cast<size_t>(axis);
  const int64_t missing = target[at] * block - dims[at];
  if (missing > 0) {
    std::vector<int64_t> pads(2 * dims.size(), 0);
    pads[dims.size() + at] = missing;
    term = b.op("Pad", {term, b.ints(pads)});
  }
  Dims split(dims.begin(), dims.begin() + axis);
  split.push_back(target[at]);
  split.push_back(block);
  split.insert(split.end(), dims.begin() + axis + 1, dims.end());
  return b.reshape(b.sum(b.reshape(term, split), {axis + 1}), target);
}

}  // namespace ortrain::ops
