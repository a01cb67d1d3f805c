// ortrain.ValidRows, ortrain.LinearRows and its gradients: a product for the rows that count alone,
// the head of a model whose labels leave positions out.
//
// ValidRows(labels) {ignore_index} -> rows i32[N]: the positions that count, ascending, then N.
// LinearRows(x, w, b?, rows) -> y [N, V]: line p is x[rows[p]] W (+ b), lines beyond the rows are
// 0. Memory is that of all rows; products are made of the next larger of ten sizes, each prepared
// before training, of gathered rows and zeros. Where every row counts nothing is gathered.
// Gradients read only the lines of dy that stand for rows.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/half_product.h"
#include "ops/common/linear_kernels.h"
#include "ops/common/movement.h"
#include "ops/common/onednn.h"
#include "ops/common/share_node.h"

namespace ortrain::ops {
namespace {

bool trans_b(const Attrs& a) { return a.i("trans_b", 0) != 0; }

void infer_valid(InferCtx& c) {
  check_index_type(c, 0);
  c.out(0, DType::kI32, Shape{c.shape(0).count()});
}
void check_rows(InferCtx& c, int at, const Dim& n) {
  if (c.dtype(at) != DType::kI32 || prove_equal(c.shape(at), Shape{n}) == Tri::kNo)
    c.fail(cat("rows must be i32[", n.str(), "]"));
}
Dim leading(const Shape& s) {
  Dim n(1);
  for (int i = 0; i + 1 < s.rank(); ++i) n = n * s[i];
  return n;
}
void infer_linear_rows(InferCtx& c) {  // x, w, b?, rows
  same_floats(c, {0, 1, 2});
  if (c.rank(0) < 1 || c.rank(1) != 2) c.fail("needs x[..., K] and a 2-D weight");
  const bool t = trans_b(c.attrs());
  if (prove_equal(c.shape(0)[c.rank(0) - 1], c.shape(1)[t ? 1 : 0]) == Tri::kNo)
    c.fail(cat("inner extents differ: ", c.shape(0).str(), " and weight ", c.shape(1).str()));
  const Dim n = leading(c.shape(0));
  check_rows(c, 3, n);
  c.out(0, c.dtype(0), Shape{n, c.shape(1)[t ? 0 : 1]});
}
void infer_grad_input(InferCtx& c) {  // dy, w, rows
  const Shape x(c.attrs().ints("dims"));
  check_rows(c, 2, leading(x));
  c.out(0, c.dtype(0), x);
}
void infer_grad_weight(InferCtx& c) {  // x, dy, rows
  check_rows(c, 2, leading(c.shape(0)));
  const Dim k = c.shape(0)[c.rank(0) - 1], n = c.shape(1)[c.rank(1) - 1];
  c.out(0, c.dtype(0), trans_b(c.attrs()) ? Shape{n, k} : Shape{k, n});
  c.out(1, c.dtype(0), Shape{n});
}

Expr grad_x(Grad& g) {
  return g.b.op("ortrain.LinearRowsGradInput", {g.dy(), g.x(1), g.x(3)},
                {{"trans_b", g.attrs().i("trans_b", 0)}, {"dims", g.x(0).shape().values()}});
}
Expr grad_shared(Grad& g, int output) {
  return share_node(g.b, "ortrain.LinearRowsGradWeight", {g.x(0), g.dy(), g.x(3)},
                    {{"trans_b", g.attrs().i("trans_b", 0)}}, output);
}
Expr grad_w(Grad& g) { return grad_shared(g, 0); }
Expr grad_b(Grad& g) { return grad_shared(g, 1); }

Kernel valid_rows(const KernelQuery& q) {
  return {0, [n = q.in[0].count(), wide = q.in[0].dtype == DType::kI64,
              ignore = q.attrs.i("ignore_index", -100)](const KernelArgs& a) {
            int32_t* rows = a.y<int32_t>(0);
            int64_t used = 0;
            for (int64_t i = 0; i < n; ++i)
              if (index_at(a.in[0], wide, i) != ignore) rows[used++] = static_cast<int32_t>(i);
            std::fill(rows + used, rows + n, static_cast<int32_t>(n));
          }};
}

// One kernel per number of rows; workspace: gathered or computed rows [n, width], then its own.
struct Sized {
  int64_t n = 0, width = 0;
  size_t bytes = 0, own = 0;  // of the rows, of the kernels
  int threads = 1;
  std::vector<int64_t> sizes;
  std::vector<Kernel> kernels;

