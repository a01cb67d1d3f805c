// LinearAttention (ONNX, opset 27): a recurrent state S [d_k, d_v] per key head, read by queries.
//
// Per step: S = exp(decay) S (gated rules); u = beta (v - S^T k) (delta rules) or v; S += k u^T;
// y = scale S^T q. It means ortrain.LinearAttention, whose state is f64 in f64 graphs and else f32.
// The gradient keeps sqrt(T) states of the head it works on and computes those between again, so
// memory does not grow with T x d_k x d_v. Heads run in parallel, steps in order. chunk_size is a
// hint of others and not looked at.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/movement.h"
#include "ops/common/share_node.h"
#include "ops/common/simd.h"

namespace ortrain::ops {
namespace {

enum Input : int { kQ, kK, kV, kPast, kDecay, kBeta };

bool gated(const std::string& rule) { return rule == "gated" || rule == "gated_delta"; }
bool delta(const std::string& rule) { return rule == "delta" || rule == "gated_delta"; }

struct Extents {
  Dim batch, steps, dk, dv;
  int64_t q_heads, kv_heads;
};

// Of inputs first .. first + 5, the order of LinearAttention.
Extents extents(InferCtx& c, int first) {
  const int64_t qh = head_count(c, "q_num_heads"), kvh = head_count(c, "kv_num_heads");
  if (qh % kvh != 0)
    c.fail(cat("q_num_heads (", qh, ") must be a multiple of kv_num_heads (", kvh, ")"));
  for (int i = 0; i < 3; ++i)
    if (c.rank(first + i) != 3)
      c.fail("query, key and value must be [B,T,H*D], got " + c.shape(first + i).str());
  const Shape &q = c.shape(first), &k = c.shape(first + kK), &v = c.shape(first + kV);
  same_floats(c, {first, first + kK, first + kV, first + kDecay, first + kBeta});
  const Extents e{q[0], q[1], head_width(c, q[2], qh), head_width(c, v[2], kvh), qh, kvh};
  for (int i = 1; i < 6; ++i) {
    if (i == kPast || !c.has(first + i)) continue;
    const Shape& s = c.shape(first + i);
    if (s.rank() != 3 || prove_equal(s[0], e.batch) == Tri::kNo ||
        prove_equal(s[1], e.steps) == Tri::kNo)
      c.fail(cat("query ", q.str(), " and input ", i, " ", s.str(), " do not fit"));
  }
  if (prove_equal(k[2], e.dk * Dim(kvh)) == Tri::kNo)
    c.fail(cat("query ", q.str(), " and key ", k.str(), " have other head sizes"));
  if (c.has(first + kPast)) {
    const Shape state{e.batch, Dim(kvh), e.dk, e.dv};
    if (!is_float(c.dtype(first + kPast)) || prove_equal(c.shape(first + kPast), state) == Tri::kNo)
      c.fail(cat("past_state is ", c.shape(first + kPast).str(), ", expected ", state.str()));
  }
  if (c.has(first + kDecay)) {
    const Dim& w = c.shape(first + kDecay)[2];
    if (prove_equal(w, Dim(kvh)) == Tri::kNo && prove_equal(w, e.dk * Dim(kvh)) == Tri::kNo)
      c.fail(cat("decay has width ", w.str(), ", expected one per head or per key element"));
  }
  if (c.has(first + kBeta)) {
    const Dim& w = c.shape(first + kBeta)[2];
    if (prove_equal(w, Dim(kvh)) == Tri::kNo && !(w == Dim(1)))
      c.fail(cat("beta has width ", w.str(), ", expected ", kvh, " or 1"));
  }
  return e;
}

Shape state_shape(const Extents& e) { return {e.batch, Dim(e.kv_heads), e.dk, e.dv}; }
DType state_dtype(DType d) { return d == DType::kF64 ? d : DType::kF32; }

void infer_onnx(InferCtx& c) {
  const Extents e = extents(c, 0);
  const std::string rule = c.attrs().s("update_rule", "gated_delta");
  if (rule != "linear" && !gated(rule) && !delta(rule)) c.fail("update_rule '" + rule + "'");
  if (gated(rule) != c.has(kDecay))
    c.fail(cat("update_rule '", rule, "' ", gated(rule) ? "needs" : "forbids", " decay"));
  if (delta(rule) != c.has(kBeta))
    c.fail(cat("update_rule '", rule, "' ", delta(rule) ? "needs" : "forbids", " beta"));
  c.out(0, c.dtype(0), Shape{e.batch, e.steps, e.dv * Dim(e.q_heads)});
  c.out(1, c.has(kPast) ? c.dtype(kPast) : c.dtype(0), state_shape(e));
}

std::vector<Expr> decompose(Decompose& d) {
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const auto x = [&](int i) { return d.has_x(i) ? d.x(i) : Expr(); };
  const DType dtype = d.x(0).dtype(), state = state_dtype(dtype);
  const DType out = d.has_x(kPast) ? d.x(kPast).dtype() : dtype;
  const int64_t heads = a.i("q_num_heads", 1), width = d.x(0).shape()[2].value();
  double scale = a.f("scale", 0);
  if (scale == 0 && width > 0)
    scale = 1 / std::sqrt(static_cast<double>(width) / static_cast<double>(heads));
  const Attrs attrs{
      {"q_num_heads", heads}, {"kv_num_heads", a.i("kv_num_heads", 1)}, {"scale", scale}};
  const Expr past = d.has_x(kPast) ? d.b.cast(d.x(kPast), state) : Expr();
  const bool wants_state = d.wants(1);
  std::vector<Expr> y =
      d.b.ops("ortrain.LinearAttention", {x(kQ), x(kK), x(kV), past, x(kDecay), x(kBeta)}, attrs,
              wants_state ? 2 : 1);
  if (wants_state) y[1] = d.b.cast(y[1], out);
  y.resize(2);
  return y;
}

void infer(InferCtx& c) {
  const Extents e = extents(c, 0);
  c.out(0, c.dtype(0), Shape{e.batch, e.steps, e.dv * Dim(e.q_heads)});
  c.out(1, state_dtype(c.dtype(0)), state_shape(e));
}

void infer_grad(InferCtx& c) {
  const Extents e = extents(c, 2);
  for (int i = 0; i < 3; ++i) c.out(i, c.dtype(2 + i), c.shape(2 + i));
  c.out(3, state_dtype(c.dtype(2)), state_shape(e));
  if (c.has(2 + kDecay)) c.out(4, c.dtype(2), c.shape(2 + kDecay));
  c.out(5, c.dtype(2), Shape{e.batch, e.steps, Dim(e.kv_heads)});
}

// --- kernels
// --------------------------------------------------------------------------------------------
struct Sizes {
  int64_t batch, steps, q_heads, kv_heads, dk, dv;
  int64_t decay = 0, beta = 0;  // width of the input in all; 0: absent
  double scale = 1;
  int threads = 1;
  int64_t group() const { return q_heads / kv_heads; }
  int64_t gates() const { return decay == kv_heads ? 1 : decay / kv_heads; }  // per head
  int64_t pieces() const { return std::clamp<int64_t>(batch * kv_heads, 1, std::max(1, threads)); }
};

Sizes sizes_of(const KernelQuery& q, size_t first) {
  Sizes s;
  const Dims &x = q.in[first].dims, &v = q.in[first + kV].dims;
  s.q_heads = q.attrs.i("q_num_heads", 1), s.kv_heads = q.attrs.i("kv_num_heads", 1);
  s.batch = x[0], s.steps = x[1], s.dk = x[2] / s.q_heads, s.dv = v[2] / s.kv_heads;
  if (q.has_in(first + kDecay)) s.decay = q.in[first + kDecay].dims[2];
  if (q.has_in(first + kBeta)) s.beta = q.in[first + kBeta].dims[2];
  s.scale = q.attrs.f("scale", 1);
  s.threads = q.threads;
  return s;
}

// A row of n elements of T as C, through `buffer` where the types differ.
template <class C, class T>
[[gnu::always_inline]] inline const C* wide(const T* p, int64_t n, C* buffer) {
  if constexpr (std::is_same_v<C, T>) {
    return p;
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<C>(p[i]);
    return buffer;
  }
}

// S becomes the state after this step; `before` (if given) the decayed state that u was read from;
// e: exp of the decay; r: what the state returned for k (delta rules); u: what was written.
template <class C>
[[gnu::always_inline]] inline void advance(const Sizes& s, const C* k, const C* v, const C* e,
                                           bool has_beta, C beta, C* state, C* before, C* u, C* r) {
  const int64_t dk = s.dk, dv = s.dv, gates = s.decay ? s.gates() : 0;
  if (gates)
    for (int64_t i = 0; i < dk; ++i) {
      const C a = e[gates == 1 ? 0 : i];
      C* row = state + i * dv;
#pragma omp simd
      for (int64_t m = 0; m < dv; ++m) row[m] *= a;
    }
  if (before)
#pragma omp simd
    for (int64_t i = 0; i < dk * dv; ++i) before[i] = state[i];
  if (has_beta) {
#pragma omp simd
    for (int64_t m = 0; m < dv; ++m) r[m] = 0;
    for (int64_t i = 0; i < dk; ++i) {
      const C* row = state + i * dv;
      const C ki = k[i];
#pragma omp simd
      for (int64_t m = 0; m < dv; ++m) r[m] += ki * row[m];
    }
#pragma omp simd
    for (int64_t m = 0; m < dv; ++m) u[m] = beta * (v[m] - r[m]);
  } else {
#pragma omp simd
    for (int64_t m = 0; m < dv; ++m) u[m] = v[m];
  }
  for (int64_t i = 0; i < dk; ++i) {
    C* row = state + i * dv;
    const C ki = k[i];
#pragma omp simd
    for (int64_t m = 0; m < dv; ++m) row[m] += ki * u[m];
  }
}

// The inputs of step t of head (b, h) as C; rows of the narrow types go through buf.
template <class C>
struct Step {
  const C *k, *v, *e;
  C beta;
};
template <class C, class T>
[[gnu::always_inline]] inline Step<C> step_at(const Sizes& s, const T* k, const T* v,
                                              const T* decay, const T* beta, int64_t b, int64_t h,
                                              int64_t t, C* kbuf, C* vbuf, C* ebuf) {
  const int64_t at = b * s.steps + t;
  Step<C> x{};
  x.k = wide<C>(k + (at * s.kv_heads + h) * s.dk, s.dk, kbuf);
  x.v = wide<C>(v + (at * s.kv_heads + h) * s.dv, s.dv, vbuf);
  if (decay) {
    const int64_t n = s.gates();
    for (int64_t i = 0; i < n; ++i)
      ebuf[i] = std::exp(static_cast<C>(decay[at * s.decay + h * n + i]));
    x.e = ebuf;
  }
  x.beta = beta ? static_cast<C>(beta[at * s.beta + (s.beta == 1 ? 0 : h)]) : C(1);
  return x;
}

template <class C>
[[gnu::always_inline]] inline void start(const Sizes& s, const C* past, int64_t head, C* state) {
  const int64_t n = s.dk * s.dv;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) state[i] = past ? past[head * n + i] : C(0);
}

// work: state, u, r, y, k, v, e, q.
template <class C>
int64_t forward_work(const Sizes& s) {
  return s.dk * s.dv + 4 * s.dv + 3 * s.dk;
}
template <class C, class T>
[[gnu::always_inline]] inline void forward_head(const Sizes& s, const KernelArgs& a, int64_t head,
                                                C* work) {
  const int64_t b = head / s.kv_heads, h = head % s.kv_heads, dk = s.dk, dv = s.dv;
  C *state = work, *u = state + dk * dv, *r = u + dv, *sum = r + dv, *vb = sum + dv, *kb = vb + dv,
    *eb = kb + dk, *qb = eb + dk;
  start(s, a.x<C>(kPast), head, state);
  for (int64_t t = 0; t < s.steps; ++t) {
    const Step<C> x =
        step_at<C>(s, a.x<T>(kK), a.x<T>(kV), a.x<T>(kDecay), a.x<T>(kBeta), b, h, t, kb, vb, eb);
    advance<C>(s, x.k, x.v, x.e, s.beta > 0, x.beta, state, nullptr, u, r);
    for (int64_t j = h * s.group(); j < (h + 1) * s.group(); ++j) {
      const int64_t at = (b * s.steps + t) * s.q_heads + j;
      const C* q = wide<C>(a.x<T>(kQ) + at * dk, dk, qb);
#pragma omp simd
      for (int64_t m = 0; m < dv; ++m) sum[m] = 0;
      for (int64_t i = 0; i < dk; ++i) {
        const C* row = state + i * dv;
        const C qi = q[i] * static_cast<C>(s.scale);
#pragma omp simd
        for (int64_t m = 0; m < dv; ++m) sum[m] += qi * row[m];
      }
      T* y = a.y<T>(0) + at * dv;
#pragma omp simd
      for (int64_t m = 0; m < dv; ++m) y[m] = static_cast<T>(sum[m]);
    }
  }
  if (C* out = a.y<C>(1))
    for (int64_t i = 0; i < dk * dv; ++i) out[head * dk * dv + i] = state[i];
}

// work: kept states (checkpoints, then those of one stretch), state, before, dstate, and rows.
int64_t stretch(const Sizes& s) {
  auto n = static_cast<int64_t>(std::sqrt(static_cast<double>(s.steps)));
  while (n * n < s.steps) ++n;
  return std::max<int64_t>(1, n);
}
int64_t backward_work(const Sizes& s) {
  return (2 * stretch(s) + 4) * s.dk * s.dv + 5 * s.dv + 5 * s.dk;
}
// Inputs: dy, dpresent?, then those of the forward op. Outputs: dq, dk, dv, dpast, ddecay, dbeta.
template <class C, class T>
[[gnu::always_inline]] inline void backward_head(const Sizes& s, const KernelArgs& a, int64_t head,
                                                 C* work) {
  const int64_t b = head / s.kv_heads, h = head % s.kv_heads, dk = s.dk, dv = s.dv, n = dk * dv;
  const int64_t chunk = stretch(s), chunks = (s.steps + chunk - 1) / chunk;
  C *marks = work, *kept = marks + (chunk + 1) * n, *state = kept + chunk * n, *before = state + n,
    *ds = before + n, *u = ds + n, *r = u + dv, *du = r + dv, *vb = du + dv, *gb = vb + dv,
    *kb = gb + dv, *eb = kb + dk, *qb = eb + dk, *dkey = qb + dk, *dgate = dkey + dk;
  const T *k = a.x<T>(2 + kK), *v = a.x<T>(2 + kV), *decay = a.x<T>(2 + kDecay),
          *betas = a.x<T>(2 + kBeta);
  T* dq = a.y<T>(0);
  const bool has_beta = s.beta > 0;
  start(s, a.x<C>(2 + kPast), head, state);
  for (int64_t t = 0; t < s.steps; ++t) {
    if (t % chunk == 0)
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) marks[t / chunk * n + i] = state[i];
    const Step<C> x = step_at<C>(s, k, v, decay, betas, b, h, t, kb, vb, eb);
    advance<C>(s, x.k, x.v, x.e, has_beta, x.beta, state, nullptr, u, r);
  }
  start(s, a.x<C>(1), head, ds);
  for (int64_t c = chunks; c-- > 0;) {
    const int64_t low = c * chunk, high = std::min(s.steps, low + chunk);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) state[i] = marks[c * n + i];
    for (int64_t t = low; t < high; ++t) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) kept[(t - low) * n + i] = state[i];
      if (t + 1 == high) break;
      const Step<C> x = step_at<C>(s, k, v, decay, betas, b, h, t, kb, vb, eb);
      advance<C>(s, x.k, x.v, x.e, has_beta, x.beta, state, nullptr, u, r);
    }
    for (int64_t t = high; t-- > low;) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) state[i] = kept[(t - low) * n + i];
      const Step<C> x = step_at<C>(s, k, v, decay, betas, b, h, t, kb, vb, eb);
      advance<C>(s, x.k, x.v, x.e, has_beta, x.beta, state, before, u, r);
      const int64_t at = b * s.steps + t;
      for (int64_t j = h * s.group(); j < (h + 1) * s.group(); ++j) {
        const int64_t row = at * s.q_heads + j;
        const C* q = wide<C>(a.x<T>(2 + kQ) + row * dk, dk, qb);
        const C* g = wide<C>(a.x<T>(0) + row * dv, dv, gb);
        for (int64_t i = 0; i < dk; ++i) {
          const C qi = q[i] * static_cast<C>(s.scale);
          const C* si = state + i * dv;
          C* di = ds + i * dv;
          C dot = 0;
#pragma omp simd reduction(+ : dot)
          for (int64_t m = 0; m < dv; ++m) dot += si[m] * g[m];
#pragma omp simd
          for (int64_t m = 0; m < dv; ++m) di[m] += qi * g[m];
          if (dq) dq[row * dk + i] = static_cast<T>(dot * static_cast<C>(s.scale));
        }
      }
