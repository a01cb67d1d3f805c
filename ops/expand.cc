// Expand (broadcast to a shape) and Tile (repeat along axes): one strided copy each, with stride 0
// where the input repeats. Shape and repeats must be known before training. Gradients: the sum over
// the repeats.
#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer_expand(InferCtx& c) {
  const Shape out = broadcast(c.shape(0), Shape(c.need_ints(1, "the target shape")));
  const Shape in = c.shape(0);
  c.out(0, c.dtype(0), out);
  const auto ints = c.ints(0);
  if (!ints || !out.is_const() || !in.is_const() || out.count().value() > 4096) return;
  StridedCopy copy{.dims = out.values(), .src = Dims(static_cast<size_t>(out.rank()), 0)};
  copy.dst = dense_strides(copy.dims);
  const Dims strides = dense_strides(in.values());
  for (int i = 0; i < in.rank(); ++i)
    if (in[i].value() != 1)
      copy.src[static_cast<size_t>(i + out.rank() - in.rank())] = strides[static_cast<size_t>(i)];
  carry_ints(c, copy);
}

StridedCopy make_expand(const KernelQuery& q) {
  const Dims &in = q.in[0].dims, &out = q.out[0].dims, strides = dense_strides(in);
  StridedCopy c{.dims = out, .src = Dims(out.size(), 0), .size = size_of(q.in[0].dtype)};
  c.dst = dense_strides(out);
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i] != 1) c.src[i + out.size() - in.size()] = strides[i];
  return c;
}

void infer_tile(InferCtx& c) {
  const std::vector<Dim> repeats = c.need_ints(1, "repeats");
  const Shape in = c.shape(0);
  if (static_cast<int>(repeats.size()) != in.rank())
    c.fail(cat("repeats has ", repeats.size(), " values for the input ", in.str()));
  Shape out;
  for (int i = 0; i < in.rank(); ++i) {
    const Dim r = repeats[static_cast<size_t>(i)];
    if (r.is_const() && r.value() < 0) c.fail(cat("negative repeat ", r.value()));
    out.push_back(in[i] * r);
  }
  c.out(0, c.dtype(0), out);
}

// Index space [r0, d0, r1, d1, ...].
StridedCopy make_tile(const KernelQuery& q) {
  const Dims &in = q.in[0].dims, &out = q.out[0].dims, strides = dense_strides(in);
  StridedCopy c{.size = size_of(q.in[0].dtype)};
  for (size_t i = 0; i < in.size(); ++i) {
    c.dims.push_back(in[i] == 0 ? 0 : out[i] / in[i]);
    c.dims.push_back(in[i]);
    c.src.push_back(0);
    c.src.push_back(strides[i]);
  }
  c.dst = dense_strides(c.dims);
  return c;
}

Expr tile_grad(Grad& g) {
  const Dims in = g.x(0).shape().values(), out = g.dy().shape().values();
  Dims split;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] == 0) return g.b.zeros_like(g.x(0));
    const int64_t repeats = out[i] / in[i];
    if (repeats != 1) {
      axes.push_back(static_cast<int64_t>(split.size()));
      split.push_back(repeats);
    }
    split.push_back(in[i]);
  }
  return g.b.reshape(g.b.sum(g.b.reshape(g.dy(), split), axes, /*keepdims=*/false), in);
}

}  // namespace

void register_expand(OpTable& table) {
  table.add({
      .name = "Expand",
      .inputs = {"input", "shape"},
      .outputs = {"output"},
      .since = 8,
      .infer = infer_expand,
      .grad = {grad("input", [](Grad& g) { return g.dy(); }), no_grad("shape")},
      .kernels = copy_kernels<make_expand>(),
      .examples = {{.in = {f({3, 1}), ivals({2, 1, 4})}},
                   {.in = {f({3, 1}), ivals({3, 4})}},
                   {.in = {f({}), ivals({2, 3})}},
                   {.in = {f({1, 5}), ivals({3, 1})}},
                   {.in = {f({2, 1, 3}), ivals({1, 4, 1})}},
                   {.in = {f({1}), ivals({0})}},
                   {.in = {f({2, 3}), ivals({1})}}},
  });
  table.add({
      .name = "Tile",
      .inputs = {"input", "repeats"},
      .outputs = {"output"},
      .since = 6,
      .infer = infer_tile,
      .grad = {grad("input", tile_grad), no_grad("repeats")},
      .kernels = copy_kernels<make_tile>(),
      .examples = {{.in = {f({2, 3}), ivals({2, 1})}},
                   {.in = {f({2, 3}), ivals({1, 3})}},
                   {.in = {f({2, 1, 3}), ivals({2, 5, 2})}},
                   {.in = {f({4}), ivals({0})}},
                   {.in = {f({0, 2}), ivals({3, 2})}},
                   {.in = {f({1}), ivals({1})}}},
  });
}

}  // namespace ortrain::ops
