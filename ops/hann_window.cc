// HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix: tables for spectra, made from
// numbers that must be known before training. output_datatype is ONNX's number of an element type.
// No gradients: the inputs are sizes and settings.
#include <cmath>
#include <numbers>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kMost = 1 << 24;  // elements, mel bins, points

DType output_type(const Attrs& a) {
  const int64_t number = a.i("output_datatype", 1);
  switch (number) {
    case 1: return DType::kF32;
    case 2: return DType::kU8;
    case 3: return DType::kI8;
    case 4: return DType::kU16;
    case 5: return DType::kI16;
    case 6: return DType::kI32;
    case 7: return DType::kI64;
    case 10: return DType::kF16;
    case 11: return DType::kF64;
    case 12: return DType::kU32;
    case 13: return DType::kU64;
    case 16: return DType::kBF16;
    default: fail(ErrorCode::kUnsupported, "output_datatype ", number);
  }
}

Dim size_input(InferCtx& c, int i, const char* what) {
  const std::vector<Dim> n = c.need_ints(i, what);
  if (n.size() != 1) c.fail(cat(what, " is not one number"));
  if (n[0].is_const() && (n[0].value() < 0 || n[0].value() > kMost))
    c.fail(cat(what, " is ", n[0].value(), ", expected 0 to 2^24"));
  return n[0];
}

void infer_window(InferCtx& c) { c.out(0, output_type(c.attrs()), {size_input(c, 0, "size")}); }

// a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N), N the size, or one less when not periodic.
struct Terms {
  double a0, a1, a2;
};
Terms terms_of(const std::string& op) {
  if (op == "HannWindow") return {0.5, 0.5, 0};
  if (op == "HammingWindow") return {25.0 / 46, 21.0 / 46, 0};
  return {0.42, 0.5, 0.08};
}

Kernel window(const KernelQuery& q) {
  const int64_t n = q.out[0].count();
  const bool periodic = q.attrs.i("periodic", 1) != 0;
  // One point that is not periodic would divide by 0: it is the middle of nothing, 1 as in PyTorch.
  return {0, [n, t = terms_of(q.op), over = periodic ? n : n - 1,
              dtype = q.out[0].dtype](const KernelArgs& a) {
            dispatch(dtype, [&]<class T>() {
              for (int64_t i = 0; i < n; ++i) {
                const double x = 2 * std::numbers::pi * static_cast<double>(i) /
                                 static_cast<double>(std::max<int64_t>(over, 1));
                const double w = over == 0 ? 1 : t.a0 - t.a1 * std::cos(x) + t.a2 * std::cos(2 * x);
                a.y<T>(0)[i] = store<T>(static_cast<Acc<T>>(w));
              }
            });
          }};
}

void infer_mel(InferCtx& c) {
  const Dim bins = size_input(c, 0, "num_mel_bins"), length = size_input(c, 1, "dft_length");
  for (int i = 2; i < 5; ++i)
    if (!c.constant(i) || c.constant(i)->count() != 1)
      fail(ErrorCode::kUnsupported, "sample_rate and the edges must be constant numbers");
  c.out(0, output_type(c.attrs()), {floordiv(length, 2) + Dim(1), bins});
}

Kernel mel(const KernelQuery& q) {
  const auto scalar = [&](size_t i) {
    const HostTensor* t = q.constant(i);
    if (!t || t->count() != 1)
      fail(ErrorCode::kUnsupported, q.origin, ": input ", i, " must be a constant number");
    return t->as_double(0);
  };
  const auto length = static_cast<double>(q.need_ints(1, "dft_length")[0]);
  const int64_t rows = q.out[0].dims[0], bins = q.out[0].dims[1];
  const double rate = scalar(2);
  const auto to_mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = to_mel(scalar(3)), high = to_mel(scalar(4));
  const double each = (high - low) / static_cast<double>(bins + 2);
  std::vector<int64_t> edge;  // spectrum bins: left, middle and right of triangle i at i, i+1, i+2
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * each + low) / 2595) - 1);
    const double at = std::floor((length + 1) * hertz / rate);
    if (!(at >= 0 && at < static_cast<double>(rows)))
      fail(ErrorCode::kShape, q.origin, ": a mel edge lies at spectrum bin ", at, " of ", rows);
    edge.push_back(static_cast<int64_t>(at));
  }
  return {0, [=, edge = std::move(edge), dtype = q.out[0].dtype](const KernelArgs& a) {
            dispatch(dtype, [&]<class T>() {
              T* y = a.y<T>(0);
              std::fill_n(y, rows * bins, T{});
              const auto set = [&](int64_t j, int64_t i, int64_t part, int64_t whole) {
                y[j * bins + i] = store<T>(
                    static_cast<Acc<T>>(static_cast<double>(part) / static_cast<double>(whole)));
              };
              for (int64_t i = 0; i < bins; ++i) {
                const auto k = static_cast<size_t>(i);
                const int64_t left = edge[k], middle = edge[k + 1], right = edge[k + 2];
                if (left == middle) set(middle, i, 1, 1);
                for (int64_t j = left; j <= middle && left < middle; ++j)
                  set(j, i, j - left, middle - left);
                for (int64_t j = middle; j < right; ++j) set(j, i, right - j, right - middle);
              }
            });
          }};
}

}  // namespace

void register_hann_window(OpTable& table) {
  for (const char* name : {"HannWindow", "HammingWindow", "BlackmanWindow"})
    table.add({
        .name = name,
        .inputs = {"size"},
        .outputs = {"output"},
        .since = 17,
        .infer = infer_window,
        .grad = {no_grad("size")},
        .kernels = {{"cpu", "ref", nullptr, window}},
        .examples = {{.in = {iconst({}, {9})}},
                     {.in = {iconst({}, {8})}, .attrs = {{"periodic", 0}}},
                     {.in = {iconst({}, {5})}, .attrs = {{"output_datatype", 11}}},
                     {.in = {iconst({}, {1})}, .attrs = {{"periodic", 0}}},
                     {.in = {iconst({}, {0})}}},
        .note = "one point, not periodic: 1 (PyTorch)",
    });
  const auto hertz = [](double v) {
    ExampleInput e = floats({}, {v});
    e.constant = true;
    return e;
  };
  table.add({
      .name = "MelWeightMatrix",
      .inputs = {"num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz",
                 "upper_edge_hertz"},
      .outputs = {"output"},
      .since = 17,
      .infer = infer_mel,
      .grad = {no_grad("num_mel_bins"), no_grad("dft_length"), no_grad("sample_rate"),
               no_grad("lower_edge_hertz"), no_grad("upper_edge_hertz")},
      .kernels = {{"cpu", "ref", nullptr, mel}},
      .examples =
          {{.in = {iconst({}, {8}), iconst({}, {16}), iconst({}, {8192}), hertz(0), hertz(4096)}},
           {.in = {iconst({}, {3}), iconst({}, {64}), iconst({}, {16000}), hertz(80), hertz(7600)},
            .attrs = {{"output_datatype", 11}}}},
      .note = "the step between mel bins is that of onnx's reference: (high - low) / (bins + 2)",
  });
}

}  // namespace ortrain::ops
