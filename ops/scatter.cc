// ScatterElements (and Scatter, its old name) and ScatterND: a copy of data with updates written or
// combined at indices; reductions none (the last update wins), add, mul, max, min. Updates apply in
// order, so duplicates give the same bits at every thread count.
// Gradients: add passes dy and gathers it; the others use ortrain.ScatterGrad: an overwritten
// element gets nothing, only the winning duplicate of `none` gets dy, mul gives the product of the
// other factors (exact with zeros), max and min share dy evenly among ties (PyTorch's
// scatter_reduce). ScatterND takes a private attribute batch_dims (GatherND's gradient).
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

enum class Reduce { kNone, kAdd, kMul, kMax, kMin };

Reduce reduce_of(const Attrs& attrs) {
  const std::string r = attrs.s("reduction", "none");
  if (r == "none") return Reduce::kNone;
  if (r == "add") return Reduce::kAdd;
  if (r == "mul") return Reduce::kMul;
  if (r == "max") return Reduce::kMax;
  if (r == "min") return Reduce::kMin;
  fail(ErrorCode::kUnsupported, "reduction '", r, "'");
}

// Where update element j goes: a flat position of data, or -1 after a report. Indices are input 1.
struct Where {
  bool nd = false, wide = true;
  // elements: dims of the updates, strides of data. nd: extents and strides of the indexed axes.
  Dims dims, strides;
  size_t axis = 0;
  int64_t extent = 0;                                  // elements: of data's axis
  int64_t inner = 1, per_batch = 1, batch_stride = 0;  // nd
  int64_t count = 0;                                   // update elements
  int64_t unit = 1;  // pieces of this many update elements reach disjoint parts of data

  int64_t operator()(const KernelArgs& a, int64_t j) const {
    if (!nd) {
      int64_t at = 0, rest = j;
      for (size_t k = dims.size(); k-- > 0;) {
        if (k != axis) at += rest % dims[k] * strides[k];
        rest /= dims[k];
      }
      const int64_t row = checked(a, j, extent);
      return row < 0 ? -1 : at + row * strides[axis];
    }
    const int64_t r = j / inner;
    int64_t at = r / per_batch * batch_stride + j % inner;
    const auto tuple = static_cast<int64_t>(dims.size());
    for (int64_t k = 0; k < tuple; ++k) {
      const int64_t i = checked(a, r * tuple + k, dims[static_cast<size_t>(k)]);
      if (i < 0) return -1;
      at += i * strides[static_cast<size_t>(k)];
    }
    return at;
  }
  int64_t checked(const KernelArgs& a, int64_t at, int64_t n) const {
    const int64_t v = index_at(a.in[1], wide, at), i = v < 0 ? v + n : v;
    if (i >= 0 && i < n) return i;
    a.fault->report(at, v, -n, n);
    return -1;
  }
};

Where where(const KernelQuery& q, bool nd) {
  const Dims &data = q.in[0].dims, &indices = q.in[1].dims;
  Where w;
  w.nd = nd;
  w.wide = q.in[1].dtype == DType::kI64;
  const Dims all = dense_strides(data);
  if (!nd) {
    w.axis = static_cast<size_t>(normalize_axis(q.attrs.i("axis", 0), q.in[0].rank()));
    w.dims = indices;
    w.strides = all;
    w.extent = data[w.axis];
    w.count = product(indices);
    w.unit = w.axis == 0 ? w.count : product(indices, 1, q.in[1].rank());
    return w;
  }
  const auto batch = static_cast<int>(q.attrs.i("batch_dims", 0));
  const auto used = static_cast<int>(batch + indices.back());
  w.dims.assign(data.begin() + batch, data.begin() + used);
  w.strides.assign(all.begin() + batch, all.begin() + used);
  w.inner = product(data, used, q.in[0].rank());
  w.per_batch = product(indices, batch, q.in[1].rank() - 1);
  w.batch_stride = product(data, batch, q.in[0].rank());
  w.count = product(indices, 0, q.in[1].rank() - 1) * w.inner;
  w.unit = w.per_batch * w.inner;
  return w;
}

