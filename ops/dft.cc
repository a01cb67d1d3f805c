// DFT along one axis and STFT, with complex numbers as a last axis of 2 (real input: 1).
//
// DFT: y_k = sum over n of x_n e^(-2 pi i k n / L), input cut or padded with zeros to L =
// dft_length (default the axis' extent). inverse: e^(+...) / L. onesided: only k <= L/2; with
// inverse the real signal of such a half spectrum. L and the axis must be known before training.
// Computed in double by ops/common/fft.h, O(L log L) for every L; threads share the lines. The
// gradient is another DFT. STFT: frames of the signal, weighted by the window, each transformed:
// Gather, Mul and DFT.
#include <cmath>

#include "graph/error.h"
#include "ops/common/fft.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kMostLength = int64_t{1} << 25;
constexpr int64_t kMostIndices = int64_t{1} << 28;  // of STFT's frames

int axis_of(const InferCtx& c) {
  int64_t axis = -2;
  if (c.has(2)) {
    const std::vector<int64_t> given = numbers(c.need_ints(2, "the axis"), "the axis");
    if (given.size() != 1) c.fail("axis is not one number");
    axis = given[0];
  }
  return normalize_axis(axis, c.rank(0));
}

Dim one_number(const InferCtx& c, int i, const char* what) {
  const std::vector<Dim> n = c.need_ints(i, what);
  if (n.size() != 1) c.fail(cat(what, " is not one number"));
  if (n[0].is_const() && (n[0].value() < 1 || n[0].value() > kMostLength))
    c.fail(cat(what, " is ", n[0].value(), ", expected 1 to 2^25"));
  return n[0];
}

struct Form {
  bool inverse, onesided;
  bool to_real() const { return inverse && onesided; }
  bool to_half() const { return !inverse && onesided; }
};
Form form_of(const Attrs& a) { return {a.i("inverse", 0) != 0, a.i("onesided", 0) != 0}; }

Dim length_of(const InferCtx& c, int axis, Form form) {
  if (c.has(1)) return one_number(c, 1, "dft_length");
  const Dim n = c.shape(0)[axis];
  return form.to_real() ? (n - Dim(1)) * Dim(2) : n;
}

void infer(InferCtx& c) {
  const Shape& x = c.shape(0);
  const int rank = x.rank();
  if (rank < 2) c.fail(cat("input ", x.str(), ", expected rank 2 or more"));
  if (!is_float(c.dtype(0))) c.fail("input must be of a float type");
  const Dim parts = x[rank - 1];
  if (prove_equal(parts, 1) == Tri::kNo && prove_equal(parts, 2) == Tri::kNo)
    c.fail(cat("the last axis has ", parts.str(), " parts, expected 1 (real) or 2 (complex)"));
  const int axis = axis_of(c);
  if (axis == rank - 1) c.fail("axis is the one of real and imaginary parts");
  const Form form = form_of(c.attrs());
  const Dim length = length_of(c, axis, form);
  if (length.is_const() && (length.value() < 1 || length.value() > kMostLength))
    c.fail(cat("length ", length.value(), ", expected 1 to 2^25"));
  Shape out = x;
  out[axis] = form.to_half() ? floordiv(length, 2) + Dim(1) : length;
  out[rank - 1] = form.to_real() ? 1 : 2;
  c.out(0, c.dtype(0), out);
}

