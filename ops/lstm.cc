// LSTM, one layer in one or two directions, and its gradient (ONNX gate order i, o, f, c).
//
//   [i o f g] = X W^T + h R^T + Wb + Rb;  c = sig(f) c' + sig(i) tanh(g);  h = sig(o) tanh(c)
// The input projection of all steps is one product; each step then adds h R^T. Saved for the
// gradient: activated gates and cells, as extra outputs 3 and 4. Steps beyond a sequence's length
// pass h and c on and give Y = 0. Refuses for now, by name: other activations, clip, input_forget,
// peepholes, layout 1. "onednn" runs the products in the math library, "ref" in plain loops; the
// code around them is the same.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/recurrent.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

void refuse(const Attrs& attrs, bool peepholes) {
  const auto no = [](const std::string& what) {
    fail(ErrorCode::kUnsupported, "LSTM with ", what, " is not supported yet");
  };
  const std::vector<std::string> standard{"Sigmoid", "Tanh", "Tanh"};
  const std::vector<std::string> given = attrs.strings("activations");
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i] != standard[i % 3]) no("activation " + given[i]);
  if (attrs.has("clip")) no("clip");
  if (attrs.i("input_forget", 0)) no("input_forget");
  if (attrs.i("layout", 0)) no("layout 1");
  if (peepholes) no("peepholes");
}

// X [T,B,I], W [D,4H,I], R [D,4H,H], B [D,8H], sequence_lens [B], initial_h/c [D,B,H], P
void infer(InferCtx& c) {
  refuse(c.attrs(), c.has(7));
  if (c.rank(0) != 3 || c.rank(1) != 3 || c.rank(2) != 3) c.fail("X, W and R must have rank 3");
  const Dim d = direction(c.attrs()) == "bidirectional" ? 2 : 1;
  const Dim hidden = c.shape(2)[2], steps = c.shape(0)[0], batch = c.shape(0)[1];
  const auto expect = [&](int i, const Shape& s, const char* name) {
    if (c.has(i) && prove_equal(c.shape(i), s) == Tri::kNo)
      c.fail(cat(name, " has shape ", c.shape(i).str(), ", expected ", s.str()));
  };
  expect(1, {d, hidden * 4, c.shape(0)[2]}, "W");
  expect(2, {d, hidden * 4, hidden}, "R");
  expect(3, {d, hidden * 8}, "B");
  expect(4, {batch}, "sequence_lens");
  expect(5, {d, batch, hidden}, "initial_h");
  expect(6, {d, batch, hidden}, "initial_c");
  c.out(0, c.dtype(0), {steps, d, batch, hidden});
  c.out(1, c.dtype(0), {d, batch, hidden});
  c.out(2, c.dtype(0), {d, batch, hidden});
  c.out(3, c.dtype(0), {d, steps, batch, hidden * 4});
  c.out(4, c.dtype(0), {d, steps, batch, hidden});
}

// X, W, R, B?, sequence_lens?, initial_h?, initial_c?, Y, gates, cells, dY?, dY_h?, dY_c?
// -> dX, dW, dR, dB, dinitial_h, dinitial_c
void infer_grad(InferCtx& c) {
  const Dim d = c.shape(1)[0], hidden = c.shape(2)[2];
  for (int i = 0; i < 3; ++i) c.out(i, c.dtype(0), c.shape(i));
  c.out(3, c.dtype(0), {d, hidden * 8});
  c.out(4, c.dtype(0), {d, c.shape(0)[1], hidden});
  c.out(5, c.dtype(0), {d, c.shape(0)[1], hidden});
}