void infer_elements(InferCtx& c) {
  check_index_type(c, 1);
  reduce_of(c.attrs());
  normalize_axis(c.attrs().i("axis", 0), c.rank(0));
  if (c.rank(0) != c.rank(1) || prove_equal(c.shape(1), c.shape(2)) == Tri::kNo)
    c.fail(cat("data ", c.shape(0).str(), ", indices ", c.shape(1).str(), " and updates ",
               c.shape(2).str(), " do not fit"));
  if (c.dtype(0) != c.dtype(2)) c.fail("updates have another type than data");
  c.out(0, c.dtype(0), c.shape(0));
}

// Shape of the updates of ScatterND.
Shape nd_updates(InferCtx& c) {
  const Shape data = c.shape(0), indices = c.shape(1);
  if (indices.rank() < 1 || !indices[indices.rank() - 1].is_const())
    c.fail("the length of the index tuples is not a number");
  const auto used =
      static_cast<int>(c.attrs().i("batch_dims", 0) + indices[indices.rank() - 1].value());
  if (used > data.rank())
    c.fail(cat("index tuples ", indices.str(), " are too long for data ", data.str()));
  Shape out;
  for (int i = 0; i + 1 < indices.rank(); ++i) out.push_back(indices[i]);
  for (int i = used; i < data.rank(); ++i) out.push_back(data[i]);
  return out;
}

void infer_nd(InferCtx& c) {
  check_index_type(c, 1);
  reduce_of(c.attrs());
  const Shape updates = nd_updates(c);
  if (prove_equal(updates, c.shape(2)) == Tri::kNo)
    c.fail(cat("updates ", c.shape(2).str(), " where ", updates.str(), " is needed"));
  if (c.dtype(0) != c.dtype(2)) c.fail("updates have another type than data");
  c.out(0, c.dtype(0), c.shape(0));
}

template <class T>
T combine(Reduce reduce, T old, T update) {
  const auto a = static_cast<Acc<T>>(old), b = static_cast<Acc<T>>(update);
  switch (reduce) {
    case Reduce::kAdd: return static_cast<T>(a + b);
    case Reduce::kMul: return static_cast<T>(a * b);
    case Reduce::kMax: return a < b || b != b ? update : old;
    case Reduce::kMin: return b < a || b != b ? update : old;
    default: return update;
  }
}

template <bool nd>
Kernel scatter_kernel(const KernelQuery& q) {
  return {0, [w = where(q, nd), reduce = reduce_of(q.attrs), bytes = q.out[0].bytes(),
              dtype = q.in[0].dtype, threads = q.threads](const KernelArgs& a) {
            if (a.out[0] != a.in[0] && bytes > 0) std::memcpy(a.out[0], a.in[0], bytes);
            if (w.count == 0) return;
            const auto all = [&](auto&& put) {
              parallel_for(threads, w.count / w.unit, std::max<int64_t>(1, 4096 / w.unit),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t j = begin * w.unit; j < end * w.unit; ++j)
                               if (const int64_t at = w(a, j); at >= 0) put(at, j);
                           });
            };
            if (reduce == Reduce::kNone)
              return by_size(size_of(dtype), [&]<class T>() {
                all([&](int64_t at, int64_t j) { a.y<T>(0)[at] = a.x<T>(2)[j]; });
              });
            dispatch(dtype, [&]<class T>() {
              all([&](int64_t at, int64_t j) {
                a.y<T>(0)[at] = combine(reduce, a.y<T>(0)[at], a.x<T>(2)[j]);
              });
            });
          }};
}

