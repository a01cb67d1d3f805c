// LSTM, one layer in one or two directions, and its gradient (ONNX gate order i, o, f, c).
//
//   [i o f g] = X W^T + h R^T + Wb + Rb;  c = sig(f) c' + sig(i) tanh(g);  h = sig(o) tanh(c)
// The input projection of all steps is one product; each step then adds h R^T. Samples do not meet
// in a step, so where OwnRows is worth it a thread takes its samples through all steps alone. Saved
// for the gradient: activated gates and cells, as extra outputs 3 and 4. Steps beyond a sequence's
// length pass h and c on and give Y = 0. Other activations, clip (of every activation's input,
// tanh(c)'s too), input_forget and peepholes take a plain row; the saved gates are then their
// inputs. "half" and "onednn" run the products in the math library (or OwnRows), of 16-bit floats
// or f32, "ref" in plain loops; the code around them is the same.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/lstm_rows.h"
#include "ops/common/recurrent.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

const std::initializer_list<Act> kDefaults{Act::kSigmoid, Act::kTanh, Act::kTanh};

constexpr Side kW = Side::kWeight, kSeq = Side::kSequence, kSteps = Side::kSteps,
               kState = Side::kState, kIn = Side::kInternal;
constexpr Sides kForwardSides{{kSeq, kW, kW, kW, kIn, kState, kState, kW},
                              {kSteps, kState, kState, kIn, kIn}};
constexpr Sides kBackwardSides{
    {kSeq, kW, kW, kW, kIn, kState, kState, kSteps, kIn, kIn, kSteps, kState, kState, kW},
    {kSeq, kW, kW, kW, kState, kState, kW}};

