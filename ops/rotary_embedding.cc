// RotaryEmbedding: the first rotary_embedding_dim elements of every head are turned, pair by pair,
// by the angle of their position; the others pass.
//
// X [B,H,S,D], or [B,S,H*D] with num_heads. Pairs are (i, i + R/2), or (2i, 2i+1) with
// `interleaved`. Caches are [positions, R/2] with position_ids [B,S] (out of range: a fault), or
// [B,S,R/2] without. Gradient to X: the turn back (sin negated); to the caches: by simpler
// operators. com.microsoft.RotaryEmbedding orders its inputs otherwise and may give one offset.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

constexpr int kIds = 3;

struct Heads {
  bool flat;  // [B,S,H*D]
  Dim batch, heads, steps, width;
};
Heads heads_of(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (x.rank() == 4) return {false, x[0], x[1], x[2], x[3]};
  if (x.rank() != 3) c.fail("X must be [B,H,S,D] or [B,S,H*D], got " + x.str());
  const int64_t heads = head_count(c, "num_heads");
  return {true, x[0], heads, x[1], head_width(c, x[2], heads)};
}

void infer(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const Heads h = heads_of(c);
  const int64_t given = c.attrs().i("rotary_embedding_dim", 0);
  if (given < 0 || given > (1 << 30) || given % 2 != 0 ||
      (h.width.is_const() && (given > h.width.value() || h.width.value() % 2 * (given == 0) != 0)))
    c.fail(cat("rotary_embedding_dim ", given, " of heads of ", h.width.str(), " elements"));
  const Dim half = given ? Dim(given / 2) : floordiv(h.width, Dim(2));
  const bool ids = c.has(kIds);
  for (int i = 1; i <= 2; ++i) {
    const Shape& cache = c.shape(i);
    const bool fits = ids ? cache.rank() == 2
                          : cache.rank() == 3 && prove_equal(cache[0], h.batch) != Tri::kNo &&
                                prove_equal(cache[1], h.steps) != Tri::kNo;
    if (!fits || prove_equal(cache[cache.rank() - 1], half) == Tri::kNo)
      c.fail(cat(i == 1 ? "cos" : "sin", "_cache is ", cache.str(), ", expected ",
                 ids ? "[positions," : "[" + h.batch.str() + "," + h.steps.str() + ",", half.str(),
                 "]"));
  }
  if (prove_equal(c.shape(1), c.shape(2)) == Tri::kNo) c.fail("the caches have other shapes");
  if (ids) {
    check_index_type(c, kIds);
    if (prove_equal(c.shape(kIds), Shape{h.batch, h.steps}) == Tri::kNo)
      c.fail(cat("position_ids is ", c.shape(kIds).str(), ", expected [", h.batch.str(), ",",
                 h.steps.str(), "]"));
  }
  c.out(0, c.dtype(0), c.shape(0));
}

struct Sizes {
  bool flat, interleaved;
  int64_t batch, heads, steps, width, half;
};
Sizes sizes_of(const Dims& x, const Attrs& a) {
  Sizes s{};
  s.flat = x.size() == 3;
  s.interleaved = a.i("interleaved", 0) != 0;
  s.batch = x[0];
  s.heads = s.flat ? std::max<int64_t>(1, a.i("num_heads", 1)) : x[1];
  s.steps = s.flat ? x[1] : x[2];
  s.width = s.flat ? x[2] / s.heads : x[3];
  const int64_t given = a.i("rotary_embedding_dim", 0);
  s.half = (given ? given : s.width) / 2;
  return s;
}

template <class T>
void turn(const Sizes& s, const T* x, const T* cos, const T* sin, T* y) {
  using C = Acc<T>;
  const int64_t n = s.half;
  if (s.interleaved) {
    for (int64_t i = 0; i < n; ++i) {
      const C a = static_cast<C>(x[2 * i]), b = static_cast<C>(x[2 * i + 1]),
              c = static_cast<C>(cos[i]), d = static_cast<C>(sin[i]);
      y[2 * i] = static_cast<T>(c * a - d * b);
      y[2 * i + 1] = static_cast<T>(d * a + c * b);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const C a = static_cast<C>(x[i]), b = static_cast<C>(x[n + i]), c = static_cast<C>(cos[i]),
              d = static_cast<C>(sin[i]);
      y[i] = static_cast<T>(c * a - d * b);
      y[n + i] = static_cast<T>(d * a + c * b);
    }
  }
  if (y != x) std::copy(x + 2 * n, x + s.width, y + 2 * n);
}

