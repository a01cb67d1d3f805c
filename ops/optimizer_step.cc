// ortrain.SGD, SGDMomentum, AdamW, AdamWMax (amsgrad), Adagrad, RMSprop (four of them: with or
// without momentum and centering) and Lion: the update of many parameters as one pass over memory.
//
// Formulas are torch.optim's; Lion's are those of Chen et al. 2023. Inputs, outputs and the
// attributes that all share: ops/common/update_groups.h. Work is split over the total of all
// tensors of a node. Meant to run in place; else it copies. Rows of a table that were not touched
// have gradient 0 like any other (moments decay); a step of 0 in place is not made at all.
#include <cmath>

#include "graph/error.h"
#include "ops/common/update_groups.h"

namespace ortrain::ops {

namespace {

// A rule with its attributes, before a step's scalars.
struct Update {
  UpdateStep base;
  bool decoupled = false;
  double lr_decay = 0;  // adagrad
};

Update update_of(const KernelQuery& q, UpdateRule rule, size_t states) {
  Update u;
  UpdateStep& s = u.base;
  s.rule = rule;
  s.eps = q.attrs.f("eps", 1e-8);
  switch (rule) {
    case UpdateRule::kSgd:
      s.beta1 = q.attrs.f("momentum", 0);
      s.dampening = q.attrs.f("dampening", 0);
      s.nesterov = q.attrs.i("nesterov", 0) != 0;
      s.momentum = states == 1;
      break;
    case UpdateRule::kRmsprop:
      s.beta1 = q.attrs.f("momentum", 0);
      s.beta2 = q.attrs.f("alpha", 0.99);
      s.centered = q.attrs.i("centered", 0) != 0;
      s.momentum = states == (s.centered ? 3U : 2U);
      break;
    case UpdateRule::kAdagrad: u.lr_decay = q.attrs.f("lr_decay", 0); break;
    default:
      s.beta1 = q.attrs.f("beta1", 0.9), s.beta2 = q.attrs.f("beta2", 0.999);
      s.amsgrad = states == 3;
      u.decoupled = rule == UpdateRule::kLion || q.attrs.i("decoupled", 1) != 0;
  }
  return u;
}

template <class T>
void run_update(const Update& u, const UpdateGroups& groups, int threads, const KernelArgs& args) {
  if (!*args.x<bool>(2)) return groups.keep_all(args);
  const double t = static_cast<double>(*args.x<int64_t>(1)), lr = groups.rate(args);
  UpdateStep all = u.base;
  all.scale = groups.gradient_scale(args);
  all.limit = groups.limit;
  all.first = t == 0;
  double rate = lr;
  if (all.rule == UpdateRule::kAdam) {
    rate = lr / (1 - std::pow(all.beta1, t + 1));
    all.scale_root = 1 / std::sqrt(1 - std::pow(all.beta2, t + 1));
  }
  if (all.rule == UpdateRule::kAdagrad) rate = lr / (1 + t * u.lr_decay);
  parallel_for(threads, groups.start.back(), kUpdateGrain, [&](int64_t begin, int64_t end) {
    groups.each(begin, end, [&](size_t i, int64_t first, int64_t n) {
      UpdateStep step = all;
      step.lr = rate * groups.factor[i];
      if (u.decoupled)
        step.keep = 1 - lr * groups.factor[i] * groups.decay[i];
      else
        step.l2 = groups.decay[i];
      if (groups.slots[i] == 0) return update_step(step, groups.memory<T>(args, i, first), n);
      const bool idle = all.rule == UpdateRule::kSgd && !all.momentum && step.l2 == 0 &&
                        std::isfinite(all.scale) && std::isfinite(step.lr);
      groups.each_touched<T>(args, i, first, n,
                             [&](const UpdateMemory<T>& x, int64_t count, bool zero) {
                               if (!(zero && idle && x.in[0] == x.out[0]))
                                 update_step(step, x, count);
                             });
    });
  });
}

template <UpdateRule rule, int per_group>
Kernel prepare(const KernelQuery& q) {
  const UpdateGroups groups(q, per_group);
  const Update u = update_of(q, rule, per_group - 2);
  const int threads = q.threads;
  if (groups.dtype == DType::kF64)
    return {.run = [=](const KernelArgs& args) { run_update<double>(u, groups, threads, args); }};
  return {.run = [=](const KernelArgs& args) { run_update<float>(u, groups, threads, args); }};
}

// States of the examples are not negative: most are means of squares.
template <UpdateRule rule, int per_group>
OpDef update_op(const char* name, Attrs attrs) {
  const auto group = [](Dims d) {
    std::vector<ExampleInput> g{f(d), f(d)};
    for (int i = 2; i < per_group; ++i) g.push_back(f(d, 0.1, 1));
    if (rule == UpdateRule::kRmsprop && per_group > 3) g[2] = f(d, 2, 3);  // above the mean squared
    return g;
  };
  const auto with = [&](std::vector<double> decay, std::vector<double> factor, double clip) {
    Attrs a = attrs;
    a.set("weight_decay", std::move(decay));
    if (!factor.empty()) a.set("lr_factor", std::move(factor));
    if (clip > 0) a.set("clip_value", clip);
    return a;
  };
  constexpr int outputs = per_group - 1;
  // A dense group, then a table of six rows of which three are touched.
  const auto touched = [&](bool apply) {
    Attrs a = with({0.0, 0.1}, {0.5, 2.0}, 0);
    a.set("touched", std::vector<int64_t>{1});
    std::vector<ExampleInput> looked_up = group({6, 7});
    looked_up[1] = f({4, 7});
    Example e{.in = update_example(0.01, 3, apply, 0.5, {group({5}), looked_up}),
              .attrs = a,
              .outputs = 2 * outputs};
    e.in.push_back(typed(DType::kI32, iconst({6}, {-1, 0, 1, -1, -1, 2})));
    return e;
  };
  return {
      .name = name,
      .inputs = {"lr", "step", "apply", "scale?", "xs*"},
      .outputs = {"ys*"},
      .infer =
          [](InferCtx& c) {
            if (rule == UpdateRule::kSgd && per_group == 2 && c.attrs().f("momentum", 0) != 0)
              c.fail("momentum needs ortrain.SGDMomentum");
            infer_update_groups(c, per_group);
          },
      .fold = false,
      .precision = Precision::kNever16,
      .inplace = update_inplace(per_group),
      .kernels = {{"cpu", "simd", nullptr, prepare<rule, per_group>}},
      .examples = {{.in = update_example(0.01, 0, true, 0, {group({5, 7})}),
                    .attrs = with({0.1}, {}, 0),
                    .outputs = outputs},
                   {.in = update_example(0.01, 3, true, 0.5, {group({5, 7}), group({3})}),
                    .attrs = with({0.1, 0.0}, {0.5, 2.0}, 0.25),
                    .outputs = 2 * outputs},
                   {.in = update_example(0.01, 2, true, 0, {group({1}), group({0, 4})}),
                    .attrs = with({0.0, 0.0}, {}, 0),
                    .outputs = 2 * outputs},
                   {.in = update_example(0.01, 3, false, 0, {group({5, 7})}),
                    .attrs = with({0.1}, {}, 0),
                    .outputs = outputs},
                   touched(true),
                   touched(false)},
  };
}

}  // namespace

void register_optimizer_step(OpTable& table) {
  using enum UpdateRule;
  table.add(update_op<kAdam, 4>("ortrain.AdamW", {}));
  table.add(update_op<kAdam, 5>("ortrain.AdamWMax", {{"decoupled", int64_t{0}}}));
  table.add(update_op<kSgd, 2>("ortrain.SGD", {}));
  table.add(
      update_op<kSgd, 3>("ortrain.SGDMomentum", {{"momentum", 0.9}, {"nesterov", int64_t{1}}}));
  table.add(update_op<kAdagrad, 3>("ortrain.Adagrad", {{"lr_decay", 0.1}}));
  table.add(update_op<kRmsprop, 3>("ortrain.RMSprop", {}));
  table.add(update_op<kRmsprop, 4>("ortrain.RMSpropMomentum", {{"momentum", 0.9}}));
  table.add(update_op<kRmsprop, 4>("ortrain.RMSpropCentered", {{"centered", int64_t{1}}}));
  table.add(update_op<kRmsprop, 5>("ortrain.RMSpropCenteredMomentum",
                                   {{"momentum", 0.9}, {"centered", int64_t{1}}}));
  table.add(update_op<kLion, 3>("ortrain.Lion", {}));
}

}  // namespace ortrain::ops