#pragma omp simd
      for (int64_t m = 0; m < dv; ++m) du[m] = 0;
      for (int64_t i = 0; i < dk; ++i) {
        const C* di = ds + i * dv;
        const C ki = x.k[i];
        C dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t m = 0; m < dv; ++m) dot += di[m] * u[m];
#pragma omp simd
        for (int64_t m = 0; m < dv; ++m) du[m] += ki * di[m];
        dkey[i] = dot;
      }
      if (has_beta) {
        C dbeta = 0;
#pragma omp simd reduction(+ : dbeta)
        for (int64_t m = 0; m < dv; ++m) dbeta += du[m] * (x.v[m] - r[m]);
        if (T* out = a.y<T>(5)) out[at * s.kv_heads + h] = static_cast<T>(dbeta);
#pragma omp simd
        for (int64_t m = 0; m < dv; ++m) du[m] *= x.beta;  // now dv, and dr = -dv
        for (int64_t i = 0; i < dk; ++i) {
          const C* bi = before + i * dv;
          C* di = ds + i * dv;
          const C ki = x.k[i];
          C dot = 0;
#pragma omp simd reduction(+ : dot)
          for (int64_t m = 0; m < dv; ++m) dot += bi[m] * du[m];
#pragma omp simd
          for (int64_t m = 0; m < dv; ++m) di[m] -= ki * du[m];
          dkey[i] -= dot;
        }
      }
      const int64_t row = at * s.kv_heads + h;
      if (T* out = a.y<T>(1))
        for (int64_t i = 0; i < dk; ++i) out[row * dk + i] = static_cast<T>(dkey[i]);
      if (T* out = a.y<T>(2))
