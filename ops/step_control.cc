// ortrain.LearningRate, ortrain.GlobalNorm, ortrain.AllFinite: what decides about an update, as
// nodes, so that the host reads nothing inside a step.
//
// LearningRate(step) -> f64: `step` counts the updates applied before this one. Warm-up grows
// linearly, lr (step + 1) / warmup_steps for step < warmup_steps; then constant, linear or cosine
// decay that reaches min_lr at total_steps and stays there.
// GlobalNorm(xs*) -> sqrt of the sum of all squares, in double over pieces of fixed size: the
// result does not depend on the number of threads. AllFinite(xs*) -> bool.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "graph/error.h"
#include "ops/common/reduce_simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

constexpr int64_t kPiece = 16 * 1024;

enum class Schedule : uint8_t { kConstant, kLinear, kCosine };

Schedule schedule_of(const Attrs& attrs) {
  const std::string name = attrs.s("schedule", "constant");
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  if (name != "constant") fail(ErrorCode::kUsage, "unknown schedule '", name, "'");
  return Schedule::kConstant;
}

struct Rate {
  Schedule schedule;
  double lr, min_lr, warmup, total;
  double at(int64_t step) const {
    const double s = static_cast<double>(step);
    if (s < warmup) return lr * (s + 1) / warmup;
    if (schedule == Schedule::kConstant || total <= warmup) return lr;
    const double done = std::min(1.0, (s - warmup) / (total - warmup));
    if (schedule == Schedule::kLinear) return lr + (min_lr - lr) * done;
    return min_lr + 0.5 * (lr - min_lr) * (1 + std::cos(std::numbers::pi * done));
  }
};

Kernel prepare_rate(const KernelQuery& q) {
  const Rate r{schedule_of(q.attrs), q.attrs.f("lr", 1e-3), q.attrs.f("min_lr", 0),
               static_cast<double>(q.attrs.i("warmup_steps", 0)),
               static_cast<double>(q.attrs.i("total_steps", 0))};
  return {.run = [r](const KernelArgs& args) { *args.y<double>(0) = r.at(*args.x<int64_t>(0)); }};
}

OpDef learning_rate_op() {
  const auto at = [](int64_t step, const char* schedule) {
    return Example{.in = {ints({}, step, step + 1)},
                   .attrs = {{"schedule", std::string(schedule)},
                             {"lr", 0.5},
                             {"min_lr", 0.1},
                             {"warmup_steps", int64_t{4}},
                             {"total_steps", int64_t{10}}}};
  };
  return {.name = "ortrain.LearningRate",
          .inputs = {"step"},
          .outputs = {"lr"},
          .infer =
              [](InferCtx& c) {
                if (c.dtype(0) != DType::kI64) c.fail("step must be i64");
                c.out(0, DType::kF64, Shape());
              },
          .fold = false,
          .precision = Precision::kNever16,
          .kernels = {{"cpu", "ref", nullptr, prepare_rate}},
          .examples = {at(0, "constant"), at(3, "linear"), at(7, "linear"), at(7, "cosine"),
                       at(99, "cosine")}};
}

// Tensors cut into pieces of at most kPiece elements.
struct Piece {
  size_t input;
  int64_t first, n;
};
std::vector<Piece> pieces_of(const KernelQuery& q) {
  std::vector<Piece> out;
  for (size_t i = 0; i < q.in.size(); ++i)
    for (int64_t at = 0; at < q.in[i].count(); at += kPiece)
      out.push_back({i, at, std::min(kPiece, q.in[i].count() - at)});
  return out;
}

template <class T>
double squares(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) return reduce_simd().sum_squares(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
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
                             part[i] = squares(args.x<T>(p.input) + p.first, p.n);
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
                for (int i = 0; i < c.input_count(); ++i)
                  if (c.dtype(i) != c.dtype(0)) c.fail("inputs have different types");
                if (c.dtype(0) != DType::kF32 && c.dtype(0) != DType::kF64)
                  c.fail("inputs must be f32 or f64");
                c.out(0, c.dtype(0), Shape());
              },
          .precision = Precision::kNever16,
          .kernels = {{"cpu", "simd", nullptr, prepare_norm}},
          .examples = {{.in = {f({2, 3}), f({5})}}, {.in = {f({40000})}}, {.in = {f({0})}}}};
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
  table.add(learning_rate_op());
  table.add(global_norm_op());
  table.add(all_finite_op());
}

}  // namespace ortrain::ops
