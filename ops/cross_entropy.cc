// ortrain.CrossEntropy: the mean cross entropy of logits against class indices or class
// probabilities, and its gradient.
//
// loss = sum_i w[t_i] * (lse_i - (1-s) x_i[t_i] - s mean_c x_i[c]) / sum_i w[t_i] over positions
// whose label is not ignore_index; s is label smoothing, w are optional class weights (PyTorch's
// CrossEntropyLoss, reduction mean). With probabilities (float labels of the logits' shape): mean
// over all positions of -sum_c p log softmax. All positions ignored: loss 0 and gradient 0. A label
// outside [0, C) is reported as a fault and counts as ignored. With `classes` (set by pass
// pad_dims) only so many of C count, the gradient of the others is 0. With `rows` (from
// ortrain.ValidRows) the logits [N, C] are compact: line p is position rows[p]; lines beyond those
// are not read. Also outputs what the gradient reads: the divisor, and lse [2, positions]: the
// largest logit, and the log of sum_c exp(x_c - largest). Their sum is the log-sum-exp; kept apart,
// logits of any size lose no digits.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/ref.h"
#include "ops/common/softmax_lines.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

struct Layout {
  int64_t outer = 1, classes = 1, inner = 1;  // logits as [outer, stride, inner]; the first
  int64_t stride = 1;                         // `classes` of each line count
  int64_t positions() const { return outer * inner; }
};
Layout layout_of(const Attrs& attrs, const Dims& dims) {
  Layout l;
  const int axis = normalize_axis(attrs.i("axis", 1), static_cast<int>(dims.size()));
  for (int i = 0; i < static_cast<int>(dims.size()); ++i) {
    int64_t& slot = i < axis ? l.outer : i == axis ? l.stride : l.inner;
    slot *= dims[static_cast<size_t>(i)];
  }
  l.classes = attrs.i("classes", l.stride);
  return l;
}

void infer(InferCtx& c) {
  const int axis = normalize_axis(c.attrs().i("axis", 1), c.rank(0));
  Shape positions;
  for (int i = 0; i < c.rank(0); ++i)
    if (i != axis) positions.push_back(c.shape(0)[i]);
  const Shape& labels = c.shape(1);
  if (c.has(3) &&
      (c.rank(0) != 2 || axis != 1 || is_float(c.dtype(1)) || c.dtype(3) != DType::kI32 ||
       !(labels.count() == c.shape(0)[0]) || !(c.shape(3) == Shape{c.shape(0)[0]})))
    c.fail("rows (i32) need logits [N, C] and N class indices");
  const Shape& expected = is_float(c.dtype(1)) ? c.shape(0) : positions;
  if (!c.has(3) && prove_equal(labels, expected) == Tri::kNo)
    c.fail(cat("labels have shape ", labels.str(), ", logits ", c.shape(0).str(),
               " with classes on axis ", axis, " need ", positions.str(), " (class indices) or ",
               c.shape(0).str(), " (probabilities)"));
  if (c.has(2) && (c.rank(2) != 1 || prove_equal(c.shape(2)[0], c.shape(0)[axis]) == Tri::kNo))
    c.fail(cat("class weights have shape ", c.shape(2).str(), ", expected [",
               c.shape(0)[axis].str(), "]"));
  Shape lse{Dim(2)};
  for (const Dim& d : positions) lse.push_back(d);
  c.out(0, c.dtype(0), Shape());
  c.out(1, c.dtype(0), lse);
  c.out(2, c.dtype(0), Shape());
}

void infer_grad(InferCtx& c) { c.out(0, c.dtype(0), c.shape(0)); }

// The log-sum-exp of a position's logits in two parts: their maximum and the rest.
template <class T>
struct Lse {
  T top, rest;
};

// One row of contiguous logits.
ORTRAIN_SIMD Lse<float> lse_row(const float* x, int64_t n) {
  const float top = row_top(x, n);
  return {top, std::log(row_sum_exp(x, n, top))};
}
ORTRAIN_SIMD void softmax_scaled_row(const float* x, float* dx, int64_t n, Lse<float> lse,
                                     float scale, float shift) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = exp_down_f32(x[i] - lse.top - lse.rest) * scale - shift;
}

