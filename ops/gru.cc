// GRU and RNN, one layer in one or two directions, and their gradients (ONNX gate order z, r, h).
//
//   GRU: z = sig(xz + hz), r = sig(xr + hr), n = tanh(xn + r (hn + Rbn)); h' = n + z (h - n), with
//   x. = X W^T + Wb and h. = h R^T + Rb (linear_before_reset 1, PyTorch's form). With 0, hn is
//   (r h) R^T: a second product per step. RNN: h' = f(X W^T + h R^T + b).
// The input projection of all steps is one product. Saved for the gradient, as an extra output:
// GRU [z, r, n, last], last = hn + Rbn or, with linear_before_reset 0, r h; RNN h. Steps beyond a
// sequence's length pass h on and give Y = 0. Other activations and clip take a plain row; what is
// saved of z, r, n and h are then their activations' inputs. "half" and "onednn" run the products
// in the math library, of 16-bit floats or f32, "ref" in plain loops.
#include "graph/error.h"
#include "ops/common/gru_rows.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

constexpr Side kW = Side::kWeight, kSeq = Side::kSequence, kSteps = Side::kSteps,
               kState = Side::kState, kIn = Side::kInternal;
constexpr Sides kForwardSides{{kSeq, kW, kW, kW, kIn, kState}, {kSteps, kState, kIn}};
constexpr Sides kBackwardSides{{kSeq, kW, kW, kW, kIn, kState, kSteps, kIn, kSteps, kState},
                               {kSeq, kW, kW, kW, kState}};

bool is_gru(std::string_view op) { return op.find("GRU") != std::string_view::npos; }

CellSpec spec_of(std::string_view op, const Attrs& attrs) {
  return is_gru(op) ? cell_spec(attrs, {Act::kSigmoid, Act::kTanh})
                    : cell_spec(attrs, {Act::kTanh});
}

Cell cell_of(std::string_view op, const Attrs& attrs, const CellSpec& spec, int64_t d) {
  const bool clipped = !std::isinf(spec.clip);
  if (is_gru(op)) {
    const bool any = clipped || !spec.is(d, {Act::kSigmoid, Act::kTanh});
    if (attrs.i("linear_before_reset", 0)) return any ? Cell::kAnyAfter : Cell::kGruAfter;
    return any ? Cell::kAnyBefore : Cell::kGruBefore;
  }
  if (clipped) return Cell::kAnyRnn;
  if (spec.is(d, {Act::kTanh})) return Cell::kTanh;
  if (spec.is(d, {Act::kRelu})) return Cell::kRelu;
  return spec.is(d, {Act::kSigmoid}) ? Cell::kSigmoid : Cell::kAnyRnn;
}

// X [T,B,I], W [D,GH,I], R [D,GH,H], B [D,2GH], sequence_lens [B], initial_h [D,B,H]
template <int kGates, int kSaved>
void infer(InferCtx& c) {
  spec_of(c.node().op->name, c.attrs());
  const Extents e = infer_recurrent(c, kGates);
  c.out(2, saved_dtype(c.dtype(0)), {e.directions, e.steps, e.batch, e.hidden * kSaved});
}

// X, W, R, B?, sequence_lens?, initial_h?, Y, saved, dY?, dY_h? -> dX, dW, dR, dB, dinitial_h
void infer_grad(InferCtx& c) {
  const Shape &w = c.shape(1), &r = c.shape(2);
  const bool batch_first = c.attrs().i("layout", 0) != 0;
  const Dim batch = c.shape(0)[batch_first ? 0 : 1];
  for (int i = 0; i < 3; ++i) c.out(i, c.dtype(0), c.shape(i));
  c.out(3, c.dtype(0), {w[0], w[1] * 2});
  c.out(4, c.dtype(0), batch_first ? Shape{batch, r[0], r[2]} : Shape{r[0], batch, r[2]});
}

// --- vectorised rows ----------------------------------------------------------------------
ORTRAIN_SIMD void forward_row_f32(Cell cell, bool second, const float* gx, const float* gh,
                                  const float* bias, float* h, float* saved, int64_t n) {
  forward_row(cell, second, gx, gh, bias, h, saved, n);
}
ORTRAIN_SIMD void backward_row_f32(Cell cell, bool second, const float* saved, const float* h_prev,
                                   const float* flow, float* dh, float* dgx, float* dgh,
                                   int64_t n) {
  backward_row(cell, second, saved, h_prev, flow, dh, dgx, dgh, n);
}

