// FusedMatMul, FusedGemm, FusedConv, NhwcConv and BiasSoftmax of onnxruntime's optimised files, by
// their meaning.
//
// FusedMatMul: alpha op(A) op(B); transBatchX: the rows of X are on axis 0, in front of the batch.
// FusedConv: activation(Conv(X, W, B) + Z). NhwcConv: X and Y are [N, spatial..., C], W as in Conv.
// BiasSoftmax: softmax(data + bias) over all axes from `axis` on.
#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/contrib.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

// --- FusedMatMul
// How an operand's axes are read: [batch..., rows, cols] after `perm`.
std::vector<int64_t> operand_axes(const Attrs& a, int rank, const char* swap, const char* batch) {
  std::vector<int64_t> perm;
  const bool moved = a.i(batch, 0) != 0 && rank > 2, swapped = a.i(swap, 0) != 0 && rank > 1;
  for (int i = moved ? 1 : 0; i < rank - (moved ? 1 : 2); ++i) perm.push_back(i);
  const int64_t rows = moved ? 0 : rank - 2;
  if (rank == 1) return {0};
  perm.push_back(swapped ? rank - 1 : rows);
  perm.push_back(swapped ? rows : rank - 1);
  return perm;
}

void infer_matmul(InferCtx& c) {
  std::vector<Dim> s[2];
  for (int i = 0; i < 2; ++i) {
    if (c.rank(i) < 1) c.fail("a scalar operand");
    for (int64_t axis : operand_axes(c.attrs(), c.rank(i), i ? "transB" : "transA",
                                     i ? "transBatchB" : "transBatchA"))
      s[i].push_back(c.shape(i)[static_cast<int>(axis)]);
  }
  const bool vector_a = s[0].size() == 1, vector_b = s[1].size() == 1;
  if (vector_a) s[0].insert(s[0].begin(), Dim(1));
  if (vector_b) s[1].push_back(Dim(1));
  if (c.dtype(0) != c.dtype(1) || prove_equal(s[0].back(), s[1][s[1].size() - 2]) == Tri::kNo)
    c.fail(cat("operands do not fit: ", c.shape(0).str(), " and ", c.shape(1).str()));
  const auto batch = [](const std::vector<Dim>& d) {
    return Shape(std::vector<Dim>(d.begin(), d.end() - 2));
  };
  Shape y = broadcast(batch(s[0]), batch(s[1]));
  if (!vector_a) y.push_back(s[0][s[0].size() - 2]);
  if (!vector_b) y.push_back(s[1].back());
  c.out(0, c.dtype(0), y);
}

std::vector<Expr> matmul(Decompose& d) {
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const auto operand = [&](int i) {
    const Expr x = d.x(i);
    const std::vector<int64_t> perm =
        operand_axes(a, x.rank(), i ? "transB" : "transA", i ? "transBatchB" : "transBatchA");
    for (size_t k = 0; k < perm.size(); ++k)
      if (perm[k] != static_cast<int64_t>(k)) return d.b.transpose(x, perm);
    return x;
  };
  const Expr y = d.b.matmul(operand(0), operand(1));
  const double alpha = a.f("alpha", 1);
  return {alpha == 1 ? y : y * alpha};
}

// --- FusedGemm
void infer_gemm(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  if (c.rank(0) != 2 || c.rank(1) != 2) c.fail("operands must be matrices");
  check_activation(c.attrs().s("activation", ""));
  const bool ta = c.attrs().i("transA", 0) != 0, tb = c.attrs().i("transB", 0) != 0;
  if (prove_equal(c.shape(0)[ta ? 0 : 1], c.shape(1)[tb ? 1 : 0]) == Tri::kNo)
    c.fail(cat("inner extents differ: ", c.shape(0).str(), " and ", c.shape(1).str()));
  c.out(0, c.dtype(0), Shape{c.shape(0)[ta ? 1 : 0], c.shape(1)[tb ? 0 : 1]});
}

