// Dropout: in training y = x * keep / (1 - ratio) with a fresh mask per step, else the identity.
//
// ONNX's Dropout never runs in a plan that trains: its training policy turns it into
// ortrain.Dropout (x, step, before?) {ratio, seed, key, per_sample}, or into nothing when ratio is
// 0 or the graph is not trained. Whether the file says training_mode or not does not matter; a
// Dropout that is there is honoured (StepSpec::file_modes: training_mode decides instead, in every
// mode). The mask is a pure function of (seed, key = hash of the node's name, step, element), so
// the gradient computes it again and a resumed run sees the same masks. An element is kept when
// 2^-24 * (24 hashed bits) >= ratio.
#include <algorithm>

#include "graph/error.h"
#include "graph/rewrite.h"
#include "ops/common/counter_random.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

inline bool kept(uint64_t stream, int64_t i, uint32_t threshold) {
  return (random_bits(stream, i) >> 40) >= threshold;
}

// `first`: the number of element 0 among the step's elements.
ORTRAIN_SIMD void drop_f32(const float* x, float* y, int64_t begin, int64_t end, int64_t first,
                           uint64_t stream, uint32_t threshold, float scale) {
  for (int64_t i = begin; i < end; ++i)
    y[i] = kept(stream, first + i, threshold) ? x[i] * scale : 0.f;
}

template <class T>
void drop(const T* x, T* y, int64_t begin, int64_t end, int64_t first, uint64_t stream,
          uint32_t threshold, double scale) {
  if constexpr (std::is_same_v<T, float>) {
    drop_f32(x, y, begin, end, first, stream, threshold, static_cast<float>(scale));
  } else {
    for (int64_t i = begin; i < end; ++i)
      y[i] = store<T>(kept(stream, first + i, threshold) ? load(x[i]) * scale : 0.0);
  }
}

Kernel prepare_masked(const KernelQuery& q) {
  const double ratio = q.attrs.f("ratio", 0.5);
  const auto threshold = static_cast<uint32_t>(ratio * 16777216.0);
  const uint64_t key = random_key(q.attrs);
  const int64_t n = q.in[0].count(), per_sample = q.attrs.i("per_sample", 0);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=, threads = q.threads](const KernelArgs& a) {
              const uint64_t stream = random_stream(key, a.x<int64_t>(1)[0]);
              const int64_t first = a.in[2] ? a.x<int64_t>(2)[0] * per_sample : 0;
              const double scale = ratio < 1 ? 1 / (1 - ratio) : 0;
              parallel_for(threads, n, 16384, [&](int64_t begin, int64_t end) {
                drop<T>(a.x<T>(0), a.y<T>(0), begin, end, first, stream, threshold, scale);
              });
            }};
  });
}

// Before opset 10 the mask had the type of the data.
DType mask_type(const Attrs& attrs, DType data) {
  return attrs.i("mask_like_data", 0) ? data : DType::kBool;
}

// Outside training: the identity, and a mask of ones.
Kernel prepare_identity(const KernelQuery& q) {
  const size_t bytes = q.in[0].bytes();
  const int64_t n = q.in[0].count();
  const DType mask = mask_type(q.attrs, q.in[0].dtype);
  return {0, [=](const KernelArgs& a) {
            if (a.out[0] != a.in[0] && bytes > 0)
              std::copy_n(a.x<std::byte>(0), bytes, a.y<std::byte>(0));
            if (!a.out[1]) return;
            dispatch(mask, [&]<class T>() { std::fill_n(a.y<T>(1), n, static_cast<T>(1.f)); });
          }};
}

void infer(InferCtx& c) {
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, mask_type(c.attrs(), c.dtype(0)), c.shape(0));
}

// Before opset 12 the ratio was an attribute; is_test (opset 1) and training_mode say nothing here.
void adapt(RawNode& n) {
  if (n.opset < 12 && !n.attrs.has("ratio")) n.attrs.set("ratio", 0.5);
  if (n.opset < 10) n.attrs.set("mask_like_data", int64_t{1});
}

// The scalar constant at input i; null when that is absent.
const HostTensor* constant_input(const Graph& g, const Node& n, size_t i, const char* what) {
  if (n.inputs.size() <= i || n.inputs[i] == kNone) return nullptr;
  const HostTensor* t = g.tensor(n.inputs[i]);
  if (!t || t->count() != 1)
    fail(ErrorCode::kUnsupported, n.op->name, " '", n.origin, "': ", what, " must be a constant");
  return t;
}

