// Shape and Size: the extents of the input, and its element count, as i64. Both are known at
// inference, so what is computed from them (Gather, Concat, Reshape) folds. No gradient.
#include <algorithm>

#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// The attributes start and end, clamped to [0, rank] like Python slices.
std::pair<int, int> shape_range(const Attrs& attrs, int rank) {
  const auto clamp = [rank](int64_t v) {
    return static_cast<int>(std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank));
  };
  const int start = clamp(attrs.i("start", 0)), end = clamp(attrs.i("end", rank));
  return {start, std::max(start, end)};
}

void infer_shape(InferCtx& c) {
  const auto [start, end] = shape_range(c.attrs(), c.rank(0));
  const auto& dims = c.shape(0).dims();
  std::vector<Dim> out(dims.begin() + start, dims.begin() + end);
  c.out(0, DType::kI64, Shape{Dim(end - start)});
  c.out_ints(0, std::move(out));
}

void infer_size(InferCtx& c) {
  const Dim n = c.shape(0).count();
  c.out(0, DType::kI64, Shape{});
  c.out_ints(0, {n});
}

Kernel shape_kernel(const KernelQuery& q) {
  const auto [start, end] = shape_range(q.attrs, q.in[0].rank());
  Dims out(q.in[0].dims.begin() + start, q.in[0].dims.begin() + end);
  return {0, [out](const KernelArgs& a) { std::copy(out.begin(), out.end(), a.y<int64_t>(0)); }};
}

Kernel size_kernel(const KernelQuery& q) {
  return {0, [n = q.in[0].count()](const KernelArgs& a) { *a.y<int64_t>(0) = n; }};
}

}  // namespace

void register_shape(OpTable& table) {
  table.add({
      .name = "Shape",
      .inputs = {"data"},
      .outputs = {"shape"},
      .infer = infer_shape,
      .grad = {no_grad("data")},
      .kernels = {{"cpu", "ref", nullptr, shape_kernel}},
      .examples = {{.in = {f({2, 3})}},
                   {.in = {f({2, 0, 5})}, .attrs = {{"start", 1}}},
                   {.in = {f({2, 3, 4})}, .attrs = {{"start", -2}, {"end", -1}}},
                   {.in = {f({2, 3})}, .attrs = {{"start", 2}, {"end", 1}}},
                   {.in = {f({})}}},
  });
  table.add({
      .name = "Size",
      .inputs = {"data"},
      .outputs = {"size"},
      .infer = infer_size,
      .grad = {no_grad("data")},
      .kernels = {{"cpu", "ref", nullptr, size_kernel}},
      .examples = {{.in = {f({2, 3})}}, {.in = {f({})}}, {.in = {f({0, 3})}}},
  });
}

}  // namespace ortrain::ops