std::vector<Expr> gemm(Decompose& d) {
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  Attrs plain;
  for (const char* name : {"alpha", "beta", "transA", "transB"})
    if (const AttrValue* v = a.find(name)) plain.set(name, *v);
  const Expr y = d.b.op("Gemm", {d.x(0), d.x(1), d.has_x(2) ? d.x(2) : Expr()}, plain);
  std::vector<double> params;
  for (const char* name : {"activation_alpha", "activation_beta", "activation_gamma"})
    if (a.has(name)) params.push_back(a.f(name, 0));
  return {activated(d.b, y, a.s("activation", ""), params)};
}

// --- convolutions
void infer_conv_like(InferCtx& c, bool last) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  if (x.rank() < 3 || w.rank() != x.rank())
    c.fail(cat("input ", x.str(), " and weight ", w.str(), " must have equal rank 3 to 5"));
  check_activation(c.attrs().s("activation", ""));
  Dims kernel;
  for (int i = 2; i < w.rank(); ++i) {
    if (!w[i].is_const()) c.fail("the kernel extents must be known");
    kernel.push_back(w[i].value());
  }
  const int64_t group = c.attrs().i("group", 1);
  const Dim channels = x[last ? x.rank() - 1 : 1];
  if (group < 1 || prove_equal(channels, w[1] * Dim(group)) == Tri::kNo)
    c.fail(cat("input ", x.str(), " does not fit weight ", w.str(), " with ", group, " groups"));
  const Attrs layout{{"channels_last", int64_t{last}}};
  same_floats(c, {0, 1, 2, 3});
  const Shape y = assemble(layout, x[0], w[0],
                           window_output(c, spatial_dims(x, layout), kernel, /*ceil_mode=*/false));
  if (c.has(2) && (c.rank(2) != 1 || prove_equal(c.shape(2)[0], w[0]) == Tri::kNo))
    c.fail(cat("bias is ", c.shape(2).str(), ", expected [", w[0].str(), "]"));
  if (c.has(3) && prove_equal(c.shape(3), y) == Tri::kNo)
    c.fail(cat("Z is ", c.shape(3).str(), ", Y ", y.str()));
  c.out(0, c.dtype(0), y);
}
void infer_fused_conv(InferCtx& c) { infer_conv_like(c, false); }
void infer_nhwc_conv(InferCtx& c) { infer_conv_like(c, true); }

Attrs without_activation(Attrs a) {
  a.erase("activation");
  a.erase("activation_params");
  return a;
}

std::vector<Expr> fused_conv(Decompose& d) {
  const Attrs a = d.attrs();
  Expr y = d.b.op("Conv", {d.x(0), d.x(1), d.has_x(2) ? d.x(2) : Expr()}, without_activation(a));
  if (d.has_x(3)) y = y + d.x(3);
  return {activated(d.b, y, a.s("activation", ""), a.floats("activation_params"))};
}

std::vector<Expr> nhwc_conv(Decompose& d) {
  const Attrs a = d.attrs();
  const int rank = d.x(0).rank();
  std::vector<int64_t> first{0, rank - 1}, last{0};
  for (int i = 1; i + 1 < rank; ++i) first.push_back(i);
  for (int i = 2; i < rank; ++i) last.push_back(i);
  last.push_back(1);
  const Expr y =
      d.b.op("Conv", {d.b.transpose(d.x(0), first), d.x(1), d.has_x(2) ? d.x(2) : Expr()}, a);
  return {d.b.transpose(y, last)};
}