// Neighbouring positions whose classes stride: vectors run along the positions.
constexpr int64_t kBlock = 256;
ORTRAIN_SIMD void lse_columns(const float* x, int64_t classes, int64_t inner, int64_t n, float* top,
                              float* rest) {
  column_tops(x, classes, inner, n, top);
  column_sums_exp(x, classes, inner, n, top, rest);
  for (int64_t j = 0; j < n; ++j) rest[j] = std::log(rest[j]);
}
// dx = softmax * mass - shift where the position counts, else 0.
ORTRAIN_SIMD void softmax_scaled_columns(const float* x, float* dx, int64_t n, const float* top,
                                         const float* rest, const float* mass,
                                         const int32_t* counts, float shift) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const float v = exp_down_f32(x[j] - top[j] - rest[j]) * mass[j] - shift;
    dx[j] = counts[j] ? v : 0.f;
  }
}

// Reads position p's label as a class, or -1 when it does not count.
template <class L>
int64_t label_at(const L* labels, int64_t p, int64_t classes, int64_t ignore, Fault* fault) {
  const int64_t t = store<int64_t>(load(labels[p]));
  if (t == ignore) return -1;
  if (t < 0 || t >= classes) {
    fault->report(p, t, 0, classes);
    return -1;
  }
  return t;
}

struct Config {
  Layout layout;
  int64_t ignore;
  double smoothing;
  bool probabilities;
  int threads;
  // Lines of compact logits whose position is below `end`.
  int64_t lines_before(const int32_t* rows, int64_t end) const {
    return std::lower_bound(rows, rows + layout.positions(), end) - rows;
  }
};
Config config_of(const KernelQuery& q) {
  return {layout_of(q.attrs, q.in[0].dims), q.attrs.i("ignore_index", -100),
          q.attrs.f("label_smoothing", 0), is_float(q.in[1].dtype), q.threads};
}

// --- forward
// ----------------------------------------------------------------------------------------------
struct Partial {
  double loss = 0, divisor = 0;
};

template <class T, class L>
void forward_range(const Config& c, const KernelArgs& a, int64_t begin, int64_t end, Partial& out) {
  const Layout& l = c.layout;
  const T* logits = a.x<T>(0);
  const L* labels = a.x<L>(1);
  const T* weights = a.x<T>(2);
  T* lse_out = a.y<T>(1);
  const int32_t* rows = a.x<int32_t>(3);
  float tops[kBlock], rests[kBlock];
  int64_t block = begin, block_end = begin;  // positions whose tops and rests are known
  for (int64_t p = begin; p < end; ++p) {
    const int64_t base = (p / l.inner) * l.stride * l.inner + p % l.inner;
    const T* x = logits + base;
    Lse<double> lse{0, 0};
    if constexpr (std::is_same_v<T, float>) {
      if (l.inner == 1) {
        const Lse<float> row = lse_row(x, l.classes);
        lse = {row.top, row.rest};
      } else {
        if (p == block_end) {
          block = p;
          block_end = std::min({end, p + kBlock, (p / l.inner + 1) * l.inner});
          lse_columns(x, l.classes, l.inner, block_end - block, tops, rests);
        }
        lse = {tops[p - block], rests[p - block]};
      }
    }
    if constexpr (!std::is_same_v<T, float>) {
      double top = -INFINITY, sum = 0;
      for (int64_t k = 0; k < l.classes; ++k) top = std::max(top, load(x[k * l.inner]));
      for (int64_t k = 0; k < l.classes; ++k) sum += std::exp(load(x[k * l.inner]) - top);
      lse = {top, std::log(sum)};
    }
    if (lse_out) {
      lse_out[p] = store<T>(lse.top);
      lse_out[p + l.positions()] = store<T>(lse.rest);
    }
    const auto surprise = [&](int64_t k) { return lse.top - load(x[k * l.inner]) + lse.rest; };
    const auto weight = [&](int64_t k) { return weights ? load(weights[k]) : 1.0; };
    if (c.probabilities) {
      double loss = 0, mass = 0;
      for (int64_t k = 0; k < l.classes; ++k) {
        const double q = (1 - c.smoothing) * load(labels[base + k * l.inner]) +
                         c.smoothing / static_cast<double>(l.classes);
        loss += q * weight(k) * surprise(k);
        mass += q;
      }
      out.loss += mass == 0 ? 0 : loss;
      out.divisor += 1;
      continue;
    }
    const int64_t t = label_at(labels, rows ? rows[p] : p, l.classes, c.ignore, a.fault);
    if (t < 0) continue;
    double loss = (1 - c.smoothing) * weight(t) * surprise(t);
    if (c.smoothing != 0) {
      double all = 0;
      for (int64_t k = 0; k < l.classes; ++k) all += weight(k) * surprise(k);
      loss += c.smoothing / static_cast<double>(l.classes) * all;
    }
    out.loss += loss;
    out.divisor += weight(t);
  }
}

