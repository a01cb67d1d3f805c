// MatMul: y = a b as numpy.matmul: any rank, batch axes broadcast, 1-D operands. All numeric types.
//
// Our own attributes trans_a, trans_b (never in a file; gradients and fuse_forward set them) swap
// the last two axes of an operand of rank >= 2 without a copy. A 2-D right side takes the
// inner_product path, whatever the rank of the left one. Gradients: da = dy b^T, db = a^T dy; a 2-D
// b with a batched a sums over the batch inside the product.
#include <numeric>

#include "graph/pad_axes.h"
#include "ops/common/half_product.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/matrix_product.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

// Both operands as [batch..., rows, cols] with equal batch ranks; the result likewise.
struct Geometry {
  Dims batch_a, batch_b, batch;  // equal ranks
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  int64_t batch_count() const { return element_count(batch); }
};

Geometry geometry(const KernelQuery& q) {
  Geometry g;
  Dims a = q.in[0].dims, b = q.in[1].dims;
  g.ta = q.attrs.i("trans_a", 0) != 0 && a.size() > 1;
  g.tb = q.attrs.i("trans_b", 0) != 0 && b.size() > 1;
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  while (a.size() < b.size()) a.insert(a.begin(), 1);
  while (b.size() < a.size()) b.insert(b.begin(), 1);
  const size_t r = a.size();
  g.m = g.ta ? a[r - 1] : a[r - 2];
  g.k = g.ta ? a[r - 2] : a[r - 1];
  g.n = g.tb ? b[r - 2] : b[r - 1];
  g.batch_a.assign(a.begin(), a.end() - 2);
  g.batch_b.assign(b.begin(), b.end() - 2);
  for (size_t i = 0; i + 2 < r; ++i) g.batch.push_back(a[i] == 1 ? b[i] : a[i]);
  return g;
}

void infer_matmul(InferCtx& c) {
  if (c.dtype(0) != c.dtype(1))
    c.fail(
        cat("operands have different types: ", name_of(c.dtype(0)), " and ", name_of(c.dtype(1))));
  c.out(0, c.dtype(0), product_shape(c, 0, 1));
}

// --- gradient -----------------------------------------------------------------------------------
// Operands and dy with 1-D operands made 2-D: y[..., m, n] always has both axes.
struct Full {
  Expr a, b, dy;
  bool ta, tb;
};
Full full(Grad& g) {
  Full f{g.x(0), g.x(1), g.dy(), g.attrs().i("trans_a", 0) != 0, g.attrs().i("trans_b", 0) != 0};
  Dims dy = f.dy.shape().values();
  if (f.b.rank() == 1) f.b = g.b.reshape(f.b, {f.b.shape()[0].value(), 1}), dy.push_back(1);
  if (f.a.rank() == 1)
    f.a = g.b.reshape(f.a, {1, f.a.shape()[0].value()}), dy.insert(dy.end() - 1, 1);
  if (g.x(0).rank() == 1) f.ta = false;
  if (g.x(1).rank() == 1) f.tb = false;
  f.dy = g.b.reshape(f.dy, dy);
  return f;
}
Expr product(Grad& g, Expr a, bool ta, Expr b, bool tb) {
  Attrs attrs;
  if (ta) attrs.set("trans_a", int64_t{1});
  if (tb) attrs.set("trans_b", int64_t{1});
  return g.b.op("MatMul", {a, b}, std::move(attrs));
}
Expr back_to(Grad& g, Expr grad, Expr operand, Expr x) {
  return g.b.reshape_like(g.b.sum_to(grad, operand.shape()), x);
}
Expr flat(Grad& g, Expr x) {  // [..., c] -> [rows, c]
  const Dims d = x.shape().values();
  const int64_t rows = std::accumulate(d.begin(), d.end() - 1, int64_t{1}, std::multiplies<>());
  return g.b.reshape(x, {rows, d.back()});
}

Expr grad_a(Grad& g) {
  const Full f = full(g);
  const Expr da = f.ta ? product(g, f.b, f.tb, f.dy, true) : product(g, f.dy, false, f.b, !f.tb);
  return back_to(g, da, f.a, g.x(0));
}
Expr grad_b(Grad& g) {
  Full f = full(g);
  if (f.b.rank() == 2 && f.a.rank() > 2 && !f.ta) f.a = flat(g, f.a), f.dy = flat(g, f.dy);
  const Expr db = f.tb ? product(g, f.dy, true, f.a, f.ta) : product(g, f.a, !f.ta, f.dy, false);
  return back_to(g, db, f.b, g.x(1));
}

