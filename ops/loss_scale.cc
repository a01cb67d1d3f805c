// ortrain.LossScale: the next scale of dynamic loss scaling and its counters, as states of the
// step.
//
// (scale, good i64, skipped i64, finite, applied) -> the same three. Not finite: scale /
// growth, at least min; good = 0; skipped + 1. Finite and applied: good + 1, and after `interval`
// such steps scale * growth, at most max, good = 0 (PyTorch's GradScaler). Finite but not applied
// (no target): nothing changes.
#include <algorithm>

#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  if ((c.dtype(0) != DType::kF32 && c.dtype(0) != DType::kF64) || c.dtype(1) != DType::kI64 ||
      c.dtype(2) != DType::kI64)
    c.fail("scale must be f32 or f64, the counters i64");
  if (c.dtype(3) != DType::kBool || c.dtype(4) != DType::kBool)
    c.fail("finite and applied must be bool");
  for (int i = 0; i < 3; ++i) c.out(i, c.dtype(i), Shape());
}

Kernel prepare(const KernelQuery& q) {
  const double growth = q.attrs.f("growth", 2), least = q.attrs.f("min", 1),
               most = q.attrs.f("max", 16777216);
  const int64_t interval = q.attrs.i("interval", 2000);
  const auto run = [=]<class T>(const KernelArgs& a) {
    double scale = static_cast<double>(*a.x<T>(0));
    int64_t good = *a.x<int64_t>(1), skipped = *a.x<int64_t>(2);
    if (!*a.x<bool>(3)) {
      scale = std::max(least, scale / growth);
      good = 0;
      ++skipped;
    } else if (*a.x<bool>(4) && ++good >= interval) {
      scale = std::min(most, scale * growth);
      good = 0;
    }
    *a.y<T>(0) = static_cast<T>(scale);
    *a.y<int64_t>(1) = good;
    *a.y<int64_t>(2) = skipped;
  };
  if (q.in[0].dtype == DType::kF64)
    return {.run = [=](const KernelArgs& a) { run.template operator()<double>(a); }};
  return {.run = [=](const KernelArgs& a) { run.template operator()<float>(a); }};
}

ExampleInput yes(bool v) { return {ExampleInput::Kind::kBool, {}, 0, 2, {v ? 1.0 : 0.0}, false}; }

}  // namespace

void register_loss_scale(OpTable& table) {
  const auto at = [](double scale, int64_t good, bool finite, bool applied) {
    return Example{
        .in = {floats({}, {scale}), iconst({}, {good}), iconst({}, {5}), yes(finite), yes(applied)},
        .attrs = {{"interval", int64_t{3}}, {"max", 8.0}},
        .outputs = 3};
  };
  table.add({.name = "ortrain.LossScale",
             .inputs = {"scale", "good", "skipped", "finite", "applied"},
             .outputs = {"scale", "good", "skipped"},
             .infer = infer,
             .fold = false,
             .precision = Precision::kNever16,
             .inplace = {{0, 0}, {1, 1}, {2, 2}},
             .kernels = {{"cpu", "ref", nullptr, prepare}},
             .examples = {at(4, 0, true, true), at(4, 2, true, true), at(8, 2, true, true),
                          at(4, 2, false, false), at(1, 2, false, false), at(4, 2, true, false)}});
}

}  // namespace ortrain::ops