Kernel prepare(const KernelQuery& q) {
  const Sizes s = sizes_of(q.in[0].dims, q.attrs);
  const bool ids = q.has_in(kIds), wide = ids && q.in[kIds].dtype == DType::kI64;
  const int64_t positions = ids ? q.in[1].dims[0] : 0;
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=, threads = q.threads](const KernelArgs& a) {
              const int64_t rows = s.batch * s.heads * s.steps;
              const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, s.width));
              parallel_for(threads, rows, grain, [&](int64_t begin, int64_t end) {
                for (int64_t r = begin; r < end; ++r) {
                  const int64_t t =
                      s.flat ? r / s.heads
                             : r / (s.heads * s.steps) * s.steps + r % s.steps;  // of [B,S]
                  int64_t at = t;
                  const T* x = a.x<T>(0) + r * s.width;
                  T* y = a.y<T>(0) + r * s.width;
                  if (ids) {
                    at = index_at(a.in[kIds], wide, t);
                    if (at < 0 || at >= positions) {
                      a.fault->report(t, at, 0, positions);
                      std::fill_n(y, s.width, T(0));
                      continue;
                    }
                  }
                  turn(s, x, a.x<T>(1) + at * s.half, a.x<T>(2) + at * s.half, y);
                }
              });
            }};
  });
}

Expr grad_x(Grad& g) {
  const Attrs attrs = g.attrs();
  std::vector<Expr> in{g.dy(), g.x(1), -g.x(2)};
  if (g.has_x(kIds)) in.push_back(g.x(kIds));
  return g.b.op("RotaryEmbedding", in, attrs);
}

// The two elements of every pair, each [B,S,H,R/2] (flat) or [B,H,S,R/2].
std::pair<Expr, Expr> pairs(Builder& b, Expr x, const Sizes& s) {
  if (s.flat) x = b.reshape(x, {s.batch, s.steps, s.heads, s.width});
  if (!s.interleaved) return {b.slice(x, 3, 0, s.half), b.slice(x, 3, s.half, 2 * s.half)};
  Dims dims = x.shape().values();
  dims[3] = s.half;
  dims.push_back(2);
  x = b.reshape(b.slice(x, 3, 0, 2 * s.half), dims);
  return {b.squeeze(b.slice(x, 4, 0, 1), {4}), b.squeeze(b.slice(x, 4, 1, 2), {4})};
}

// dcos = x1 dy1 + x2 dy2, dsin = x1 dy2 - x2 dy1, summed over heads and, by id, over positions.
template <bool kSin>
Expr grad_cache(Grad& g) {
  Builder& b = g.b;
  const Sizes s = sizes_of(g.x(0).shape().values(), g.attrs());
  const auto [x1, x2] = pairs(b, g.x(0), s);
  const auto [d1, d2] = pairs(b, g.dy(), s);
  const Expr each = kSin ? x1 * d2 - x2 * d1 : x1 * d1 + x2 * d2;
  const Expr sum = b.sum(each, {s.flat ? 2 : 1}, /*keepdims=*/false);
  if (!g.has_x(kIds)) return sum;
  return b.op("ortrain.GatherGrad", {sum, g.x(kIds)},
              {{"axis", int64_t{0}}, {"dims", g.x(1).shape().values()}});
}

// --- com.microsoft: input, position_ids [B,S] or [1] (an offset), cos_cache, sin_cache
int64_t microsoft_heads(const Attrs& a, const Shape& x, const Shape& cache) {
  const int64_t heads = a.i("num_heads", 0);
  if (heads > 0 || x.rank() != 3) return heads;  // checked by RotaryEmbedding
  if (!cache[1].is_const() || !x[2].is_const() || cache[1].value() < 1) return 0;
  return x[2].value() / (2 * cache[1].value());
}