// Index of an output of ortrain.ScatterGrad: 0 for data, 1 for updates.
Expr grad_of(Grad& g, bool nd, int output) {
  const Reduce reduce = reduce_of(g.attrs());
  const int64_t axis = g.attrs().i("axis", 0), batch = g.attrs().i("batch_dims", 0);
  if (reduce == Reduce::kAdd) {
    if (output == 0) return g.dy();
    return nd ? g.b.op("GatherND", {g.dy(), g.x(1)}, {{"batch_dims", batch}})
              : g.b.op("GatherElements", {g.dy(), g.x(1)}, {{"axis", axis}});
  }
  Attrs attrs{{"nd", int64_t{nd}}, {"reduction", g.attrs().s("reduction", "none")}};
  nd ? attrs.set("batch_dims", batch) : attrs.set("axis", axis);
  const bool plain = reduce == Reduce::kNone;
  std::vector<Expr> in = {g.dy(), g.x(1), plain ? Expr() : g.x(0), plain ? Expr() : g.x(2)};
  return g.b.ops("ortrain.ScatterGrad", in, std::move(attrs), 2)[static_cast<size_t>(output)];
}

// --- ortrain.ScatterGrad(dy, indices, data?, updates?) -> ddata, dupdates
void infer_grad(InferCtx& c) {
  check_index_type(c, 1);
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, c.dtype(0), c.attrs().i("nd", 0) ? nd_updates(c) : c.shape(1));
}

// Per element of data: what its updates do together. `value`: none: the last update + 1; mul: the
// product of the nonzero factors; max, min: the extreme. `count`: zeros among the factors, ties.
struct Tally {
  double* value;
  int64_t* count;
};

template <class T>
void scatter_grad(const Where& w, Reduce reduce, int64_t n, const KernelArgs& a) {
  const Tally t{static_cast<double*>(a.workspace),
                reinterpret_cast<int64_t*>(static_cast<double*>(a.workspace) + n)};
  const T *dy = a.x<T>(0), *data = nullptr, *updates = nullptr;
  if (reduce != Reduce::kNone) data = a.x<T>(2), updates = a.x<T>(3);
  T *ddata = a.y<T>(0), *dupdates = a.y<T>(1);
  const auto number = [](T v) { return static_cast<double>(static_cast<Acc<T>>(v)); };
  const auto give = [](double v) { return static_cast<T>(static_cast<Acc<T>>(v)); };
  const auto each = [&](auto&& body) {
    for (int64_t j = 0; j < w.count; ++j)
      if (const int64_t at = w(a, j); at >= 0) body(at, j);
  };
  const auto factor = [&](int64_t i, double v) {
    v == 0 ? void(++t.count[i]) : void(t.value[i] *= v);
  };
  const auto extreme = [&](int64_t i, double v) {
    const bool better = reduce == Reduce::kMax ? v > t.value[i] : v < t.value[i];
    if (better) t.value[i] = v, t.count[i] = 0;
    if (v == t.value[i]) ++t.count[i];
  };
  for (int64_t i = 0; i < n; ++i) {
    t.value[i] = reduce == Reduce::kMul || reduce == Reduce::kNone ? 1 : number(data[i]);
    t.count[i] = reduce == Reduce::kMax || reduce == Reduce::kMin ? 1 : 0;
    if (reduce == Reduce::kMul) factor(i, number(data[i]));
  }
  each([&](int64_t at, int64_t j) {
    if (reduce == Reduce::kNone) t.count[at] = j + 1;
    if (reduce == Reduce::kMul) factor(at, number(updates[j]));
    if (reduce == Reduce::kMax || reduce == Reduce::kMin) extreme(at, number(updates[j]));
  });
  // Gradient of a contribution v to element i; `winner` matters for none only.
  const auto share = [&](int64_t i, double v, bool winner) {
    const double d = number(dy[i]);
    if (reduce == Reduce::kNone) return winner ? d : 0;
    if (reduce == Reduce::kMul) {
      if (t.count[i] > (v == 0)) return 0.0;
      return d * (v == 0 ? t.value[i] : t.value[i] / v);
    }
    return v == t.value[i] ? d / static_cast<double>(t.count[i]) : 0.0;
  };
  if (ddata)
    for (int64_t i = 0; i < n; ++i)
      ddata[i] = give(share(i, data ? number(data[i]) : 0, t.count[i] == 0));
  if (!dupdates) return;
  std::fill_n(dupdates, w.count, T{});
  each([&](int64_t at, int64_t j) {
    dupdates[j] = give(share(at, updates ? number(updates[j]) : 0, t.count[at] == j + 1));
  });
}