template <class T, class L>
Kernel forward(const KernelQuery& q) {
  const Config c = config_of(q);
  constexpr int64_t kPieces =
      64;  // fixed, so that the sum does not depend on the number of threads
  return {kPieces * sizeof(Partial), [c](const KernelArgs& a) {
            auto* partial = static_cast<Partial*>(a.workspace);
            const int64_t n = c.layout.positions();
            const int64_t work = n * c.layout.classes;
            const int32_t* rows = a.x<int32_t>(3);
            for (int64_t p = rows && a.out[1] ? c.lines_before(rows, n) : n; p < n; ++p)
              a.y<T>(1)[p] = a.y<T>(1)[p + n] = store<T>(0);
            parallel_for(work < 8192 ? 1 : c.threads, kPieces, 1, [&](int64_t b, int64_t e) {
              for (int64_t i = b; i < e; ++i) {
                partial[i] = Partial();
                int64_t first = n * i / kPieces, last = n * (i + 1) / kPieces;
                if (rows) first = c.lines_before(rows, first), last = c.lines_before(rows, last);
                forward_range<T, L>(c, a, first, last, partial[i]);
              }
            });
            Partial sum;
            for (int64_t i = 0; i < kPieces; ++i)
              sum.loss += partial[i].loss, sum.divisor += partial[i].divisor;
            a.y<T>(0)[0] = store<T>(sum.divisor == 0 ? 0.0 : sum.loss / sum.divisor);
            if (a.y<T>(2)) a.y<T>(2)[0] = store<T>(sum.divisor);
          }};
}

// --- backward
// ---------------------------------------------------------------------------------------------
// inputs: logits, labels, weights?, lse, divisor, dloss. dx = dloss/divisor * (w (softmax -
// target)).
// The same for f32 and class indices, a block of neighbouring positions at a time.
template <class L>
void backward_columns(const Config& c, const KernelArgs& a, int64_t begin, int64_t end) {
  const Layout& l = c.layout;
  const float *weights = a.x<float>(2), *lse = a.x<float>(3);
  const double divisor = a.x<float>(4)[0];
  const double scale = divisor == 0 ? 0.0 : a.x<float>(5)[0] / divisor;
  const double even = c.smoothing / static_cast<double>(l.classes);
  const auto weight = [&](int64_t k) { return weights ? static_cast<double>(weights[k]) : 1.0; };
  double all = 0;
  for (int64_t k = 0; k < l.classes; ++k) all += weight(k);
  float mass[kBlock];
  int32_t counts[kBlock];
  int64_t label[kBlock];
  for (int64_t p = begin; p < end;) {
    const int64_t n = std::min({end - p, kBlock, (p / l.inner + 1) * l.inner - p});
    const int64_t base = (p / l.inner) * l.stride * l.inner + p % l.inner;
    for (int64_t j = 0; j < n; ++j) {
      label[j] = label_at(a.x<L>(1), p + j, l.classes, c.ignore, a.fault);
      counts[j] = label[j] >= 0 && scale != 0;
      mass[j] = static_cast<float>(
          counts[j] ? scale * ((1 - c.smoothing) * weight(label[j]) + even * all) : 0);
    }
    float* dx = a.y<float>(0) + base;
    for (int64_t k = 0; k < l.classes; ++k)
      softmax_scaled_columns(a.x<float>(0) + base + k * l.inner, dx + k * l.inner, n, lse + p,
                             lse + p + l.positions(), mass, counts,
                             static_cast<float>(scale * even * weight(k)));
    for (int64_t k = l.classes; k < l.stride; ++k) std::fill_n(dx + k * l.inner, n, 0.f);
    for (int64_t j = 0; j < n; ++j)
      if (counts[j])
        dx[label[j] * l.inner + j] -=
            static_cast<float>(scale * (1 - c.smoothing) * weight(label[j]));
    p += n;
  }
}

