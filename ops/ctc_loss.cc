// ortrain.CtcLoss: connectionist temporal classification of scores against label sequences.
//
// scores [B,T,C] (any scores: a log softmax over C is part of the op), labels [B,S] i64 or i32 ->
// loss: the mean over samples of -log P(labels) / max(1, labels that count), PyTorch's CTCLoss with
// reduction mean, full input lengths and zero_infinity off. Labels equal to ignore_index, to the
// blank, or negative are padding and do not count. A sequence that does not fit into T steps has
// loss inf, and gradients that are not numbers, as in PyTorch. A label of C or more is reported as
// a fault and counts as padding. Second output: the gradient of the loss in the scores.
// Forward-backward in log space and double precision; one sample per thread.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/error.h"
#include "ops/common/ref.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void infer(InferCtx& c) {
  const Shape &x = c.shape(0), &y = c.shape(1);
  if (x.rank() != 3) c.fail("scores must be [B,T,C], got " + x.str());
  if (y.rank() != 2 || prove_equal(x[0], y[0]) == Tri::kNo)
    c.fail(cat("labels must be [B,S] for scores ", x.str(), ", got ", y.str()));
  if (c.dtype(1) != DType::kI64 && c.dtype(1) != DType::kI32)
    c.fail(cat("labels must be i64 or i32, got ", name_of(c.dtype(1))));
  const int64_t blank = c.attrs().i("blank", 0);
  if (blank < 0 || (x[2].is_const() && blank >= x[2].value()))
    c.fail(cat("the blank is class ", blank, ", but scores ", x.str(), " have ", x[2].str(),
               " classes (--blank)"));
  c.out(0, c.dtype(0), Shape());
  c.out(1, c.dtype(0), x);
}

double log_add(double a, double b) {
  const double top = std::max(a, b);
  return top == kNever ? top : top + std::log1p(std::exp(std::min(a, b) - top));
}

struct Config {
  int64_t batch, steps, classes, labels, blank, ignore;
  int threads;
  int64_t states() const { return 2 * labels + 1; }
  // Doubles of scratch per sample: alpha [T, 2S+1], two rows of beta, the log-sum-exp of each step.
  int64_t scratch() const { return (steps + 2) * states() + steps; }
};

// One sample: scores x [T,C], path = the classes of its states (blank, label, blank, ...); returns
// log P and, if dx is given, dx = scale * d(-log P)/dx.
template <class T>
double sample(const Config& c, const T* x, const int64_t* path, int64_t count, double scale, T* dx,
              double* scratch) {
  const int64_t states = 2 * count + 1;
  double *alpha = scratch, *beta = alpha + c.steps * c.states(), *next = beta + c.states(),
         *lse = next + c.states();
  for (int64_t t = 0; t < c.steps; ++t) {
    const T* row = x + t * c.classes;
    double top = kNever, sum = 0;
    for (int64_t k = 0; k < c.classes; ++k) top = std::max(top, load(row[k]));
    for (int64_t k = 0; k < c.classes; ++k) sum += std::exp(load(row[k]) - top);
    lse[t] = top + std::log(sum);
  }
  const auto log_p = [&](int64_t t, int64_t s) {
    return load(x[t * c.classes + path[s]]) - lse[t];
  };
  // A label may follow another directly unless they are equal: then a blank must lie between.
  const auto skips = [&](int64_t s) { return s >= 2 && s % 2 == 1 && path[s] != path[s - 2]; };
  for (int64_t t = 0; t < c.steps; ++t) {
    double* a = alpha + t * states;
    const double* before = a - states;
    for (int64_t s = 0; s < states; ++s) {
      double sum = t > 0 ? before[s] : s <= 1 ? 0 : kNever;
      if (t > 0 && s >= 1) sum = log_add(sum, before[s - 1]);
      if (t > 0 && skips(s)) sum = log_add(sum, before[s - 2]);
      a[s] = sum + log_p(t, s);
    }
  }
  double total = count == 0 ? 0 : kNever;  // of no steps
  if (c.steps > 0) {
    const double* last = alpha + (c.steps - 1) * states;
    total = count > 0 ? log_add(last[states - 1], last[states - 2]) : last[0];
  }
  if (!dx) return total;
  for (int64_t t = c.steps - 1; t >= 0; --t) {
    for (int64_t s = 0; s < states; ++s) {
      const bool end = t == c.steps - 1;
      double sum = end ? (s >= states - 2 ? 0 : kNever) : next[s];
      if (!end && s + 1 < states) sum = log_add(sum, next[s + 1]);
      if (!end && s + 2 < states && skips(s + 2)) sum = log_add(sum, next[s + 2]);
      beta[s] = sum + log_p(t, s);
    }
    const T* row = x + t * c.classes;
    T* d = dx + t * c.classes;
    for (int64_t k = 0; k < c.classes; ++k)
      d[k] = store<T>(scale * std::exp(load(row[k]) - lse[t]));
    for (int64_t s = 0; s < states; ++s) {
      const double share = std::exp(alpha[t * states + s] + beta[s] - log_p(t, s) - total);
      d[path[s]] = store<T>(load(d[path[s]]) - scale * share);
    }
    std::swap(beta, next);
  }
  return total;
}