// X [T,B,I], W [D,4H,I], R [D,4H,H], B [D,8H], sequence_lens [B], initial_h/c [D,B,H], P [D,3H]
void infer(InferCtx& c) {
  cell_spec(c.attrs(), kDefaults);
  const Extents e = infer_recurrent(c, 4);
  expect_shape(c, 6, state_shape(c, e), "initial_c");
  expect_shape(c, 7, {e.directions, e.hidden * 3}, "P");
  for (int i : {6, 7})
    if (c.has(i) && c.dtype(i) != c.dtype(0))
      c.fail(cat("input ", i, " is ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(0))));
  c.out(2, c.dtype(0), state_shape(c, e));
  const DType saved = saved_dtype(c.dtype(0));
  c.out(3, saved, {e.directions, e.steps, e.batch, e.hidden * 4});
  c.out(4, saved, {e.directions, e.steps, e.batch, e.hidden});
}

// X, W, R, B?, sequence_lens?, initial_h?, initial_c?, Y, gates, cells, dY?, dY_h?, dY_c?, P?
// -> dX, dW, dR, dB, dinitial_h, dinitial_c, dP
void infer_grad(InferCtx& c) {
  const Dim d = c.shape(1)[0], hidden = c.shape(2)[2];
  const bool batch_first = c.attrs().i("layout", 0) != 0;
  const Dim batch = c.shape(0)[batch_first ? 0 : 1];
  const Shape state = batch_first ? Shape{batch, d, hidden} : Shape{d, batch, hidden};
  for (int i = 0; i < 3; ++i) c.out(i, c.dtype(0), c.shape(i));
  c.out(3, c.dtype(0), {d, hidden * 8});
  c.out(4, c.dtype(0), state);
  c.out(5, c.dtype(0), state);
  c.out(6, c.dtype(0), {d, hidden * 3});
}

ORTRAIN_SIMD void forward_row_f32(float* gates, const float* r, const float* bias,
                                  const float* c_prev, float* c, float* h, int64_t n) {
  forward_row(gates, r, bias, c_prev, c, h, n);
}
ORTRAIN_SIMD void backward_row_f32(const float* gates, const float* c_prev, const float* c,
                                   const float* dh, float* dc, float* dgates, int64_t n) {
  backward_row(gates, c_prev, c, dh, dc, dgates, n);
}

// Whether the vectorised rows above compute this layer.
bool is_default(const CellSpec& spec, const KernelQuery& q, size_t peepholes) {
  bool all = std::isinf(spec.clip) && !spec.couple && !q.has_in(peepholes);
  for (int64_t d = 0; d < q.in[2].dims[0]; ++d) all &= spec.is(d, kDefaults);
  return all;
}

// --- forward
// ----------------------------------------------------------------------------------------------
template <class T>
struct Forward : Net {
  Gemm project;
  StepProduct recur;
  bool save_gates = false, save_cells = false, plain = false;  // plain: the rows for any activation

  int64_t zeros() const {
    return std::max(s.batch, int64_t{8}) * s.hidden;
  }  // also a bias of zeros
  struct Work {
    T *gates, *cells, *recurrent, *h, *zero;
    void *left, *packed, *scratch;  // left: h as the step's product takes it
  };
  Work work(Cut& cut) const {
    Work w{};
    if (!save_gates) w.gates = cut.take<T>(s.directions * s.rows() * 4 * s.hidden);
    if (!save_cells) w.cells = cut.take<T>(s.directions * s.rows() * s.hidden);
    w.recurrent = cut.take<T>(s.batch * 4 * s.hidden);
    w.h = cut.take<T>(s.batch * s.hidden);
    w.zero = cut.take<T>(zeros());
    w.left = half() ? cut.take<std::byte>(plane() * item) : static_cast<void*>(w.h);
    w.packed = cut.take<std::byte>(recur.bytes());
    w.scratch = cut.take<std::byte>(
        static_cast<int64_t>(std::max(project.kernel.workspace, recur.workspace(s.batch))));
    return w;
  }

  // cell(k, b) after the product of step k, for all samples and steps.
  template <class Cell>
  void steps(const KernelArgs& a, const void* r, const Work& w, Cell&& cell) const {
    if constexpr (std::is_same_v<T, float>) {
      if (const auto& own = recur.own) {
        own->prepare(r, w.packed);
        parallel_for(threads, s.batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t k = 0; k < s.steps; ++k) {
            (*own)(begin, end, w.left, w.packed, w.recurrent, w.scratch);
            for (int64_t b = begin; b < end; ++b) cell(k, b);
          }
        });
        return;
      }
    }
    recur.whole.prepare(r, w.packed, a, w.scratch);
    for (int64_t k = 0; k < s.steps; ++k) {
      recur.whole(w.left, w.packed, w.recurrent, a, w.scratch);
      samples([&](int64_t b) { cell(k, b); });
    }
  }

  void run(const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    Work w = work(cut);
    if (save_gates) w.gates = a.y<T>(3);
    if (save_cells) w.cells = a.y<T>(4);
    const int64_t n = s.hidden;
    std::fill_n(w.zero, zeros(), T(0));
    for (int64_t d = 0; d < s.directions; ++d) {
      T* gates = w.gates + d * s.rows() * 4 * n;
      T* cells = w.cells + d * s.rows() * n;
      const T* bias = a.in[3] ? a.x<T>(3) + d * 8 * n : w.zero;
      const T* first_c = a.in[6] ? a.x<T>(6) + d * plane() : w.zero;
      const T* peep = a.in[7] ? a.x<T>(7) + d * 3 * n : nullptr;
      std::copy_n(a.in[5] ? a.x<T>(5) + d * plane() : w.zero, plane(), w.h);
      settle(w.h, w.left, 0, plane());
      project(a.in[0], at(a.in[1], d * 4 * n * s.input), gates, a, w.scratch);
      const auto cell = [&](int64_t k, int64_t b) {
        const int64_t t = time(d, k), before = earlier(d, t);
        T* h = w.h + b * n;
        T* c = cells + (t * s.batch + b) * n;
        const T* c_prev = k == 0 ? first_c + b * n : cells + (before * s.batch + b) * n;
        T* y = row_of(a.y<T>(0), d, t, b);
        if (!valid(a, t, b)) {
          std::copy_n(c_prev, n, c);
          if (y) std::fill_n(y, n, T(0));
          return;
        }
        T* g = gates + (t * s.batch + b) * 4 * n;
        const T* r = w.recurrent + b * 4 * n;
        if (plain)
          forward_row_any<T>(spec, d, peep, g, r, bias, c_prev, c, h, n);
        else if constexpr (std::is_same_v<T, float>)
          forward_row_f32(g, r, bias, c_prev, c, h, n);
        else
          forward_row<T>(g, r, bias, c_prev, c, h, n);
        settle(h, w.left, b * n, n);
        if (y) std::copy_n(h, n, y);
      };
      steps(a, at(a.in[2], d * 4 * n * n), w, cell);
      if (a.out[1]) std::copy_n(w.h, plane(), a.y<T>(1) + d * plane());
      const int64_t last = s.reversed(d) ? 0 : s.steps - 1;
      if (a.out[2])
        std::copy_n(s.steps ? cells + last * plane() : first_c, plane(), a.y<T>(2) + d * plane());
    }
  }
};

