// ortrain.GlobalNorm, ortrain.AllFinite: what decides about an update, as nodes, so that the host
// reads nothing inside a step.
//
// GlobalNorm(xs*) -> sqrt of the sum of all squares, in double over pieces of fixed size: the
// result does not depend on the number of threads. An i32 input holds the slots of the tensor
// before it, which is a gradient by touched rows (ops/common/touched_rows.h): it counts, bit for
// bit, as the dense one. AllFinite(xs*) -> bool.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "ops/common/reduce_simd.h"
#include "ops/common/touched_rows.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

constexpr int64_t kPiece = 16 * 1024;

// Tensors cut into pieces of at most kPiece elements; those by touched rows as if dense.
struct Piece {
  size_t input;
  int64_t first, n;
  int64_t inner = 0;  // > 0: by touched rows of so many numbers, slots in the next input
};
std::vector<Piece> pieces_of(const KernelQuery& q) {
  std::vector<Piece> out;
  for (size_t i = 0; i < q.in.size(); ++i) {
    if (q.in[i].dtype == DType::kI32) continue;
    const bool touched = i + 1 < q.in.size() && q.in[i + 1].dtype == DType::kI32;
    const int64_t inner =
        touched ? q.in[i].count() / std::max<int64_t>(1, q.in[i].dims[0]) : int64_t{0};
    const int64_t count = touched ? q.in[i + 1].count() * inner : q.in[i].count();
    for (int64_t at = 0; at < count; at += kPiece)
      out.push_back({i, at, std::min(kPiece, count - at), inner});
  }
  return out;
}

template <class T>
double piece_squares(const KernelArgs& args, const Piece& p) {
  if (p.inner == 0) return sum_squares(args.x<T>(p.input) + p.first, p.n);
  // The touched rows between zeros, so that the vectors add in the order of the dense tensor.
  alignas(64) T dense[kPiece];
  bool any = false;
  each_run(args.x<int32_t>(p.input + 1), args.x<T>(p.input), p.inner, p.first, p.n,
           [&](const T* g, int64_t at, int64_t count) {
             if (!g) return;
             if (!any) std::fill_n(dense, p.n, T(0));
             any = true;
             std::copy_n(g, count, dense + at);
           });
  return any ? sum_squares(dense, p.n) : 0.0;
}

template <class T>
Kernel norm_kernel(std::vector<Piece> pieces, int threads) {
  const size_t space = pieces.size() * sizeof(double);
  return {space, [pieces = std::move(pieces), threads](const KernelArgs& args) {
            double* part = static_cast<double*>(args.workspace);
            parallel_for(threads, static_cast<int64_t>(pieces.size()), 1,
                         [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i) {
                             const Piece& p = pieces[static_cast<size_t>(i)];
                             part[i] = piece_squares<T>(args, p);
                           }
                         });
            double sum = 0;
            for (size_t i = 0; i < pieces.size(); ++i) sum += part[i];
            *args.y<T>(0) = static_cast<T>(std::sqrt(sum));
          }};
}

Kernel prepare_norm(const KernelQuery& q) {
  if (q.in[0].dtype == DType::kF64) return norm_kernel<double>(pieces_of(q), q.threads);
  return norm_kernel<float>(pieces_of(q), q.threads);
}

OpDef global_norm_op() {
  return {.name = "ortrain.GlobalNorm",
          .inputs = {"xs*"},
          .outputs = {"norm"},
          .infer =
              [](InferCtx& c) {
                for (int i = 0; i < c.input_count(); ++i) {
                  if (i > 0 && c.dtype(i) == DType::kI32 && c.dtype(i - 1) == c.dtype(0) &&
                      c.rank(i) == 1 && c.rank(i - 1) > 0)
                    continue;
                  if (c.dtype(i) != c.dtype(0)) c.fail("inputs have different types");
                }
                if (c.dtype(0) != DType::kF32 && c.dtype(0) != DType::kF64)
                  c.fail("inputs must be f32 or f64");
                c.out(0, c.dtype(0), Shape());
              },
          .precision = Precision::kNever16,
          .kernels = {{"cpu", "simd", nullptr, prepare_norm}},
          .examples = {
              {.in = {f({2, 3}), f({5})}},
              {.in = {f({40000})}},
              {.in = {f({0})}},
              {.in = {f({5}), f({4, 7}), typed(DType::kI32, iconst({6}, {-1, 0, 1, -1, -1, 2}))}}}};
}

template <class T>
bool finite(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return reduce_simd().all_finite(x, n);
  } else {
    bool ok = true;
    for (int64_t i = 0; i < n; ++i) ok &= std::isfinite(static_cast<double>(x[i]));
    return ok;
  }
}
bool finite(DType dtype, const void* x, int64_t first, int64_t n) {
  if (dtype == DType::kF64) return finite(static_cast<const double*>(x) + first, n);
  return finite(static_cast<const float*>(x) + first, n);
}

Kernel prepare_all_finite(const KernelQuery& q) {
  std::vector<DType> dtypes;
  for (const TensorDesc& t : q.in) dtypes.push_back(t.dtype);
  return {.run = [pieces = pieces_of(q), dtypes = std::move(dtypes),
                  threads = q.threads](const KernelArgs& args) {
    std::atomic<bool> ok{true};
    parallel_for(threads, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && ok; ++i) {
        const Piece& p = pieces[static_cast<size_t>(i)];
        if (!finite(dtypes[p.input], args.in[p.input], p.first, p.n)) ok = false;
      }
    });
    *args.y<bool>(0) = ok;
  }};
}

OpDef all_finite_op() {
  return {.name = "ortrain.AllFinite",
          .inputs = {"xs*"},
          .outputs = {"finite"},
          .infer =
              [](InferCtx& c) {
                for (int i = 0; i < c.input_count(); ++i)
                  if (c.dtype(i) != DType::kF32 && c.dtype(i) != DType::kF64)
                    c.fail("inputs must be f32 or f64");
                c.out(0, DType::kBool, Shape());
              },
          .precision = Precision::kNever16,
          .kernels = {{"cpu", "simd", nullptr, prepare_all_finite}},
          .examples = {{.in = {f({2, 3}), f({})}},
                       {.in = {floats({3}, {1, NAN, 2})}},
                       {.in = {f({40000}), floats({2}, {1, -INFINITY})}},
                       {.in = {f({0})}}}};
}

}  // namespace

void register_step_control(OpTable& table) {
  table.add(global_norm_op());
  table.add(all_finite_op());
}

}  // namespace ortrain::ops
