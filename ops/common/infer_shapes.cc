// See infer_shapes.h.
#include "ops/common/infer_shapes.h"

#include "graph/error.h"
#include "ops/common/window.h"

namespace ortrain::ops {

Shape product_shape(InferCtx& c, int ia, int ib) {
  std::vector<Dim> a = c.shape(ia).dims(), b = c.shape(ib).dims();
  if (a.empty() || b.empty()) c.fail("a scalar operand; products take rank 1 and higher");
  if (c.attrs().i("trans_a", 0) && a.size() > 1) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (c.attrs().i("trans_b", 0) && b.size() > 1) std::swap(b[b.size() - 1], b[b.size() - 2]);
  const bool vector_a = a.size() == 1, vector_b = b.size() == 1;
  if (vector_a) a.insert(a.begin(), Dim(1));
  if (vector_b) b.push_back(Dim(1));
  if (prove_equal(a.back(), b[b.size() - 2]) == Tri::kNo)
    c.fail(cat("inner extents differ: ", c.shape(ia).str(), " times ", c.shape(ib).str()));
  const auto batch = [](const std::vector<Dim>& d) {
    return Shape(std::vector<Dim>(d.begin(), d.end() - 2));
  };
  Shape y = broadcast(batch(a), batch(b));
  if (!vector_a) y.push_back(a[a.size() - 2]);
  if (!vector_b) y.push_back(b.back());
  return y;
}

Shape conv_shape(InferCtx& c, int ix, int iw) {
  const Shape &x = c.shape(ix), &w = c.shape(iw);
  if (x.rank() < 3 || w.rank() != x.rank())
    c.fail(cat("input ", x.str(), " and weight ", w.str(), " must have equal rank 3 to 5"));
  Dims kernel;
  for (int i = 2; i < w.rank(); ++i) {
    if (!w[i].is_const()) c.fail("the kernel extents must be known");
    kernel.push_back(w[i].value());
  }
  const int64_t group = c.attrs().i("group", 1);
  const Dim channels = x[channel_axis(c.attrs(), x.rank())];
  if (group < 1 || prove_equal(channels, w[1] * Dim(group)) == Tri::kNo)
    c.fail(cat("input ", x.str(), " does not fit weight ", w.str(), " with ", group, " groups"));
  if (w[0].is_const() && w[0].value() % group != 0)
    c.fail(cat(w[0].str(), " output channels do not divide into ", group, " groups"));
  return assemble(c.attrs(), x[0], w[0],
                  window_output(c, spatial_dims(x, c.attrs()), kernel, /*ceil_mode=*/false));
}

DType type_attribute(const Attrs& attrs, const char* name, DType missing) {
  if (!attrs.has(name)) return missing;
  const std::string text = attrs.s(name, "");
  const auto dtype = dtype_from_name(text);
  if (!dtype) fail(ErrorCode::kUnsupported, name, " '", text, "' is no element type");
  return *dtype;
}

}  // namespace ortrain::ops
