// TensorScatter (ONNX, opset 24): a cache with `update` written at write_indices[batch] (default 0)
// along `axis`; mode circular wraps around.
//
// Linear: positions outside of the cache are a fault; wrapping has none. Gradient: to the cache, dy
// with the written places zero; to the update, what dy holds there (ortrain.TensorScatterRead).
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

bool circular(const Attrs& a) { return a.s("mode", "linear") == "circular"; }

int axis_of(InferCtx& c, int rank) {
  const int axis = normalize_axis(c.attrs().i("axis", -2), rank);
  if (axis == 0) c.fail("axis 0 is the batch");
  const std::string mode = c.attrs().s("mode", "linear");
  if (mode != "linear" && mode != "circular") c.fail("mode '" + mode + "'");
  return axis;
}

void check_indices(InferCtx& c, int i, const Dim& batch) {
  if (!c.has(i)) return;
  check_index_type(c, i);
  if (prove_equal(c.shape(i), Shape{batch}) == Tri::kNo)
    c.fail(cat("write_indices is ", c.shape(i).str(), ", expected [", batch.str(), "]"));
}

void infer(InferCtx& c) {
  const Shape &past = c.shape(0), &update = c.shape(1);
  const int axis = axis_of(c, past.rank());
  bool fits = past.rank() == update.rank() && c.dtype(0) == c.dtype(1);
  for (int i = 0; fits && i < past.rank(); ++i)
    fits = i == axis || prove_equal(past[i], update[i]) != Tri::kNo;
  if (fits && past[axis].is_const() && update[axis].is_const())
    fits = update[axis].value() <= past[axis].value();
  if (!fits) c.fail(cat("past_cache ", past.str(), " and update ", update.str(), " do not fit"));
  check_indices(c, 2, past[0]);
  c.out(0, c.dtype(0), past);
}

// dy, write_indices? -> the part that update wrote, `length` long.
void infer_read(InferCtx& c) {
  Shape out = c.shape(0);
  out[axis_of(c, out.rank())] = c.attrs().i("length", 0);
  check_indices(c, 1, out[0]);
  c.out(0, c.dtype(0), out);
}

// Both kernels: rows of `inner` bytes, cache [batch, outer, size], update [batch, outer, length].
struct Places {
  int64_t batch, outer, size, length, inner;
  bool wrap, given, wide;
  int threads;
  // visit(cache row, update row), row by row; a place outside is reported and visited as -1.
  template <class F>
  void each(const KernelArgs& a, size_t indices, F&& visit) const {
    parallel_for(threads, batch * outer, 1 + 16384 / (1 + length * inner),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const int64_t b = r / outer;
                     const int64_t first = given ? index_at(a.in[indices], wide, b) : 0;
                     for (int64_t t = 0; t < length; ++t) {
                       int64_t at = first + t;
                       if (wrap) at = ((first % size + t) % size + size) % size;
                       const bool inside = wrap || (first >= 0 && first <= size - length);
                       if (!inside && t == 0) a.fault->report(b, first, 0, size - length + 1);
                       visit(inside ? r * size + at : -1, r * length + t);
                     }
                   }
                 });
  }
};

Places places(const KernelQuery& q, const TensorDesc& cache, int64_t length, size_t indices) {
  const int axis = normalize_axis(q.attrs.i("axis", -2), cache.rank());
  return {cache.dims[0],
          product(cache.dims, 1, axis),
          cache.dims[static_cast<size_t>(axis)],
          length,
          product(cache.dims, axis + 1, cache.rank()) * static_cast<int64_t>(size_of(cache.dtype)),
          circular(q.attrs),
          q.has_in(indices),
          q.has_in(indices) && q.in[indices].dtype == DType::kI64,
          q.threads};
}

Kernel prepare(const KernelQuery& q) {
  const int axis = normalize_axis(q.attrs.i("axis", -2), q.in[0].rank());
  const Places p = places(q, q.in[0], q.in[1].dims[static_cast<size_t>(axis)], 2);
  return {0, [p, bytes = q.in[0].bytes()](const KernelArgs& a) {
            if (bytes == 0) return;
            if (a.out[0] != a.in[0]) std::memcpy(a.out[0], a.in[0], bytes);
            p.each(a, 2, [&](int64_t to, int64_t from) {
              if (to >= 0)
                std::memcpy(a.y<char>(0) + to * p.inner, a.x<char>(1) + from * p.inner,
                            static_cast<size_t>(p.inner));
            });
          }};
}

Kernel prepare_read(const KernelQuery& q) {
  const Places p = places(q, q.in[0], q.attrs.i("length", 0), 1);
  return {0, [p, bytes = q.out[0].bytes()](const KernelArgs& a) {
            if (bytes == 0) return;
            p.each(a, 1, [&](int64_t from, int64_t to) {
              char* y = a.y<char>(0) + to * p.inner;
              if (from >= 0)
                std::memcpy(y, a.x<char>(0) + from * p.inner, static_cast<size_t>(p.inner));
              else
                std::memset(y, 0, static_cast<size_t>(p.inner));
            });
          }};
}

Expr grad_past(Grad& g) {
  const Attrs attrs = g.attrs();
  return g.b.op("TensorScatter", {g.dy(), g.b.zeros_like(g.x(1)), g.has_x(2) ? g.x(2) : Expr()},
                attrs);
}
Expr grad_update(Grad& g) {
  Attrs attrs = g.attrs();
  const Expr update = g.x(1);
  const int axis = normalize_axis(attrs.i("axis", -2), update.rank());
  attrs.set("length", update.shape()[axis].value());
  return g.b.op("ortrain.TensorScatterRead", {g.dy(), g.has_x(2) ? g.x(2) : Expr()}, attrs);
}

}  // namespace

void register_tensor_scatter(OpTable& table) {
  const Attrs wrap{{"mode", "circular"}};
  table.add({
      .name = "TensorScatter",
      .inputs = {"past_cache", "update", "write_indices?"},
      .outputs = {"present_cache"},
      .since = 24,
      .infer = infer,
      .grad = {grad("past_cache", grad_past), grad("update", grad_update),
               no_grad("write_indices")},
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 3, 4, 2}), f({2, 3, 2, 2}), ivals({1, 2})}},
                   {.in = {f({2, 4, 3}), f({2, 4, 3})}},
                   {.in = {f({2, 4, 3}), f({2, 3, 3}), ivals({3, -2})}, .attrs = wrap},
                   {.in = {f({2, 5}), f({2, 1}), ivals({4, 0})}, .attrs = {{"axis", 1}}},
                   {.in = {f({2, 4, 0}), f({2, 1, 0})}},
                   {.in = {f({1, 1, 1}), f({1, 0, 1})}}},
  });
  table.add({
      .name = "ortrain.TensorScatterRead",
      .inputs = {"dy", "write_indices?"},
      .outputs = {"dupdate"},
      .infer = infer_read,
      .kernels = {{"cpu", "ref", nullptr, prepare_read}},
      .examples = {{.in = {f({2, 3, 4, 2}), ivals({1, 2})}, .attrs = {{"length", 2}}}},
  });
}

}  // namespace ortrain::ops
