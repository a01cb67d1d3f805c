// ortrain.AdamW, ortrain.SGD and ortrain.SGDMomentum: the update of many parameters as one pass
// over memory.
//
// Formulas are torch.optim's. `step` is the number of updates applied before this one; `lr` is a
// scalar of any float type; with apply = false nothing changes, bit for bit. Work is split over the
// total of all tensors. Meant to run in place (outputs are the inputs' memory); else it copies.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "ops/common/optim_simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

constexpr size_t kFixed = 4;  // lr, step, apply, clip_scale? before the groups
constexpr int kInplaceGroups = 1024;

double read_scalar(const void* p, DType dtype) {
  switch (dtype) {
    case DType::kF64: return *static_cast<const double*>(p);
    case DType::kF32: return static_cast<double>(*static_cast<const float*>(p));
    default: return 0;
  }
}

// The inputs of a group: p, g, then states; its outputs: p, then the states.
struct Groups {
  size_t inputs = 4, outputs = 3, count = 0;
  DType dtype = DType::kF32, lr = DType::kF64, clip = DType::kUndefined;
  std::vector<int64_t> start;  // of each group in the total, then the total
  std::vector<double> decay;
  Groups(const KernelQuery& q, size_t per_in) : inputs(per_in), outputs(per_in - 1) {
    count = (q.in.size() - kFixed) / inputs;
    dtype = q.in[kFixed].dtype;
    lr = q.in[0].dtype;
    if (q.has_in(3)) clip = q.in[3].dtype;
    decay = q.attrs.floats("weight_decay");
    decay.resize(count, decay.size() == 1 ? decay[0] : 0);
    int64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      start.push_back(total);
      total += q.in[kFixed + i * inputs].count();
    }
    start.push_back(total);
  }
  // f(group, first, n) over the elements [begin, end) of the total.
  template <class F>
  void each(int64_t begin, int64_t end, F f) const {
    size_t i = static_cast<size_t>(std::upper_bound(start.begin(), start.end(), begin) -
                                   start.begin() - 1);
    for (; begin < end; ++i) {
      const int64_t stop = std::min(end, start[i + 1]);
      if (stop > begin) f(i, begin - start[i], stop - begin);
      begin = std::max(begin, stop);
    }
  }
};

template <class T>
void keep_all(const Groups& s, const KernelArgs& args) {
  for (size_t i = 0; i < s.count; ++i)
    for (size_t o = 0; o < s.outputs; ++o) {
      const void* from = args.in[kFixed + i * s.inputs + (o == 0 ? 0 : o + 1)];
      void* to = args.out[i * s.outputs + o];
      if (to != from && to)
        std::memcpy(to, from, static_cast<size_t>(s.start[i + 1] - s.start[i]) * sizeof(T));
    }
}

constexpr int64_t kGrain = 8 * 1024;

struct Adam {
  double beta1, beta2, eps;
  bool decoupled;
};

template <class T>
void run_adam(const Adam& a, const Groups& s, int threads, const KernelArgs& args) {
  if (!*args.x<bool>(2)) return keep_all<T>(s, args);
  const double lr = read_scalar(args.in[0], s.lr);
  const double t = static_cast<double>(*args.x<int64_t>(1) + 1);
  AdamStep base;
  base.clip = s.clip == DType::kUndefined ? 1 : read_scalar(args.in[3], s.clip);
  base.beta1 = a.beta1, base.beta2 = a.beta2, base.eps = a.eps;
  base.step_size = lr / (1 - std::pow(a.beta1, t));
  base.scale_root = 1 / std::sqrt(1 - std::pow(a.beta2, t));
  parallel_for(threads, s.start.back(), kGrain, [&](int64_t begin, int64_t end) {
    s.each(begin, end, [&](size_t i, int64_t first, int64_t n) {
      AdamStep step = base;
      if (a.decoupled)
        step.keep = 1 - lr * s.decay[i];
      else
        step.l2 = s.decay[i];
      const size_t in = kFixed + i * 4, out = i * 3;
      adam_step(
          step,
          AdamMemory<T>{args.x<T>(in) + first, args.x<T>(in + 1) + first, args.x<T>(in + 2) + first,
                        args.x<T>(in + 3) + first, args.y<T>(out) + first,
                        args.y<T>(out + 1) + first, args.y<T>(out + 2) + first},
          n);
    });
  });
}

