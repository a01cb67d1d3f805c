// ortrain.Linear: y[..., N] = x[..., K] W (+ b), with W stored [N,K] (trans_b=1) or [K,N]; and
// its two gradients.
//
// fuse_forward makes it from MatMul or Gemm with their bias. The weight
// gradient and the bias gradient are one node, so that dy is read while it is warm. The leading
// axes of x are one batch axis inside.
#include <algorithm>
#include <span>

#include "graph/pad_axes.h"
#include "ops/common/checks.h"
#include "ops/common/half_product.h"
#include "ops/common/linear_kernels.h"
#include "ops/common/matrix_product.h"
#include "ops/common/panel_product.h"
#include "ops/common/reduce.h"
#include "ops/common/ref.h"
#include "ops/common/share_node.h"

namespace ortrain::ops {
namespace {

bool trans_b(const Attrs& a) { return a.i("trans_b", 0) != 0; }
int64_t rows_of(const TensorDesc& t) {
  return element_count(std::span(t.dims).first(t.dims.size() - 1));
}
Dim out_extent(InferCtx& c, int w) { return c.shape(w)[trans_b(c.attrs()) ? 0 : 1]; }
Dim in_extent(InferCtx& c, int w) { return c.shape(w)[trans_b(c.attrs()) ? 1 : 0]; }

void infer_linear(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  if (c.rank(0) < 1 || c.rank(1) != 2) c.fail("needs x[..., K] and a 2-D weight");
  if (prove_equal(c.shape(0)[c.rank(0) - 1], in_extent(c, 1)) == Tri::kNo)
    c.fail(cat("inner extents differ: ", c.shape(0).str(), " and weight ", c.shape(1).str()));
  Shape y = c.shape(0);
  y[y.rank() - 1] = out_extent(c, 1);
  c.out(0, c.dtype(0), std::move(y));
}
void infer_grad_input(InferCtx& c) {  // dy, w
  Shape x = c.shape(0);
  x[x.rank() - 1] = in_extent(c, 1);
  c.out(0, c.dtype(0), std::move(x));
}
void infer_grad_weight(InferCtx& c) {  // x, dy
  const Dim k = c.shape(0)[c.rank(0) - 1], n = c.shape(1)[c.rank(1) - 1];
  c.out(0, c.dtype(0), trans_b(c.attrs()) ? Shape{n, k} : Shape{k, n});
  c.out(1, c.dtype(0), Shape{n});
}

Attrs grad_attrs(Grad& g) { return {{"trans_b", g.attrs().i("trans_b", 0)}}; }
Expr grad_x(Grad& g) { return g.b.op("ortrain.LinearGradInput", {g.dy(), g.x(1)}, grad_attrs(g)); }
Expr grad_w(Grad& g) {
  return share_node(g.b, "ortrain.LinearGradWeight", {g.x(0), g.dy()}, grad_attrs(g), 0);
}
Expr grad_bias(Grad& g) {
  return share_node(g.b, "ortrain.LinearGradWeight", {g.x(0), g.dy()}, grad_attrs(g), 1);
}

}  // namespace

// --- reference ----------------------------------------------------------------------------------
Kernel ref_linear(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    const int64_t m = rows_of(q.in[0]), k = q.in[0].dims.back(), n = q.out[0].dims.back();
    out.run = [=, tb = trans_b(q.attrs), threads = q.threads,
               has_bias = q.has_in(2)](const KernelArgs& a) {
      const T* bias = has_bias ? a.x<T>(2) : nullptr;
      ref_gemm<T>(threads, m, n, k, matrix(a.x<T>(0), m, k, false), matrix(a.x<T>(1), k, n, tb),
                  matrix(a.y<T>(0), m, n, false),
                  [&](Acc<T> sum, int64_t, int64_t j) { return bias ? sum + load(bias[j]) : sum; });
    };
  });
  return out;
}
Kernel ref_grad_input(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    const int64_t m = rows_of(q.in[0]), n = q.in[0].dims.back(), k = q.out[0].dims.back();
    out.run = [=, tb = trans_b(q.attrs), threads = q.threads](const KernelArgs& a) {
      ref_gemm<T>(threads, m, k, n, matrix(a.x<T>(0), m, n, false), matrix(a.x<T>(1), n, k, !tb),
                  matrix(a.y<T>(0), m, k, false));
    };
  });
  return out;
}
Kernel ref_grad_weight(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    const int64_t m = rows_of(q.in[0]), k = q.in[0].dims.back(), n = q.in[1].dims.back();
    out.run = [=, tb = trans_b(q.attrs), threads = q.threads, want_w = q.has_out(0),
               want_bias = q.has_out(1)](const KernelArgs& a) {
      const Matrix<const T> dy = matrix(a.x<T>(1), m, n, false);
      if (want_w)
        ref_gemm<T>(threads, k, n, m, matrix(a.x<T>(0), k, m, true), dy,
                    matrix(a.y<T>(0), k, n, tb));
      for (int64_t j = 0; want_bias && j < n; ++j) {
        Acc<T> sum = 0;
        for (int64_t i = 0; i < m; ++i) sum += load(dy(i, j));
        a.y<T>(1)[j] = store<T>(sum);
      }
    };
  });
  return out;
}