// --- the whole pass -----------------------------------------------------------------------------
struct Layer : Net {
  Cell cells[2] = {Cell::kTanh, Cell::kTanh};  // per direction
  int64_t gates = 1, saved = 1;
  bool before = false;  // linear_before_reset 0
};

Layer layer_of(const KernelQuery& q) {
  Layer n;
  n.set(q, spec_of(q.op, q.attrs));
  for (int64_t d = 0; d < 2; ++d)
    n.cells[d] = cell_of(q.op, q.attrs, n.spec, std::min(d, n.s.directions - 1));
  n.gates = is_gru(q.op) ? 3 : 1;
  n.saved = is_gru(q.op) ? 4 : 1;
  n.before = is_gru(q.op) && !q.attrs.i("linear_before_reset", 0);
  return n;
}

template <class T>
struct Forward : Layer {
  Gemm project;
  PackedGemm recur, recur_n;  // all gates, or with `before` z and r; n
  bool keep = false;

  int64_t zeros() const { return std::max<int64_t>(s.batch, 2 * gates) * s.hidden; }
  struct Work {
    T *gx, *saved, *gh, *gn, *rh, *h, *zero;
    void *left, *left_n;  // h and r h as the step's products take them
    std::byte *packed, *packed_n, *scratch;
  };
  Work work(Cut& cut) const {
    const int64_t plane = s.batch * s.hidden;
    Work w{};
    w.gx = cut.take<T>(s.rows() * gates * s.hidden);
    w.saved = cut.take<T>(keep ? 0 : plane * saved);  // of one step
    w.gh = cut.take<T>(plane * gates);
    w.gn = cut.take<T>(before ? plane : 0);
    w.rh = cut.take<T>(before ? plane : 0);
    w.h = cut.take<T>(plane);
    w.zero = cut.take<T>(zeros());
    w.left = half() ? cut.take<std::byte>(plane * item) : static_cast<void*>(w.h);
    w.left_n = half() && before ? cut.take<std::byte>(plane * item) : static_cast<void*>(w.rh);
    w.packed = cut.take<std::byte>(recur.bytes);
    w.packed_n = cut.take<std::byte>(recur_n.bytes);
    w.scratch = cut.take<std::byte>(static_cast<int64_t>(
        std::max({project.kernel.workspace, recur.workspace(), recur_n.workspace()})));
    return w;
  }

  void row(int64_t d, bool second, const T* gx, const T* gh, const T* bias, T* h, T* save) const {
    const Cell cell = cells[d];
    if (cell >= Cell::kAnyAfter)
      forward_row_any<T>(spec, d, cell, second, gx, gh, bias, h, save, s.hidden);
    else if constexpr (std::is_same_v<T, float>)
      forward_row_f32(cell, second, gx, gh, bias, h, save, s.hidden);
    else
      forward_row<T>(cell, second, gx, gh, bias, h, save, s.hidden);
  }

