// Gather: slices of `data` along an axis, picked by an index tensor of any rank (negative counts
// from the end). An index out of range is reported and gives zeros. Gradient: ortrain.GatherGrad
// (attributes axis, dims), the embedding gradient: dense, each row of zeros or sums written once,
// duplicates added in index order whatever the thread count. Rows are never exempt (PyTorch's
// padding_idx is not in an ONNX file).
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// data [outer, n, inner], indices [count], output [outer, count, inner]
struct Plan {
  int64_t outer, n, inner, count;
  bool wide;  // indices are i64
  int64_t index(const void* p, int64_t i) const { return index_at(p, wide, i); }
  // Normalised index, or -1 after a report.
  int64_t row(const KernelArgs& a, int64_t i) const {
    const int64_t v = index(a.in[1], i), r = v < 0 ? v + n : v;
    if (r >= 0 && r < n) return r;
    a.fault->report(i, v, -n, n);
    return -1;
  }
};

Plan plan(const KernelQuery& q, const Dims& data) {
  const int rank = static_cast<int>(data.size());
  const int axis = normalize_axis(q.attrs.i("axis", 0), rank);
  return {product(data, 0, axis), data[static_cast<size_t>(axis)], product(data, axis + 1, rank),
          q.in[1].count(), q.in[1].dtype == DType::kI64};
}

void infer_gather(InferCtx& c) {
  check_index_type(c, 1);
  const Shape data = c.shape(0), indices = c.shape(1);
  if (data.rank() == 0) c.fail("data is a scalar");
  const int axis = normalize_axis(c.attrs().i("axis", 0), data.rank());
  Shape out;
  for (int i = 0; i < axis; ++i) out.push_back(data[i]);
  for (Dim d : indices) out.push_back(d);
  for (int i = axis + 1; i < data.rank(); ++i) out.push_back(data[i]);
  c.out(0, c.dtype(0), out);
  const auto contents = c.ints(0), at = c.ints(1);
  if (!contents || !at || !data.is_const() || !indices.is_const()) return;
  const Dims d = data.values();
  const int64_t outer = product(d, 0, axis), n = d[static_cast<size_t>(axis)];
  const int64_t inner = product(d, axis + 1, data.rank());
  if (outer * inner * static_cast<int64_t>(at->size()) > 4096) return;
  std::vector<Dim> picked;
  for (int64_t o = 0; o < outer; ++o)
    for (Dim i : *at) {
      if (!i.is_const()) return;
      const int64_t r = i.value() < 0 ? i.value() + n : i.value();
      if (r < 0 || r >= n) c.fail(cat("index ", i.value(), " outside [", -n, ", ", n, ")"));
      const auto from = contents->begin() + static_cast<std::ptrdiff_t>((o * n + r) * inner);
      picked.insert(picked.end(), from, from + static_cast<std::ptrdiff_t>(inner));
    }
  c.out_ints(0, std::move(picked));
}

Kernel gather_ref(const KernelQuery& q) {
  return {0, [p = plan(q, q.in[0].dims), size = size_of(q.in[0].dtype)](const KernelArgs& a) {
            by_size(size, [&]<class T>() {
              T* y = a.y<T>(0);
              for (int64_t o = 0; o < p.outer; ++o)
                for (int64_t k = 0; k < p.count; ++k) {
                  const int64_t row = p.row(a, k);
                  for (int64_t i = 0; i < p.inner; ++i)
                    *y++ = row < 0 ? T{} : a.x<T>(0)[(o * p.n + row) * p.inner + i];
                }
            });
          }};
}

// Rows by memcpy, single elements by assignment; split over the rows of the output.
Kernel gather_rows(const KernelQuery& q) {
  return {0, [p = plan(q, q.in[0].dims), size = size_of(q.in[0].dtype),
              threads = q.threads](const KernelArgs& a) {
            const int64_t bytes = p.inner * static_cast<int64_t>(size);
            if (bytes == 0) return;
            parallel_for(threads, p.outer * p.count, std::max<int64_t>(1, 16384 / bytes),
                         [&](int64_t begin, int64_t end) {
                           by_size(size, [&]<class T>() {
                             for (int64_t r = begin; r < end; ++r) {
                               const int64_t o = r / p.count, row = p.row(a, r - o * p.count);
                               T* y = a.y<T>(0) + r * p.inner;
                               const T* x = a.x<T>(0) + (o * p.n + row) * p.inner;
                               if (row < 0) {
                                 std::fill_n(y, p.inner, T{});
                               } else if (p.inner == 1) {
                                 *y = *x;
                               } else {
                                 std::memcpy(y, x, static_cast<size_t>(bytes));
                               }
                             }
                           });
                         });
          }};
}

