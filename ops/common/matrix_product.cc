// Which oneDNN primitive computes a 2-D product: see matrix_product.h.
#include "ops/common/matrix_product.h"

#include "graph/error.h"

namespace ortrain::ops {

void add_product(onednn::Program& program, const Product& p, const onednn::Slot& a,
                 const onednn::Slot& b, const onednn::Slot& c, int bias_index) {
  const auto matrix = [&](int64_t rows, int64_t cols, bool trans) {
    return onednn::matrix(rows, cols, trans, p.dtype);
  };
  const onednn::Md result = onednn::matrix(p.m, p.n, false, p.f32_result ? DType::kF32 : p.dtype);
  using onednn::Slot;
  const auto with = [](const Slot& s, const onednn::Md& md) { return Slot{s.where, s.index, md}; };
  if (!p.trans_a) {
    // weights[n, k] with op(b)[k, n]: stored [n, k] when trans_b.
    const onednn::Md bias = bias_index < 0 ? onednn::Md() : onednn::dense({p.n}, p.dtype);
    const onednn::Primitive prim =
        onednn::inner_product(matrix(p.m, p.k, false), matrix(p.n, p.k, !p.trans_b), bias, result);
    std::vector<std::pair<int, Slot>> args = {{DNNL_ARG_SRC, with(a, prim.src)},
                                              {DNNL_ARG_WEIGHTS, with(b, prim.weights)},
                                              {DNNL_ARG_DST, with(c, prim.dst)}};
    if (bias_index >= 0)
      args.push_back({DNNL_ARG_BIAS, onednn::in(static_cast<size_t>(bias_index), bias)});
    program.add(prim, args);
    return;
  }
  ORTRAIN_CHECK(bias_index < 0, "bias with a transposed left side");
  ORTRAIN_CHECK(p.trans_b || !p.f32_result, "f32 result of a transposed left side");
  if (!p.trans_b) {
    // c[m, n] = sum over rows of a[k, m] b[k, n]: the weight gradient of a batch of k rows with m
    // inputs and n outputs; diff_weights[n, m] stored as c.
    const onednn::Primitive prim = onednn::inner_product_grad_weight(
        matrix(p.k, p.m, false), matrix(p.n, p.m, true), onednn::Md(), matrix(p.k, p.n, false));
    program.add(prim, {{DNNL_ARG_SRC, with(a, prim.src)},
                       {DNNL_ARG_DIFF_DST, with(b, prim.dst)},
                       {DNNL_ARG_DIFF_WEIGHTS, with(c, prim.weights)}});
    return;
  }
  const onednn::Primitive prim =
      onednn::matmul(matrix(p.m, p.k, true), matrix(p.k, p.n, true), result);
  program.add(prim, {{DNNL_ARG_SRC, with(a, prim.src)},
                     {DNNL_ARG_WEIGHTS, with(b, prim.weights)},
                     {DNNL_ARG_DST, with(c, prim.dst)}});
}

}  // namespace ortrain::ops