  void run(const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    const Work w = work(cut);
    const int64_t n = s.hidden, width = gates * n, kept = saved * n;
    std::fill_n(w.zero, zeros(), T(0));
    for (int64_t d = 0; d < s.directions; ++d) {
      const T* bias = a.in[3] ? a.x<T>(3) + d * 2 * width : w.zero;
      const void* r = at(a.in[2], d * width * n);
      const int64_t wide = before ? 2 * n : width;  // of gh
      std::copy_n(a.in[5] ? a.x<T>(5) + d * plane() : w.zero, plane(), w.h);
      settle(w.h, w.left, 0, plane());
      project(a.in[0], at(a.in[1], d * width * s.input), w.gx, a, w.scratch);
      recur.prepare(r, w.packed, a, w.scratch);
      if (before) recur_n.prepare(at(r, 2 * n * n), w.packed_n, a, w.scratch);
      for (int64_t k = 0; k < s.steps; ++k) {
        const int64_t t = time(d, k);
        const T* gx = w.gx + t * s.batch * width;
        T* save = keep ? a.y<T>(2) + (d * s.steps + t) * s.batch * kept : w.saved;
        const auto finish = [&](int64_t b, bool second, const T* gh) {
          T* h = w.h + b * n;
          T* y = row_of(a.y<T>(0), d, t, b);
          if (!valid(a, t, b)) {
            if (y) std::fill_n(y, n, T(0));
            if (keep) std::fill_n(save + b * kept, kept, T(0));
            return;
          }
          row(d, second, gx + b * width, gh, bias, h, save + b * kept);
          settle(h, w.left, b * n, n);
          if (y) std::copy_n(h, n, y);
        };
        recur(w.left, w.packed, w.gh, a, w.scratch);
        if (!before) {
          samples([&](int64_t b) { finish(b, false, w.gh + b * wide); });
          continue;
        }
        samples([&](int64_t b) {
          row(d, false, gx + b * width, w.gh + b * wide, bias, w.h + b * n, save + b * kept);
          std::copy_n(save + b * kept + 3 * n, n, w.rh + b * n);
          settle(w.rh + b * n, w.left_n, b * n, n);
        });
        recur_n(w.left_n, w.packed_n, w.gn, a, w.scratch);
        samples([&](int64_t b) { finish(b, true, w.gn + b * n); });
      }
      if (a.out[1]) std::copy_n(w.h, plane(), a.y<T>(1) + d * plane());
    }
  }
};

template <class T>
struct Backward : Layer {
  PackedGemm to_h, to_rh;         // through R (with `before`: its z and r part; its n part)
  Gemm to_x, to_w, to_r, to_r_n;  // to_r_n: with `before`, the n part of dR

  struct Work {
    void *dgx, *dgh, *dn, *h_prev, *rh;            // operands of products
    T *row_x, *row_h, *row_n, *row_prev, *row_rh;  // of a sample's step, before rounding
    T *dh, *flow, *dx, *zero;
    std::byte *packed, *packed_n, *scratch;
  };
  struct Rows {  // of one sample's step
    T *dgx, *dgh, *dn, *h_prev, *rh;
  };
  int64_t hidden_gates() const { return before ? 2 : gates; }  // of dgh
  Work work(Cut& cut) const {
    const int64_t plane = s.batch * s.hidden, all = s.rows() * s.hidden;
    Work w{};
    const auto take = [&](void*& operand, T*& row, int64_t width) {
      operand = cut.take<std::byte>(all * width * item);
      row = cut.take<T>(half() ? plane * width : 0);
    };
    take(w.dgx, w.row_x, gates);
    take(w.dgh, w.row_h, hidden_gates());
    take(w.dn, w.row_n, before ? 1 : 0);
    take(w.h_prev, w.row_prev, 1);
    take(w.rh, w.row_rh, before ? 1 : 0);
    w.dh = cut.take<T>(plane);
    w.flow = cut.take<T>(plane);
    w.dx = cut.take<T>(input_gradient_room());
    w.zero = cut.take<T>(plane);
    w.packed = cut.take<std::byte>(to_h.bytes);
    w.packed_n = cut.take<std::byte>(to_rh.bytes);
    size_t most = std::max(to_h.workspace(), to_rh.workspace());
    for (const Gemm* g : {&to_x, &to_w, &to_r, &to_r_n}) most = std::max(most, g->kernel.workspace);
    w.scratch = cut.take<std::byte>(static_cast<int64_t>(most));
    return w;
  }

  void row(int64_t d, bool second, const T* save, const T* h_prev, const T* flow, T* dh, T* dgx,
           T* dgh) const {
    const Cell cell = cells[d];
    if (cell >= Cell::kAnyAfter)
      backward_row_any<T>(spec, d, cell, second, save, h_prev, flow, dh, dgx, dgh, s.hidden);
    else if constexpr (std::is_same_v<T, float>)
      backward_row_f32(cell, second, save, h_prev, flow, dh, dgx, dgh, s.hidden);
    else
      backward_row<T>(cell, second, save, h_prev, flow, dh, dgx, dgh, s.hidden);
  }

