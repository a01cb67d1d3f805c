// ortrain.GatherGradRows, ortrain.AddRows: the gradient of an embedding table without the zeros.
//
// GatherGradRows(dy, indices) {dims} -> rows [capacity, ...], slots i32[n], for Gather on axis 0 of
// a table of shape dims: what ortrain.GatherGrad gives, bit for bit, as rows that were touched
// (ops/common/touched_rows.h). Capacity is min(number of indices, n); rows beyond the touched ones
// are 0. AddRows(base, rows, slots) -> base plus that gradient, meant to lie in base's memory.
// An index out of range is reported and adds nothing.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"
#include "ops/common/touched_rows.h"

namespace ortrain::ops {
namespace {

struct Plan {
  int64_t n, inner, count, capacity;
  bool wide;  // indices are i64
  int threads;
  // Normalised index, or -1 when it is out of range.
  int64_t row(const KernelArgs& a, int64_t i) const {
    const int64_t v = index_at(a.in[1], wide, i), r = v < 0 ? v + n : v;
    return r >= 0 && r < n ? r : -1;
  }
};
Plan plan(const KernelQuery& q) {
  const Dims& rows = q.out[0].dims;
  return {q.out[1].count(), product(rows, 1, q.out[0].rank()), q.in[1].count(),
          rows[0],          q.in[1].dtype == DType::kI64,      q.threads};
}

void infer_rows(InferCtx& c) {
  check_index_type(c, 1);
  Shape rows(c.attrs().ints("dims"));
  if (rows.rank() < 1) c.fail("a table has rows");
  const Shape &dy = c.shape(0), &indices = c.shape(1);
  const Dim n = rows[0];
  if (!indices.is_const()) c.fail("the number of indices must be known");
  Shape expected = indices;
  for (int i = 1; i < rows.rank(); ++i) expected.push_back(rows[i]);
  if (prove_equal(dy, expected) == Tri::kNo)
    c.fail(cat("dy has shape ", dy.str(), ", expected ", expected.str()));
  rows[0] = Dim(std::min(n.value(), indices.count().value()));
  c.out(0, c.dtype(0), std::move(rows));
  c.out(1, DType::kI32, Shape{n});
}

void infer_add(InferCtx& c) {
  if (c.dtype(1) != c.dtype(0)) c.fail("base and rows differ in type");
  if (c.dtype(2) != DType::kI32 || c.rank(2) != 1 || c.rank(0) != c.rank(1) || c.rank(0) < 1 ||
      prove_equal(c.shape(2)[0], c.shape(0)[0]) == Tri::kNo)
    c.fail("slots must be i32, one per row of base");
  for (int i = 1; i < c.rank(0); ++i)
    if (prove_equal(c.shape(0)[i], c.shape(1)[i]) == Tri::kNo)
      c.fail(cat("base ", c.shape(0).str(), " and rows ", c.shape(1).str(), " do not fit"));
  c.out(0, c.dtype(0), c.shape(0));
}

// Which rows are touched, and their places in ascending order; returns how many.
int64_t number_rows(const Plan& p, const KernelArgs& a) {
  int32_t* slots = a.y<int32_t>(1);
  std::fill_n(slots, p.n, -1);
  for (int64_t k = 0; k < p.count; ++k) {
    const int64_t row = p.row(a, k);
    if (row >= 0)
      slots[row] = 0;
    else
      a.fault->report(k, index_at(a.in[1], p.wide, k), -p.n, p.n);
  }
  int32_t used = 0;
  for (int64_t r = 0; r < p.n; ++r)
    if (slots[r] == 0) slots[r] = used++;
  return used;
}

Kernel rows_ref(const KernelQuery& q) {
  return {0, [p = plan(q), bytes = q.out[0].bytes(), dtype = q.in[0].dtype](const KernelArgs& a) {
            if (bytes > 0) std::memset(a.out[0], 0, bytes);
            number_rows(p, a);
            const int32_t* slots = a.y<int32_t>(1);
            dispatch_float(dtype, [&]<class T>() {
              for (int64_t k = 0; k < p.count; ++k) {
                const int64_t row = p.row(a, k);
                if (row < 0) continue;
                T* to = a.y<T>(0) + slots[row] * p.inner;
                const T* from = a.x<T>(0) + k * p.inner;
                for (int64_t i = 0; i < p.inner; ++i)
                  to[i] = static_cast<T>(static_cast<Acc<T>>(to[i]) + static_cast<Acc<T>>(from[i]));
              }
            });
          }};
}

std::string reject_rows(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "only f32";
  return q.in[1].count() > INT32_MAX || q.out[1].count() > INT32_MAX ? "more than 2^31 indices"
                                                                     : "";
}

// The threads share the columns (long rows) or the touched rows (short ones); each adds in index
// order, the first one writes. Workspace: per touched row the position that meets it first.
Kernel rows_fast(const KernelQuery& q) {
  const Plan p = plan(q);
  return {static_cast<size_t>(p.capacity) * sizeof(int32_t), [p](const KernelArgs& a) {
            const int64_t used = number_rows(p, a);
            auto* first = static_cast<int32_t*>(a.workspace);
            const int32_t* slots = a.y<int32_t>(1);
            for (int64_t k = p.count; k-- > 0;)
              if (const int64_t row = p.row(a, k); row >= 0)
                first[slots[row]] = static_cast<int32_t>(k);
            const float* dy = a.x<float>(0);
            float* out = a.y<float>(0);
            if (const int64_t rest = (p.capacity - used) * p.inner; rest > 0)
              std::memset(out + used * p.inner, 0, static_cast<size_t>(rest) * sizeof(float));
            // Places [low, high), columns [left, right).
            const auto part = [&](int64_t low, int64_t high, int64_t left, int64_t right) {
              const int64_t width = right - left;
              for (int64_t k = 0; k < p.count; ++k) {
                const int64_t row = p.row(a, k);
                if (row < 0 || slots[row] < low || slots[row] >= high) continue;
                float* y = out + slots[row] * p.inner + left;
                const float* x = dy + k * p.inner + left;
                if (first[slots[row]] == k)
                  std::memcpy(y, x, static_cast<size_t>(width) * sizeof(float));
                else
                  for (int64_t i = 0; i < width; ++i) y[i] += x[i];
              }
            };
            const int threads = p.count * p.inner < 16384 ? 1 : p.threads;
            if (p.inner >= 16 * threads) {
              const int64_t lines = (p.inner + 15) / 16;  // of 64 bytes
              parallel_for(threads, lines, 1, [&](int64_t begin, int64_t end) {
                part(0, used, begin * 16, std::min(p.inner, end * 16));
              });
            } else {
              parallel_for(threads, used, 1,
                           [&](int64_t begin, int64_t end) { part(begin, end, 0, p.inner); });
            }
          }};
}

Kernel add_rows(const KernelQuery& q) {
  Kernel out;
  const int64_t n = q.in[2].count(), inner = product(q.in[0].dims, 1, q.in[0].rank());
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [=, threads = q.threads](const KernelArgs& a) {
      const int64_t grain = 1 + 4096 / std::max<int64_t>(1, inner);
      parallel_for(threads, n, grain, [&](int64_t begin, int64_t end) {
        const T* base = a.x<T>(0) + begin * inner;
        T* y = a.y<T>(0) + begin * inner;
        if (inner == 0) return;
        each_run(a.x<int32_t>(2), a.x<T>(1), inner, begin * inner, (end - begin) * inner,
                 [&](const T* g, int64_t at, int64_t count) {
                   if (!g) {
                     if (y != base)
                       std::memcpy(y + at, base + at, static_cast<size_t>(count) * sizeof(T));
                     return;
                   }
                   for (int64_t i = 0; i < count; ++i)
                     y[at + i] = static_cast<T>(static_cast<Acc<T>>(base[at + i]) +
                                                static_cast<Acc<T>>(g[i]));
                 });
      });
    };
  });
  return out;
}