#pragma omp simd
        for (int64_t m = 0; m < dv; ++m) out[row * dv + m] = static_cast<T>(du[m]);
      if (!s.decay) continue;
      const int64_t gates = s.gates();
      for (int64_t i = 0; i < dk; ++i) {
        const C* bi = before + i * dv;
        C* di = ds + i * dv;
        const C e = x.e[gates == 1 ? 0 : i];
        C dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t m = 0; m < dv; ++m) dot += bi[m] * di[m];
#pragma omp simd
        for (int64_t m = 0; m < dv; ++m) di[m] *= e;
        dgate[i] = dot;
      }
      if (T* out = a.y<T>(4)) {
        out += at * s.decay + h * gates;
        C sum = 0;
        for (int64_t i = 0; i < dk; ++i) sum += dgate[i];
        for (int64_t i = 0; i < gates; ++i) out[i] = static_cast<T>(gates == 1 ? sum : dgate[i]);
      }
    }
  }
  if (C* out = a.y<C>(3))
    for (int64_t i = 0; i < n; ++i) out[head * n + i] = ds[i];
}

ORTRAIN_SIMD void forward_f32(const Sizes& s, const KernelArgs& a, int64_t head, float* work) {
  forward_head<float, float>(s, a, head, work);
}
ORTRAIN_SIMD void backward_f32(const Sizes& s, const KernelArgs& a, int64_t head, float* work) {
  backward_head<float, float>(s, a, head, work);
}