  void run(const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    const Work w = work(cut);
    std::fill_n(w.zero, s.batch * s.hidden, T(0));
    for (int64_t d = 0; d < s.directions; ++d) {
      steps_back(a, w, d);
      results(a, w, d);
    }
  }

  void steps_back(const KernelArgs& a, const Work& w, int64_t d) const {
    const int64_t n = s.hidden, width = gates * n, kept = saved * n;
    const int64_t wide = hidden_gates() * n;
    const void* r = at(a.in[2], d * width * n);
    const T* first_h = a.in[5] ? a.x<T>(5) + d * plane() : w.zero;
    std::copy_n(a.in[9] ? a.x<T>(9) + d * plane() : w.zero, plane(), w.dh);
    to_h.prepare(r, w.packed, a, w.scratch);
    if (before) to_rh.prepare(at(r, 2 * n * n), w.packed_n, a, w.scratch);
    for (int64_t k = s.steps - 1; k >= 0; --k) {
      const int64_t t = time(d, k), first = t * s.batch;
      const T* save = a.x<T>(7) + (d * s.steps * s.batch + first) * kept;
      const auto rows_of = [&](int64_t b) {
        const int64_t i = first + b;
        return Rows{stage(w.dgx, i * width, w.row_x + b * width),
                    stage(w.dgh, i * wide, w.row_h + b * wide), stage(w.dn, i * n, w.row_n + b * n),
                    stage(w.h_prev, i * n, w.row_prev + b * n),
                    stage(w.rh, i * n, w.row_rh + b * n)};
      };
      const auto settle_gates = [&](const Rows& o, int64_t b) {
        settle(o.dgx, w.dgx, (first + b) * width, width);
        settle(o.dgh, w.dgh, (first + b) * wide, wide);
      };
      samples([&](int64_t b) {
        const Rows o = rows_of(b);
        T* dh = w.dh + b * n;
        const bool in = enter(a, a.x<T>(6), a.x<T>(8), first_h, d, k, b, o.h_prev, dh);
        if (in) {
          row(d, false, save + b * kept, o.h_prev, nullptr, dh, o.dgx, o.dgh);
        } else {
          std::fill_n(o.dgx, width, T(0));
          std::fill_n(o.dgh, wide, T(0));
        }
        settle(o.h_prev, w.h_prev, (first + b) * n, n);
        if (!in || !before) settle_gates(o, b);
        if (!before) return;
        std::copy_n(o.dgx + 2 * n, n, o.dn);
        if (in)
          std::copy_n(save + b * kept + 3 * n, n, o.rh);
        else
          std::fill_n(o.rh, n, T(0));
        settle(o.dn, w.dn, (first + b) * n, n);
        settle(o.rh, w.rh, (first + b) * n, n);
      });
      if (before) {
        to_rh(at(w.dn, first * n), w.packed_n, w.flow, a, w.scratch);
        samples([&](int64_t b) {
          if (!valid(a, t, b)) return;
          const Rows o = rows_of(b);
          row(d, true, save + b * kept, o.h_prev, w.flow + b * n, w.dh + b * n, o.dgx, nullptr);
          std::copy_n(o.dgx, 2 * n, o.dgh);
          settle_gates(o, b);
        });
      }
      to_h(at(w.dgh, first * wide), w.packed, w.flow, a, w.scratch);
      samples([&](int64_t b) {
        if (!valid(a, t, b)) return;
        for (int64_t j = 0; j < n; ++j) w.dh[b * n + j] += w.flow[b * n + j];
      });
    }
  }

  void results(const KernelArgs& a, const Work& w, int64_t d) const {
    const int64_t n = s.hidden, width = gates * n, wide = hidden_gates() * n;
    if (a.out[4]) std::copy_n(w.dh, plane(), a.y<T>(4) + d * plane());
    input_gradient(a, to_x, w.dgx, at(a.in[1], d * width * s.input), d, w.dx, w.scratch);
    if (a.out[1]) to_w(w.dgx, a.in[0], at(a.out[1], d * width * s.input), a, w.scratch);
    if (a.out[2]) {
      void* dr = at(a.out[2], d * width * n);
      to_r(w.dgh, w.h_prev, dr, a, w.scratch);
      if (before) to_r_n(w.dn, w.rh, at(dr, 2 * n * n), a, w.scratch);
    }
    if (!a.out[3]) return;
    T *wb = a.y<T>(3) + d * 2 * width, *rb = wb + width;
    column_sums(w.dgx, width, wb);
    column_sums(w.dgh, wide, rb);
    if (before) column_sums(w.dn, n, rb + 2 * n);
  }
};