// --- one row of a step
// ------------------------------------------------------------------------------------
// gates: X W^T on entry, activated gates on exit; recurrent: h R^T; bias: Wb then Rb.
template <class T>
[[gnu::always_inline]] inline void forward_row(T* gates, const T* recurrent, const T* bias,
                                               const T* c_prev, T* c, T* h, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const T i = sigmoid(gates[j] + recurrent[j] + bias[j] + bias[4 * n + j]);
    const T o = sigmoid(gates[n + j] + recurrent[n + j] + bias[n + j] + bias[5 * n + j]);
    const T f =
        sigmoid(gates[2 * n + j] + recurrent[2 * n + j] + bias[2 * n + j] + bias[6 * n + j]);
    const T g =
        tanh_of(gates[3 * n + j] + recurrent[3 * n + j] + bias[3 * n + j] + bias[7 * n + j]);
    const T cell = f * c_prev[j] + i * g;
    gates[j] = i, gates[n + j] = o, gates[2 * n + j] = f, gates[3 * n + j] = g;
    c[j] = cell;
    h[j] = o * tanh_of(cell);
  }
}
// dh, dc: gradients at this step's outputs; dc becomes that of the previous cell; dgates is
// written.
template <class T>
[[gnu::always_inline]] inline void backward_row(const T* gates, const T* c_prev, const T* c,
                                                const T* dh, T* dc, T* dgates, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const T i = gates[j], o = gates[n + j], f = gates[2 * n + j], g = gates[3 * n + j];
    const T t = tanh_of(c[j]);
    const T d = dc[j] + dh[j] * o * (1 - t * t);
    dgates[j] = d * g * i * (1 - i);
    dgates[n + j] = dh[j] * t * o * (1 - o);
    dgates[2 * n + j] = d * c_prev[j] * f * (1 - f);
    dgates[3 * n + j] = d * i * (1 - g * g);
    dc[j] = d * f;
  }
}
ORTRAIN_SIMD void forward_row_f32(float* gates, const float* r, const float* bias,
                                  const float* c_prev, float* c, float* h, int64_t n) {
  forward_row(gates, r, bias, c_prev, c, h, n);
}
ORTRAIN_SIMD void backward_row_f32(const float* gates, const float* c_prev, const float* c,
                                   const float* dh, float* dc, float* dgates, int64_t n) {
  backward_row(gates, c_prev, c, dh, dc, dgates, n);
}

// --- forward
// ----------------------------------------------------------------------------------------------
template <class T>
struct Forward {
  Sizes s;
  Gemm project;
  PackedGemm recur;
  bool wide_lens = false, save_gates = false, save_cells = false;
  int threads = 1;

  int64_t zeros() const {
    return std::max(s.batch, int64_t{8}) * s.hidden;
  }  // also a bias of zeros
  struct Work {
    T *gates, *cells, *recurrent, *h, *zero;
    void *packed, *scratch;
  };
  Work work(Cut& cut) const {
    Work w{};
    if (!save_gates) w.gates = cut.take<T>(s.directions * s.rows() * 4 * s.hidden);
    if (!save_cells) w.cells = cut.take<T>(s.directions * s.rows() * s.hidden);
    w.recurrent = cut.take<T>(s.batch * 4 * s.hidden);
    w.h = cut.take<T>(s.batch * s.hidden);
    w.zero = cut.take<T>(zeros());
    w.packed = cut.take<std::byte>(recur.bytes);
    w.scratch = cut.take<std::byte>(
        static_cast<int64_t>(std::max(project.kernel.workspace, recur.workspace())));
    return w;
  }

  void run(const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    Work w = work(cut);
    if (save_gates) w.gates = a.y<T>(3);
    if (save_cells) w.cells = a.y<T>(4);
    const int64_t n = s.hidden, plane = s.batch * n;
    std::fill_n(w.zero, zeros(), T(0));
    for (int64_t d = 0; d < s.directions; ++d) {
      T* gates = w.gates + d * s.rows() * 4 * n;
      T* cells = w.cells + d * s.rows() * n;
      const T* bias = a.in[3] ? a.x<T>(3) + d * 8 * n : w.zero;
      const T* first_c = a.in[6] ? a.x<T>(6) + d * plane : w.zero;
      std::copy_n(a.in[5] ? a.x<T>(5) + d * plane : w.zero, plane, w.h);
      project(a.x<T>(0), a.x<T>(1) + d * 4 * n * s.input, gates, a, w.scratch);
      recur.prepare(a.x<T>(2) + d * 4 * n * n, w.packed, a, w.scratch);
      for (int64_t k = 0; k < s.steps; ++k) {
        const int64_t t = s.reversed(d) ? s.steps - 1 - k : k;
        const int64_t before = s.reversed(d) ? t + 1 : t - 1;
        recur(w.h, w.packed, w.recurrent, a, w.scratch);
        parallel_for(
            threads, s.batch, std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
              for (int64_t b = begin; b < end; ++b) {
                T* h = w.h + b * n;
                T* c = cells + (t * s.batch + b) * n;
                const T* c_prev = k == 0 ? first_c + b * n : cells + (before * s.batch + b) * n;
                T* y = a.out[0] ? a.y<T>(0) + ((t * s.directions + d) * s.batch + b) * n : nullptr;
                if (t >= length_of(a, wide_lens, b, s.steps)) {
                  std::copy_n(c_prev, n, c);
                  if (y) std::fill_n(y, n, T(0));
                  continue;
                }
                T* g = gates + (t * s.batch + b) * 4 * n;
                if constexpr (std::is_same_v<T, float>)
                  forward_row_f32(g, w.recurrent + b * 4 * n, bias, c_prev, c, h, n);
                else
                  forward_row<T>(g, w.recurrent + b * 4 * n, bias, c_prev, c, h, n);
                if (y) std::copy_n(h, n, y);
              }
            });
      }
      if (a.out[1]) std::copy_n(w.h, plane, a.y<T>(1) + d * plane);
      const int64_t last = s.reversed(d) ? 0 : s.steps - 1;
      if (a.out[2])
        std::copy_n(s.steps ? cells + last * plane : first_c, plane, a.y<T>(2) + d * plane);
    }
  }
};

