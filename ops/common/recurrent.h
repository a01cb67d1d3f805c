// What recurrent operators share: extents, the activations of ONNX, products on any pointers (of
// the math library or plain loops), sequence lengths, what a step does before and after its cell,
// and a workspace cut into pieces.
//
// Kernels work in [T,B,..] and f32 or f64; at_border() gives them that from layout 1 and from
// 16-bit floats. Where native_half() says so ("half" kernels) products take 16-bit operands as they
// are: X, W and R, and rows of h and of gate gradients rounded as they are made. Sums, cells,
// states and everything else stay f32.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "graph/half.h"
#include "graph/op_def.h"
#include "ops/common/half_units.h"
#include "ops/common/matrix_product.h"
#include "ops/common/packed_product.h"
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

inline Sizes sizes_of(const KernelQuery& q) {  // layout 0
  const Dims &x = q.in[0].dims, &r = q.in[2].dims;
  return {x[0], x[1], x[2], r[2], r[0], direction(q.attrs) == "reverse"};
}

// --- activations
// ------------------------------------------------------------------------------------------
enum class Act : uint8_t {
  kTanh,
  kSigmoid,
  kRelu,
  kAffine,
  kLeakyRelu,
  kThresholdedRelu,
  kScaledTanh,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus
};
struct Activation {
  Act f = Act::kTanh;
  double alpha = 0, beta = 0;
};

// What a layer's attributes say about its cells.
struct CellSpec {
  std::array<std::array<Activation, 3>, 2> act = {};  // per direction
  double clip = std::numeric_limits<double>::infinity();
  bool couple = false;  // LSTM's input_forget: f = 1 - i
  bool is(int64_t d, std::initializer_list<Act> wanted) const {
    return std::equal(wanted.begin(), wanted.end(), act[static_cast<size_t>(d)].begin(),
                      [](Act a, const Activation& b) { return a == b.f; });
  }
};
// `defaults`: the activations of one direction. activation_alpha and _beta are consumed in order by
// the activations that have such a parameter (as ONNX Runtime does). Throws Error(kUnsupported) for
// an unknown name or a wrong number of names.
CellSpec cell_spec(const Attrs& attrs, std::initializer_list<Act> defaults);

// Value and slope of an activation at a clipped input; at the corners PyTorch's slopes (Relu 0 at
// 0, clamp 1 at its bounds).
template <class T>
struct Slope {
  T v, d;
};
template <class T>
Slope<T> apply(const Activation& a, double limit, T x) {
  const T clip = static_cast<T>(limit), al = static_cast<T>(a.alpha), be = static_cast<T>(a.beta);
  const T inside = x < -clip || x > clip ? T(0) : T(1);
  x = x < -clip ? -clip : x > clip ? clip : x;
  T v = 0, d = 0;
  switch (a.f) {
    case Act::kTanh: v = std::tanh(x), d = 1 - v * v; break;
    case Act::kSigmoid: v = 1 / (1 + std::exp(-x)), d = v * (1 - v); break;
    case Act::kRelu: v = x > 0 ? x : T(0), d = x > 0 ? T(1) : T(0); break;
    case Act::kAffine: v = al * x + be, d = al; break;
    case Act::kLeakyRelu: d = x > 0 ? T(1) : al, v = d * x; break;
    case Act::kThresholdedRelu: d = x > al ? T(1) : T(0), v = x > al ? x : T(0); break;
    case Act::kScaledTanh: v = std::tanh(be * x), d = al * be * (1 - v * v), v *= al; break;
    case Act::kHardSigmoid:
      v = al * x + be, d = v > 0 && v < 1 ? al : T(0);
      v = v < 0 ? T(0) : v > 1 ? T(1) : v;
      break;
    case Act::kElu: v = x > 0 ? x : al * std::expm1(x), d = x > 0 ? T(1) : al * std::exp(x); break;
    case Act::kSoftsign: d = 1 / (1 + std::abs(x)), v = x * d, d *= d; break;
    case Act::kSoftplus:
      v = (x > 0 ? x : T(0)) + std::log1p(std::exp(-std::abs(x))), d = 1 / (1 + std::exp(-x));
      break;
  }
  return {v, d * inside};
}

