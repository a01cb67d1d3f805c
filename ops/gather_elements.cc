// GatherElements: out[i,j,k] = data[i, indices[i,j,k], k] for the axis. GatherND: slices of data at
// index tuples, with leading batch axes. Negative indices count from the end; out of range is
// reported and gives zeros. Gradients: ScatterElements / ScatterND of dy into zeros with add.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/index_rows.h"

namespace ortrain::ops {
namespace {

void infer_elements(InferCtx& c) {
  check_index_type(c, 1);
  if (c.rank(0) != c.rank(1))
    c.fail(cat("data ", c.shape(0).str(), " and indices ", c.shape(1).str(), " differ in rank"));
  normalize_axis(c.attrs().i("axis", 0), c.rank(0));
  c.out(0, c.dtype(0), c.shape(1));
}

Kernel elements_kernel(const KernelQuery& q) {
  return {0, [rows = ElementRows(q.in[0], q.in[1], q.attrs.i("axis", 0)),
              size = size_of(q.in[0].dtype), threads = q.threads](const KernelArgs& a) {
            by_size(size, [&]<class T>() {
              const int64_t grain = 1 + 4096 / std::max<int64_t>(1, rows.width());
              parallel_for(threads, rows.rows(), grain, [&](int64_t begin, int64_t end) {
                const T* x = a.x<T>(0);
                T* y = a.y<T>(0);
                rows.each(a, begin, end, 0, rows.width(),
                          [&](int64_t at, int64_t j) { y[j] = at < 0 ? T{} : x[at]; });
              });
            });
          }};
}

Expr elements_grad(Grad& g) {
  return g.b.op("ScatterElements", {g.b.zeros_like(g.x(0)), g.x(1), g.dy()},
                {{"axis", g.attrs().i("axis", 0)}, {"reduction", "add"}});
}

void infer_nd(InferCtx& c) {
  check_index_type(c, 1);
  const Shape data = c.shape(0), indices = c.shape(1);
  const int batch = static_cast<int>(c.attrs().i("batch_dims", 0));
  if (indices.rank() < 1 || !indices[indices.rank() - 1].is_const())
    c.fail("the length of the index tuples is not a number");
  const int64_t tuple = indices[indices.rank() - 1].value();
  if (batch < 0 || batch >= indices.rank() || batch + tuple > data.rank())
    c.fail(cat("index tuples of ", tuple, " after ", batch, " batch axes for data ", data.str()));
  for (int i = 0; i < batch; ++i)
    if (prove_equal(data[i], indices[i]) == Tri::kNo)
      c.fail(cat("batch axis ", i, " differs: ", data.str(), " and ", indices.str()));
  Shape out;
  for (int i = 0; i + 1 < indices.rank(); ++i) out.push_back(indices[i]);
  for (int i = batch + static_cast<int>(tuple); i < data.rank(); ++i) out.push_back(data[i]);
  c.out(0, c.dtype(0), out);
}

Kernel nd_kernel(const KernelQuery& q) {
  return {0, [rows = TupleRows(q.in[0], q.in[1], static_cast<int>(q.attrs.i("batch_dims", 0))),
              size = size_of(q.in[0].dtype), threads = q.threads](const KernelArgs& a) {
            const int64_t bytes = rows.inner * static_cast<int64_t>(size);
            if (bytes == 0) return;
            by_size(size, [&]<class T>() {
              parallel_for(threads, rows.count, std::max<int64_t>(1, 16384 / bytes),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t r = begin; r < end; ++r) {
                               const int64_t at = rows.at(a, r);
                               T* y = a.y<T>(0) + r * rows.inner;
                               if (rows.inner == 1)
                                 *y = at < 0 ? T{} : a.x<T>(0)[at];
                               else if (at < 0)
                                 std::memset(y, 0, static_cast<size_t>(bytes));
                               else
                                 std::memcpy(y, a.x<T>(0) + at, static_cast<size_t>(bytes));
                             }
                           });
            });
          }};
}

Expr nd_grad(Grad& g) {
  return g.b.op("ScatterND", {g.b.zeros_like(g.x(0)), g.x(1), g.dy()},
                {{"reduction", "add"}, {"batch_dims", g.attrs().i("batch_dims", 0)}});
}

}  // namespace

void register_gather_elements(OpTable& table) {
  table.add({
      .name = "GatherElements",
      .inputs = {"data", "indices"},
      .outputs = {"output"},
      .since = 11,
      .infer = infer_elements,
      .grad = {grad("data", elements_grad), no_grad("indices")},
      .kernels = {{"cpu", "ref", nullptr, elements_kernel}},
      .examples = {{.in = {f({4, 3}), ints({2, 3}, -4, 4)}},
                   {.in = {f({3, 5}), ints({3, 7}, -5, 5)}, .attrs = {{"axis", 1}}},
                   {.in = {f({2, 3, 4}), ints({2, 2, 4}, 0, 3)}, .attrs = {{"axis", -2}}},
                   {.in = {f({3, 5}), ints({3, 1}, 0, 5)}, .attrs = {{"axis", -1}}},
                   {.in = {f({4}), ivals({2, 2, 2})}},
                   {.in = {f({4, 3}), ints({0, 3}, 0, 4)}}},
  });
  table.add({
      .name = "GatherND",
      .inputs = {"data", "indices"},
      .outputs = {"output"},
      .since = 11,
      .infer = infer_nd,
      .grad = {grad("data", nd_grad), no_grad("indices")},
      .kernels = {{"cpu", "ref", nullptr, nd_kernel}},
      .examples = {{.in = {f({3, 4}), ints({5, 2}, -3, 3)}},
                   {.in = {f({3, 4}), ints({5, 1}, -3, 3)}},
                   {.in = {f({2, 3, 4}), ints({2, 5, 1}, 0, 3)}, .attrs = {{"batch_dims", 1}}},
                   {.in = {f({2, 3, 4, 2}), ints({2, 3, 1}, -4, 4)}, .attrs = {{"batch_dims", 2}}},
                   {.in = {f({2, 3}), ints({2, 2, 2}, 0, 2)}},
                   {.in = {f({2, 3}), ints({0, 1}, 0, 2)}}},
  });
}

}  // namespace ortrain::ops