template <class T, class L>
void backward_range(const Config& c, const KernelArgs& a, int64_t begin, int64_t end) {
  const Layout& l = c.layout;
  if constexpr (std::is_same_v<T, float>)
    if (l.inner != 1 && !c.probabilities) return backward_columns<L>(c, a, begin, end);
  const T* logits = a.x<T>(0);
  const L* labels = a.x<L>(1);
  const T* weights = a.x<T>(2);
  const T* lse_in = a.x<T>(3);
  const double divisor = load(a.x<T>(4)[0]);
  const double scale = divisor == 0 ? 0.0 : load(a.x<T>(5)[0]) / divisor;
  T* out = a.y<T>(0);
  const int32_t* rows = a.x<int32_t>(6);
  const double even = c.smoothing / static_cast<double>(l.classes);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t base = (p / l.inner) * l.stride * l.inner + p % l.inner;
    const T* x = logits + base;
    T* dx = out + base;
    for (int64_t k = l.classes; k < l.stride; ++k) dx[k * l.inner] = store<T>(0);
    const Lse<double> lse{load(lse_in[p]), load(lse_in[p + l.positions()])};
    const int64_t t =
        c.probabilities ? 0 : label_at(labels, rows ? rows[p] : p, l.classes, c.ignore, a.fault);
    if (t < 0 || scale == 0) {
      for (int64_t k = 0; k < l.classes; ++k) dx[k * l.inner] = store<T>(0);
      continue;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (l.inner == 1 && (!weights || c.smoothing == 0) && !c.probabilities) {
        const double mine = scale * (weights ? load(weights[t]) : 1.0);
        const float target = static_cast<float>(mine * (1 - c.smoothing));
        softmax_scaled_row(x, dx, l.classes,
                           {static_cast<float>(lse.top), static_cast<float>(lse.rest)},
                           static_cast<float>(mine), static_cast<float>(scale * even));
        dx[t] -= target;
        continue;
      }
    }
    const auto weight = [&](int64_t k) { return weights ? load(weights[k]) : 1.0; };
    const auto target = [&](int64_t k) {
      const double hard = c.probabilities ? load(labels[base + k * l.inner]) : (k == t ? 1.0 : 0.0);
      return ((1 - c.smoothing) * hard + even) * weight(k);
    };
    double mass = 0;
    for (int64_t k = 0; k < l.classes; ++k) mass += target(k);
    for (int64_t k = 0; k < l.classes; ++k) {
      const double soft = std::exp(load(x[k * l.inner]) - lse.top - lse.rest);
      dx[k * l.inner] = store<T>(scale * (soft * mass - target(k)));
    }
  }
}

template <class T, class L>
Kernel backward(const KernelQuery& q) {
  const Config c = config_of(q);
  return {0, [c](const KernelArgs& a) {
            const int64_t grain =
                std::max<int64_t>(1, 8192 / std::max<int64_t>(1, c.layout.classes));
            const int64_t n = c.layout.positions(), stride = c.layout.stride;
            const int32_t* rows = a.x<int32_t>(6);
            const int64_t lines = rows ? c.lines_before(rows, n) : n;
            parallel_for(c.threads, lines, grain,
                         [&](int64_t b, int64_t e) { backward_range<T, L>(c, a, b, e); });
            // In place the lines beyond are the zeros of ortrain.LinearRows already.
            if (a.in[0] != a.out[0])
              std::fill_n(a.y<T>(0) + lines * stride, (n - lines) * stride, store<T>(0));
          }};
}

template <bool kForward>
Kernel prepare(const KernelQuery& q) {
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    if (is_float(q.in[1].dtype)) {
      ORTRAIN_CHECK(q.in[1].dtype == q.in[0].dtype, "probabilities and logits differ in type");
      return kForward ? forward<T, T>(q) : backward<T, T>(q);
    }
    if (q.in[1].dtype == DType::kI32)
      return kForward ? forward<T, int32_t>(q) : backward<T, int32_t>(q);
    if (q.in[1].dtype != DType::kI64)
      fail(ErrorCode::kShape, "labels must be i64, i32 or float, got ", name_of(q.in[1].dtype));
    return kForward ? forward<T, int64_t>(q) : backward<T, int64_t>(q);
  });
}