// A product: c = op(a) op(b), in p.dtype for the library.
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
    add_product(program, p, onednn::in(0, {}), onednn::in(1, {}), onednn::out(0, {}));
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

// c is f32.
template <class T>
PackedGemm make_packed(const KernelQuery& q, bool library, Product p) {
  if (library) {
    const onednn::Md src = onednn::dense({p.m, p.k}, p.dtype), dst = onednn::dense({p.m, p.n});
    const onednn::Md plain = onednn::matrix(p.n, p.k, !p.trans_b, p.dtype);
    const onednn::Primitive ip =
        onednn::inner_product(src, onednn::any({p.n, p.k}, p.dtype), onednn::Md(), dst);
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

// The product of one step where threads keep their own samples through all steps and never wait for
// one another: each reads the whole packed right side.
struct OwnRows {
  PackedSizes s;
  int threads = 1;

  // Wins while the right side stays in a core's second-level cache and a thread's samples use it
  // often enough (figures: docs/performance.md).
  static bool worth(const KernelQuery& q, const PackedSizes& s, int64_t batch) {
    constexpr size_t kBytes = 5 << 19;
    constexpr int64_t kRows = 4;
    return packed_product_available(s.bf16) && q.threads > 0 && s.n * s.k > 0 &&
           batch >= kRows * q.threads && packed_right_bytes(s) <= kBytes;
  }
  size_t bytes() const { return packed_right_bytes(s); }
  size_t workspace(int64_t batch) const { return packed_workspace(s, batch); }
  void prepare(const void* b, void* packed) const {
    parallel_for(threads, packed_panels(s), 1,
                 [&](int64_t first, int64_t last) { pack_right(s, b, first, last, packed); });
  }
  // Samples [begin, end) of a and c.
  void operator()(int64_t begin, int64_t end, const void* a, const void* packed, float* c,
                  void* workspace) const {
    const int64_t first = begin * s.k * (s.bf16 ? 2 : 4);
    multiply_packed(s, end - begin, static_cast<const std::byte*>(a) + first, packed,
                    c + begin * s.n,
                    static_cast<std::byte*>(workspace) + packed_workspace(s, begin));
  }
};

// The product of one step: of all samples at once, or by threads with rows of their own.
struct StepProduct {
  PackedGemm whole;
  std::optional<OwnRows> own;  // instead of whole
  int64_t bytes() const { return own ? static_cast<int64_t>(own->bytes()) : whole.bytes; }
  size_t workspace(int64_t batch) const { return own ? own->workspace(batch) : whole.workspace(); }
};
// Operands are f32, f64 for plain loops in it, or of the 16-bit type `operands`.
template <class T, bool kLibrary>
StepProduct make_step(const KernelQuery& q, int64_t batch, PackedSizes right,
                      DType operands = DType::kF32) {
  right.bf16 = operands == DType::kBF16;
  if (kLibrary && operands != DType::kF16 && OwnRows::worth(q, right, batch))
    return {{}, OwnRows{right, q.threads}};
  return {make_packed<T>(q, kLibrary, {batch, right.n, right.k, false, right.trans_b, operands}),
          {}};
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

// --- what the drivers of all cells share
// ------------------------------------------------------------------
// Inputs 0 to 5 are X, W, R, B?, sequence_lens?, initial_h?; Y is [T,D,B,H], states are [D,B,H].
struct Net {
  Sizes s;
  CellSpec spec;
  bool wide_lens = false;  // i64, else i32
  int threads = 1;
  DType operands = DType::kF32;  // of products: 16-bit floats, or as the kernel computes
  int64_t item = 4;              // their bytes

  void set(const KernelQuery& q, CellSpec cells) {
    s = sizes_of(q);
    spec = std::move(cells);
    wide_lens = q.has_in(4) && q.in[4].dtype == DType::kI64;
    threads = q.threads;
    operands = is_half(q.in[0].dtype) ? q.in[0].dtype : DType::kF32;
    item = static_cast<int64_t>(size_of(q.in[0].dtype));
  }
  bool half() const { return is_half(operands); }
  // Numbers from `i` on of an array of operands.
  const void* at(const void* p, int64_t i) const {
    return static_cast<const std::byte*>(p) + i * item;
  }
  void* at(void* p, int64_t i) const { return static_cast<std::byte*>(p) + i * item; }
  // Where to compute n numbers that belong at `i` of an array of operands, and then `settle` them
  // there: in place, or in `staged` and rounded.
  template <class T>
  T* stage(void* all, int64_t i, T* staged) const {
    return half() ? staged : static_cast<T*>(all) + i;
  }
  template <class T>
  void settle(const T* from, void* all, int64_t i, int64_t n) const {
    if constexpr (std::is_same_v<T, float>)
      if (half()) float_to_half(operands, from, at(all, i), n);
  }
  // n operands from `i` on in T: themselves, or widened into `row`.
  template <class T>
  const T* read(const void* all, int64_t i, int64_t n, T* row) const {
    if constexpr (std::is_same_v<T, float>)
      if (half()) {
        half_to_float(operands, static_cast<const uint16_t*>(at(all, i)), row, n);
        return row;
      }
    return static_cast<const T*>(all) + i;
  }
  int64_t plane() const { return s.batch * s.hidden; }
  // body(b) for every sample, in parallel.
  template <class Body>
  void samples(Body&& body) const {
    parallel_for(threads, s.batch, std::max<int64_t>(1, 2048 / std::max<int64_t>(1, s.hidden)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t b = begin; b < end; ++b) body(b);
                 });
  }
  int64_t length(const KernelArgs& a, int64_t b) const {
    if (!a.in[4]) return s.steps;
    const int64_t n = wide_lens ? a.x<int64_t>(4)[b] : a.x<int32_t>(4)[b];
    if (n < 0 || n > s.steps) a.fault->report(b, n, 0, s.steps + 1);
    return std::clamp<int64_t>(n, 0, s.steps);
  }
  bool valid(const KernelArgs& a, int64_t t, int64_t b) const { return t < length(a, b); }
  // Where step number k of direction d is in time, and the step before it.
  int64_t time(int64_t d, int64_t k) const { return s.reversed(d) ? s.steps - 1 - k : k; }
  int64_t earlier(int64_t d, int64_t t) const { return s.reversed(d) ? t + 1 : t - 1; }
  // Row b of Y (or dY) at time t.
  template <class T>
  T* row_of(T* y, int64_t d, int64_t t, int64_t b) const {
    return y ? y + ((t * s.directions + d) * s.batch + b) * s.hidden : nullptr;
  }
  // Backward, sample b of step k, before its cell: h_prev is written, dY added to dh. False beyond
  // the sequence's end.
  template <class T>
  bool enter(const KernelArgs& a, const T* y, const T* dy, const T* first_h, int64_t d, int64_t k,
             int64_t b, T* h_prev, T* dh) const {
    const int64_t t = time(d, k), before = earlier(d, t), n = s.hidden, steps = length(a, b);
    if (t >= steps) {
      std::fill_n(h_prev, n, T(0));
      return false;
    }
    const bool has_before = k > 0 && before < steps;
    std::copy_n(has_before ? row_of(y, d, before, b) : first_h + b * n, n, h_prev);
    if (const T* flow = row_of(dy, d, t, b))
      for (int64_t j = 0; j < n; ++j) dh[j] += flow[j];
    return true;
  }
  // dX [T,B,I] of direction d from operands dgates [T,B,width] and W; directions add up in T. more:
  // as many numbers as input_gradient_room().
  int64_t input_gradient_room() const {
    return s.directions > 1 ? s.rows() * s.input * (half() ? 2 : 1) : 0;
  }
  Product input_product(int64_t width) const {
    return {s.rows(), s.input, width, false, false, operands, s.directions > 1};
  }
  template <class T>
  void input_gradient(const KernelArgs& a, const Gemm& to_x, const void* dgates, const void* w,
                      int64_t d, T* more, void* scratch) const {
    if (!a.out[0]) return;
    const int64_t count = s.rows() * s.input;
    const bool apart = half() && s.directions > 1;  // the first direction's, not in dX
    T* first = apart ? more + count : static_cast<T*>(a.out[0]);
    to_x(dgates, w, d == 0 ? first : more, a, scratch);
    if (d == 0) return;
    parallel_for(threads, count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) first[i] += more[i];
      settle(first + begin, a.out[0], begin, end - begin);
    });
  }
  // sums[j] = sum over all rows of operands x[row, j], j < width.
  template <class T>
  void column_sums(const void* x, int64_t width, T* sums) const {
    constexpr int64_t kTile = 256;
    parallel_for(threads, width, kTile, [&](int64_t first, int64_t last) {
      std::array<T, kTile> widened;
      for (int64_t begin = first; begin < last; begin += kTile) {
        const int64_t n = std::min(kTile, last - begin);
        std::fill_n(sums + begin, n, T(0));
        for (int64_t row = 0; row < s.rows(); ++row) {
          const T* from = read<T>(x, row * width + begin, n, widened.data());
          for (int64_t j = 0; j < n; ++j) sums[begin + j] += from[j];
        }
      }
    });
  }
};

