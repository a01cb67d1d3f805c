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
#include "ops/common/index_rows.h"

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

// The updates, cut into parts that reach disjoint pieces of data, one for each thread; every part
// visits its updates in order.
struct Updates {
  bool nd = false;
  ElementRows elements;
  TupleRows tuples;
  int threads = 1;
  int64_t count = 0;  // update elements

  Updates(const KernelQuery& q, bool is_nd) : nd(is_nd), threads(q.threads) {
    if (nd) {
      tuples = TupleRows(q.in[0], q.in[1], static_cast<int>(q.attrs.i("batch_dims", 0)));
      count = tuples.count * tuples.inner;
    } else {
      elements = ElementRows(q.in[0], q.in[1], q.attrs.i("axis", 0));
      count = q.in[1].count();
    }
  }

  // body(position in data, update element) for all that are in range, in parallel.
  template <class Body>
  void all(const KernelArgs& a, Body&& body) const {
    if (count == 0) return;
    const int use = count < 8192 ? 1 : threads;
    if (nd) return all_tuples(a, use, body);
    const int64_t width = elements.width(), rows = elements.rows();
    const auto part = [&](int64_t first, int64_t last, int64_t left, int64_t right) {
      elements.each(a, first, last, left, right, [&](int64_t at, int64_t j) {
        if (at >= 0) body(at, j);
      });
    };
    const int64_t outer = elements.dims[0];
    if (elements.along_rows() && elements.dims.size() > 1)
      return parallel_for(use, rows, 1, [&](int64_t b, int64_t e) { part(b, e, 0, width); });
    if (elements.axis > 0 && outer >= use)
      return parallel_for(use, outer, 1, [&](int64_t b, int64_t e) {
        part(b * (rows / outer), e * (rows / outer), 0, width);
      });
    if (!elements.along_rows() && width >= 16 * use)
      return parallel_for(use, width, 1, [&](int64_t b, int64_t e) { part(0, rows, b, e); });
    part(0, rows, 0, width);
  }

 private:
  template <class Body>
  void all_tuples(const KernelArgs& a, int use, Body& body) const {
    const int64_t inner = tuples.inner, batches = tuples.count / tuples.per_batch;
    const auto part = [&](int64_t first, int64_t last, int64_t left, int64_t right) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t at = tuples.at(a, r);
        if (at < 0) continue;
        for (int64_t i = left; i < right; ++i) body(at + i, r * inner + i);
      }
    };
    if (batches >= use)
      return parallel_for(use, batches, 1, [&](int64_t b, int64_t e) {
        part(b * tuples.per_batch, e * tuples.per_batch, 0, inner);
      });
    if (inner >= 16 * use)
      return parallel_for(use, inner, 16,
                          [&](int64_t b, int64_t e) { part(0, tuples.count, b, e); });
    part(0, tuples.count, 0, inner);
  }
};

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

