// Gemm: y[M,N] = alpha op(a) op(b) + beta c, c broadcast to [M,N]. All numeric types.
//
// Means (and its gradient comes from) Linear when it is one: op(a) = a, alpha = beta = 1, c of
// shape [N]; else MatMul, Mul and Add. fuse_forward applies that; the own kernels serve when it is
// off.
#include "graph/pad_axes.h"
#include "ops/common/half_product.h"
#include "ops/common/matrix_product.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

struct Geometry {
  Product p;
  double alpha = 1, beta = 1;
};
Geometry geometry(const KernelQuery& q) {
  Geometry g;
  g.p.trans_a = q.attrs.i("transA", 0) != 0, g.p.trans_b = q.attrs.i("transB", 0) != 0;
  g.alpha = q.attrs.f("alpha", 1), g.beta = q.attrs.f("beta", 1);
  g.p.m = q.out[0].dims[0], g.p.n = q.out[0].dims[1];
  g.p.k = q.in[0].dims[g.p.trans_a ? 0 : 1];
  return g;
}

void infer_gemm(InferCtx& c) {
  if (c.rank(0) != 2 || c.rank(1) != 2)
    c.fail(cat("operands must be matrices: ", c.shape(0).str(), " and ", c.shape(1).str()));
  if (c.dtype(0) != c.dtype(1) || (c.has(2) && c.dtype(2) != c.dtype(0)))
    c.fail("operands have different types");
  const bool ta = c.attrs().i("transA", 0) != 0, tb = c.attrs().i("transB", 0) != 0;
  if (prove_equal(c.shape(0)[ta ? 0 : 1], c.shape(1)[tb ? 1 : 0]) == Tri::kNo)
    c.fail(cat("inner extents differ: ", c.shape(0).str(), ta ? "^T" : "", " times ",
               c.shape(1).str(), tb ? "^T" : ""));
  Shape y{c.shape(0)[ta ? 1 : 0], c.shape(1)[tb ? 0 : 1]};
  if (c.has(2)) {
    const Shape both = broadcast(y, c.shape(2));
    if (both.rank() != 2 || prove_equal(both, y) == Tri::kNo)
      c.fail(cat("C ", c.shape(2).str(), " does not broadcast to ", y.str()));
  }
  c.out(0, c.dtype(0), std::move(y));
}

// Opset 7 made C broadcast by itself; before 11 it was required. Nothing else changed since.
std::vector<Expr> decompose_gemm(Decompose& d) {
  const bool ta = d.attrs().i("transA", 0) != 0, tb = d.attrs().i("transB", 0) != 0;
  const double alpha = d.attrs().f("alpha", 1), beta = d.attrs().f("beta", 1);
  const bool has_c = d.has_x(2) && beta != 0;
  const Dim n = d.x(1).shape()[tb ? 0 : 1];
  const bool float_type = is_float(d.x(0).dtype());
  if (float_type && !ta && alpha == 1 && (!has_c || (beta == 1 && d.x(2).shape() == Shape{n})))
    return {d.b.op("ortrain.Linear", {d.x(0), d.x(1), has_c ? d.x(2) : Expr()},
                   {{"trans_b", int64_t{tb}}})};
  Attrs attrs;
  if (ta) attrs.set("trans_a", int64_t{1});
  if (tb) attrs.set("trans_b", int64_t{1});
  Expr y = d.b.op("MatMul", {d.x(0), d.x(1)}, attrs);
  if (alpha != 1) y = y * alpha;
  if (has_c) y = y + (beta == 1 ? d.x(2) : d.x(2) * beta);
  return {y};
}

// Position in c of element (i, j) of y: strides 0 where c broadcasts.
struct BiasStrides {
  int64_t row = 0, col = 0;
};
BiasStrides bias_strides(const Dims& c) {
  BiasStrides s;
  if (!c.empty() && c.back() != 1) s.col = 1;
  if (c.size() == 2 && c[0] != 1) s.row = c[1];
  return s;
}

Kernel prepare_ref(const KernelQuery& q) {
  Kernel out;
  dispatch(q.in[0].dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      fail(ErrorCode::kUnsupported, "Gemm of bool");
    } else {
      const bool has_c = q.has_in(2);
      out.run = [g = geometry(q), has_c, s = has_c ? bias_strides(q.in[2].dims) : BiasStrides{},
                 threads = q.threads](const KernelArgs& a) {
        const auto& p = g.p;
        ref_gemm<T>(threads, p.m, p.n, p.k, matrix(a.x<T>(0), p.m, p.k, p.trans_a),
                    matrix(a.x<T>(1), p.k, p.n, p.trans_b), matrix(a.y<T>(0), p.m, p.n, false),
                    [&](Acc<T> sum, int64_t i, int64_t j) {
                      double v = g.alpha * static_cast<double>(sum);
                      if (has_c)
                        v += g.beta * static_cast<double>(load(a.x<T>(2)[i * s.row + j * s.col]));
                      return static_cast<Acc<T>>(v);
                    });
      };
    }
  });
  return out;
}