void infer_microsoft(InferCtx& c) {
  if (c.attrs().i("is_packed_batching", 0))
    fail(ErrorCode::kUnsupported, "RotaryEmbedding with is_packed_batching");
  const Shape &x = c.shape(0), &ids = c.shape(1);
  if (x.rank() != 3 && x.rank() != 4) c.fail("input must have rank 3 or 4, got " + x.str());
  const bool offset = ids.rank() == 1 && prove_equal(ids[0], Dim(1)) != Tri::kNo;
  if (!offset && prove_equal(ids, Shape{x[0], x[x.rank() - 2]}) == Tri::kNo)
    c.fail("position_ids must be [B,S] or [1], got " + ids.str());
  if (c.rank(2) != 2 || c.rank(3) != 2) c.fail("the caches must be [positions, R/2]");
  c.out(0, c.dtype(0), x);
}

std::vector<Expr> microsoft(Decompose& d) {
  Builder& b = d.b;
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const Expr x = d.x(0);
  const int64_t steps = x.shape()[x.rank() == 3 ? 1 : 2].value(), batch = x.shape()[0].value();
  Expr ids = d.x(1);
  if (ids.rank() == 1) {
    HostTensor at(DType::kI64, {1, steps});
    for (int64_t i = 0; i < steps; ++i) at.mutable_data<int64_t>()[i] = i;
    ids = b.expand(b.constant(std::move(at)) + b.cast(ids, DType::kI64), {batch, steps});
  }
  Attrs out{{"interleaved", a.i("interleaved", 0)},
            {"rotary_embedding_dim", a.i("rotary_embedding_dim", 0)}};
  if (x.rank() == 3) out.set("num_heads", microsoft_heads(a, x.shape(), d.x(2).shape()));
  Expr y = b.op("RotaryEmbedding", {x, d.x(2), d.x(3), ids}, out);
  const double scale = a.f("scale", 1);
  return {scale == 1 ? y : y * scale};
}

}  // namespace

void register_rotary_embedding(OpTable& table) {
  const Attrs flat{{"num_heads", 2}};
  const Attrs part{{"num_heads", 2}, {"interleaved", 1}, {"rotary_embedding_dim", 4}};
  const ExampleInput ids = iconst({2, 3}, {0, 1, 4, 4, 0, 1});
  table.add({
      .name = "RotaryEmbedding",
      .inputs = {"X", "cos_cache", "sin_cache", "position_ids?"},
      .outputs = {"Y"},
      .since = 23,
      .infer = infer,
      .grad = {grad("X", grad_x), grad("cos_cache", grad_cache<false>),
               grad("sin_cache", grad_cache<true>), no_grad("position_ids")},
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 2, 3, 4}), f({5, 2}), f({5, 2}), ids}},
                   {.in = {f({2, 2, 3, 4}), f({2, 3, 2}), f({2, 3, 2})},
                    .attrs = {{"interleaved", 1}}},
                   {.in = {f({2, 3, 12}), f({5, 3}), f({5, 3}), ids}, .attrs = flat},
                   {.in = {f({2, 3, 12}), f({5, 2}), f({5, 2}), ids}, .attrs = part},
                   {.in = {f({2, 2, 3, 6}), f({2, 3, 2}), f({2, 3, 2})},
                    .attrs = {{"rotary_embedding_dim", 4}}},
                   {.in = {f({0, 2, 3, 4}), f({0, 3, 2}), f({0, 3, 2})}},
                   {.in = {f({1, 1, 1, 2}), f({1, 1, 1}), f({1, 1, 1})}}},
  });
  table.add({
      .name = "com.microsoft.RotaryEmbedding",
      .inputs = {"input", "position_ids", "cos_cache", "sin_cache"},
      .outputs = {"output"},
      .infer = infer_microsoft,
      .decompose = microsoft,
      .examples = {{.in = {f({2, 2, 3, 4}), ids, f({5, 2}), f({5, 2})}},
                   {.in = {f({2, 3, 8}), iconst({1}, {1}), f({5, 2}), f({5, 2})}},
                   {.in = {f({2, 3, 12}), ids, f({5, 2}), f({5, 2})}, .attrs = part}},
      .note = "is_packed_batching is refused",
  });
}

}  // namespace ortrain::ops