Kernel kernel(const KernelQuery& q) {
  const Dims &in = q.in[0].dims, &out = q.out[0].dims;
  const int rank = q.in[0].rank();
  const int axis = normalize_axis(q.has_in(2) ? q.need_ints(2, "the axis")[0] : -2, rank);
  const Form form = form_of(q.attrs);
  const auto a = static_cast<size_t>(axis);
  const int64_t n = q.has_in(1)      ? q.need_ints(1, "dft_length")[0]
                    : form.to_real() ? (in[a] - 1) * 2
                                     : in[a];
  const int64_t parts = in.back(), out_parts = out.back();
  const int64_t inner = product(in, axis + 1, rank - 1);  // elements between two of a line
  const int64_t lines = product(in, 0, axis) * inner;
  Fft fft(n, form.inverse);
  const int64_t pieces = lines * n < 4096 ? 1 : std::min<int64_t>(q.threads, lines);
  const int64_t each = 2 * n + fft.scratch();
  return {static_cast<size_t>(std::max<int64_t>(pieces, 1) * each) * sizeof(double),
          [=, fft = std::move(fft), read = std::min(in[a], form.to_real() ? n / 2 + 1 : n),
           in_extent = in[a], extent = out[a], threads = q.threads,
           dtype = q.in[0].dtype](const KernelArgs& args) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              const auto value = [](const T* p) { return static_cast<double>(static_cast<C>(*p)); };
              const auto piece = [&](int64_t p) {
                double* re = static_cast<double*>(args.workspace) + p * each;
                double *im = re + n, *scratch = im + n;
                for (int64_t l = lines * p / pieces; l < lines * (p + 1) / pieces; ++l) {
                  const T* x = args.x<T>(0) + (l / inner * in_extent * inner + l % inner) * parts;
                  for (int64_t i = 0; i < read; ++i) {
                    re[i] = value(x + i * inner * parts);
                    im[i] = parts == 2 ? value(x + i * inner * parts + 1) : 0.0;
                  }
                  std::fill(re + read, re + n, 0.0);
                  std::fill(im + read, im + n, 0.0);
                  if (form.to_real()) {  // the other half is the mirrored conjugate
                    im[0] = 0;
                    if (n % 2 == 0) im[n / 2] = 0;
                    for (int64_t i = 1; 2 * i < n; ++i) re[n - i] = re[i], im[n - i] = -im[i];
                  }
                  fft.run(re, im, scratch);
                  const double scale = form.inverse ? 1.0 / static_cast<double>(n) : 1.0;
                  T* y = args.y<T>(0) + (l / inner * extent * inner + l % inner) * out_parts;
                  for (int64_t i = 0; i < extent; ++i) {
                    T* to = y + i * inner * out_parts;
                    to[0] = static_cast<T>(static_cast<C>(re[i] * scale));
                    if (out_parts == 2) to[1] = static_cast<T>(static_cast<C>(im[i] * scale));
                  }
                }
              };
              parallel_for(threads, pieces, 1, [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p) piece(p);
              });
            });
          }};
}

// The transposed map. From L points back to a spectrum or signal of L (or L/2 + 1) points, then cut
// or padded to the input's extent, then without the imaginary part if the input had none.
Expr gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  const InferCtx c(g.b.graph(), g.n);
  const int axis = axis_of(c);
  const Form form = form_of(attrs);
  const Dims in = g.x(0).shape().values();
  const auto a = static_cast<size_t>(axis);
  const int64_t n = numbers({length_of(c, axis, form)}, "dft_length")[0];
  const Expr along = g.b.constant(HostTensor::scalar<int64_t>(axis));
  const Expr points = g.b.constant(HostTensor::scalar<int64_t>(n));
  Expr dx;
  if (form.to_real()) {
    const Expr half = g.b.op("DFT", {g.dy(), points, along}, {{"onesided", 1}});
    // 1/L at the ends that have no mirror image, else 2/L.
    Dims dims(in.size(), 1);
    dims[a] = n / 2 + 1;
    HostTensor weight(g.dy().dtype(), dims);
    for (int64_t k = 0; k < dims[a]; ++k)
      weight.set_double(k, (k == 0 || 2 * k == n ? 1.0 : 2.0) / static_cast<double>(n));
    dx = half * g.b.constant(std::move(weight));
  } else {
    const Attrs back{{"inverse", static_cast<int64_t>(!form.inverse)}};
    dx = g.b.op("DFT", {g.dy(), points, along}, back);
    const double scale = static_cast<double>(n);
    dx = form.inverse ? dx * (1 / scale) : dx * scale;
  }
  const int64_t have = dx.shape().values()[a];
  if (have > in[a]) dx = g.b.slice(dx, axis, 0, in[a]);
  if (have < in[a]) {
    std::vector<int64_t> pads(2 * in.size(), 0);
    pads[a + in.size()] = in[a] - have;
    dx = g.b.op("Pad", {dx, g.b.ints(pads)});
  }
  return in.back() == 1 ? g.b.slice(dx, static_cast<int64_t>(in.size()) - 1, 0, 1) : dx;
}

// Opset 17 to 19: axis is an attribute, 1 when absent.
void adapt(RawNode& r) {
  if (r.opset >= 20) return;
  r.set_input(2, r.constant(HostTensor::scalar<int64_t>(r.attrs.i("axis", 1))));
  r.attrs.erase("axis");
}