std::string reject_form(const KernelQuery& q) {
  const Geometry g = geometry(q);
  if (g.alpha != 1 || g.p.trans_a) return "alpha or transA (fuse_forward takes it apart)";
  if (q.has_in(2) && (g.beta != 1 || q.in[2].dims != Dims{g.p.n}))
    return "C is not a plain bias (fuse_forward takes it apart)";
  return {};
}
std::string reject_onednn(const KernelQuery& q) {
  const std::string why = onednn::reject_not_f32(q);
  return why.empty() ? reject_form(q) : why;
}
std::string reject_half(const KernelQuery& q) {
  const std::string why = half_product_reject(q);
  return why.empty() ? reject_form(q) : why;
}
Kernel prepare_half(const KernelQuery& q) {
  HalfProduct p;
  p.shape = geometry(q).p;
  p.bias = q.has_in(2) ? 2 : -1;
  return half_product(q, p);
}
Kernel prepare_onednn(const KernelQuery& q) {
  onednn::Program program(q);
  add_product(program, geometry(q).p, onednn::in(0, {}), onednn::in(1, {}), onednn::out(0, {}),
              q.has_in(2) ? 2 : -1);
  return std::move(program).finish();
}

double flops(const Graph& g, const Node& n) {
  const int k_axis = n.attrs.i("transA", 0) ? 0 : 1;
  return 2.0 * static_cast<double>(g.value(n.outputs[0]).shape.count().value()) *
         static_cast<double>(g.value(n.inputs[0]).shape[k_axis].value());
}

std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  PadAxes p{{n.attrs.i("transA", 0) ? "K." : ".K", n.attrs.i("transB", 0) ? "NK" : "KN"}, {".N"}};
  if (n.inputs.size() > 2 && n.inputs[2] != kNone) {
    const Shape &c = g.value(n.inputs[2]).shape, &y = g.value(n.outputs[0]).shape;
    std::string letters(static_cast<size_t>(c.rank()), '.');
    if (c.rank() == 0 || !(c[c.rank() - 1] == y[1])) return std::nullopt;
    letters.back() = 'N';
    p.inputs.push_back(letters);
  }
  return p;
}

OpDef gemm_op() {
  const Attrs ta = {{"transA", int64_t{1}}}, tb = {{"transB", int64_t{1}}};
  return {
      .name = "Gemm",
      .inputs = {"A", "B", "C?"},
      .outputs = {"Y"},
      .infer = infer_gemm,
      .decompose = decompose_gemm,
      .precision = Precision::kAlways16,
      .flops = flops,
      .kernels = {{"cpu", "half", reject_half, prepare_half},
                  {"cpu", "onednn", reject_onednn, prepare_onednn},
                  {"cpu", "ref", nullptr, prepare_ref}},
      .examples =
          {
              {.in = {f({2, 3}), f({3, 4}), f({4})}},
              {.in = {f({2, 3}), f({4, 3}), f({4})}, .attrs = tb},
              {.in = {f({2, 3}), f({4, 3})}, .attrs = tb},
              {.in = {f({3, 2}), f({3, 4}), f({1, 4})}, .attrs = ta},
              {.in = {f({3, 2}), f({4, 3}), f({2, 1})},
               .attrs = {{"transA", int64_t{1}},
                         {"transB", int64_t{1}},
                         {"alpha", 0.5},
                         {"beta", -1.5}}},
              {.in = {f({2, 3}), f({3, 4}), f({})}, .attrs = {{"alpha", 2.0}}},
              {.in = {f({2, 3}), f({3, 4}), f({2, 4})}, .attrs = {{"beta", 0.25}}},
              {.in = {f({2, 3}), f({3, 4}), f({1})}},
              {.in = {f({2, 3}), f({3, 4}), f({4})}, .attrs = {{"beta", 0.0}}},
              {.in = {f({0, 3}), f({3, 4}), f({4})}},
          },
  };
}

}  // namespace

void register_gemm(OpTable& table) {
  add_pad_rule("Gemm", {pad_axes});
  table.add(gemm_op());
}

}  // namespace ortrain::ops