// --- backward
// ---------------------------------------------------------------------------------------------
template <class T>
struct Backward : Net {
  StepProduct to_h;
  Gemm to_x, to_w, to_r;
  bool plain = false;

  struct Work {
    void *dgates, *h_prev;  // operands of products
    T *row_gates, *row_h, *dh, *dc, *flow, *dx,
        *zero;  // row_..: of a sample's step, before rounding
    void *packed, *scratch;
  };
  Work work(Cut& cut) const {
    const int64_t plane = s.batch * s.hidden;
    Work w{};
    w.dgates = cut.take<std::byte>(s.rows() * 4 * s.hidden * item);
    w.h_prev = cut.take<std::byte>(s.rows() * s.hidden * item);
    w.row_gates = cut.take<T>(half() ? plane * 4 : 0);
    w.row_h = cut.take<T>(half() ? plane : 0);
    w.dh = cut.take<T>(plane);
    w.dc = cut.take<T>(plane);
    w.flow = cut.take<T>(plane);
    w.dx = cut.take<T>(input_gradient_room());
    w.zero = cut.take<T>(plane);
    w.packed = cut.take<std::byte>(to_h.bytes());
    size_t most = to_h.workspace(s.batch);
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

  // From the last step to the first: cell(k, b), the product, flow_on(k, b).
  template <class Cell, class FlowOn>
  void steps(const KernelArgs& a, const void* r, const Work& w, int64_t d, Cell&& cell,
             FlowOn&& flow_on) const {
    if constexpr (std::is_same_v<T, float>) {
      if (const auto& own = to_h.own) {
        own->prepare(r, w.packed);
        parallel_for(threads, s.batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t k = s.steps - 1; k >= 0; --k) {
            for (int64_t b = begin; b < end; ++b) cell(k, b);
            (*own)(begin, end, at(w.dgates, time(d, k) * s.batch * 4 * s.hidden), w.packed, w.flow,
                   w.scratch);
            for (int64_t b = begin; b < end; ++b) flow_on(k, b);
          }
        });
        return;
      }
    }
    to_h.whole.prepare(r, w.packed, a, w.scratch);
    for (int64_t k = s.steps - 1; k >= 0; --k) {
      samples([&](int64_t b) { cell(k, b); });
      to_h.whole(at(w.dgates, time(d, k) * s.batch * 4 * s.hidden), w.packed, w.flow, a, w.scratch);
      for (int64_t b = 0; b < s.batch; ++b) flow_on(k, b);
    }
  }

  void direction_pass(const KernelArgs& a, const Work& w, int64_t d) const {
    const int64_t n = s.hidden;
    const T* gates = a.x<T>(8) + d * s.rows() * 4 * n;
    const T* cells = a.x<T>(9) + d * s.rows() * n;
    const T* first_c = a.in[6] ? a.x<T>(6) + d * plane() : w.zero;
    const T* first_h = a.in[5] ? a.x<T>(5) + d * plane() : w.zero;
    const T* peep = a.in[13] ? a.x<T>(13) + d * 3 * n : nullptr;
    std::copy_n(a.in[11] ? a.x<T>(11) + d * plane() : w.zero, plane(), w.dh);
    std::copy_n(a.in[12] ? a.x<T>(12) + d * plane() : w.zero, plane(), w.dc);
    const auto cell_before = [&](int64_t k, int64_t b) {
      return k == 0 ? first_c + b * n : cells + (earlier(d, time(d, k)) * s.batch + b) * n;
    };
    const auto cell = [&](int64_t k, int64_t b) {
      const int64_t row = time(d, k) * s.batch + b;
      T *dgates = stage(w.dgates, row * 4 * n, w.row_gates + b * 4 * n), *dh = w.dh + b * n;
      T *dc = w.dc + b * n, *h_prev = stage(w.h_prev, row * n, w.row_h + b * n);
      const bool in = enter(a, a.x<T>(7), a.x<T>(10), first_h, d, k, b, h_prev, dh);
      settle(h_prev, w.h_prev, row * n, n);
      if (!in) {
        std::fill_n(dgates, 4 * n, T(0));
        settle(dgates, w.dgates, row * 4 * n, 4 * n);
        return;
      }
      const T *g = gates + row * 4 * n, *c = cells + row * n, *c_prev = cell_before(k, b);
      if (plain)
        backward_row_any<T>(spec, d, peep, g, c_prev, c, dh, dc, dgates, n);
      else if constexpr (std::is_same_v<T, float>)
        backward_row_f32(g, c_prev, c, dh, dc, dgates, n);
      else
        backward_row<T>(g, c_prev, c, dh, dc, dgates, n);
      settle(dgates, w.dgates, row * 4 * n, 4 * n);
    };
    const auto flow_on = [&](int64_t k, int64_t b) {
      if (valid(a, time(d, k), b)) std::copy_n(w.flow + b * n, n, w.dh + b * n);
    };
    steps(a, at(a.in[2], d * 4 * n * n), w, d, cell, flow_on);
    if (a.out[4]) std::copy_n(w.dh, plane(), a.y<T>(4) + d * plane());
    if (a.out[5]) std::copy_n(w.dc, plane(), a.y<T>(5) + d * plane());
    input_gradient(a, to_x, w.dgates, at(a.in[1], d * 4 * n * s.input), d, w.dx, w.scratch);
    if (a.out[1]) to_w(w.dgates, a.in[0], at(a.out[1], d * 4 * n * s.input), a, w.scratch);
    if (a.out[2]) to_r(w.dgates, w.h_prev, at(a.out[2], d * 4 * n * n), a, w.scratch);
    if (a.out[3]) {
      T* db = a.y<T>(3) + d * 8 * n;
      column_sums(w.dgates, 4 * n, db);
      std::copy_n(db, 4 * n, db + 4 * n);  // Wb and Rb enter as their sum
    }
    if (!a.out[6]) return;
    T* dp = a.y<T>(6) + d * 3 * n;
    std::fill_n(dp, 3 * n, T(0));
    for (int64_t k = 0; peep && k < s.steps; ++k)
      for (int64_t b = 0; b < s.batch; ++b) {
        const int64_t row = time(d, k) * s.batch + b;
        const T* dg = read<T>(w.dgates, row * 4 * n, 4 * n, w.row_gates);
        const T *c = cells + row * n, *c_prev = cell_before(k, b);
        for (int64_t j = 0; j < n; ++j) {
          dp[j] += dg[j] * c_prev[j];
          dp[n + j] += dg[n + j] * c[j];
          dp[2 * n + j] += dg[2 * n + j] * c_prev[j];
        }
      }
  }
};