// --- STFT(signal [B,L,1 or 2], frame_step, window?, frame_length?) -> [B,frames,bins,2]
struct Frames {
  Dim length, count;
  int64_t step = 1;
};
Frames frames_of(const InferCtx& c) {
  Frames f;
  f.step = numbers({one_number(c, 1, "frame_step")}, "frame_step")[0];
  const Dim signal = c.shape(0)[1];
  f.length = c.has(3) ? one_number(c, 3, "frame_length") : c.has(2) ? c.shape(2)[0] : signal;
  const Dim room = signal - f.length;
  if (room.is_const() && room.value() < 0)
    c.fail(cat("frames of ", f.length.str(), " in a signal of ", signal.str()));
  f.count = floordiv(room, f.step) + Dim(1);
  return f;
}

void infer_stft(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (x.rank() != 3) c.fail(cat("signal ", x.str(), ", expected [batch, length, 1 or 2]"));
  if (c.has(2) && c.rank(2) != 1) c.fail("window must have rank 1");
  const Frames f = frames_of(c);
  if (c.has(2) && prove_equal(c.shape(2)[0], f.length) == Tri::kNo)
    c.fail(cat("window has ", c.shape(2)[0].str(), " elements, frames ", f.length.str()));
  const bool half = c.attrs().i("onesided", 1) != 0;
  c.out(0, c.dtype(0), {x[0], f.count, half ? floordiv(f.length, 2) + Dim(1) : f.length, 2});
}

std::vector<Expr> decompose_stft(Decompose& d) {
  const Frames f = frames_of(InferCtx(d.b.graph(), d.n));
  const std::vector<int64_t> n = numbers({f.count, f.length}, "the extents of the frames");
  const int64_t onesided = d.attrs().i("onesided", 1);
  if (n[0] * n[1] > kMostIndices)
    fail(ErrorCode::kUnsupported, n[0], " frames of ", n[1], " are more than ", kMostIndices,
         " samples");
  HostTensor at(DType::kI64, {n[0], n[1]});
  for (int64_t i = 0; i < n[0] * n[1]; ++i)
    at.mutable_data<int64_t>()[i] = i / n[1] * f.step + i % n[1];
  Expr frames = d.b.op("Gather", {d.x(0), d.b.constant(std::move(at))}, {{"axis", 1}});
  if (d.has_x(2)) frames = frames * d.b.reshape(d.x(2), {n[1], 1});
  return {d.b.op("DFT", {frames, Expr(), d.b.constant(HostTensor::scalar<int64_t>(2))},
                 {{"onesided", onesided}})};
}

}  // namespace

void register_dft(OpTable& table) {
  const auto axis = [](int64_t a) { return iconst({}, {a}); };
  const auto length = [](int64_t n) { return iconst({}, {n}); };
  OpDef op{
      .name = "DFT",
      .inputs = {"input", "dft_length?", "axis?"},
      .outputs = {"output"},
      .since = 17,
      .infer = infer,
      .grad = {grad("input", gradient), no_grad("dft_length"), no_grad("axis")},
      .adapt = adapt,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "fft", nullptr, kernel}},
      .examples = {{.in = {f({2, 8, 3, 2}), absent(), axis(1)}},
                   {.in = {f({2, 6, 1})}},
                   {.in = {f({1, 1})}},
                   {.in = {f({0, 4, 1})}},
                   {.in = {f({2, 33, 2})}}},
      .note = "computed in double for every float type",
  };
  for (const int64_t parts : {1, 2})
    for (const int64_t inverse : {0, 1})
      for (const int64_t onesided : {0, 1})
        for (const int64_t n : {5, 8})  // cut and padded, odd and even
          op.examples.push_back({.in = {f({2, 6, 3, parts}), length(n), axis(-3)},
                                 .attrs = {{"inverse", inverse}, {"onesided", onesided}}});
  table.add(std::move(op));
  table.add({
      .name = "STFT",
      .inputs = {"signal", "frame_step", "window?", "frame_length?"},
      .outputs = {"output"},
      .since = 17,
      .infer = infer_stft,
      .decompose = decompose_stft,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 13, 1}), iconst({}, {3}), f({5})}},
                   {.in = {f({1, 16, 2}), iconst({}, {4}), f({8}), iconst({}, {8})},
                    .attrs = {{"onesided", 0}}},
                   {.in = {f({1, 9, 1}), iconst({}, {2}), absent(), iconst({}, {4})}}},
  });
}

}  // namespace ortrain::ops