  template <class Make>
  Sized(const KernelQuery& q, int64_t rows, int64_t columns, Make make)
      : n(rows), width(columns), threads(q.threads) {
    for (const int64_t i : {1, 2, 3, 4, 6, 8, 10, 12, 14, 16}) {
      const int64_t size = (n * i + 15) / 16;
      if (size == 0 || (!sizes.empty() && sizes.back() == size)) continue;
      sizes.push_back(size);
      kernels.push_back(make(size));
      own = std::max(own, kernels.back().workspace);
    }
    bytes = (static_cast<size_t>(n * width) * size_of(q.in[0].dtype) + 63) / 64 * 64;
  }
  size_t workspace() const { return bytes + own; }
  int64_t used(const int32_t* rows) const { return std::lower_bound(rows, rows + n, n) - rows; }
  size_t choose(int64_t count) const {
    return static_cast<size_t>(std::lower_bound(sizes.begin(), sizes.end(), count) - sizes.begin());
  }
  void* own_space(const KernelArgs& a) const {
    return static_cast<std::byte*>(a.workspace) + bytes;
  }
  template <class T>
  T* gather(const KernelArgs& a, const T* x, const int32_t* rows, int64_t count,
            int64_t size) const {
    T* to = static_cast<T*>(a.workspace);
    parallel_for(threads, count, 1 + 8192 / (1 + width), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) std::copy_n(x + rows[p] * width, width, to + p * width);
    });
    std::fill(to + count * width, to + size * width, T());
    return to;
  }
};

using Make = Kernel (*)(const KernelQuery&);

template <Make make>
Kernel linear_rows(const KernelQuery& q) {
  const int64_t n = q.out[0].dims[0], k = q.in[0].dims.back(), v = q.out[0].dims[1];
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    auto s = Sized(q, n, k, [&](int64_t size) {
      KernelQuery part = q;
      part.in.resize(3);
      part.in[0].dims = {size, k};
      part.out[0].dims = {size, v};
      return make(part);
    });
    out.workspace = s.workspace();
    out.run = [s = std::move(s), v](const KernelArgs& a) {
      const int32_t* rows = a.x<int32_t>(3);
      const int64_t count = s.used(rows);
      if (count > 0) {
        const size_t i = s.choose(count);
        const T* x = a.x<T>(0);
        if (count < s.n) x = s.template gather<T>(a, x, rows, count, s.sizes[i]);
        const void* in[] = {x, a.in[1], a.in[2]};
        s.kernels[i].run({in, a.out, s.own_space(a), a.fault});
      }
      T* rest = a.y<T>(0) + count * v;
      parallel_for(s.threads, (s.n - count) * v, 65536,
                   [&](int64_t begin, int64_t end) { std::fill(rest + begin, rest + end, T()); });
    };
  });
  return out;
}

template <Make make>
Kernel grad_input(const KernelQuery& q) {
  const int64_t n = q.in[0].dims[0], v = q.in[0].dims[1], k = q.out[0].dims.back();
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    auto s = Sized(q, n, k, [&](int64_t size) {
      KernelQuery part = q;
      part.in.resize(2);
      part.in[0].dims = {size, v};
      part.out[0].dims = {size, k};
      return make(part);
    });
    out.workspace = s.workspace();
    out.run = [s = std::move(s)](const KernelArgs& a) {
      const int32_t* rows = a.x<int32_t>(2);
      const int64_t count = s.used(rows);
      const size_t i = s.choose(count);
      if (count == s.n && count > 0)
        return s.kernels[i].run({a.in, a.out, s.own_space(a), a.fault});
      void* part[] = {a.workspace};
      if (count > 0) s.kernels[i].run({a.in, part, s.own_space(a), a.fault});
      const T* from = static_cast<const T*>(a.workspace);
      T* dx = a.y<T>(0);
      std::fill_n(dx, s.n * s.width, T());
      for (int64_t p = 0; p < count; ++p)
        std::copy_n(from + p * s.width, s.width, dx + rows[p] * s.width);
    };
  });
  return out;
}