template <class T, bool kLibrary>
Kernel forward(const KernelQuery& q) {
  Forward<T> f;
  f.set(q, cell_spec(q.attrs, kDefaults));
  const Sizes& s = f.s;
  f.project =
      make_gemm<T>(q, kLibrary, {s.rows(), 4 * s.hidden, s.input, false, true, f.operands, true});
  f.recur = make_step<T, kLibrary>(q, s.batch, {4 * s.hidden, s.hidden, true}, f.operands);
  f.plain = !is_default(f.spec, q, 7);
  f.save_gates = q.has_out(3), f.save_cells = q.has_out(4);
  Cut cut;
  f.work(cut);
  return {cut.used, [f = std::move(f)](const KernelArgs& a) { f.run(a); }};
}

template <class T, bool kLibrary>
Kernel backward(const KernelQuery& q) {
  Backward<T> f;
  f.set(q, cell_spec(q.attrs, kDefaults));
  const Sizes& s = f.s;
  f.to_h = make_step<T, kLibrary>(q, s.batch, {s.hidden, 4 * s.hidden, false}, f.operands);
  f.to_x = make_gemm<T>(q, kLibrary, f.input_product(4 * s.hidden));
  f.to_w = make_gemm<T>(q, kLibrary, {4 * s.hidden, s.input, s.rows(), true, false, f.operands});
  f.to_r = make_gemm<T>(q, kLibrary, {4 * s.hidden, s.hidden, s.rows(), true, false, f.operands});
  f.plain = !is_default(f.spec, q, 13);
  Cut cut;
  f.work(cut);
  return {cut.used, [f = std::move(f)](const KernelArgs& a) { f.run(a); }};
}

