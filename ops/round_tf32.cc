// ortrain.RoundTF32: x rounded to the 10-bit mantissa of tf32, to nearest even, kept as f32.
//
// Written by the pass round_tf32 before the inputs of products, where a GPU's tensor cores would
// round; after autodiff, so it has no gradient. Infinities and NaN pass; other types are refused.
#include "graph/error.h"
#include "graph/half.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  if (!is_float(c.dtype(0))) c.fail(cat("takes floats, not ", name_of(c.dtype(0))));
  infer_same_as_first(c);
}

std::string reject(const KernelQuery& q) {
  return q.in[0].dtype == DType::kF32 ? "" : "takes f32 only";
}
Kernel prepare(const KernelQuery& q) {
  return {0, [n = q.in[0].count(), threads = q.threads](const KernelArgs& a) {
            parallel_for(threads, n, 32768, [&](int64_t begin, int64_t end) {
              round_to_tf32(a.x<float>(0) + begin, a.y<float>(0) + begin, end - begin);
            });
          }};
}
Kernel prepare_ref(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [n = q.in[0].count()](const KernelArgs& a) {
              for (int64_t i = 0; i < n; ++i) {
                const auto x = static_cast<float>(load(a.x<T>(0)[i]));
                float y = x;
                round_to_tf32(&x, &y, 1);
                a.y<T>(0)[i] = store<T>(y);
              }
            }};
  });
}

}  // namespace

void register_round_tf32(OpTable& table) {
  table.add({
      .name = "ortrain.RoundTF32",
      .inputs = {"x"},
      .outputs = {"y"},
      .infer = infer,
      .grad = {not_differentiable("x", "written after the gradients are taken")},
      .precision = Precision::kNever16,
      .pad = Pad::kZeroToZero,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "simd", reject, prepare}, {"cpu", "ref", nullptr, prepare_ref}},
      .examples = {{.in = {f({3, 70})}}, {.in = {f({1})}}, {.in = {f({0, 4})}}},
  });
}

}  // namespace ortrain::ops