template <bool kBackward, class T>
Kernel over_heads(const Sizes& s) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const int64_t each = kBackward ? backward_work(s) : forward_work<C>(s);
  const int64_t pieces = s.pieces();
  return {static_cast<size_t>(pieces * each) * sizeof(C), [=](const KernelArgs& a) {
            const int64_t heads = s.batch * s.kv_heads;
            parallel_for(s.threads, pieces, 1, [&](int64_t begin, int64_t end) {
              for (int64_t p = begin; p < end; ++p) {
                C* work = static_cast<C*>(a.workspace) + p * each;
                for (int64_t i = heads * p / pieces; i < heads * (p + 1) / pieces; ++i) {
                  if constexpr (std::is_same_v<T, float>)
                    kBackward ? backward_f32(s, a, i, work) : forward_f32(s, a, i, work);
                  else if constexpr (kBackward)
                    backward_head<C, T>(s, a, i, work);
                  else
                    forward_head<C, T>(s, a, i, work);
                }
              }
            });
          }};
}

Kernel prepare(const KernelQuery& q) {
  const Sizes s = sizes_of(q, 0);
  return dispatch_float(q.in[0].dtype, [&]<class T>() { return over_heads<false, T>(s); });
}
Kernel prepare_grad(const KernelQuery& q) {
  const Sizes s = sizes_of(q, 2);
  return dispatch_float(q.in[2].dtype, [&]<class T>() { return over_heads<true, T>(s); });
}