template <bool kForward>
Kernel plain_loops(const KernelQuery& q) {
  if (q.in[0].dtype == DType::kF64)
    return kForward ? forward<double, false>(q) : backward<double, false>(q);
  return kForward ? forward<float, false>(q) : backward<float, false>(q);
}

Expr part(Grad& g, int output) {
  const auto optional = [&](int i) { return g.has_x(i) ? g.x(i) : Expr(); };
  const auto flow = [&](int i) { return g.has_dy(i) ? g.dy(i) : Expr(); };
  const Expr y = g.y(0), gates = g.y(3), cells = g.y(4);
  return g.b.ops("ortrain.LSTMGrad",
                 {g.x(0), g.x(1), g.x(2), optional(3), optional(4), optional(5), optional(6), y,
                  gates, cells, flow(0), flow(1), flow(2), optional(7)},
                 Attrs(g.attrs()), 7)[static_cast<size_t>(output)];
}

std::vector<Example> examples() {
  const std::string both = "bidirectional";
  using Names = std::vector<std::string>;
  using Reals = std::vector<double>;
  std::vector<Example> e{{.in = {f({3, 2, 4}), f({1, 12, 4}), f({1, 12, 3})}, .outputs = 3},
                         {.in = {f({4, 3, 2}), f({1, 8, 2}), f({1, 8, 2}), f({1, 16}), absent(),
                                 f({1, 3, 2}), f({1, 3, 2})},
                          .outputs = 3},
                         {.in = {f({4, 3, 2}), f({1, 8, 2}), f({1, 8, 2}), f({1, 16})},
                          .attrs = {{"direction", "reverse"}},
                          .outputs = 1},
                         {.in = {f({3, 2, 3}), f({2, 8, 3}), f({2, 8, 2}), f({2, 16}), absent(),
                                 f({2, 2, 2}), f({2, 2, 2})},
                          .attrs = {{"direction", both}},
                          .outputs = 3},
                         {.in = {f({4, 3, 2}), f({2, 8, 2}), f({2, 8, 2}), f({2, 16}),
                                 iconst({3}, {4, 1, 3}), f({2, 3, 2}), f({2, 3, 2})},
                          .attrs = {{"direction", both}},
                          .outputs = 3}};
  // Everything at once: lengths, both directions, peepholes, clip, batch first.
  const std::vector<ExampleInput> full{
      f({3, 4, 2}),           f({2, 8, 2}), f({2, 8, 2}), f({2, 16}),
      iconst({3}, {4, 1, 3}), f({3, 2, 2}), f({3, 2, 2}), f({2, 6})};
  e.push_back(
      {.in = full, .attrs = {{"direction", both}, {"layout", 1}, {"clip", 1.5}}, .outputs = 3});
  e.push_back({.in = full,
               .attrs = {{"direction", both},
                         {"layout", 1},
                         {"input_forget", 1},
                         {"activations", Names{"HardSigmoid", "Softsign", "Affine", "Sigmoid",
                                               "ScaledTanh", "Softplus"}},
                         {"activation_alpha", Reals{0.25, 0.7, 1.2}},
                         {"activation_beta", Reals{0.4, 0.1, 0.8}}},
               .outputs = 3});
  // Peepholes alone, forward and reverse; layout 1 alone: the fast rows behind the border.
  for (const char* way : {"forward", "reverse"})
    e.push_back({.in = {f({3, 2, 2}), f({1, 12, 2}), f({1, 12, 3}), absent(), absent(), absent(),
                        absent(), f({1, 9})},
                 .attrs = {{"direction", way}},
                 .outputs = 1});
  e.push_back(
      {.in = {f({2, 3, 4}), f({1, 12, 4}), f({1, 12, 3})}, .attrs = {{"layout", 1}}, .outputs = 3});
  // Enough samples for threads of their own (OwnRows), of unequal lengths.
  e.push_back({.in = {f({3, 9, 4}), f({2, 72, 4}), f({2, 72, 18}), f({2, 144}),
                      iconst({9}, {3, 1, 2, 3, 3, 0, 3, 2, 3})},
               .attrs = {{"direction", both}},
               .outputs = 3});
  e.push_back({.in = {f({0, 2, 4}), f({1, 12, 4}), f({1, 12, 3})}, .outputs = 3});
  return e;
}

}  // namespace