template <Make make>
Kernel grad_weight(const KernelQuery& q) {
  const int64_t n = q.in[1].dims[0], k = q.in[0].dims.back(), v = q.in[1].dims[1];
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    auto s = Sized(q, n, k, [&](int64_t size) {
      KernelQuery part = q;
      part.in.resize(2);
      part.in[0].dims = {size, k};
      part.in[1].dims = {size, v};
      if (size < n) part.out.resize(1);  // the bias gradient is ours
      return make(part);
    });
    out.workspace = s.workspace();
    out.run = [s = std::move(s), v, want_bias = q.has_out(1),
               bytes = q.out[0].bytes()](const KernelArgs& a) {
      const int32_t* rows = a.x<int32_t>(2);
      const int64_t count = s.used(rows);
      const size_t i = s.choose(count);
      const T* dy = a.x<T>(1);
      if (count == s.n && count > 0)
        return s.kernels[i].run({a.in, a.out, s.own_space(a), a.fault});
      if (count > 0) {
        const void* in[] = {s.template gather<T>(a, a.x<T>(0), rows, count, s.sizes[i]), dy};
        s.kernels[i].run({in, a.out, s.own_space(a), a.fault});
      } else if (bytes > 0) {
        std::memset(a.out[0], 0, bytes);
      }
      if (!want_bias) return;
      T* db = a.y<T>(1);
      parallel_for(s.threads, v, 256, [&](int64_t begin, int64_t end) {
        constexpr int64_t kColumns = 256;
        Acc<T> sum[kColumns];
        for (int64_t j = begin; j < end; j += kColumns) {
          const int64_t width = std::min(kColumns, end - j);
          std::fill_n(sum, width, Acc<T>());
          for (int64_t p = 0; p < count; ++p)
            for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<Acc<T>>(dy[p * v + j + c]);
          for (int64_t c = 0; c < width; ++c) db[j + c] = static_cast<T>(sum[c]);
        }
      });
    };
  });
  return out;
}

KernelQuery floats_of(KernelQuery q) {  // all but rows
  std::erase_if(q.in, [](const TensorDesc& t) { return t.dtype == DType::kI32; });
  return q;
}
std::string reject(const KernelQuery& q) { return onednn::reject_not_f32(floats_of(q)); }
std::string reject_half(const KernelQuery& q) { return half_product_reject(floats_of(q)); }
std::string reject_half_weight(const KernelQuery& q) {
  return q.has_out(0) ? reject_half(q) : "only the bias gradient is wanted";
}
std::string reject_weight(const KernelQuery& q) {
  return q.has_out(0) ? reject(q) : "only the bias gradient is wanted";
}

double flops(const Graph& g, ValueId rows, ValueId w) {
  if (w == kNone) return 0;
  return 2.0 * static_cast<double>(g.value(rows).shape.count().value()) *
         static_cast<double>(g.value(w).shape.count().value());
}
double flops_forward(const Graph& g, const Node& n) { return flops(g, n.inputs[3], n.inputs[1]); }
double flops_input(const Graph& g, const Node& n) { return flops(g, n.inputs[2], n.inputs[1]); }
double flops_weight(const Graph& g, const Node& n) { return flops(g, n.inputs[2], n.outputs[0]); }

}  // namespace