// --- kernels ------------------------------------------------------------------------------------
int64_t offset_of(const Dims& batch, const Dims& own, int64_t index) {
  int64_t offset = 0, step = 1;
  for (size_t i = batch.size(); i-- > 0; index /= batch[i]) {
    if (own[i] != 1) offset += index % batch[i] * step;
    step *= own[i];
  }
  return offset;
}

template <class T>
Kernel ref_for(const KernelQuery& q) {
  return {0, [g = geometry(q), threads = q.threads](const KernelArgs& args) {
            for (int64_t i = 0; i < g.batch_count(); ++i) {
              const T* a = args.x<T>(0) + offset_of(g.batch, g.batch_a, i) * g.m * g.k;
              const T* b = args.x<T>(1) + offset_of(g.batch, g.batch_b, i) * g.k * g.n;
              ref_gemm<T>(threads, g.m, g.n, g.k, matrix(a, g.m, g.k, g.ta),
                          matrix(b, g.k, g.n, g.tb),
                          matrix(args.y<T>(0) + i * g.m * g.n, g.m, g.n, false));
            }
          }};
}
Kernel prepare_ref(const KernelQuery& q) {
  Kernel out;
  dispatch(q.in[0].dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>)
      fail(ErrorCode::kUnsupported, "MatMul of bool");
    else
      out = ref_for<T>(q);
  });
  return out;
}

// Whether the batch axes are rows of one product.
bool is_flat(const Geometry& g) {
  return element_count(g.batch_b) == 1 && (!g.ta || g.batch_count() == 1);
}

Kernel prepare_onednn(const KernelQuery& q) {
  const Geometry g = geometry(q);
  const DType dtype = q.in[0].dtype;
  onednn::Program program(q);
  const auto in = [](size_t i) { return onednn::in(i, {}); };
  const int64_t nb = element_count(g.batch_b);
  if (is_flat(g)) {
    add_product(program, {g.batch_count() * g.m, g.n, g.k, g.ta, g.tb}, in(0), in(1),
                onednn::out(0, {}));
    return std::move(program).finish();
  }
  // Batched: the batch axes as they are, or one when nothing broadcasts.
  const auto operand = [dtype](Dims batch, bool merge, int64_t rows, int64_t cols, bool trans) {
    if (merge) batch = {element_count(batch)};
    Dims dims = batch;
    dims.push_back(trans ? cols : rows);
    dims.push_back(trans ? rows : cols);
    Dims strides = onednn::row_major_strides(dims);
    if (trans) {
      std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
      std::swap(strides[dims.size() - 1], strides[dims.size() - 2]);
    }
    return onednn::strided(dims, strides, dtype);
  };
  const bool merge = g.batch_a == g.batch_b || element_count(g.batch_a) == 1 || nb == 1;
  const onednn::Primitive p = onednn::matmul(operand(g.batch_a, merge, g.m, g.k, g.ta),
                                             operand(g.batch_b, merge, g.k, g.n, g.tb),
                                             operand(g.batch, merge, g.m, g.n, false));
  program.add(p, {{DNNL_ARG_SRC, onednn::in(0, p.src)},
                  {DNNL_ARG_WEIGHTS, onednn::in(1, p.weights)},
                  {DNNL_ARG_DST, onednn::out(0, p.dst)}});
  return std::move(program).finish();
}

std::string reject_half(const KernelQuery& q) {
  if (std::string why = half_product_reject(q); !why.empty()) return why;
  const Geometry g = geometry(q);
  if (is_flat(g)) return {};
  if (std::string why = reject_not_native(q.in[0].dtype); !why.empty()) return why;
  return g.batch.size() > 10 ? "more than 10 batch axes" : "";
}
Kernel prepare_half(const KernelQuery& q) {
  const Geometry g = geometry(q);
  if (!is_flat(g)) return prepare_onednn(q);
  HalfProduct p;
  p.shape = {g.batch_count() * g.m, g.n, g.k, g.ta, g.tb};
  return half_product(q, p);
}

