// AffineGrid: sampling positions theta [N, d, d+1] times (x, y, (z,) 1) of every pixel, d = 2 or 3;
// `size` [N, C, spatial...] is a constant input. The positions of the pixels are a constant matrix,
// so it is one product, whose gradient is theta's. One pixel along an axis lies at 0 (PyTorch).
#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {

namespace {

constexpr int64_t kMost = int64_t{1} << 28;  // positions: they become a constant

void infer(InferCtx& c) {
  const std::vector<Dim> size = c.need_ints(1, "the size of AffineGrid");
  const int d = static_cast<int>(size.size()) - 2;
  const Shape& theta = c.shape(0);
  if ((d != 2 && d != 3) || theta.rank() != 3 || prove_equal(theta[1], Dim(d)) == Tri::kNo ||
      prove_equal(theta[2], Dim(d + 1)) == Tri::kNo || prove_equal(theta[0], size[0]) == Tri::kNo)
    c.fail(cat("theta ", theta.str(), " does not fit a size of ", size.size(), " entries"));
  if (!is_float(c.dtype(0))) c.fail(cat("theta is ", name_of(c.dtype(0))));
  Shape out{theta[0]};
  Dims pixels;
  for (int i = 0; i < d; ++i) {
    if (size[static_cast<size_t>(i) + 2].is_const() && size[static_cast<size_t>(i) + 2].value() < 0)
      c.fail("a negative extent in size");
    out.push_back(size[static_cast<size_t>(i) + 2]);
    if (out[i + 1].is_const()) pixels.push_back(out[i + 1].value());
  }
  if (element_count(pixels) > kMost)
    c.fail(cat("a grid of ", element_count(pixels), " positions, at most ", kMost));
  out.push_back(Dim(d));
  c.out(0, c.dtype(0), out);
}

// [points, d + 1]: the position of every point, last axis first, then 1.
HostTensor base(const Dims& spatial, bool align) {
  const size_t d = spatial.size();
  const int64_t points = element_count(spatial);
  HostTensor t(DType::kF64, {points, static_cast<int64_t>(d) + 1});
  double* p = t.mutable_data<double>();
  for (int64_t i = 0; i < points; ++i) {
    int64_t rest = i;
    for (size_t k = 0; k < d; ++k) {
      const int64_t n = spatial[d - 1 - k], at = rest % n;
      rest /= n;
      const auto steps = static_cast<double>(align ? n - 1 : n);
      *p++ = n == 1 ? 0 : static_cast<double>(2 * at + (align ? 0 : 1)) / steps - 1;
    }
    *p++ = 1;
  }
  return t;
}

std::vector<Expr> parts(Decompose& d) {
  const Dims out = d.b.graph().value(d.node().outputs[0]).shape.values();
  const bool align = d.attrs().i("align_corners", 0) != 0;
  const HostTensor positions = base(Dims(out.begin() + 1, out.end() - 1), align);
  const Expr theta = d.x(0);
  const Expr points = d.b.constant(positions.cast(theta.dtype()));
  const Expr grid = d.b.op("MatMul", {points, theta}, {{"trans_b", int64_t{1}}});
  return {d.b.reshape(grid, out)};
}

Attrs align(int64_t on) { return {{"align_corners", on}}; }

}  // namespace

void register_affine_grid(OpTable& table) {
  table.add({
      .name = "AffineGrid",
      .inputs = {"theta", "size"},
      .outputs = {"grid"},
      .since = 20,
      .infer = infer,
      .decompose = parts,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 2, 3}), ivals({2, 3, 4, 5})}},
                   {.in = {f({2, 2, 3}), ivals({2, 3, 4, 5})}, .attrs = align(1)},
                   {.in = {f({1, 3, 4}), ivals({1, 2, 3, 4, 2})}, .attrs = align(0)},
                   {.in = {f({1, 3, 4}), ivals({1, 2, 3, 1, 2})}, .attrs = align(1)},
                   {.in = {f({1, 2, 3}), ivals({1, 1, 0, 2})}}},
      .note = "an axis with one pixel: position 0 (PyTorch)",
  });
}

}  // namespace ortrain::ops
