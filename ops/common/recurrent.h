// What recurrent operators share: extents, products on any pointers (of the math library or plain
// loops), activations for vector loops, sequence lengths, and a workspace cut into pieces.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/common/matrix_product.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"

namespace ortrain::ops {

// X [T,B,I], R [D,gates*H,H].
struct Sizes {
  int64_t steps = 0, batch = 0, input = 0, hidden = 0, directions = 1;
  bool backward_only = false;
  int64_t rows() const { return steps * batch; }
  bool reversed(int64_t d) const { return backward_only || d == 1; }
};

inline std::string direction(const Attrs& attrs) { return attrs.s("direction", "forward"); }

inline Sizes sizes_of(const KernelQuery& q) {
  const Dims &x = q.in[0].dims, &r = q.in[2].dims;
  return {x[0], x[1], x[2], r[2], r[0], direction(q.attrs) == "reverse"};
}

// A product: c = op(a) op(b).
struct Gemm {
  Kernel kernel;
  void operator()(const void* a, const void* b, void* c, const KernelArgs& outer,
                  void* workspace) const {
    const void* in[] = {a, b};
    void* out[] = {c};
    kernel.run({in, out, workspace, outer.fault});
  }
};

template <class T>
Gemm make_gemm(const KernelQuery& q, bool library, Product p) {
  if (library) {
    onednn::Program program(q);
    add_product(program, p, onednn::in(0, onednn::matrix(p.m, p.k, p.trans_a)),
                onednn::in(1, onednn::matrix(p.k, p.n, p.trans_b)),
                onednn::out(0, onednn::matrix(p.m, p.n, false)));
    return {std::move(program).finish()};
  }
  return {{0, [p, threads = q.threads](const KernelArgs& a) {
             ref_gemm<T>(threads, p.m, p.n, p.k, matrix(a.x<T>(0), p.m, p.k, p.trans_a),
                         matrix(a.x<T>(1), p.k, p.n, p.trans_b),
                         matrix(a.y<T>(0), p.m, p.n, false));
           }}};
}

// A product whose right side stays the same for many calls: pack it once, then multiply.
struct PackedGemm {
  Kernel pack, multiply;
  int64_t bytes = 0;  // of the packed right side
  size_t workspace() const { return std::max(pack.workspace, multiply.workspace); }
  void prepare(const void* b, void* packed, const KernelArgs& outer, void* workspace) const {
    const void* in[] = {b};
    void* out[] = {packed};
    pack.run({in, out, workspace, outer.fault});
  }
  void operator()(const void* a, const void* packed, void* c, const KernelArgs& outer,
                  void* workspace) const {
    const void* in[] = {a, packed};
    void* out[] = {c};
    multiply.run({in, out, workspace, outer.fault});
  }
};

template <class T>
PackedGemm make_packed(const KernelQuery& q, bool library, Product p) {
  if (library) {
    const onednn::Md src = onednn::dense({p.m, p.k}), dst = onednn::dense({p.m, p.n});
    const onednn::Md plain = onednn::matrix(p.n, p.k, !p.trans_b);
    const onednn::Primitive ip =
        onednn::inner_product(src, onednn::any({p.n, p.k}), onednn::Md(), dst);
    onednn::Program pack(q), multiply(q);
    pack.reorder(onednn::in(0, plain), onednn::out(0, ip.weights));
    multiply.add(ip, {{DNNL_ARG_SRC, onednn::in(0, src)},
                      {DNNL_ARG_WEIGHTS, onednn::in(1, ip.weights)},
                      {DNNL_ARG_DST, onednn::out(0, dst)}});
    return {std::move(pack).finish(), std::move(multiply).finish(),
            static_cast<int64_t>(ip.weights.get_size())};
  }
  const int64_t count = p.n * p.k;
  return {{0, [count](const KernelArgs& a) { std::copy_n(a.x<T>(0), count, a.y<T>(0)); }},
          make_gemm<T>(q, false, p).kernel,
          count * static_cast<int64_t>(sizeof(T))};
}

// always_inline: what is called from a SIMD clone must be compiled with its instruction set.
template <class T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  if constexpr (std::is_same_v<T, float>)
    return 1.f / (1.f + exp_f32(-x));
  else
    return 1 / (1 + std::exp(-x));
}
template <class T>
[[gnu::always_inline]] inline T tanh_of(T x) {
  if constexpr (std::is_same_v<T, float>)
    return 1.f - 2.f / (exp_f32(2.f * x) + 1.f);
  else
    return std::tanh(x);
}

// Steps of sample b, from input 4 (i64 when `wide`, else i32); all when it is absent.
inline int64_t length_of(const KernelArgs& a, bool wide, int64_t b, int64_t steps) {
  if (!a.in[4]) return steps;
  const int64_t n = wide ? a.x<int64_t>(4)[b] : a.x<int32_t>(4)[b];
  if (n < 0 || n > steps) a.fault->report(b, n, 0, steps + 1);
  return std::clamp<int64_t>(n, 0, steps);
}

inline size_t align(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// Cuts a workspace into aligned pieces; the same calls give the total first and the addresses
// later.
struct Cut {
  std::byte* base = nullptr;
  size_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += align(static_cast<size_t>(count) * sizeof(T));
    return p;
  }
};

}  // namespace ortrain::ops
