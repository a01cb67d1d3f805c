// TopK: the k largest (or smallest) elements along an axis and their positions. Equal elements keep
// their order (lower index first); NaN counts as the largest, as in PyTorch. k must be known before
// training. The result is always sorted. Gradient: dy goes back to the chosen positions.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  const std::vector<Dim> k = c.need_ints(1, "k");
  if (k.size() != 1) c.fail("k is not one number");
  Shape out = c.shape(0);
  const int axis = normalize_axis(c.attrs().i("axis", -1), out.rank());
  if (k[0].is_const() &&
      (k[0].value() < 0 || (out[axis].is_const() && k[0].value() > out[axis].value())))
    c.fail(cat("k is ", k[0].value(), ", axis ", axis, " of ", out.str(), " is shorter"));
  out[axis] = k[0];
  c.out(0, c.dtype(0), out);
  c.out(1, DType::kI64, out);
}

// Slices [outer, n, inner], k of n wanted. Each thread orders its slices one after another in its
// own part of the workspace, n elements of type E.
struct Slices {
  explicit Slices(const KernelQuery& q) : threads(q.threads), has_indices(q.has_out(1)) {
    const int axis = normalize_axis(q.attrs.i("axis", -1), q.in[0].rank());
    inner = product(q.in[0].dims, axis + 1, q.in[0].rank());
    n = q.in[0].dims[static_cast<size_t>(axis)];
    count = product(q.in[0].dims, 0, axis) * inner;
    k = (q.has_out(0) ? q.out[0] : q.out[1]).dims[static_cast<size_t>(axis)];
    pieces = count * n < 4096 ? 1 : std::min<int64_t>(q.threads, count);
    largest = q.attrs.i("largest", 1) != 0;
  }
  template <class E>
  size_t workspace() const {
    return static_cast<size_t>(pieces * n) * sizeof(E);
  }
  // body(x, order, at): x and `order` (workspace) of a slice; its outputs begin at `at`.
  template <class T, class E, class Body>
  void each(const KernelArgs& a, Body&& body) const {
    parallel_for(threads, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t s = count * p / pieces; s < count * (p + 1) / pieces; ++s)
          body(a.x<T>(0) + s / inner * n * inner + s % inner, static_cast<E*>(a.workspace) + p * n,
               s / inner * k * inner + s % inner);
    });
  }
  // Writes the i-th of a slice: element `from` of it.
  template <class T>
  void put(const KernelArgs& a, const T* x, int64_t at, int64_t i, int64_t from) const {
    if (a.out[0]) a.y<T>(0)[at + i * inner] = x[from * inner];
    if (has_indices) a.y<int64_t>(1)[at + i * inner] = from;
  }
  int threads;
  bool has_indices, largest = true;
  int64_t inner = 1, n = 0, count = 0, k = 0, pieces = 1;
};

Kernel kernel(const KernelQuery& q) {
  const Slices s(q);
  return {s.workspace<int64_t>(), [s, dtype = q.in[0].dtype](const KernelArgs& a) {
            dispatch(dtype, [&]<class T>() {
              using N = Acc<T>;
              s.each<T, int64_t>(a, [&](const T* x, int64_t* order, int64_t at) {
                const auto before = [&](int64_t i, int64_t j) {
                  const N u = static_cast<N>(x[i * s.inner]), v = static_cast<N>(x[j * s.inner]);
                  const bool nan_u = u != u, nan_v = v != v;
                  if (nan_u != nan_v) return s.largest == nan_u;
                  if (u != v && !nan_u) return s.largest ? v < u : u < v;
                  return i < j;
                };
                std::iota(order, order + s.n, int64_t{0});
                std::partial_sort(order, order + s.k, order + s.n, before);
                for (int64_t i = 0; i < s.k; ++i) s.put(a, x, at, i, order[i]);
              });
            });
          }};
}

// f32: value and position in one integer whose order is the one wanted, so that sorting compares
// and moves plain numbers.
uint64_t key_of(float v, uint32_t position, bool largest) {
  if (v != v) v = std::numeric_limits<float>::quiet_NaN();  // of positive sign: above infinity
  const auto bits = std::bit_cast<uint32_t>(v + 0.0f);      // -0 becomes 0
  const uint32_t rising = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return static_cast<uint64_t>(largest ? rising : ~rising) << 32 | (0xffffffffu - position);
}

std::string reject_keys(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  return q.in[0].count() > UINT32_MAX ? "more than 2^32 elements" : "";
}

Kernel keys_kernel(const KernelQuery& q) {
  const Slices s(q);
  return {s.workspace<uint64_t>(), [s](const KernelArgs& a) {
            s.each<float, uint64_t>(a, [&](const float* x, uint64_t* keys, int64_t at) {
              for (int64_t i = 0; i < s.n; ++i)
                keys[i] = key_of(x[i * s.inner], static_cast<uint32_t>(i), s.largest);
              if (s.k < s.n / 8) {
                std::partial_sort(keys, keys + s.k, keys + s.n, std::greater<>());
              } else {
                if (s.k < s.n) std::nth_element(keys, keys + s.k, keys + s.n, std::greater<>());
                std::sort(keys, keys + s.k, std::greater<>());
              }
              for (int64_t i = 0; i < s.k; ++i)
                s.put(a, x, at, i,
                      static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(keys[i])));
            });
          }};
}

Expr values_grad(Grad& g) {
  return g.b.op("ScatterElements", {g.b.zeros_like(g.x(0)), g.y(1), g.dy()},
                {{"axis", g.attrs().i("axis", -1)}});
}

}  // namespace

void register_top_k(OpTable& table) {
  table.add({
      .name = "TopK",
      .inputs = {"X", "K"},
      .outputs = {"Values", "Indices"},
      .infer = infer,
      .grad = {grad("X", values_grad), no_grad("K")},
      .adapt =
          [](RawNode& r) {
            if (r.opset < 10 && r.attrs.has("k")) {
              r.set_input(1, r.constant(HostTensor::ints({r.attrs.i("k", 0)})));
              r.attrs.erase("k");
            }
          },
      .kernels = {{"cpu", "keys", reject_keys, keys_kernel}, {"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {f({3, 5}), ivals({2})}, .outputs = 2},
                   {.in = {f({3, 5}), ivals({5})}, .attrs = {{"largest", 0}}, .outputs = 2},
                   {.in = {f({4, 2, 3}), ivals({3})}, .attrs = {{"axis", 0}}, .outputs = 2},
                   {.in = {f({2, 4}), ivals({1})}, .attrs = {{"axis", -1}, {"sorted", 0}}},
                   {.in = {floats({6}, {1, 3, 3, -2, 3, 1}), ivals({4})},
                    .outputs = 2,
                    .check_grad = false,
                    .note = "ties: not differentiable in the classical sense"},
                   {.in = {floats({6}, {-0.0, NAN, 0, -1, -NAN, INFINITY}), ivals({5})},
                    .attrs = {{"largest", 0}},
                    .outputs = 2,
                    .check_grad = false,
                    .note = "zeros of both signs are a tie"},
                   {.in = {f({3, 50, 2}), ivals({5})}, .attrs = {{"axis", 1}}, .outputs = 2},
                   {.in = {f({2, 3}), ivals({0})}, .outputs = 2}},
      .note = "equal elements: lower index first; NaN is the largest",
  });
}

}  // namespace ortrain::ops