using Ints = std::vector<int64_t>;

}  // namespace

void register_gather_rows(OpTable& table) {
  const auto slots = [](std::vector<int64_t> v) {
    const auto n = static_cast<int64_t>(v.size());
    return typed(DType::kI32, iconst({n}, std::move(v)));
  };
  table.add({
      .name = "ortrain.GatherGradRows",
      .inputs = {"dy", "indices"},
      .outputs = {"rows", "slots"},
      .infer = infer_rows,
      .kernels = {{"cpu", "rows", reject_rows, rows_fast}, {"cpu", "ref", nullptr, rows_ref}},
      .examples =
          {{.in = {f({2, 4, 3}), ints({2, 4}, -5, 5)},
            .attrs = {{"dims", Ints{5, 3}}},
            .outputs = 2},
           {.in = {f({50, 130}), ints({50}, 0, 40)},
            .attrs = {{"dims", Ints{400, 130}}},
            .outputs = 2},
           {.in = {f({9000, 3}), ints({9000}, 0, 90)},
            .attrs = {{"dims", Ints{400, 3}}},
            .outputs = 2},
           {.in = {f({3}), ivals({4, 4, -1})}, .attrs = {{"dims", Ints{5}}}, .outputs = 2},
           {.in = {f({2, 0}), ivals({1, 0})}, .attrs = {{"dims", Ints{5, 0}}}, .outputs = 2},
           {.in = {f({0, 3}), ints({0}, 0, 1)}, .attrs = {{"dims", Ints{2, 3}}}, .outputs = 2}},
      .note = "made by pass optimizer for tables that are only looked up",
  });
  table.add({
      .name = "ortrain.AddRows",
      .inputs = {"base", "rows", "slots"},
      .outputs = {"y"},
      .infer = infer_add,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "rows", nullptr, add_rows}},
      .examples = {{.in = {f({5, 3}), f({3, 3}), slots({-1, 0, 1, -1, 2})}},
                   {.in = {f({2, 40, 50}), f({1, 40, 50}), slots({0, -1})}},
                   {.in = {f({4}), f({1}), slots({-1, -1, -1, 0})}},
                   {.in = {f({3, 0}), f({1, 0}), slots({-1, 0, -1})}},
                   {.in = {f({1, 2}), f({0, 2}), slots({-1})}}},
      .note = "the sum of a gradient and one by touched rows",
  });
}

}  // namespace ortrain::ops