// --- backward
// ---------------------------------------------------------------------------------------------
template <class T>
struct Backward {
  Sizes s;
  PackedGemm to_h;
  Gemm to_x, to_w, to_r;
  bool wide_lens = false;
  int threads = 1;

  struct Work {
    T *dgates, *h_prev, *dh, *dc, *flow, *dx, *zero;
    void *packed, *scratch;
  };
  Work work(Cut& cut) const {
    const int64_t plane = s.batch * s.hidden;
    Work w{};
    w.dgates = cut.take<T>(s.rows() * 4 * s.hidden);
    w.h_prev = cut.take<T>(s.rows() * s.hidden);
    w.dh = cut.take<T>(plane);
    w.dc = cut.take<T>(plane);
    w.flow = cut.take<T>(plane);
    w.dx = cut.take<T>(s.directions > 1 ? s.rows() * s.input : 0);
    w.zero = cut.take<T>(plane);
    w.packed = cut.take<std::byte>(to_h.bytes);
    size_t most = to_h.workspace();
    for (const Gemm* g : {&to_x, &to_w, &to_r}) most = std::max(most, g->kernel.workspace);
    w.scratch = cut.take<std::byte>(static_cast<int64_t>(most));
    return w;
  }

  void run(const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    const Work w = work(cut);
    std::fill_n(w.zero, s.batch * s.hidden, T(0));
    for (int64_t d = 0; d < s.directions; ++d) direction_pass(a, w, d);
  }