void register_lstm(OpTable& table) {
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
               grad("P", [](Grad& g) { return part(g, 6); })},
      .precision = Precision::kAlways16,
      .flops = recurrent_flops,
      .kernels = {{"cpu", "half", reject_half, bordered<kForwardSides, forward<float, true>, true>},
                  {"cpu", "onednn", reject_library, bordered<kForwardSides, forward<float, true>>},
                  {"cpu", "ref", nullptr, bordered<kForwardSides, plain_loops<true>>}},
      .examples = examples(),
      .note = "clip bounds every activation's input; activation_alpha and _beta go to the "
              "activations that take them, in order (ONNX Runtime)",
  });
  table.add({
      .name = "ortrain.LSTMGrad",
      .inputs = {"X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "Y", "gates",
                 "cells", "dY?", "dY_h?", "dY_c?", "P?"},
      .outputs = {"dX?", "dW?", "dR?", "dB?", "dinitial_h?", "dinitial_c?", "dP?"},
      .infer = infer_grad,
      .precision = Precision::kAlways16,
      .flops = recurrent_flops,
      .kernels = {{"cpu", "half", reject_half,
                   bordered<kBackwardSides, backward<float, true>, true>},
                  {"cpu", "onednn", reject_library,
                   bordered<kBackwardSides, backward<float, true>>},
                  {"cpu", "ref", nullptr, bordered<kBackwardSides, plain_loops<false>>}},
      .examples = {{.in = {f({3, 2, 4}), f({1, 12, 4}), f({1, 12, 3}), absent(), absent(), absent(),
                           absent(), f({3, 1, 2, 3}, -1, 1), f({1, 3, 2, 12}, 0, 1),
                           f({1, 3, 2, 3}, -1, 1), f({3, 1, 2, 3})},
                    .outputs = 6}},
  });
}

}  // namespace ortrain::ops