template <class T, bool kLibrary>
Kernel forward(const KernelQuery& q) {
  Forward<T> f{layer_of(q)};
  const Sizes& s = f.s;
  const int64_t n = s.hidden;
  const DType type = f.operands;
  f.project = make_gemm<T>(q, kLibrary, {s.rows(), f.gates * n, s.input, false, true, type, true});
  f.recur =
      make_packed<T>(q, kLibrary, {s.batch, f.before ? 2 * n : f.gates * n, n, false, true, type});
  if (f.before) f.recur_n = make_packed<T>(q, kLibrary, {s.batch, n, n, false, true, type});
  f.keep = q.has_out(2);
  Cut cut;
  f.work(cut);
  return {cut.used, [f = std::move(f)](const KernelArgs& a) { f.run(a); }};
}

template <class T, bool kLibrary>
Kernel backward(const KernelQuery& q) {
  Backward<T> f{layer_of(q)};
  const Sizes& s = f.s;
  const int64_t n = s.hidden, width = f.gates * n, wide = f.hidden_gates() * n;
  const DType type = f.operands;
  f.to_h = make_packed<T>(q, kLibrary, {s.batch, n, wide, false, false, type});
  if (f.before) f.to_rh = make_packed<T>(q, kLibrary, {s.batch, n, n, false, false, type});
  f.to_x = make_gemm<T>(q, kLibrary, f.input_product(width));
  f.to_w = make_gemm<T>(q, kLibrary, {width, s.input, s.rows(), true, false, type});
  f.to_r = make_gemm<T>(q, kLibrary, {wide, n, s.rows(), true, false, type});
  if (f.before) f.to_r_n = make_gemm<T>(q, kLibrary, {n, n, s.rows(), true, false, type});
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
  const std::string name = "ortrain." + g.node().op->name + "Grad";
  const Expr y = g.y(0), saved = g.y(2);
  return g.b.ops(
      name,
      {g.x(0), g.x(1), g.x(2), optional(3), optional(4), optional(5), y, saved, flow(0), flow(1)},
      Attrs(g.attrs()), 5)[static_cast<size_t>(output)];
}

// Both ops and their gradients, G gates and S saved widths per unit.
template <int kGates, int kSaved>
void add(OpTable& table, const std::string& name, std::vector<Example> examples,
         std::vector<Example> grad_examples, std::string note) {
  const std::vector<KernelEntry> run{
      {"cpu", "half", reject_half, bordered<kForwardSides, forward<float, true>, true>},
      {"cpu", "onednn", reject_library, bordered<kForwardSides, forward<float, true>>},
      {"cpu", "ref", nullptr, bordered<kForwardSides, plain_loops<true>>}};
  const std::vector<KernelEntry> back{
      {"cpu", "half", reject_half, bordered<kBackwardSides, backward<float, true>, true>},
      {"cpu", "onednn", reject_library, bordered<kBackwardSides, backward<float, true>>},
      {"cpu", "ref", nullptr, bordered<kBackwardSides, plain_loops<false>>}};
  table.add({
      .name = name,
      .inputs = {"X", "W", "R", "B?", "sequence_lens?", "initial_h?"},
      .outputs = {"Y?", "Y_h?", "saved?"},
      .since = 7,
      .infer = infer<kGates, kSaved>,
      .grad = {grad("X", [](Grad& g) { return part(g, 0); }),
               grad("W", [](Grad& g) { return part(g, 1); }),
               grad("R", [](Grad& g) { return part(g, 2); }),
               grad("B", [](Grad& g) { return part(g, 3); }), no_grad("sequence_lens"),
               grad("initial_h", [](Grad& g) { return part(g, 4); })},
      .precision = Precision::kAlways16,
      .flops = recurrent_flops,
      .kernels = run,
      .examples = std::move(examples),
      .note = std::move(note),
  });
  table.add({
      .name = "ortrain." + name + "Grad",
      .inputs = {"X", "W", "R", "B?", "sequence_lens?", "initial_h?", "Y", "saved", "dY?", "dY_h?"},
      .outputs = {"dX?", "dW?", "dR?", "dB?", "dinitial_h?"},
      .infer = infer_grad,
      .precision = Precision::kAlways16,
      .flops = recurrent_flops,
      .kernels = back,
      .examples = std::move(grad_examples),
  });
}