std::string reject_onednn(const KernelQuery& q) {
  if (std::string why = onednn::reject_not_f32(q); !why.empty()) return why;
  return geometry(q).batch.size() > 10 ? "more than 10 batch axes" : "";
}

double flops(const Graph& g, const Node& n) {
  const Shape& a = g.value(n.inputs[0]).shape;
  const int k_axis = n.attrs.i("trans_a", 0) && a.rank() > 1 ? a.rank() - 2 : a.rank() - 1;
  return 2.0 * static_cast<double>(g.value(n.outputs[0]).shape.count().value()) *
         static_cast<double>(a[k_axis].value());
}

// The extents of a product with a matrix, as weights are, are worth a multiple.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  const int ra = g.value(n.inputs[0]).shape.rank(), rb = g.value(n.inputs[1]).shape.rank();
  if (ra < 2 || rb < 2) return std::nullopt;
  const auto operand = [&](int rank, const char* plain, const char* swapped, const char* trans) {
    return std::string(static_cast<size_t>(rank - 2), '.') +
           (n.attrs.i(trans, 0) != 0 ? swapped : plain);
  };
  const std::string batch(static_cast<size_t>(std::max(ra, rb) - 2), '.');
  if (rb == 2)
    return PadAxes{{operand(ra, "mK", "Km", "trans_a"), operand(rb, "KN", "NK", "trans_b")},
                   {batch + "mN"}};
  return PadAxes{{operand(ra, "mk", "km", "trans_a"), operand(rb, "kn", "nk", "trans_b")},
                 {batch + "mn"}};
}

OpDef matmul_op() {
  return {
      .name = "MatMul",
      .inputs = {"A", "B"},
      .outputs = {"Y"},
      .infer = infer_matmul,
      .grad = {grad("A", grad_a), grad("B", grad_b)},
      .precision = Precision::kAlways16,
      .flops = flops,
      .kernels = {{"cpu", "half", reject_half, prepare_half},
                  {"cpu", "onednn", reject_onednn, prepare_onednn},
                  {"cpu", "ref", nullptr, prepare_ref}},
      .examples =
          {
              {.in = {f({2, 3}), f({3, 4})}},
              {.in = {f({33, 65}), f({65, 17})}},
              {.in = {f({5, 7, 3}), f({3, 4})}},
              {.in = {f({2, 5, 7, 3}), f({2, 5, 3, 4})}},
              {.in = {f({5, 1, 7, 3}), f({2, 3, 4})}},
              {.in = {f({1, 2, 7, 3}), f({4, 1, 3, 5})}},
              {.in = {f({7, 3}), f({2, 4, 3, 5})}},
              {.in = {f({3}), f({3})}},
              {.in = {f({3}), f({3, 4})}},
              {.in = {f({4, 3}), f({3})}},
              {.in = {f({3}), f({2, 3, 4})}},
              {.in = {f({2, 4, 3}), f({3})}},
              {.in = {f({3, 6}), f({3, 4})}, .attrs = {{"trans_a", int64_t{1}}}},
              {.in = {f({6, 3}), f({4, 3})}, .attrs = {{"trans_b", int64_t{1}}}},
              {.in = {f({3, 6}), f({4, 3})},
               .attrs = {{"trans_a", int64_t{1}}, {"trans_b", int64_t{1}}}},
              {.in = {f({2, 3, 6}), f({2, 3, 4})}, .attrs = {{"trans_a", int64_t{1}}}},
              {.in = {f({2, 3, 6}), f({3, 4})}, .attrs = {{"trans_a", int64_t{1}}}},
              {.in = {f({2, 6, 3}), f({2, 4, 3})}, .attrs = {{"trans_b", int64_t{1}}}},
              {.in = {f({2, 6, 3}), f({4, 3})}, .attrs = {{"trans_b", int64_t{1}}}},
              {.in = {f({0, 3}), f({3, 4})}},
              {.in = {f({2, 0}), f({0, 4})}},
          },
      .note = "an inner extent of 0 gives zeros",
  };
}

}  // namespace

void register_matmul(OpTable& table) {
  add_pad_rule("MatMul", {pad_axes});
  table.add(matmul_op());
}

}  // namespace ortrain::ops
