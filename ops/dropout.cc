// Dropout: in training y = x * keep / (1 - ratio) with a fresh mask per step, else the identity.
//
// ONNX's Dropout never runs in a plan that trains: its training policy turns it into
// ortrain.Dropout (x, step) {ratio, seed, key}, or into nothing when ratio is 0 or the graph is not
// trained. Whether the file says training_mode or not does not matter; a Dropout that is there is
// honoured (StepSpec::file_modes: training_mode decides instead, in every mode). The mask is a pure
// function of (seed, key = hash of the node's name, step, element), so the gradient computes it
// again and a resumed run sees the same masks. An element is kept when 2^-24 * (24 hashed bits) >=
// ratio.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/counter_random.h"
#include "ops/common/ref.h"
#include "ops/common/simd.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

inline bool kept(uint64_t stream, int64_t i, uint32_t threshold) {
  return (random_bits(stream, i) >> 40) >= threshold;
}

ORTRAIN_SIMD void drop_f32(const float* x, float* y, int64_t begin, int64_t end, uint64_t stream,
                           uint32_t threshold, float scale) {
  for (int64_t i = begin; i < end; ++i) y[i] = kept(stream, i, threshold) ? x[i] * scale : 0.f;
}

template <class T>
void drop(const T* x, T* y, int64_t begin, int64_t end, uint64_t stream, uint32_t threshold,
          double scale) {
  if constexpr (std::is_same_v<T, float>) {
    drop_f32(x, y, begin, end, stream, threshold, static_cast<float>(scale));
  } else {
    for (int64_t i = begin; i < end; ++i)
      y[i] = store<T>(kept(stream, i, threshold) ? load(x[i]) * scale : 0.0);
  }
}

Kernel prepare_masked(const KernelQuery& q) {
  const double ratio = q.attrs.f("ratio", 0.5);
  const auto threshold = static_cast<uint32_t>(ratio * 16777216.0);
  const uint64_t key = random_key(q.attrs);
  const int64_t n = q.in[0].count();
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [=, threads = q.threads](const KernelArgs& a) {
              const uint64_t stream = random_stream(key, a.x<int64_t>(1)[0]);
              const double scale = ratio < 1 ? 1 / (1 - ratio) : 0;
              parallel_for(threads, n, 16384, [&](int64_t begin, int64_t end) {
                drop<T>(a.x<T>(0), a.y<T>(0), begin, end, stream, threshold, scale);
              });
            }};
  });
}

// Outside training: the identity, and a mask of ones.
Kernel prepare_identity(const KernelQuery& q) {
  const size_t bytes = q.in[0].bytes();
  const int64_t n = q.in[0].count();
  return {0, [=](const KernelArgs& a) {
            if (a.out[0] != a.in[0] && bytes > 0)
              std::copy_n(a.x<std::byte>(0), bytes, a.y<std::byte>(0));
            if (a.out[1]) std::fill_n(a.y<bool>(1), n, true);
          }};
}

void infer(InferCtx& c) {
  c.out(0, c.dtype(0), c.shape(0));
  c.out(1, DType::kBool, c.shape(0));
}

// Before opset 12 the ratio was an attribute; is_test (opset 1) and training_mode say nothing here.
void adapt(RawNode& n) {
  if (n.opset < 12 && !n.attrs.has("ratio")) n.attrs.set("ratio", 0.5);
}

double ratio_of(const Graph& g, const Node& n) {
  if (n.inputs.size() < 2 || n.inputs[1] == kNone) return n.attrs.f("ratio", 0.5);
  const HostTensor* t = g.tensor(n.inputs[1]);
  if (!t || t->count() != 1)
    fail(ErrorCode::kUnsupported, "Dropout '", n.origin, "': the ratio must be a constant");
  return t->as_double(0);
}

// Whether this node drops: as the run says, or as the file does.
bool drops(const Graph& g, const Node& n, const TrainingPolicy& p) {
  if (!p.as_written) return p.training;
  if (n.inputs.size() < 3 || n.inputs[2] == kNone) return false;
  const HostTensor* t = g.tensor(n.inputs[2]);
  if (!t || t->count() != 1)
    fail(ErrorCode::kUnsupported, "Dropout '", n.origin, "': training_mode must be a constant");
  return t->as_int(0) != 0;
}

void policy(Graph& g, NodeId id, const TrainingPolicy& p) {
  const Node n = g.node(id);
  const double ratio = ratio_of(g, n);
  if (!(ratio >= 0 && ratio < 1))
    fail(ErrorCode::kModel, "Dropout '", n.origin, "': ratio ", ratio, " is outside [0, 1)");
  Builder b(g, n.origin + "|canonicalize");
  Expr x = b.wrap(n.inputs[0]), y = x;
  if (drops(g, n, p) && ratio > 0) {
    if (n.outputs.size() > 1 && n.outputs[1] != kNone && !g.value(n.outputs[1]).uses.empty())
      fail(ErrorCode::kUnsupported, "Dropout '", n.origin,
           "': its mask output is used by other nodes");
    const Expr step = p.step == kNone ? b.constant(HostTensor::scalar<int64_t>(0)) : b.wrap(p.step);
    y = b.op("ortrain.Dropout", {x, step},
             {{"ratio", ratio},
              {"seed", static_cast<int64_t>(p.seed)},
              {"key", key_of_origin(n.origin)}});
  } else if (n.outputs.size() > 1 && n.outputs[1] != kNone) {
    const Expr ones = b.expand(b.scalar(DType::kBool, 1), x.shape().values());
    g.replace_uses(n.outputs[1], ones.id());
  }
  g.replace_uses(n.outputs[0], y.id());
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
      .examples = {{.in = {f({3, 4})}}, {.in = {f({2, 5})}, .outputs = 2}},
      .note = "honoured while training wherever it is; the identity in evaluation and export",
  });
  table.add({
      .name = "ortrain.Dropout",
      .inputs = {"x", "step"},
      .outputs = {"y"},
      .infer = infer_same_as_first,
      .grad = {grad("x",
                    [](Grad& g) {
                      return g.b.op("ortrain.Dropout", {g.dy(), g.x(1)}, g.attrs());
                    }),
               no_grad("step")},
      .random = true,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare_masked}},
      .examples = {{.in = {f({6, 7}), iconst({}, {3})},
                    .attrs = {{"ratio", 0.3}, {"seed", int64_t{1}}}}},
  });
}

}  // namespace ortrain::ops