// Replaces both outputs of n, which drops from x and has its ratio at input `at`, training_mode
// behind it; `residual` is added at last.
void replace(Graph& g, const Node& n, Expr x, size_t at, Expr residual, const TrainingPolicy& p) {
  Builder& b = x.builder();
  const HostTensor* given = constant_input(g, n, at, "the ratio");
  const double ratio = given ? given->as_double(0) : n.attrs.f("ratio", 0.5);
  if (!(ratio >= 0 && ratio < 1))
    fail(ErrorCode::kModel, "Dropout '", n.origin, "': ratio ", ratio, " is outside [0, 1)");
  bool drops = p.training;
  if (p.as_written) {
    const HostTensor* mode = constant_input(g, n, at + 1, "training_mode");
    drops = mode && mode->as_int(0) != 0;
  }
  const bool wants_mask = n.outputs.size() > 1 && n.outputs[1] != kNone &&
                          (!g.value(n.outputs[1]).uses.empty() || is_graph_result(g, n.outputs[1]));
  Expr y = x, mask;
  if (drops && ratio > 0) {
    const Attrs attrs{
        {"ratio", ratio}, {"seed", static_cast<int64_t>(p.seed)}, {"key", key_of_origin(n.origin)}};
    const Expr step = p.step == kNone ? b.constant(HostTensor::scalar<int64_t>(0)) : b.wrap(p.step);
    y = b.op("ortrain.Dropout", {x, step}, attrs);
    if (wants_mask)  // ones meet the same mask
      mask = b.cast(b.op("ortrain.Dropout", {b.ones_like(x), step}, attrs), DType::kBool);
  } else if (wants_mask) {
    mask = b.expand(b.scalar(DType::kBool, 1), x.shape().values());
  }
  if (mask) mask = b.cast(mask, g.value(n.outputs[1]).dtype);
  if (residual) y = y + residual;
  if (mask) g.replace_uses(n.outputs[1], mask.id());
  g.replace_uses(n.outputs[0], y.id());
}

void policy(Graph& g, NodeId id, const TrainingPolicy& p) {
  const Node n = g.node(id);
  Builder b(g, n.origin + "|canonicalize");
  replace(g, n, b.wrap(n.inputs[0]), 1, Expr(), p);
}

// --- com.microsoft.BiasDropout: data, bias, residual?, ratio?, training_mode?
void infer_biased(InferCtx& c) {
  const Shape both = broadcast(c.shape(0), c.shape(1));
  if (prove_equal(both, c.shape(0)) == Tri::kNo || both.rank() != c.rank(0))
    c.fail(cat("bias ", c.shape(1).str(), " does not broadcast to ", c.shape(0).str()));
  if (c.has(2) && prove_equal(c.shape(2), c.shape(0)) == Tri::kNo)
    c.fail(cat("residual is ", c.shape(2).str(), ", data ", c.shape(0).str()));
  infer(c);
}
void policy_biased(Graph& g, NodeId id, const TrainingPolicy& p) {
  const Node n = g.node(id);
  Builder b(g, n.origin + "|canonicalize");
  const Expr residual = n.inputs.size() > 2 ? b.wrap(n.inputs[2]) : Expr();
  replace(g, n, b.wrap(n.inputs[0]) + b.wrap(n.inputs[1]), 3, residual, p);
}
std::vector<Expr> biased(Decompose& d) {  // outside training
  const bool mask = d.wants(1);
  Expr y = d.x(0) + d.x(1);
  if (d.has_x(2)) y = y + d.x(2);
  return {y, mask ? d.b.expand(d.b.scalar(DType::kBool, 1), y.shape().values()) : Expr()};
}

}  // namespace

void register_dropout(OpTable& table) {
  table.add({
      .name = "Dropout",
      .inputs = {"data", "ratio?", "training_mode?"},
      .outputs = {"output", "mask?"},
      .since = 7,
      .infer = infer,
      .grad = {grad("data", [](Grad& g) { return g.dy(); }), no_grad("ratio"),
               no_grad("training_mode")},
      .adapt = adapt,
      .training_policy = policy,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare_identity}},
      .examples = {{.in = {f({3, 4})}},
                   {.in = {f({2, 5})}, .outputs = 2},
                   {.in = {f({2, 5})}, .attrs = {{"mask_like_data", 1}}, .outputs = 2}},
      .note = "honoured while training wherever it is; the identity in evaluation and export",
  });
  table.add({
      .name = "com.microsoft.BiasDropout",
      .inputs = {"data", "bias", "residual?", "ratio?", "training_mode?"},
      .outputs = {"output", "mask?"},
      .infer = infer_biased,
      .decompose = biased,
      .training_policy = policy_biased,
      .examples = {{.in = {f({2, 3}), f({3})}},
                   {.in = {f({2, 2, 3}), f({3}), f({2, 2, 3})}, .outputs = 2}},
      .note = "dropout(data + bias) + residual; trains and rests as Dropout",
  });
  table.add({
      .name = "ortrain.Dropout",
      .inputs = {"x", "step", "before?"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x",
                    [](Grad& g) {
                      return g.b.op("ortrain.Dropout",
                                    {g.dy(), g.x(1), g.has_x(2) ? g.x(2) : Expr()}, g.attrs());
                    }),
               no_grad("step"), no_grad("before")},
      .random = true,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare_masked}},
      .examples = {{.in = {f({6, 7}), iconst({}, {3})},
                    .attrs = {{"ratio", 0.3}, {"seed", int64_t{1}}}},
                   {.in = {f({2, 7}), iconst({}, {3}), iconst({}, {4})},
                    .attrs = {{"ratio", 0.3}, {"seed", int64_t{1}}, {"per_sample", int64_t{7}}}}},
      .note = "`before`: samples of the step before this batch, of per_sample numbers each; their "
              "masks follow those of one large batch",
  });
}

}  // namespace ortrain::ops