// --- BiasSoftmax
void infer_softmax(InferCtx& c) {
  same_floats(c, {0, 1});
  normalize_axis(c.attrs().i("axis", 1), c.rank(0));
  const Shape both = broadcast(c.shape(0), c.shape(1));
  if (both.rank() != c.rank(0) || prove_equal(both, c.shape(0)) == Tri::kNo)
    c.fail(cat("bias ", c.shape(1).str(), " does not broadcast to ", c.shape(0).str()));
  c.out(0, c.dtype(0), c.shape(0));
}
std::vector<Expr> softmax(Decompose& d) {
  const int axis = normalize_axis(d.attrs().i("axis", 1), d.x(0).rank());
  Attrs attrs{{"axis", int64_t{axis}}};
  if (axis + 1 < d.x(0).rank()) attrs.set("flatten", int64_t{1});
  return {d.b.op("Softmax", {d.x(0) + d.x(1)}, attrs)};
}

OpDef base(const char* name, std::vector<std::string> inputs, InferFn infer, DecomposeFn parts,
           std::vector<Example> examples) {
  return {.name = cat("com.microsoft.", name),
          .inputs = std::move(inputs),
          .outputs = {"Y"},
          .infer = infer,
          .decompose = parts,
          .training_policy = expand_early,
          .examples = std::move(examples)};
}

}  // namespace

void register_contrib_fused(OpTable& table) {
  using Ints = std::vector<int64_t>;
  table.add(base("FusedMatMul", {"A", "B"}, infer_matmul, matmul,
                 {{.in = {f({2, 3}), f({3, 4})}},
                  {.in = {f({2, 3, 2}), f({2, 4, 3})},
                   .attrs = {{"alpha", 0.5}, {"transA", 1}, {"transB", 1}}},
                  {.in = {f({3, 2, 4}), f({2, 4, 5})}, .attrs = {{"transBatchA", 1}}},
                  {.in = {f({4, 2, 3}), f({5, 2, 4})},
                   .attrs = {{"transA", 1}, {"transBatchA", 1}, {"transB", 1}, {"transBatchB", 1}}},
                  {.in = {f({3}), f({3, 2})}}}));
  const Attrs relu{{"activation", "Relu"}, {"alpha", 0.5}, {"transB", 1}};
  table.add(base("FusedGemm", {"A", "B", "C?"}, infer_gemm, gemm,
                 {{.in = {f({2, 3}), f({4, 3}), f({4})}, .attrs = relu},
                  {.in = {f({2, 3}), f({3, 4})},
                   .attrs = {{"activation", "LeakyRelu"}, {"activation_alpha", 0.2}}}}));
  const Attrs leaky{{"activation", "LeakyRelu"}, {"activation_params", std::vector<double>{0.2}}};
  const Attrs clip{{"activation", "Clip"},
                   {"activation_params", std::vector<double>{-1, 1}},
                   {"pads", Ints{1, 0, 1, 1}},
                   {"group", 2}};
  table.add(
      base("FusedConv", {"X", "W", "B?", "Z?"}, infer_fused_conv, fused_conv,
           {{.in = {f({1, 2, 4, 3}), f({3, 2, 2, 2}), f({3}), f({1, 3, 3, 2})}, .attrs = leaky},
            {.in = {f({1, 2, 3, 3}), f({2, 1, 3, 2})}, .attrs = clip}}));
  table.add(base("NhwcConv", {"X", "W", "B?"}, infer_nhwc_conv, nhwc_conv,
                 {{.in = {f({2, 4, 3, 2}), f({3, 2, 2, 2}), f({3})}},
                  {.in = {f({1, 5, 5, 2}), f({2, 1, 3, 3})},
                   .attrs = {{"group", 2}, {"strides", Ints{2, 1}}, {"pads", Ints{0, 1, 1, 0}}}}}));
  table.add(base(
      "BiasSoftmax", {"data", "bias"}, infer_softmax, softmax,
      {{.in = {f({2, 2, 3, 4}), f({2, 1, 1, 4})},
        .attrs = {{"axis", 3}, {"is_inner_broadcast", 1}}},
       {.in = {f({2, 3, 4}), f({3, 4})}, .attrs = {{"axis", -2}, {"is_inner_broadcast", 0}}}}));
}

}  // namespace ortrain::ops
