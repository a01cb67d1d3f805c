// ortrain.Ema: exponential moving averages of many tensors, one pass over memory.
//
// Ema(step, apply, (x, mean)*) -> mean*: mean + (1 - d) (x - mean), d = min(decay, (1 + step) /
// (10 + step)): young averages forget faster, so that they do not remember the start for long.
// `step` counts the updates before this one; with apply = false nothing changes, bit for bit.
#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

constexpr size_t kFixed = 2;
constexpr int64_t kGrain = 8 * 1024;
constexpr int kInplace = 1024;

ORTRAIN_SIMD void average(const float* x, const float* mean, float* out, int64_t n, float rest) {
  for (int64_t i = 0; i < n; ++i) out[i] = mean[i] + rest * (x[i] - mean[i]);
}
ORTRAIN_SIMD void average(const double* x, const double* mean, double* out, int64_t n,
                          double rest) {
  for (int64_t i = 0; i < n; ++i) out[i] = mean[i] + rest * (x[i] - mean[i]);
}

struct Piece {
  size_t tensor;
  int64_t first, n;
};

template <class T>
Kernel kernel_of(const KernelQuery& q) {
  std::vector<Piece> pieces;
  for (size_t i = 0; kFixed + 2 * i < q.in.size(); ++i) {
    const int64_t n = q.in[kFixed + 2 * i].count();
    for (int64_t at = 0; at < n; at += kGrain) pieces.push_back({i, at, std::min(kGrain, n - at)});
  }
  return {.run = [pieces = std::move(pieces), threads = q.threads,
                  decay = q.attrs.f("decay", 0.999)](const KernelArgs& args) {
    const double t = static_cast<double>(*args.x<int64_t>(0));
    const double rest = 1 - std::min(decay, (1 + t) / (10 + t));
    const bool apply = *args.x<bool>(1);
    parallel_for(threads, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const Piece& p = pieces[static_cast<size_t>(k)];
        const T* x = args.x<T>(kFixed + 2 * p.tensor) + p.first;
        const T* mean = args.x<T>(kFixed + 2 * p.tensor + 1) + p.first;
        T* out = args.y<T>(p.tensor) + p.first;
        if (apply)
          average(x, mean, out, p.n, static_cast<T>(rest));
        else if (out != mean)
          std::memcpy(out, mean, static_cast<size_t>(p.n) * sizeof(T));
      }
    });
  }};
}

Kernel prepare(const KernelQuery& q) {
  return q.in[kFixed].dtype == DType::kF64 ? kernel_of<double>(q) : kernel_of<float>(q);
}

void infer(InferCtx& c) {
  const int first = static_cast<int>(kFixed), n = c.input_count() - first;
  if (n < 2 || n % 2 != 0 || c.output_count() != n / 2) c.fail("expected pairs of tensor and mean");
  if (c.dtype(0) != DType::kI64 || c.dtype(1) != DType::kBool)
    c.fail("step must be i64 and apply bool");
  if (c.dtype(first) != DType::kF32 && c.dtype(first) != DType::kF64)
    c.fail("tensors must be f32 or f64");
  for (int i = 0; i < n; ++i)
    if (c.dtype(first + i) != c.dtype(first) ||
        prove_equal(c.shape(first + i), c.shape(first + i - i % 2)) == Tri::kNo)
      c.fail(cat("pair ", i / 2, " mixes types or shapes"));
  for (int i = 0; i < n / 2; ++i) c.out(i, c.dtype(first), c.shape(first + 2 * i));
}

}  // namespace

void register_ema(OpTable& table) {
  std::vector<std::pair<int, int>> inplace;
  for (int i = 0; i < kInplace; ++i) inplace.emplace_back(i, static_cast<int>(kFixed) + 2 * i + 1);
  const auto example = [](int64_t step, bool apply, Dims a, Dims b) {
    return Example{
        .in = {iconst({}, {step}),
               ExampleInput{ExampleInput::Kind::kBool, {}, 0, 2, {apply ? 1.0 : 0.0}, false}, f(a),
               f(a), f(b), f(b)},
        .attrs = {{"decay", 0.9}},
        .outputs = 2};
  };
  table.add({.name = "ortrain.Ema",
             .inputs = {"step", "apply", "xs*"},
             .outputs = {"means*"},
             .infer = infer,
             .fold = false,
             .precision = Precision::kNever16,
             .inplace = std::move(inplace),
             .kernels = {{"cpu", "simd", nullptr, prepare}},
             .examples = {example(0, true, {5, 7}, {3}), example(1000, true, {30, 1000}, {1}),
                          example(5, false, {0}, {4})}});
}

}  // namespace ortrain::ops