// Checks X, W, R, B, sequence_lens, initial_h (inputs 0 to 5), `gates` per unit; gives the outputs
// Y and Y_h.
struct Extents {
  Dim directions, steps, batch, hidden;
};
Extents infer_recurrent(InferCtx& c, int64_t gates);
// State [D,B,H], in the node's layout; the dtype in which values are saved for the gradient.
Shape state_shape(const InferCtx& c, const Extents& e);
DType saved_dtype(DType dtype);
void expect_shape(InferCtx& c, int i, const Shape& s, const char* name);

// Multiply and add count 2, of the products of forward; twice that in a gradient.
double recurrent_flops(const Graph& g, const Node& n);

// How an array lies in layout 0, and in layout 1.
enum class Side : uint8_t {
  kWeight,    // no time or batch in it
  kSequence,  // [T,B,I], [B,T,I]
  kSteps,     // [T,D,B,H], [B,T,D,H]
  kState,     // [D,B,H], [B,D,H]
  kInternal   // lengths and what is saved for the gradient: neither moved nor converted
};
struct Sides {
  std::array<Side, 14> in;
  std::array<Side, 7> out;
};
// A kernel for layout 0 in f32 or f64, used from any layout in any float type. keep_half: of
// 16-bit floats, X, W, R and their gradients (the first three) stay what they are.
Kernel at_border(const KernelQuery& q, const Sides& sides, Kernel (*inner)(const KernelQuery&),
                 bool keep_half);
template <const Sides& sides, Kernel (*inner)(const KernelQuery&), bool keep_half = false>
Kernel bordered(const KernelQuery& q) {
  return at_border(q, sides, inner, keep_half);
}

// For the library's products: why not, or "".
inline std::string reject_library(const KernelQuery& q) {
  if (q.in[0].dtype == DType::kF64) return "takes f32";
  const Sizes s = sizes_of(q);
  return s.rows() * s.input * s.hidden == 0 ? "empty tensor" : "";
}
// The same for products of 16-bit floats; the library has those of f16 with f32 results on some
// CPUs only.
inline std::string reject_half(const KernelQuery& q) {
  const DType dtype = q.in[0].dtype;
  if (!is_half(dtype)) return "takes 16-bit floats";
  for (const std::string& why : {reject_not_native(dtype), reject_library(q)})
    if (!why.empty()) return why;
  return onednn::why_not([&] {
    const Sizes s = sizes_of(q);
    const onednn::Md left = onednn::dense({s.batch, s.hidden}, dtype);
    onednn::inner_product(left, onednn::any({s.hidden, s.hidden}, dtype), onednn::Md(),
                          onednn::dense({s.batch, s.hidden}), onednn::Make::kProbe);
  });
}

}  // namespace ortrain::ops