// --- oneDNN -------------------------------------------------------------------------------------
Kernel onednn_linear(const KernelQuery& q) {
  onednn::Program program(q);
  add_product(
      program,
      {rows_of(q.in[0]), q.out[0].dims.back(), q.in[0].dims.back(), false, trans_b(q.attrs)},
      onednn::in(0, {}), onednn::in(1, {}), onednn::out(0, {}), q.has_in(2) ? 2 : -1);
  return std::move(program).finish();
}
Kernel onednn_grad_input(const KernelQuery& q) {
  const int64_t m = rows_of(q.in[0]), n = q.in[0].dims.back(), k = q.out[0].dims.back();
  const onednn::Primitive p = onednn::inner_product_grad_input(
      onednn::matrix(m, k, false), onednn::matrix(n, k, !trans_b(q.attrs)),
      onednn::matrix(m, n, false));
  onednn::Program program(q);
  program.add(p, {{DNNL_ARG_DIFF_DST, onednn::in(0, p.dst)},
                  {DNNL_ARG_WEIGHTS, onednn::in(1, p.weights)},
                  {DNNL_ARG_DIFF_SRC, onednn::out(0, p.src)}});
  return std::move(program).finish();
}
// The bias gradient comes from our own reduction: with inner_product's diff_bias the same product
// is slower (768 x 512 x 128 on two AVX-512 cores 0.42 ms with, 0.34 without; a GPT's step 4 to 5
// %).
Kernel onednn_grad_weight(const KernelQuery& q) {
  const int64_t m = rows_of(q.in[0]), k = q.in[0].dims.back(), n = q.in[1].dims.back();
  onednn::Program program(q);
  const onednn::Primitive p = onednn::inner_product_grad_weight(
      onednn::matrix(m, k, false), onednn::matrix(n, k, !trans_b(q.attrs)), onednn::Md(),
      onednn::matrix(m, n, false));
  program.add(p, {{DNNL_ARG_SRC, onednn::in(0, p.src)},
                  {DNNL_ARG_DIFF_DST, onednn::in(1, p.dst)},
                  {DNNL_ARG_DIFF_WEIGHTS, onednn::out(0, p.weights)}});
  Kernel product = std::move(program).finish();
  if (!q.has_out(1)) return product;
  const TensorDesc dy{q.in[1].dtype, {m, n}};
  const Kernel sum = prepare_reduce(Reduce::kSum, dy, {0}, dy.dtype, q.threads, true);
  return {std::max(product.workspace, sum.workspace),
          [product = std::move(product), sum](const KernelArgs& a) {
            product.run(a);
            sum.run({a.in + 1, a.out + 1, a.workspace, a.fault});
          }};
}

// --- our own product ----------------------------------------------------------------------------
namespace {
PanelProduct panels_of(const KernelQuery& q) {
  return {rows_of(q.in[0]), q.out[0].dims.back(), q.in[0].dims.back(), q.threads};
}
std::string panels_reject(const KernelQuery& q) {
  if (std::string why = onednn::reject_not_f32(q); !why.empty()) return why;
  return trans_b(q.attrs) ? panels_of(q).reject() : "takes a weight stored [N,K]";
}
Kernel panels_linear(const KernelQuery& q) {
  const PanelProduct p = panels_of(q);
  return {p.workspace(), [p, bias = q.has_in(2)](const KernelArgs& a) {
            p(a.x<float>(0), a.x<float>(1), bias ? a.x<float>(2) : nullptr, a.y<float>(0),
              a.workspace);
          }};
}
}  // namespace

