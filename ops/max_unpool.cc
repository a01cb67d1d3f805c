// MaxUnpool: x at the positions I of a tensor of zeros, the partial inverse of MaxPool.
//
// Positions count through the whole tensor [N, C, spatial...] of the size that kernel_shape,
// strides and pads give; with an output_shape that is larger (a constant input) the rest is zero, a
// smaller one is refused. Of two elements with one position the later stays; both get the gradient
// found there, as in PyTorch. A position out of range is a fault that names node and value.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {

namespace {

// The size of the pooled tensor's origin.
std::vector<Dim> inferred(const Attrs& a, const Shape& x) {
  const Dims kernel = a.ints("kernel_shape");
  const size_t n = kernel.size();
  if (n == 0 || static_cast<int>(n) != x.rank() - 2)
    fail(ErrorCode::kShape, "kernel_shape has ", n, " entries, x has shape ", x.str());
  const Dims strides = a.ints("strides", Dims(n, 1)), pads = a.ints("pads", Dims(2 * n, 0));
  if (strides.size() != n || pads.size() != 2 * n)
    fail(ErrorCode::kShape, "strides has ", strides.size(), " entries, pads ", pads.size());
  std::vector<Dim> out{x[0], x[1]};
  for (size_t i = 0; i < n; ++i) {
    constexpr int64_t kMost = int64_t{1} << 31;
    for (int64_t v : {kernel[i], strides[i], pads[i] + 1, pads[n + i] + 1})
      if (v < 1 || v > kMost)
        fail(ErrorCode::kShape, "kernel_shape, strides or pads hold the value ", v);
    const Dim e = (x[static_cast<int>(i) + 2] + Dim(-1)) * Dim(strides[i]) +
                  Dim(kernel[i] - pads[i] - pads[n + i]);
    if (e.is_const() && e.value() < 0) fail(ErrorCode::kShape, "pads leave nothing of the output");
    out.push_back(e);
  }
  return out;
}

void infer(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (c.dtype(1) != DType::kI64) c.fail(cat("I is ", name_of(c.dtype(1)), ", expected i64"));
  if (x.is_const() && c.shape(1).is_const() && x.values() != c.shape(1).values())
    c.fail(cat("x has shape ", x.str(), ", I ", c.shape(1).str()));
  std::vector<Dim> own = inferred(c.attrs(), x), out = own;
  if (c.has(2)) {
    out = c.need_ints(2, "output_shape");
    if (out.size() != own.size())
      c.fail(cat("output_shape has ", out.size(), " entries, expected ", own.size()));
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i].is_const() && own[i].is_const() && out[i].value() < own[i].value())
        c.fail(cat("output_shape has extent ", out[i].value(), " along axis ", i,
                   ", the pooled tensor had ", own[i].value()));
  }
  c.out(0, c.dtype(0), Shape(std::move(out)));
}
// ortrain.MaxUnpoolGrad(dy, I) {own_shape}: dx has the shape of I.
void infer_grad(InferCtx& c) { c.out(0, c.dtype(0), c.shape(1)); }

// Positions in a tensor of shape `own` to offsets in one of shape `out`, at least as large.
struct Places {
  Dims own, steps;  // steps: strides of `out`
  int64_t count = 0;
  bool same = false;
  Places(Dims own_dims, const Dims& out)
      : own(std::move(own_dims)),
        steps(dense_strides(out)),
        count(product(own)),
        same(own == out) {}
  int64_t offset(int64_t at) const {
    if (same) return at;
    int64_t to = 0;
    for (size_t k = own.size(); k-- > 0; at /= own[k]) to += at % own[k] * steps[k];
    return to;
  }
};

Kernel prepare(const KernelQuery& q) {
  const Places places(Shape(inferred(q.attrs, Shape(q.in[0].dims))).values(), q.out[0].dims);
  return by_size(size_of(q.in[0].dtype), [&]<class T>() -> Kernel {
    return {0, [places, n = q.in[0].count(), total = q.out[0].count(),
                threads = q.threads](const KernelArgs& a) {
              const T* x = a.x<T>(0);
              const int64_t* at = a.x<int64_t>(1);
              T* y = a.y<T>(0);
              // Every thread owns a stretch of y and takes what falls into it, in order.
              parallel_for(threads, total, 65536, [&](int64_t begin, int64_t end) {
                std::fill(y + begin, y + end, T(0));
                for (int64_t i = 0; i < n; ++i) {
                  if (at[i] < 0 || at[i] >= places.count) {
                    a.fault->report(i, at[i], 0, places.count);
                    continue;
                  }
                  const int64_t to = places.offset(at[i]);
                  if (to >= begin && to < end) y[to] = x[i];
                }
              });
            }};
  });
}

Kernel prepare_grad(const KernelQuery& q) {
  const Places places(q.attrs.ints("own_shape"), q.in[0].dims);
  return by_size(size_of(q.in[0].dtype), [&]<class T>() -> Kernel {
    return {0, [places, n = q.in[1].count(), threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, n, 8192, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t at = a.x<int64_t>(1)[i];
                  const bool inside = at >= 0 && at < places.count;
                  if (!inside) a.fault->report(i, at, 0, places.count);
                  a.y<T>(0)[i] = inside ? a.x<T>(0)[places.offset(at)] : T(0);
                }
              });
            }};
  });
}

Expr gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  const Dims own = Shape(inferred(attrs, g.x(0).shape())).values();
  return g.b.op("ortrain.MaxUnpoolGrad", {g.dy(), g.x(1)}, {{"own_shape", own}});
}

using L = std::vector<int64_t>;
ExampleInput positions(Dims dims, std::vector<double> v) {
  return typed(DType::kI64, floats(std::move(dims), std::move(v)));
}

}  // namespace

void register_max_unpool(OpTable& table) {
  const Attrs two{{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}};
  table.add({
      .name = "MaxUnpool",
      .inputs = {"X", "I", "output_shape?"},
      .outputs = {"output"},
      .since = 9,
      .infer = infer,
      .grad = {grad("X", gradient), no_grad("I"), no_grad("output_shape")},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({1, 2, 2, 2}), positions({1, 2, 2, 2}, {0, 3, 9, 15, 16, 18, 29, 31})},
                    .attrs = two},
                   {.in = {f({1, 1, 2, 2}), positions({1, 1, 2, 2}, {5, 7, 13, 15}),
                           ivals({1, 1, 5, 6})},
                    .attrs = two},
                   {.in = {f({1, 1, 3}), positions({1, 1, 3}, {0, 2, 3})},
                    .attrs = {{"kernel_shape", L{2}}, {"strides", L{2}}, {"pads", L{1, 0}}}},
                   {.in = {f({1, 1, 1, 1}), positions({1, 1, 1, 1}, {3})}, .attrs = two},
                   {.in = {f({0, 1, 2, 2}), ints({0, 1, 2, 2}, 0, 1)}, .attrs = two}},
      .note = "elements that share a position get the same gradient (PyTorch)",
  });
  table.add({
      .name = "ortrain.MaxUnpoolGrad",
      .inputs = {"dy", "I"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {f({1, 1, 5, 5}), ints({1, 1, 2, 2}, 0, 16)},
                    .attrs = {{"own_shape", L{1, 1, 4, 4}}}}},
  });
}

}  // namespace ortrain::ops