template <class T, class L>
Kernel kernel(const Config& c) {
  const auto per_sample = static_cast<size_t>(c.scratch()) * sizeof(double);
  const size_t paths = static_cast<size_t>(c.batch * c.states()) * sizeof(int64_t);
  const size_t losses = static_cast<size_t>(c.batch) * sizeof(double);
  return {static_cast<size_t>(c.batch) * per_sample + paths + losses, [c](const KernelArgs& a) {
            auto* scratch = static_cast<double*>(a.workspace);
            double* loss = scratch + c.batch * c.scratch();
            auto* path = reinterpret_cast<int64_t*>(loss + c.batch);
            T* dx = a.y<T>(1);
            parallel_for(c.threads, c.batch, 1, [&](int64_t begin, int64_t end) {
              for (int64_t b = begin; b < end; ++b) {
                int64_t* states = path + b * c.states();
                const L* labels = a.x<L>(1) + b * c.labels;
                int64_t count = 0;
                states[0] = c.blank;
                for (int64_t i = 0; i < c.labels; ++i) {
                  const int64_t label = labels[i];
                  if (label == c.ignore || label == c.blank || label < 0) continue;
                  if (label >= c.classes) {
                    a.fault->report(b * c.labels + i, label, 0, c.classes);
                    continue;
                  }
                  states[2 * count + 1] = label;
                  states[2 * ++count] = c.blank;
                }
                const double length = static_cast<double>(std::max<int64_t>(1, count));
                const int64_t at = b * c.steps * c.classes;
                loss[b] = -sample<T>(c, a.x<T>(0) + at, states, count,
                                     1 / (length * static_cast<double>(c.batch)),
                                     dx ? dx + at : nullptr, scratch + b * c.scratch()) /
                          length;
              }
            });
            double sum = 0;
            for (int64_t b = 0; b < c.batch; ++b) sum += loss[b];
            a.y<T>(0)[0] = store<T>(c.batch == 0 ? 0 : sum / static_cast<double>(c.batch));
          }};
}

Kernel prepare(const KernelQuery& q) {
  const Dims &x = q.in[0].dims, &y = q.in[1].dims;
  const Config c{x[0],     x[1], x[2], y[1], q.attrs.i("blank", 0), q.attrs.i("ignore_index", -1),
                 q.threads};
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return q.in[1].dtype == DType::kI32 ? kernel<T, int32_t>(c) : kernel<T, int64_t>(c);
  });
}

Expr gradient(Grad& g) { return g.y(1) * g.dy(0); }

}  // namespace

void register_ctc_loss(OpTable& table) {
  const Attrs last{{"blank", int64_t{4}}};
  table.add({
      .name = "ortrain.CtcLoss",
      .inputs = {"scores", "labels"},
      .outputs = {"loss", "gradient?"},
      .infer = infer,
      .grad = {grad("scores", gradient),
               not_differentiable("labels", "targets are data, not something to train through")},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {f({2, 6, 5}), iconst({2, 3}, {1, 2, 2, 3, 3, -1})}},
                   {.in = {f({3, 4, 5}), iconst({3, 2}, {0, 1, -1, -1, 3, 2})}, .attrs = last},
                   {.in = {f({1, 1, 2}), iconst({1, 1}, {1})}},
                   {.in = {f({2, 3, 4}, -30, 30), iconst({2, 0}, {})}},
                   {.in = {f({0, 3, 4}), iconst({0, 2}, {})}}},
      .note = "labels that do not fit into the steps: loss inf; padding is ignore_index, the blank "
              "or negative; no labels: all steps blank, divided by 1",
  });
}

}  // namespace ortrain::ops