Kernel prepare_adam(const KernelQuery& q) {
  const Groups s(q, 4);
  const Adam a{q.attrs.f("beta1", 0.9), q.attrs.f("beta2", 0.999), q.attrs.f("eps", 1e-8),
               q.attrs.i("decoupled", 1) != 0};
  const int threads = q.threads;
  if (s.dtype == DType::kF64)
    return {.run = [=](const KernelArgs& args) { run_adam<double>(a, s, threads, args); }};
  return {.run = [=](const KernelArgs& args) { run_adam<float>(a, s, threads, args); }};
}

template <class T>
void run_sgd(const SgdStep& base, const Groups& s, int threads, const KernelArgs& args) {
  if (!*args.x<bool>(2)) return keep_all<T>(s, args);
  SgdStep all = base;
  all.clip = s.clip == DType::kUndefined ? 1 : read_scalar(args.in[3], s.clip);
  all.lr = read_scalar(args.in[0], s.lr);
  all.first = *args.x<int64_t>(1) == 0;
  const bool buffer = s.inputs == 3;
  parallel_for(threads, s.start.back(), kGrain, [&](int64_t begin, int64_t end) {
    s.each(begin, end, [&](size_t i, int64_t first, int64_t n) {
      SgdStep step = all;
      step.l2 = s.decay[i];
      const size_t in = kFixed + i * s.inputs, out = i * s.outputs;
      sgd_step(step,
               SgdMemory<T>{args.x<T>(in) + first, args.x<T>(in + 1) + first,
                            buffer ? args.x<T>(in + 2) + first : nullptr, args.y<T>(out) + first,
                            buffer ? args.y<T>(out + 1) + first : nullptr},
               n);
    });
  });
}

Kernel prepare_sgd_groups(const KernelQuery& q, size_t per_in) {
  SgdStep base;
  base.momentum = q.attrs.f("momentum", 0);
  base.dampening = q.attrs.f("dampening", 0);
  base.nesterov = q.attrs.i("nesterov", 0) != 0;
  const Groups s(q, per_in);
  const int threads = q.threads;
  if (s.dtype == DType::kF64)
    return {.run = [=](const KernelArgs& args) { run_sgd<double>(base, s, threads, args); }};
  return {.run = [=](const KernelArgs& args) { run_sgd<float>(base, s, threads, args); }};
}

Kernel prepare_sgd(const KernelQuery& q) { return prepare_sgd_groups(q, 2); }
Kernel prepare_sgd_momentum(const KernelQuery& q) { return prepare_sgd_groups(q, 3); }

void infer_groups(InferCtx& c, int per_in) {
  const int n = c.input_count() - static_cast<int>(kFixed);
  if (n < per_in || n % per_in != 0 || c.output_count() != n / per_in * (per_in - 1))
    c.fail(cat("expected groups of ", per_in, " inputs and ", per_in - 1, " outputs"));
  if (c.dtype(2) != DType::kBool || c.dtype(1) != DType::kI64)
    c.fail("step must be i64 and apply bool");
  for (int i = 0; i < n / per_in; ++i) {
    const int first = static_cast<int>(kFixed) + i * per_in;
    for (int k = 0; k < per_in; ++k)
      if (c.dtype(first + k) != c.dtype(4) ||
          prove_equal(c.shape(first + k), c.shape(first)) == Tri::kNo)
        c.fail(cat("group ", i, " mixes types or shapes"));
    for (int o = 0; o < per_in - 1; ++o)
      c.out(i * (per_in - 1) + o, c.dtype(first), c.shape(first));
  }
  if (c.dtype(4) != DType::kF32 && c.dtype(4) != DType::kF64)
    c.fail("parameters must be f32 or f64");
}

std::vector<std::pair<int, int>> inplace_pairs(int per_in) {
  std::vector<std::pair<int, int>> out;
  for (int i = 0; i < kInplaceGroups; ++i)
    for (int o = 0; o < per_in - 1; ++o)
      out.emplace_back(i * (per_in - 1) + o,
                       static_cast<int>(kFixed) + i * per_in + (o == 0 ? 0 : o + 1));
  return out;
}