void register_linear_rows(OpTable& table) {
  const auto at = [](std::vector<int64_t> v) {
    const auto n = static_cast<int64_t>(v.size());
    return typed(DType::kI32, iconst({n}, std::move(v)));
  };
  const Attrs t = {{"trans_b", int64_t{1}}};
  const auto dims = [](Dims d, Attrs a = {}) {
    a.set("dims", d);
    return a;
  };
  std::vector<int64_t> some;
  for (int64_t i = 0; i < 66; ++i) some.push_back(i < 9 ? 7 * i : 66);
  table.add({.name = "ortrain.ValidRows",
             .inputs = {"labels"},
             .outputs = {"rows"},
             .infer = infer_valid,
             .kernels = {{"cpu", "ref", nullptr, valid_rows}},
             .examples = {{.in = {iconst({2, 3}, {-100, 4, 0, -100, 2, -100})}},
                          {.in = {iconst({3}, {2, 1, 2})}, .attrs = {{"ignore_index", int64_t{2}}}},
                          {.in = {ints({0}, 0, 1)}}},
             .note = "made by pass sparse_head"});
  table.add({.name = "ortrain.LinearRows",
             .inputs = {"x", "w", "b?", "rows"},
             .outputs = {"y"},
             .infer = infer_linear_rows,
             .grad = {grad("x", grad_x), grad("w", grad_w), grad("b", grad_b), no_grad("rows")},
             .precision = Precision::kAlways16,
             .flops = flops_forward,
             .kernels = {{"cpu", "half", reject_half, linear_rows<half_linear>},
                         {"cpu", "onednn", reject, linear_rows<onednn_linear>},
                         {"cpu", "ref", nullptr, linear_rows<ref_linear>}},
             .examples = {{.in = {f({2, 3, 5}), f({5, 4}), f({4}), at({1, 2, 5, 6, 6, 6})}},
                          {.in = {f({66, 33}), f({17, 33}), f({17}), at(some)}, .attrs = t},
                          {.in = {f({3, 5}), f({4, 5}), absent(), at({0, 1, 2})}, .attrs = t},
                          {.in = {f({2, 5}), f({5, 4}), f({4}), at({2, 2})}},
                          {.in = {f({0, 5}), f({5, 4}), f({4}), at({})}}},
             .note = "made by pass sparse_head"});
  table.add({.name = "ortrain.LinearRowsGradInput",
             .inputs = {"dy", "w", "rows"},
             .outputs = {"dx"},
             .infer = infer_grad_input,
             .precision = Precision::kAlways16,
             .flops = flops_input,
             .kernels = {{"cpu", "half", reject_half, grad_input<half_grad_input>},
                         {"cpu", "onednn", reject, grad_input<onednn_grad_input>},
                         {"cpu", "ref", nullptr, grad_input<ref_grad_input>}},
             .examples = {
                 {.in = {f({6, 4}), f({5, 4}), at({1, 2, 5, 6, 6, 6})}, .attrs = dims({2, 3, 5})},
                 {.in = {f({66, 17}), f({17, 33}), at(some)}, .attrs = dims({66, 33}, t)},
                 {.in = {f({2, 4}), f({5, 4}), at({2, 2})}, .attrs = dims({2, 5})}}});
  table.add({.name = "ortrain.LinearRowsGradWeight",
             .inputs = {"x", "dy", "rows"},
             .outputs = {"dw", "db?"},
             .infer = infer_grad_weight,
             .precision = Precision::kAlways16,
             .flops = flops_weight,
             .kernels = {{"cpu", "half", reject_half_weight, grad_weight<half_grad_weight>},
                         {"cpu", "onednn", reject_weight, grad_weight<onednn_grad_weight>},
                         {"cpu", "ref", nullptr, grad_weight<ref_grad_weight>}},
             .examples = {{.in = {f({2, 3, 5}), f({6, 4}), at({1, 2, 5, 6, 6, 6})}, .outputs = 2},
                          {.in = {f({66, 33}), f({66, 17}), at(some)}, .attrs = t, .outputs = 2},
                          {.in = {f({3, 5}), f({3, 4}), at({0, 1, 2})}, .outputs = 2},
                          {.in = {f({2, 5}), f({2, 4}), at({2, 2})}, .outputs = 2}}});
}

}  // namespace ortrain::ops