std::vector<Example> uses(int64_t gates, const Attrs& base) {
  const int64_t one = gates * 3;
  const auto with = [&](Attrs more) {
    Attrs a = base;
    for (const auto& [name, value] : more.items()) a.set(name, value);
    return a;
  };
  const auto full = [&](int64_t first, int64_t second, const ExampleInput& start) {
    return std::vector<ExampleInput>{f({first, second, 2}), f({2, one, 2}),         f({2, one, 3}),
                                     f({2, 2 * one}),       iconst({3}, {4, 1, 3}), start};
  };
  std::vector<std::string> names{"Sigmoid", "Softsign", "HardSigmoid", "Elu"};
  if (gates == 1) names = {"ScaledTanh", "LeakyRelu"};
  return {{.in = {f({3, 2, 4}), f({1, one, 4}), f({1, one, 3})}, .attrs = base, .outputs = 2},
          {.in = {f({4, 3, 2}), f({1, one, 2}), f({1, one, 3}), f({1, 2 * one}), absent(),
                  f({1, 3, 3})},
           .attrs = with({{"direction", "reverse"}}),
           .outputs = 2},
          {.in = full(4, 3, f({2, 3, 3})),
           .attrs = with({{"direction", "bidirectional"}}),
           .outputs = 2},
          {.in = full(3, 4, f({3, 2, 3})),
           .attrs = with({{"direction", "bidirectional"}, {"layout", 1}, {"clip", 1.25}}),
           .outputs = 2},
          {.in = full(3, 4, f({3, 2, 3})),
           .attrs = with({{"direction", "bidirectional"},
                          {"layout", 1},
                          {"activations", names},
                          {"activation_alpha", std::vector<double>{0.3, 0.8}},
                          {"activation_beta", std::vector<double>{0.6}}}),
           .outputs = 2},
          {.in = {f({2, 3, 4}), f({1, one, 4}), f({1, one, 3})},
           .attrs = with({{"layout", 1}}),
           .outputs = 2},
          {.in = {f({0, 2, 4}), f({1, one, 4}), f({1, one, 3})}, .attrs = base, .outputs = 2}};
}
Example gradient(int64_t gates, int64_t saved, const Attrs& attrs) {
  return {.in = {f({3, 2, 4}), f({1, gates * 3, 4}), f({1, gates * 3, 3}), absent(), absent(),
                 absent(), f({3, 1, 2, 3}, -1, 1), f({1, 3, 2, saved * 3}, 0, 1), f({3, 1, 2, 3})},
          .attrs = attrs,
          .outputs = 5};
}
const char* const kNote =
    "clip bounds every activation's input; activation_alpha and _beta go to the activations that "
    "take them, in order (ONNX Runtime)";

}  // namespace

void register_gru(OpTable& table) {
  const Attrs after{{"linear_before_reset", int64_t{1}}}, before;
  std::vector<Example> gru = uses(3, after);
  for (Example& e : uses(3, before)) gru.push_back(std::move(e));
  add<3, 4>(table, "GRU", std::move(gru), {gradient(3, 4, after), gradient(3, 4, before)}, kNote);
  std::vector<Example> rnn = uses(1, {});
  const auto simple = [&](const char* name, double low) {
    rnn.push_back({.in = {f({3, 2, 4}), f({1, 3, 4}, low, 1), f({1, 3, 3}, low, 1)},
                   .attrs = {{"activations", std::vector<std::string>{name}}},
                   .outputs = 1});
  };
  simple("Relu", 0.1);
  for (const char* name : {"Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
                           "HardSigmoid", "Elu", "Softsign", "Softplus", "softplus"})
    simple(name, -1);
  add<1, 1>(table, "RNN", std::move(rnn), {gradient(1, 1, {})}, kNote);
}

}  // namespace ortrain::ops