// Single elements of many outer slices: positions are worked out once.
std::string reject_scalars(const KernelQuery& q) {
  const Plan p = plan(q, q.in[0].dims);
  if (p.inner != 1 || p.outer < 2) return "not many single elements";
  return p.n > INT32_MAX || p.count > INT32_MAX ? "more than 2^31 rows" : "";
}
Kernel gather_scalars(const KernelQuery& q) {
  const Plan p = plan(q, q.in[0].dims);
  return {static_cast<size_t>(p.count) * sizeof(int32_t),
          [p, size = size_of(q.in[0].dtype), threads = q.threads](const KernelArgs& a) {
            auto* rows = static_cast<int32_t*>(a.workspace);
            for (int64_t k = 0; k < p.count; ++k) rows[k] = static_cast<int32_t>(p.row(a, k));
            by_size(size, [&]<class T>() {
              const int64_t grain = 1 + 8192 / std::max<int64_t>(1, p.count);
              parallel_for(threads, p.outer, grain, [&](int64_t begin, int64_t end) {
                for (int64_t o = begin; o < end; ++o) {
                  const T* x = a.x<T>(0) + o * p.n;
                  T* y = a.y<T>(0) + o * p.count;
                  for (int64_t k = 0; k < p.count; ++k) y[k] = rows[k] < 0 ? T{} : x[rows[k]];
                }
              });
            });
          }};
}

Expr gather_grad(Grad& g) {
  return g.b.op("ortrain.GatherGrad", {g.dy(), g.x(1)},
                {{"axis", g.attrs().i("axis", 0)}, {"dims", g.x(0).shape().values()}});
}

// --- ortrain.GatherGrad: dx[o, indices[k], i] += dy[o, k, i]
void infer_gather_grad(InferCtx& c) {
  check_index_type(c, 1);
  c.out(0, c.dtype(0), Shape(c.attrs().ints("dims")));
}

Kernel gather_grad_ref(const KernelQuery& q) {
  return {
      0, [p = plan(q, q.out[0].dims), bytes = q.out[0].bytes(),
          dtype = q.in[0].dtype](const KernelArgs& a) {
        if (bytes > 0) std::memset(a.out[0], 0, bytes);
        dispatch_float(dtype, [&]<class T>() {
          for (int64_t o = 0; o < p.outer; ++o)
            for (int64_t k = 0; k < p.count; ++k) {
              const int64_t row = p.row(a, k);
              if (row < 0) continue;
              for (int64_t i = 0; i < p.inner; ++i) {
                T& y = a.y<T>(0)[(o * p.n + row) * p.inner + i];
                y = static_cast<T>(static_cast<Acc<T>>(y) +
                                   static_cast<Acc<T>>(a.x<T>(0)[(o * p.count + k) * p.inner + i]));
              }
            }
        });
      }};
}

std::string grad_reject(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "only f32";
  return q.in[1].count() > INT32_MAX ? "more than 2^31 indices" : "";
}

// Workspace: per row of data the position that meets it first (-1: none), found once. Then the
// threads share the columns (long rows) or the destination rows (short ones): no two threads write
// the same element, and each adds in index order. The first position writes, later ones add; rows
// that no index names are zeroed.
Kernel gather_grad_rows(const KernelQuery& q) {
  const Plan p = plan(q, q.out[0].dims);
  return {
      static_cast<size_t>(p.n) * sizeof(int32_t), [p, threads = q.threads](const KernelArgs& a) {
        if (p.outer * p.n * p.inner == 0) return;
        auto* first = static_cast<int32_t*>(a.workspace);
        std::fill_n(first, p.n, -1);
        for (int64_t k = p.count; k-- > 0;)
          if (const int64_t row = p.row(a, k); row >= 0) first[row] = static_cast<int32_t>(k);
        const float* dy = a.x<float>(0);
        float* dx = a.y<float>(0);
        // Destination rows [low, high), columns [left, right).
        const auto part = [&](int64_t o, int64_t low, int64_t high, int64_t left, int64_t right) {
          const int64_t width = right - left;
          float* to = dx + o * p.n * p.inner + left;
          const float* from = dy + o * p.count * p.inner + left;
          for (int64_t k = 0; k < p.count; ++k) {
            const int64_t v = p.index(a.in[1], k), row = v < 0 ? v + p.n : v;
            if (row < low || row >= high) continue;
            float* y = to + row * p.inner;
            const float* x = from + k * p.inner;
            if (first[row] == k) {
              std::memcpy(y, x, static_cast<size_t>(width) * sizeof(float));
            } else {
              for (int64_t i = 0; i < width; ++i) y[i] += x[i];
            }
          }
        };
        const int64_t work = p.outer * (p.n + p.count) * p.inner;
        const int use = work < 16384 ? 1 : threads;
        parallel_for(use, p.outer * p.n, 1, [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end;) {  // runs of rows that no index names
            int64_t stop = r;
            while (stop < end && first[stop % p.n] < 0) ++stop;
            std::memset(dx + r * p.inner, 0,
                        static_cast<size_t>((stop - r) * p.inner) * sizeof(float));
            r = stop + 1;
          }
        });
        if (p.outer >= use) {
          parallel_for(use, p.outer, 1, [&](int64_t begin, int64_t end) {
            for (int64_t o = begin; o < end; ++o) part(o, 0, p.n, 0, p.inner);
          });
        } else if (p.inner >= 16 * use) {
          const int64_t lines = (p.inner + 15) / 16;  // of 64 bytes
          parallel_for(use, lines, 1, [&](int64_t begin, int64_t end) {
            for (int64_t o = 0; o < p.outer; ++o)
              part(o, 0, p.n, begin * 16, std::min(p.inner, end * 16));
          });
        } else {
          parallel_for(use, p.n, 1, [&](int64_t begin, int64_t end) {
            for (int64_t o = 0; o < p.outer; ++o) part(o, begin, end, 0, p.inner);
          });
        }
      }};
}

