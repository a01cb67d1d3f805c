// ortrain.Lamb: LAMB (You et al. 2020, arXiv 1904.00962v3, algorithm 2, phi the identity) for many
// parameters in two passes over memory.
//
// Pass 1 updates the moments and sums the squares of each parameter and its direction
// r = m^ / (sqrt(v^) + eps) + wd p; pass 2 makes r anew and takes p - lr |p| / |r| r. The ratio is
// 1 where a norm is 0. Sums are in double over pieces of fixed size: they do not depend on threads.
// Inputs, outputs, shared attributes: ops/common/update_groups.h.
#include <cmath>

#include "graph/error.h"
#include "ops/common/reduce_simd.h"
#include "ops/common/update_groups.h"

namespace ortrain::ops {
namespace {

constexpr int kPerGroup = 4;
constexpr int64_t kPiece = 16 * 1024, kBlock = 1024;

struct Piece {
  size_t group;
  int64_t first, n;
};

// Moments of a piece; the sums of squares of its parameter and direction go to sums[0], sums[1].
template <class T>
void moments(const UpdateStep& step, const UpdateMemory<T>& all, int64_t n, double* sums) {
  alignas(64) T direction[kBlock];
  sums[0] = sums[1] = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t k = std::min(kBlock, n - i);
    UpdateMemory<T> x = all;
    for (const T*& p : x.in) p = p ? p + i : p;
    for (T*& p : x.out) p = p ? p + i : p;
    x.out[0] = direction;
    update_step(step, x, k);
    sums[0] += sum_squares(x.in[0], k);
    sums[1] += sum_squares(direction, k);
  }
}

template <class T>
struct Lamb {
  UpdateGroups groups;
  UpdateStep base;
  std::vector<Piece> pieces;
  int threads;

  void operator()(const KernelArgs& args) const {
    if (!*args.x<bool>(2)) return groups.keep_all(args);
    double* sums = static_cast<double*>(args.workspace);  // two per piece
    double* ratio = sums + 2 * pieces.size();             // one per group
    const double t = static_cast<double>(*args.x<int64_t>(1) + 1), lr = groups.rate(args);
    UpdateStep all = base;
    all.scale = groups.gradient_scale(args);
    all.limit = groups.limit;
    all.scale_first = 1 / (1 - std::pow(all.beta1, t));
    all.scale_root = 1 / std::sqrt(1 - std::pow(all.beta2, t));
    each_piece([&](size_t i, const Piece& p) {
      UpdateStep step = all;
      step.decay = groups.decay[p.group];
      moments(step, groups.memory<T>(args, p.group, p.first), p.n, sums + 2 * i);
    });
    for (size_t i = 0, k = 0; i < groups.count; ++i) {
      double weight = 0, direction = 0;
      for (; k < pieces.size() && pieces[k].group == i; ++k)
        weight += sums[2 * k], direction += sums[2 * k + 1];
      ratio[i] = weight > 0 && direction > 0 ? std::sqrt(weight / direction) : 1;
    }
    each_piece([&](size_t, const Piece& p) {
      UpdateStep step = all;
      step.decay = groups.decay[p.group];
      step.lr = lr * groups.factor[p.group] * ratio[p.group];
      UpdateMemory<T> x = groups.memory<T>(args, p.group, p.first);
      x.in[2] = x.out[1], x.in[3] = x.out[2];
      lamb_apply(step, x, p.n);
    });
  }
  template <class F>
  void each_piece(F f) const {
    parallel_for(threads, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        f(static_cast<size_t>(i), pieces[static_cast<size_t>(i)]);
    });
  }
};

template <class T>
Kernel kernel_of(const KernelQuery& q) {
  Lamb<T> k{UpdateGroups(q, kPerGroup), {}, {}, q.threads};
  k.base.rule = UpdateRule::kLamb;
  k.base.beta1 = q.attrs.f("beta1", 0.9), k.base.beta2 = q.attrs.f("beta2", 0.999);
  k.base.eps = q.attrs.f("eps", 1e-6);
  for (size_t i = 0; i < k.groups.count; ++i) {
    const int64_t n = k.groups.start[i + 1] - k.groups.start[i];
    for (int64_t at = 0; at < n; at += kPiece)
      k.pieces.push_back({i, at, std::min(kPiece, n - at)});
  }
  const size_t space = (2 * k.pieces.size() + k.groups.count) * sizeof(double);
  return {space, std::move(k)};
}

Kernel prepare(const KernelQuery& q) {
  return q.in[kUpdateFixed].dtype == DType::kF64 ? kernel_of<double>(q) : kernel_of<float>(q);
}

}  // namespace

void register_lamb(OpTable& table) {
  const auto group = [](Dims d) {
    return std::vector<ExampleInput>{f(d), f(d), f(d), f(d, 0.1, 1)};
  };
  const Attrs one{{"weight_decay", std::vector<double>{0.1}}};
  const Attrs two{{"weight_decay", std::vector<double>{0.1, 0.0}},
                  {"lr_factor", std::vector<double>{0.5, 2.0}},
                  {"clip_value", 0.25}};
  table.add(
      {.name = "ortrain.Lamb",
       .inputs = {"lr", "step", "apply", "scale?", "xs*"},
       .outputs = {"ys*"},
       .infer = [](InferCtx& c) { infer_update_groups(c, kPerGroup); },
       .fold = false,
       .precision = Precision::kNever16,
       .inplace = update_inplace(kPerGroup),
       .kernels = {{"cpu", "simd", nullptr, prepare}},
       .examples = {
           {.in = update_example(0.01, 0, true, 0, {group({5, 7})}), .attrs = one, .outputs = 3},
           {.in = update_example(0.01, 3, true, 0.5, {group({30, 1000}), group({3})}),
            .attrs = two,
            .outputs = 6},
           {.in = update_example(0.01, 3, true, 0, {group({0}), group({1})}),
            .attrs = two,
            .outputs = 6},
           {.in = update_example(0.01, 3, false, 0, {group({5, 7})}),
            .attrs = one,
            .outputs = 3}}});
}

}  // namespace ortrain::ops