template <int output>
Expr gradient(Grad& g) {
  std::vector<Expr> in{g.dy(0), g.has_dy(1) ? g.dy(1) : Expr()};
  for (int i = 0; i < 6; ++i) in.push_back(g.has_x(i) ? g.x(i) : Expr());
  return share_node(g.b, "ortrain.LinearAttentionGrad", in, Attrs(g.attrs()), output);
}

Attrs rule(const char* name, int64_t q_heads, int64_t kv_heads) {
  return {{"update_rule", name}, {"q_num_heads", q_heads}, {"kv_num_heads", kv_heads}};
}

}  // namespace

void register_linear_attention(OpTable& table) {
  const auto x = [](int64_t width) { return f({2, 5, width}, -1, 1); };
  const ExampleInput past = f({2, 2, 3, 2}, -1, 1);
  const auto gate = [](int64_t width) { return f({2, 5, width}, -1, 0); };
  const auto rate = [](int64_t width) { return f({2, 5, width}, 0.1, 0.9); };
  table.add({
      .name = "LinearAttention",
      .inputs = {"query", "key", "value", "past_state?", "decay?", "beta?"},
      .outputs = {"output", "present_state?"},
      .since = 27,
      .infer = infer_onnx,
      .decompose = decompose,
      .precision = Precision::kNever16,
      .examples =
          {{.in = {x(6), x(6), x(4)}, .attrs = rule("linear", 2, 2), .outputs = 2},
           {.in = {x(12), x(6), x(4), past, gate(6)}, .attrs = rule("gated", 4, 2)},
           {.in = {x(6), x(6), x(4), past, gate(2)}, .attrs = rule("gated", 2, 2), .outputs = 2},
           {.in = {x(6), x(6), x(4), absent(), absent(), rate(1)}, .attrs = rule("delta", 2, 2)},
           {.in = {x(12), x(6), x(4), past, gate(6), rate(2)},
            .attrs = rule("gated_delta", 4, 2),
            .outputs = 2},
           {.in = {f({1, 1, 3}), f({1, 1, 3}), f({1, 1, 2})},
            .attrs = rule("linear", 1, 1),
            .outputs = 2},
           {.in = {f({1, 0, 3}), f({1, 0, 3}), f({1, 0, 2}), f({1, 1, 3, 2})},
            .attrs = rule("linear", 1, 1),
            .outputs = 2}},
      .note = "chunk_size is not looked at; the state is f32 (f64 in f64 graphs)",
  });
  const Attrs plain{{"q_num_heads", 2}, {"kv_num_heads", 2}, {"scale", 0.5}};
  table.add({
      .name = "ortrain.LinearAttention",
      .inputs = {"q", "k", "v", "past?", "decay?", "beta?"},
      .outputs = {"y", "present?"},
      .infer = infer,
      .grad = {grad("q", gradient<0>), grad("k", gradient<1>), grad("v", gradient<2>),
               grad("past", gradient<3>), grad("decay", gradient<4>), grad("beta", gradient<5>)},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {x(6), x(6), x(4), past, gate(6), rate(2)}, .attrs = plain},
                   {.in = {f({1, 40, 10}), f({1, 40, 10}), f({1, 40, 6}), absent(), absent(),
                           f({1, 40, 2}, 0.05, 0.2)},
                    .attrs = plain,
                    .outputs = 2}},
  });
  table.add({
      .name = "ortrain.LinearAttentionGrad",
      .inputs = {"dy", "dpresent?", "q", "k", "v", "past?", "decay?", "beta?"},
      .outputs = {"dq", "dk", "dv", "dpast?", "ddecay?", "dbeta?"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare_grad}},
      .examples = {{.in = {x(4), past, x(6), x(6), x(4), past, gate(2), rate(1)},
                    .attrs = plain,
                    .outputs = 6}},
  });
}

}  // namespace ortrain::ops