  void direction_pass(const KernelArgs& a, const Work& w, int64_t d) const {
    const int64_t n = s.hidden, plane = s.batch * n;
    const T* gates = a.x<T>(8) + d * s.rows() * 4 * n;
    const T* cells = a.x<T>(9) + d * s.rows() * n;
    const T* first_c = a.in[6] ? a.x<T>(6) + d * plane : w.zero;
    const T* first_h = a.in[5] ? a.x<T>(5) + d * plane : w.zero;
    std::copy_n(a.in[11] ? a.x<T>(11) + d * plane : w.zero, plane, w.dh);
    std::copy_n(a.in[12] ? a.x<T>(12) + d * plane : w.zero, plane, w.dc);
    to_h.prepare(a.x<T>(2) + d * 4 * n * n, w.packed, a, w.scratch);
    for (int64_t k = s.steps - 1; k >= 0; --k) {
      const int64_t t = s.reversed(d) ? s.steps - 1 - k : k;
      const int64_t before = s.reversed(d) ? t + 1 : t - 1;
      parallel_for(
          threads, s.batch, std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
            for (int64_t b = begin; b < end; ++b) {
              T* dgates = w.dgates + (t * s.batch + b) * 4 * n;
              T* h_prev = w.h_prev + (t * s.batch + b) * n;
              const int64_t length = length_of(a, wide_lens, b, s.steps);
              if (t >= length) {
                std::fill_n(dgates, 4 * n, T(0));
                std::fill_n(h_prev, n, T(0));
                continue;
              }
              const bool has_before = k > 0 && before < length;
              const T* y = a.x<T>(7) + ((before * s.directions + d) * s.batch + b) * n;
              std::copy_n(has_before ? y : first_h + b * n, n, h_prev);
              T* dh = w.dh + b * n;
              if (a.in[10]) {
                const T* dy = a.x<T>(10) + ((t * s.directions + d) * s.batch + b) * n;
                for (int64_t j = 0; j < n; ++j) dh[j] += dy[j];
              }
              const T* g = gates + (t * s.batch + b) * 4 * n;
              const T* c = cells + (t * s.batch + b) * n;
              const T* c_prev = k == 0 ? first_c + b * n : cells + (before * s.batch + b) * n;
              if constexpr (std::is_same_v<T, float>)
                backward_row_f32(g, c_prev, c, dh, w.dc + b * n, dgates, n);
              else
                backward_row<T>(g, c_prev, c, dh, w.dc + b * n, dgates, n);
            }
          });
      to_h(w.dgates + t * s.batch * 4 * n, w.packed, w.flow, a, w.scratch);
      for (int64_t b = 0; b < s.batch; ++b)
        if (t < length_of(a, wide_lens, b, s.steps)) std::copy_n(w.flow + b * n, n, w.dh + b * n);
    }
    if (a.out[4]) std::copy_n(w.dh, plane, a.y<T>(4) + d * plane);
    if (a.out[5]) std::copy_n(w.dc, plane, a.y<T>(5) + d * plane);
    if (a.out[0]) {
      T* dx = a.y<T>(0);
      to_x(w.dgates, a.x<T>(1) + d * 4 * n * s.input, d == 0 ? dx : w.dx, a, w.scratch);
      if (d > 0)
        for (int64_t i = 0; i < s.rows() * s.input; ++i) dx[i] += w.dx[i];
    }
    if (a.out[1]) to_w(w.dgates, a.x<T>(0), a.y<T>(1) + d * 4 * n * s.input, a, w.scratch);
    if (a.out[2]) to_r(w.dgates, w.h_prev, a.y<T>(2) + d * 4 * n * n, a, w.scratch);
    if (a.out[3]) {
      T* db = a.y<T>(3) + d * 8 * n;
      parallel_for(threads, 4 * n, 256, [&](int64_t begin, int64_t end) {
        std::fill(db + begin, db + end, T(0));
        for (int64_t row = 0; row < s.rows(); ++row)
          for (int64_t j = begin; j < end; ++j) db[j] += w.dgates[row * 4 * n + j];
      });
      std::copy_n(db, 4 * n, db + 4 * n);  // Wb and Rb enter as their sum
    }
  }
};

template <class T, bool kLibrary>
Kernel forward(const KernelQuery& q) {
  Forward<T> f;
  const Sizes& s = f.s = sizes_of(q);
  f.project = make_gemm<T>(q, kLibrary, {s.rows(), 4 * s.hidden, s.input, false, true});
  f.recur = make_packed<T>(q, kLibrary, {s.batch, 4 * s.hidden, s.hidden, false, true});
  f.wide_lens = q.has_in(4) && q.in[4].dtype == DType::kI64;
  f.save_gates = q.has_out(3), f.save_cells = q.has_out(4);
  f.threads = q.threads;
  Cut cut;
  f.work(cut);
  return {cut.used, [f = std::move(f)](const KernelArgs& a) { f.run(a); }};
}

template <class T, bool kLibrary>
Kernel backward(const KernelQuery& q) {
  Backward<T> f;
  const Sizes& s = f.s = sizes_of(q);
  f.to_h = make_packed<T>(q, kLibrary, {s.batch, s.hidden, 4 * s.hidden, false, false});
  f.to_x = make_gemm<T>(q, kLibrary, {s.rows(), s.input, 4 * s.hidden, false, false});
  f.to_w = make_gemm<T>(q, kLibrary, {4 * s.hidden, s.input, s.rows(), true, false});
  f.to_r = make_gemm<T>(q, kLibrary, {4 * s.hidden, s.hidden, s.rows(), true, false});
  f.wide_lens = q.has_in(4) && q.in[4].dtype == DType::kI64;
  f.threads = q.threads;
  Cut cut;
  f.work(cut);
  return {cut.used, [f = std::move(f)](const KernelArgs& a) { f.run(a); }};
}

std::string reject(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  const Sizes s = sizes_of(q);
  return s.rows() * s.input * s.hidden == 0 ? "empty tensor" : "";
}

template <bool kForward>
Kernel prepare_ref(const KernelQuery& q) {
  if (q.in[0].dtype == DType::kF64)
    return kForward ? forward<double, false>(q) : backward<double, false>(q);
  if (q.in[0].dtype != DType::kF32)
    fail(ErrorCode::kUnsupported, q.origin, ": LSTM runs in f32 and f64, not ",
         name_of(q.in[0].dtype));
  return kForward ? forward<float, false>(q) : backward<float, false>(q);
}