// Single elements: the rows that the indices name are worked out once, then each of the outer
// slices is zeroed and added to in index order.
std::string grad_reject_scalars(const KernelQuery& q) {
  const Plan p = plan(q, q.out[0].dims);
  if (p.inner != 1 || p.outer < 2) return "not many single elements";
  if (p.n > INT32_MAX) return "more than 2^31 rows";
  return grad_reject(q);
}
Kernel gather_grad_scalars(const KernelQuery& q) {
  const Plan p = plan(q, q.out[0].dims);
  return {static_cast<size_t>(p.count) * sizeof(int32_t),
          [p, threads = q.threads](const KernelArgs& a) {
            auto* rows = static_cast<int32_t*>(a.workspace);
            for (int64_t k = 0; k < p.count; ++k) rows[k] = static_cast<int32_t>(p.row(a, k));
            const int64_t work = std::max<int64_t>(1, p.n + p.count);
            parallel_for(threads, p.outer, 1 + 8192 / work, [&](int64_t begin, int64_t end) {
              for (int64_t o = begin; o < end; ++o) {
                const float* dy = a.x<float>(0) + o * p.count;
                float* dx = a.y<float>(0) + o * p.n;
                std::fill_n(dx, p.n, 0.f);
                for (int64_t k = 0; k < p.count; ++k)
                  if (rows[k] >= 0) dx[rows[k]] += dy[k];
              }
            });
          }};
}

using Ints = std::vector<int64_t>;

}  // namespace

void register_gather(OpTable& table) {
  table.add({
      .name = "Gather",
      .inputs = {"data", "indices"},
      .outputs = {"output"},
      .infer = infer_gather,
      .grad = {grad("data", gather_grad), no_grad("indices")},
      .kernels = {{"cpu", "scalars", reject_scalars, gather_scalars},
                  {"cpu", "rows", nullptr, gather_rows},
                  {"cpu", "ref", nullptr, gather_ref}},
      .examples = {{.in = {f({5, 3}), ints({2, 4}, -5, 5)}},
                   {.in = {f({5, 3}), ivals({1, 1, 4, 1})}},
                   {.in = {f({2, 5, 3}), ints({4}, 0, 5)}, .attrs = {{"axis", 1}}},
                   {.in = {f({2, 5}), ints({3, 2}, -5, 5)}, .attrs = {{"axis", -1}}},
                   {.in = {f({4, 2}), iconst({}, {-1})}},
                   {.in = {f({40, 64}), ints({3, 17}, 0, 40)}},
                   {.in = {f({4}), ints({0}, 0, 4)}},
                   {.in = {f({3, 0}), ints({2}, 0, 3)}},
                   {.in = {f({1, 1}), ivals({0})}}},
  });
  table.add({
      .name = "ortrain.GatherGrad",
      .inputs = {"dy", "indices"},
      .outputs = {"dx"},
      .infer = infer_gather_grad,
      .grad = {grad("dy",
                    [](Grad& g) {
                      return g.b.op("Gather", {g.dy(), g.x(1)}, {{"axis", g.attrs().i("axis", 0)}});
                    }),
               no_grad("indices")},
      .kernels = {{"cpu", "scalars", grad_reject_scalars, gather_grad_scalars},
                  {"cpu", "rows", grad_reject, gather_grad_rows},
                  {"cpu", "ref", nullptr, gather_grad_ref}},
      .examples = {{.in = {f({2, 4, 3}), ints({2, 4}, -5, 5)},
                    .attrs = {{"axis", 0}, {"dims", Ints{5, 3}}}},
                   {.in = {f({50, 130}), ints({50}, 0, 40)},
                    .attrs = {{"axis", 0}, {"dims", Ints{400, 130}}}},
                   {.in = {f({2, 4, 3}), ivals({0, 3, 0, -1})},
                    .attrs = {{"axis", 1}, {"dims", Ints{2, 5, 3}}}},
                   {.in = {f({2, 90}), ints({90}, -900, 900)},
                    .attrs = {{"axis", -1}, {"dims", Ints{2, 900}}}},
                   {.in = {f({9000, 3}), ints({9000}, 0, 40)},
                    .attrs = {{"axis", 0}, {"dims", Ints{400, 3}}}},
                   {.in = {f({0, 3}), ints({0}, 0, 1)},
                    .attrs = {{"axis", 0}, {"dims", Ints{2, 3}}}}},
  });
}

}  // namespace ortrain::ops