ExampleInput scalar(double v) { return floats({}, {v}); }
ExampleInput yes(bool v) { return {ExampleInput::Kind::kBool, {}, 0, 2, {v ? 1.0 : 0.0}, false}; }
ExampleInput at_step(int64_t v) { return iconst({}, {v}); }

OpDef adamw_op() {
  const auto group = [](Dims d) {
    return std::vector<ExampleInput>{f(d), f(d), f(d), f(d, 0.1, 1)};
  };
  const auto with = [](std::vector<ExampleInput> a, const std::vector<ExampleInput>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const Attrs decay{{"weight_decay", std::vector<double>{0.1, 0.0}}};
  const Attrs adam{{"weight_decay", std::vector<double>{0.1}}, {"decoupled", int64_t{0}}};
  return {
      .name = "ortrain.AdamW",
      .inputs = {"lr", "step", "apply", "clip_scale?", "xs*"},
      .outputs = {"ys*"},
      .infer = [](InferCtx& c) { infer_groups(c, 4); },
      .fold = false,
      .precision = Precision::kNever16,
      .inplace = inplace_pairs(4),
      .kernels = {{"cpu", "simd", nullptr, prepare_adam}},
      .examples = {{.in = with({scalar(0.01), at_step(0), yes(true), absent()}, group({5, 7})),
                    .attrs = adam,
                    .outputs = 3},
                   {.in = with(
                        with({scalar(0.01), at_step(3), yes(true), scalar(0.5)}, group({5, 7})),
                        group({3})),
                    .attrs = decay,
                    .outputs = 6},
                   {.in = with({scalar(0.01), at_step(3), yes(false), absent()}, group({5, 7})),
                    .attrs = decay,
                    .outputs = 3}},
  };
}

OpDef sgd_op() {
  const Attrs decay{{"weight_decay", std::vector<double>{0.1}}};
  return {
      .name = "ortrain.SGD",
      .inputs = {"lr", "step", "apply", "clip_scale?", "xs*"},
      .outputs = {"ys*"},
      .infer =
          [](InferCtx& c) {
            if (c.attrs().f("momentum", 0) != 0) c.fail("momentum needs ortrain.SGDMomentum");
            infer_groups(c, 2);
          },
      .fold = false,
      .precision = Precision::kNever16,
      .inplace = inplace_pairs(2),
      .kernels = {{"cpu", "simd", nullptr, prepare_sgd}},
      .examples = {{.in = {scalar(0.1), at_step(0), yes(true), absent(), f({40}), f({40})},
                    .attrs = decay},
                   {.in = {scalar(0.1), at_step(2), yes(true), scalar(0.5), f({40}), f({40}),
                           f({3, 5}), f({3, 5})},
                    .attrs = {{"weight_decay", std::vector<double>{0.1, 0}}},
                    .outputs = 2},
                   {.in = {scalar(0.1), at_step(1), yes(false), absent(), f({40}), f({40})},
                    .attrs = decay}},
  };
}

OpDef sgd_momentum_op() {
  const Attrs momentum{
      {"weight_decay", std::vector<double>{0.1}}, {"momentum", 0.9}, {"dampening", 0.2}};
  const Attrs nesterov{
      {"weight_decay", std::vector<double>{0.0}}, {"momentum", 0.9}, {"nesterov", int64_t{1}}};
  const auto example = [](int64_t step, bool apply, Attrs attrs) {
    return Example{
        .in = {scalar(0.1), at_step(step), yes(apply), absent(), f({40}), f({40}), f({40})},
        .attrs = std::move(attrs),
        .outputs = 2};
  };
  return {
      .name = "ortrain.SGDMomentum",
      .inputs = {"lr", "step", "apply", "clip_scale?", "xs*"},
      .outputs = {"ys*"},
      .infer = [](InferCtx& c) { infer_groups(c, 3); },
      .fold = false,
      .precision = Precision::kNever16,
      .inplace = inplace_pairs(3),
      .kernels = {{"cpu", "simd", nullptr, prepare_sgd_momentum}},
      .examples = {example(0, true, momentum), example(1, true, momentum),
                   example(0, true, nesterov), example(4, true, nesterov),
                   example(4, false, momentum)},
  };
}

}  // namespace

void register_optimizer_step(OpTable& table) {
  table.add(adamw_op());
  table.add(sgd_op());
  table.add(sgd_momentum_op());
}

}  // namespace ortrain::ops