double flops(const Graph& g, const Node& n) {
  const Shape &x = g.value(n.inputs[0]).shape, &r = g.value(n.inputs[2]).shape;
  if (!x.is_const() || !r.is_const()) return 0;
  const Dims a = x.values(), b = r.values();
  const double once =
      2.0 * static_cast<double>(a[0] * a[1] * b[0] * 4 * b[2]) * static_cast<double>(a[2] + b[2]);
  return n.op->name == "LSTM" ? once : 2 * once;
}

Expr part(Grad& g, int output) {
  const auto optional = [&](int i) { return g.has_x(i) ? g.x(i) : Expr(); };
  const auto flow = [&](int i) { return g.has_dy(i) ? g.dy(i) : Expr(); };
  const Expr y = g.y(0), gates = g.y(3), cells = g.y(4);
  return g.b.ops("ortrain.LSTMGrad",
                 {g.x(0), g.x(1), g.x(2), optional(3), optional(4), optional(5), optional(6), y,
                  gates, cells, flow(0), flow(1), flow(2)},
                 g.attrs(), 6)[static_cast<size_t>(output)];
}

}  // namespace

void register_lstm(OpTable& table) {
  const auto both = std::string("bidirectional");
  table.add({
      .name = "LSTM",
      .inputs = {"X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "P?"},
      .outputs = {"Y?", "Y_h?", "Y_c?", "gates?", "cells?"},
      .since = 7,
      .infer = infer,
      .grad = {grad("X", [](Grad& g) { return part(g, 0); }),
               grad("W", [](Grad& g) { return part(g, 1); }),
               grad("R", [](Grad& g) { return part(g, 2); }),
               grad("B", [](Grad& g) { return part(g, 3); }), no_grad("sequence_lens"),
               grad("initial_h", [](Grad& g) { return part(g, 4); }),
               grad("initial_c", [](Grad& g) { return part(g, 5); }),
               not_differentiable("P", "peepholes are not supported yet")},
      .flops = flops,
      .kernels = {{"cpu", "onednn", reject, forward<float, true>},
                  {"cpu", "ref", nullptr, prepare_ref<true>}},
      .examples = {{.in = {f({3, 2, 4}), f({1, 12, 4}), f({1, 12, 3})}, .outputs = 3},
                   {.in = {f({4, 3, 2}), f({1, 8, 2}), f({1, 8, 2}), f({1, 16}), absent(),
                           f({1, 3, 2}), f({1, 3, 2})},
                    .outputs = 3},
                   {.in = {f({4, 3, 2}), f({1, 8, 2}), f({1, 8, 2}), f({1, 16})},
                    .attrs = {{"direction", std::string("reverse")}},
                    .outputs = 1},
                   {.in = {f({3, 2, 3}), f({2, 8, 3}), f({2, 8, 2}), f({2, 16}), absent(),
                           f({2, 2, 2}), f({2, 2, 2})},
                    .attrs = {{"direction", both}},
                    .outputs = 3},
                   {.in = {f({4, 3, 2}), f({2, 8, 2}), f({2, 8, 2}), f({2, 16}),
                           iconst({3}, {4, 1, 3}), f({2, 3, 2}), f({2, 3, 2})},
                    .attrs = {{"direction", both}},
                    .outputs = 3}},
      .note = "default activations only; no clip, peepholes, input_forget or layout 1 yet",
  });
  table.add({
      .name = "ortrain.LSTMGrad",
      .inputs = {"X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "Y", "gates",
                 "cells", "dY?", "dY_h?", "dY_c?"},
      .outputs = {"dX?", "dW?", "dR?", "dB?", "dinitial_h?", "dinitial_c?"},
      .infer = infer_grad,
      .flops = flops,
      .kernels = {{"cpu", "onednn", reject, backward<float, true>},
                  {"cpu", "ref", nullptr, prepare_ref<false>}},
      .examples = {{.in = {f({3, 2, 4}), f({1, 12, 4}), f({1, 12, 3}), absent(), absent(), absent(),
                           absent(), f({3, 1, 2, 3}, -1, 1), f({1, 3, 2, 12}, 0, 1),
                           f({1, 3, 2, 3}, -1, 1), f({3, 1, 2, 3})},
                    .outputs = 6}},
  });
}

}  // namespace ortrain::ops