// --- 16-bit floats ------------------------------------------------------------------------------
Kernel half_linear(const KernelQuery& q) {
  HalfProduct p;
  p.shape = {rows_of(q.in[0]), q.out[0].dims.back(), q.in[0].dims.back(), false, trans_b(q.attrs)};
  p.bias = q.has_in(2) ? 2 : -1;
  return half_product(q, p);
}
Kernel half_grad_input(const KernelQuery& q) {
  HalfProduct p;
  p.shape = {rows_of(q.in[0]), q.out[0].dims.back(), q.in[0].dims.back(), false, !trans_b(q.attrs)};
  return half_product(q, p);
}
Kernel half_grad_weight(const KernelQuery& q) {
  const int64_t rows = rows_of(q.in[0]), k = q.in[0].dims.back(), n = q.in[1].dims.back();
  HalfProduct p;
  p.sums = q.has_out(1) ? 1 : -1;
  if (trans_b(q.attrs)) {  // dw[n, k] = dy^T x
    p.shape = {n, k, rows, true, false};
    p.a = 1, p.b = 0, p.sums_of_a = true;
  } else {
    p.shape = {k, n, rows, true, false};
  }
  return half_product(q, p);
}
namespace {

std::string reject_grad_weight(const KernelQuery& q) {
  return q.has_out(0) ? onednn::reject_not_f32(q) : "only the bias gradient is wanted";
}
std::string reject_half_grad_weight(const KernelQuery& q) {
  return q.has_out(0) ? half_product_reject(q) : "only the bias gradient is wanted";
}

// 2 m n k; `big` holds m and one of n, k, the weight (gradient) `w` the whole n k.
double flops_with(const Graph& g, ValueId rows, ValueId w) {
  const Shape& s = g.value(rows).shape;
  const double last = static_cast<double>(s[s.rank() - 1].value());
  if (w == kNone || last == 0) return 0;
  return 2.0 * static_cast<double>(s.count().value()) / last *
         static_cast<double>(g.value(w).shape.count().value());
}
double flops_xw(const Graph& g, const Node& n) { return flops_with(g, n.inputs[0], n.inputs[1]); }
double flops_dw(const Graph& g, const Node& n) { return flops_with(g, n.inputs[0], n.outputs[0]); }

std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  const std::string rows(static_cast<size_t>(g.value(n.inputs[0]).shape.rank() - 1), '.');
  return PadAxes{{rows + "K", trans_b(n.attrs) ? "NK" : "KN", "N"}, {rows + "N"}};
}

const Attrs kTransB = {{"trans_b", int64_t{1}}};

OpDef linear_op() {
  return {
      .name = "ortrain.Linear",
      .inputs = {"x", "w", "b?"},
      .outputs = {"y"},
      .infer = infer_linear,
      .grad = {grad("x", grad_x), grad("w", grad_w), grad("b", grad_bias)},
      .precision = Precision::kAlways16,
      .flops = flops_xw,
      .kernels = {{"cpu", "half", half_product_reject, half_linear},
                  {"cpu", "panels", panels_reject, panels_linear},
                  {"cpu", "onednn", onednn::reject_not_f32, onednn_linear},
                  {"cpu", "ref", nullptr, ref_linear}},
      .examples = {{.in = {f({2, 3}), f({3, 4}), f({4})}},
                   {.in = {f({33, 65}), f({17, 65}), f({17})}, .attrs = kTransB},
                   {.in = {f({2, 5, 3}), f({4, 3})}, .attrs = kTransB},
                   {.in = {f({2, 2, 5, 3}), f({3, 1}), f({1})}},
                   {.in = {f({3}), f({3, 4}), f({4})}},
                   {.in = {f({0, 3}), f({3, 4}), f({4})}}},
  };
}
OpDef linear_grad_input_op() {
  return {
      .name = "ortrain.LinearGradInput",
      .inputs = {"dy", "w"},
      .outputs = {"dx"},
      .infer = infer_grad_input,
      .precision = Precision::kAlways16,
      .flops = flops_xw,
      .kernels = {{"cpu", "half", half_product_reject, half_grad_input},
                  {"cpu", "onednn", onednn::reject_not_f32, onednn_grad_input},
                  {"cpu", "ref", nullptr, ref_grad_input}},
      .examples = {{.in = {f({5, 4}), f({3, 4})}},
                   {.in = {f({2, 33, 17}), f({17, 65})}, .attrs = kTransB},
                   {.in = {f({0, 4}), f({3, 4})}}},
  };
}
OpDef linear_grad_weight_op() {
  return {
      .name = "ortrain.LinearGradWeight",
      .inputs = {"x", "dy"},
      .outputs = {"dw", "db?"},
      .infer = infer_grad_weight,
      .precision = Precision::kAlways16,
      .flops = flops_dw,
      .kernels = {{"cpu", "half", reject_half_grad_weight, half_grad_weight},
                  {"cpu", "onednn", reject_grad_weight, onednn_grad_weight},
                  {"cpu", "ref", nullptr, ref_grad_weight}},
      .examples = {{.in = {f({5, 3}), f({5, 4})}, .outputs = 2},
                   {.in = {f({5, 3}), f({5, 4})}},
                   {.in = {f({2, 33, 65}), f({2, 33, 17})}, .attrs = kTransB, .outputs = 2},
                   {.in = {f({0, 3}), f({0, 4})}, .outputs = 2}},
  };
}

}  // namespace

void register_linear(OpTable& table) {
  add_pad_rule("ortrain.Linear", {pad_axes});
  table.add(linear_op());
  table.add(linear_grad_input_op());
  table.add(linear_grad_weight_op());
}

}  // namespace ortrain::ops