Kernel grad_kernel(const KernelQuery& q) {
  const int64_t n = q.in[0].count();
  return {static_cast<size_t>(n) * 16,
          [w = where(q, q.attrs.i("nd", 0) != 0), reduce = reduce_of(q.attrs), n,
           dtype = q.in[0].dtype](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() { scatter_grad<T>(w, reduce, n, a); });
          }};
}

OpDef record(std::string name, bool nd) {
  OpDef op;
  op.name = std::move(name);
  op.inputs = {"data", "indices", "updates"};
  op.outputs = {"output"};
  op.infer = nd ? infer_nd : infer_elements;
  op.inplace = {{0, 0}};
  if (nd) {
    op.grad = {grad("data", [](Grad& g) { return grad_of(g, true, 0); }), no_grad("indices"),
               grad("updates", [](Grad& g) { return grad_of(g, true, 1); })};
    op.kernels = {{"cpu", "ref", nullptr, scatter_kernel<true>}};
  } else {
    op.grad = {grad("data", [](Grad& g) { return grad_of(g, false, 0); }), no_grad("indices"),
               grad("updates", [](Grad& g) { return grad_of(g, false, 1); })};
    op.kernels = {{"cpu", "ref", nullptr, scatter_kernel<false>}};
  }
  op.note =
      "duplicates: none keeps the last update and only it gets a gradient; ties of max and min "
      "share it";
  return op;
}

}  // namespace

void register_scatter(OpTable& table) {
  OpDef elements = record("ScatterElements", false);
  elements.since = 11;
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    elements.examples.push_back(
        {.in = {f({3, 4}), ints({2, 4}, -3, 3), f({2, 4})}, .attrs = {{"reduction", reduction}}});
    elements.examples.push_back({.in = {f({2, 5}), ivals({1, 1, 3, 1}), f({1, 4})},
                                 .attrs = {{"axis", 1}, {"reduction", reduction}}});
    elements.examples.back().in[1] = iconst({1, 4}, {1, 1, -2, 1});
  }
  elements.examples.push_back(
      {.in = {floats({4}, {0, 2, 0, 3}), ivals({0, 1, 1, 2, 2}), floats({5}, {4, 0, 5, 0, 7})},
       .attrs = {{"reduction", "mul"}}});
  elements.examples.push_back({.in = {f({3}), ints({0}, 0, 3), f({0})}});
  OpDef old = record("Scatter", false);
  old.since = 9;
  old.adapt = [](RawNode& r) { r.op = "ScatterElements"; };
  old.examples = {{.in = {f({3, 4}), ints({2, 4}, -3, 3), f({2, 4})}}};
  table.add(std::move(elements));
  table.add(std::move(old));

  OpDef nd = record("ScatterND", true);
  nd.since = 11;
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    nd.examples.push_back(
        {.in = {f({4, 3}), ints({5, 2}, -3, 3), f({5})}, .attrs = {{"reduction", reduction}}});
    nd.examples.push_back({.in = {f({4, 3}), iconst({3, 1}, {1, -1, 1}), f({3, 3})},
                           .attrs = {{"reduction", reduction}}});
  }
  nd.examples.push_back({.in = {f({2, 4, 3}), ints({2, 5, 1}, 0, 4), f({2, 5, 3})},
                         .attrs = {{"reduction", "add"}, {"batch_dims", 1}}});
  nd.examples.push_back({.in = {f({2, 3}), ints({0, 1}, 0, 2), f({0, 3})}});
  table.add(std::move(nd));

  table.add({
      .name = "ortrain.ScatterGrad",
      .inputs = {"dy", "indices", "data?", "updates?"},
      .outputs = {"ddata", "dupdates"},
      .infer = infer_grad,
      .kernels = {{"cpu", "ref", nullptr, grad_kernel}},
      .examples = {{.in = {f({3, 4}), ints({2, 4}, -3, 3)}, .outputs = 2},
                   {.in = {f({4}), ivals({1, 1, 2}), f({4}), f({3})},
                    .attrs = {{"reduction", "max"}},
                    .outputs = 2}},
  });
}

}  // namespace ortrain::ops