void copy(const void* from, void* to, size_t bytes, int threads) {
  if (from == to) return;
  parallel_for(threads, static_cast<int64_t>(bytes), 1 << 16, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

template <bool nd>
Kernel scatter_kernel(const KernelQuery& q) {
  return {0, [w = Updates(q, nd), reduce = reduce_of(q.attrs), bytes = q.out[0].bytes(),
              dtype = q.in[0].dtype, threads = q.threads](const KernelArgs& a) {
            copy(a.in[0], a.out[0], bytes, threads);
            if (reduce == Reduce::kNone)
              return by_size(size_of(dtype), [&]<class T>() {
                w.all(a, [y = a.y<T>(0), x = a.x<T>(2)](int64_t at, int64_t j) { y[at] = x[j]; });
              });
            dispatch(dtype, [&]<class T>() {
              T* y = a.y<T>(0);
              const T* x = a.x<T>(2);
              if (reduce == Reduce::kAdd)
                return w.all(a, [=](int64_t at, int64_t j) {
                  y[at] = static_cast<T>(static_cast<Acc<T>>(y[at]) + static_cast<Acc<T>>(x[j]));
                });
              w.all(a, [=](int64_t at, int64_t j) { y[at] = combine(reduce, y[at], x[j]); });
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

// Per element of data: what its updates do together. `value`: mul: the product of the nonzero
// factors; max, min: the extreme. `count`: zeros among the factors, ties.
struct Tally {
  double* value;
  int64_t* count;
};

// none: dy where nothing was written; the last writer of an element gets it. `count` is read only
// where an update wrote it.
template <class T>
void overwrite_grad(const Updates& w, size_t bytes, const KernelArgs& a) {
  auto* winner = static_cast<int64_t*>(a.workspace);
  const T* dy = a.x<T>(0);
  T *ddata = a.y<T>(0), *dupdates = a.y<T>(1);
  if (ddata) copy(dy, ddata, bytes, w.threads);
  w.all(a, [=](int64_t at, int64_t j) {
    winner[at] = j;
    if (ddata) ddata[at] = T{};
  });
  if (!dupdates) return;
  fill_zero(dupdates, static_cast<size_t>(w.count) * sizeof(T), w.threads);  // faults stay zero
  w.all(a, [=](int64_t at, int64_t j) { dupdates[j] = winner[at] == j ? dy[at] : T{}; });
}

template <class T>
void scatter_grad(const Updates& w, Reduce reduce, int64_t n, const KernelArgs& a) {
  const Tally t{static_cast<double*>(a.workspace),
                reinterpret_cast<int64_t*>(static_cast<double*>(a.workspace) + n)};
  const T *dy = a.x<T>(0), *data = a.x<T>(2), *updates = a.x<T>(3);
  T *ddata = a.y<T>(0), *dupdates = a.y<T>(1);
  const auto number = [](T v) { return static_cast<double>(static_cast<Acc<T>>(v)); };
  const auto give = [](double v) { return static_cast<T>(static_cast<Acc<T>>(v)); };
  const bool product = reduce == Reduce::kMul;
  const auto factor = [&](int64_t i, double v) {
    v == 0 ? void(++t.count[i]) : void(t.value[i] *= v);
  };
  const auto extreme = [&](int64_t i, double v) {
    const bool better = reduce == Reduce::kMax ? v > t.value[i] : v < t.value[i];
    if (better) t.value[i] = v, t.count[i] = 0;
    if (v == t.value[i]) ++t.count[i];
  };
  parallel_for(w.threads, n, 8192, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      t.value[i] = product ? 1 : number(data[i]);
      t.count[i] = product ? 0 : 1;
      if (product) factor(i, number(data[i]));
    }
  });
  w.all(a, [&](int64_t at, int64_t j) {
    product ? factor(at, number(updates[j])) : extreme(at, number(updates[j]));
  });
  // Gradient of a contribution v to element i.
  const auto share = [&](int64_t i, double v) {
    const double d = number(dy[i]);
    if (!product) return v == t.value[i] ? d / static_cast<double>(t.count[i]) : 0.0;
    if (t.count[i] > (v == 0)) return 0.0;
    return d * (v == 0 ? t.value[i] : t.value[i] / v);
  };
  if (ddata)
    parallel_for(w.threads, n, 8192, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ddata[i] = give(share(i, number(data[i])));
    });
  if (!dupdates) return;
  fill_zero(dupdates, static_cast<size_t>(w.count) * sizeof(T), w.threads);  // faults stay zero
  w.all(a, [&](int64_t at, int64_t j) { dupdates[j] = give(share(at, number(updates[j]))); });
}

Kernel grad_kernel(const KernelQuery& q) {
  const int64_t n = q.in[0].count();
  const Reduce reduce = reduce_of(q.attrs);
  return {static_cast<size_t>(n) * (reduce == Reduce::kNone ? 8 : 16),
          [w = Updates(q, q.attrs.i("nd", 0) != 0), reduce, n, bytes = q.in[0].bytes(),
           dtype = q.in[0].dtype](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              reduce == Reduce::kNone ? overwrite_grad<T>(w, bytes, a)
                                      : scatter_grad<T>(w, reduce, n, a);
            });
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
  for (const int64_t axis : {0, 1, 2})  // enough for threads
    for (const char* reduction : {"none", "add"})
      elements.examples.push_back({.in = {f({8, 20, 64}), ints({8, 20, 60}, -8, 8), f({8, 20, 60})},
                                   .attrs = {{"axis", axis}, {"reduction", reduction}}});
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
  nd.examples.push_back({.in = {f({50, 64}), ints({200, 1}, -50, 50), f({200, 64})},
                         .attrs = {{"reduction", "add"}}});
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