// Lanes added to the classes do not count: attribute `classes` says how many do.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  const int rank = g.value(n.inputs[0]).shape.rank();
  std::string logits(static_cast<size_t>(rank), '.');
  logits[static_cast<size_t>(normalize_axis(n.attrs.i("axis", 1), rank))] = 'c';
  return PadAxes{{logits, is_float(g.value(n.inputs[1]).dtype) ? logits : "", "c"}, {}};
}
void pad_widen(Graph& g, NodeId n, const Dims&) {
  const Shape& x = g.value(g.node(n).inputs[0]).shape;
  Attrs& attrs = g.node(n).attrs;
  if (!attrs.has("classes"))
    attrs.set("classes", x[normalize_axis(attrs.i("axis", 1), x.rank())].value());
}

Expr gradient(Grad& g) {
  return g.b.op("ortrain.CrossEntropyGrad",
                {g.x(0), g.x(1), g.has_x(2) ? g.x(2) : Expr(), g.y(1), g.y(2), g.dy(0),
                 g.has_x(3) ? g.x(3) : Expr()},
                g.attrs());
}

}  // namespace

void register_cross_entropy(OpTable& table) {
  add_pad_rule("ortrain.CrossEntropy", {pad_axes, pad_widen});
  const ExampleInput labels = ints({4}, 0, 5);
  table.add({
      .name = "ortrain.CrossEntropy",
      .inputs = {"logits", "labels", "weights?", "rows?"},
      .outputs = {"loss", "lse?", "divisor?"},
      .infer = infer,
      .grad = {grad("logits", gradient),
               not_differentiable("labels", "targets are data, not something to train through"),
               not_differentiable("weights", "class weights are given, not trained"),
               no_grad("rows")},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, prepare<true>}},
      .examples = {{.in = {f({4, 5}), labels}},
                   {.in = {f({4, 5}), labels}, .attrs = {{"label_smoothing", 0.1}}},
                   {.in = {f({2, 3, 7}, -40, 40), ints({2, 3}, 0, 7)},
                    .attrs = {{"axis", int64_t{-1}}}},
                   {.in = {f({2, 5, 3}), ints({2, 3}, 0, 5)}},
                   {.in = {f({2, 5, 300}), ints({2, 300}, 0, 5), f({5}, 0.5, 2)},
                    .attrs = {{"label_smoothing", 0.1}, {"ignore_index", int64_t{2}}}},
                   {.in = {f({4, 5}), iconst({4}, {0, -100, 4, -100})}},
                   {.in = {f({3, 2}), iconst({3}, {-100, -100, -100})}},
                   {.in = {f({4, 7}), labels, f({7}, 0.5, 2)},
                    .attrs = {{"classes", int64_t{5}}, {"label_smoothing", 0.1}}},
                   {.in = {f({2, 6, 300}), ints({2, 300}, 0, 5)},
                    .attrs = {{"classes", int64_t{5}}}},
                   {.in = {floats({2, 3}, {3e7, 3e7, 3e7, -2e8, -2e8, -2e8}), iconst({2}, {0, 2})},
                    .check_grad = false,
                    .note = "differences of such logits have no digits"},
                   {.in = {f({4, 5}), ints({4}, 0, 5), f({5}, 0.5, 2)},
                    .attrs = {{"label_smoothing", 0.2}}}},
      .note = "a position with ignore_index does not count; all ignored: loss 0, gradient 0",
  });
  table.add({
      .name = "ortrain.CrossEntropyGrad",
      .inputs = {"logits", "labels", "weights?", "lse", "divisor", "dloss", "rows?"},
      .outputs = {"dlogits"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare<false>}},
      .examples = {{.in = {f({4, 5}), labels, absent(), f({2, 4}, 1, 2), f({}, 4, 5), f({})}},
                   {.in = {f({2, 5, 300}), ints({2, 300}, 0, 5), f({5}, 0.5, 2),
                           f({2, 2, 300}, 1, 2), f({}, 4, 5), f({})},
                    .attrs = {{"label_smoothing", 0.1}, {"ignore_index", int64_t{2}}}},
                   {.in = {f({4, 5}), ints({4}, 0, 5), f({5}, 0.5, 2), f({2, 4}, 1, 2), f({}, 4, 5),
                           f({})}}},
  });
}

}  // namespace ortrain::ops
