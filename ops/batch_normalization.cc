// BatchNormalization: y = (x - mean) scale / sqrt(var + epsilon) + bias per channel, with batch
// statistics (training_mode=1) or the running ones; and its gradient.
//
// While training, running values follow PyTorch, unlike the ONNX text: running_var moves towards
// the *unbiased* batch variance (attribute `unbiased`, set by the training policy; a node as the
// file has it follows ONNX); new = momentum * old + (1 - momentum) * batch (ONNX's momentum, 0.9 =
// PyTorch's 0.1). They are state: never trained, no gradient. While training, inference exports get
// batch statistics unless norms are frozen. Own additions, made by fuse_forward: relu=1 (relu_max:
// clip above) and a sixth input z added before the relu; own outputs 3 and 4 are the mean and
// 1/sqrt(var
// + epsilon) that were used, as f64. Bytes moved: see common/batch_norm_kernels.cc; the gradient op
// is there because the same in primitive ops takes 11 passes over memory instead of 5
// (docs/performance.md).
#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/batch_norm_kernels.h"
#include "ops/common/checks.h"
#include "ops/common/share_node.h"

namespace ortrain::ops {
namespace {

bool per_position(const Attrs& a) { return a.i("spatial", 1) == 0; }

// spatial=0 has one mean per position: the same as [N, C*D*..], a channel for each position.
template <Kernel (*prepare)(const KernelQuery&)>
Kernel flattened(const KernelQuery& q) {
  if (!per_position(q.attrs)) return prepare(q);
  KernelQuery flat = q;
  const size_t rank = q.in[0].dims.size();
  for (std::vector<TensorDesc>* side : {&flat.in, &flat.out})
    for (TensorDesc& t : *side) {
      if (!t.present()) continue;
      const int64_t n = t.dims.size() == rank ? t.dims[0] : 1;
      Dims rest(t.dims.begin() + (t.dims.size() == rank), t.dims.end());
      t.dims = t.dims.size() == rank ? Dims{n, element_count(rest)} : Dims{element_count(rest)};
    }
  return prepare(flat);
}

void infer_batch_norm(InferCtx& c) {
  same_floats(c, {0, 5});
  for (int i = 1; i < 5; ++i)
    if (!is_float(c.dtype(i))) c.fail(cat("input ", i, " is ", name_of(c.dtype(i))));
  const Shape& x = c.shape(0);
  if (x.rank() < 2) c.fail(cat("takes rank 2 and higher, not ", x.str()));
  Shape wanted{x[c.attrs().i("channels_last", 0) ? x.rank() - 1 : 1]};
  if (per_position(c.attrs())) wanted = Shape(std::vector<Dim>(x.begin() + 1, x.end()));
  for (int i = 1; i < 5; ++i)
    if (prove_equal(c.shape(i), wanted) == Tri::kNo)
      c.fail(cat("input ", i, " has shape ", c.shape(i).str(), ", expected ", wanted.str()));
  c.out(0, c.dtype(0), x);
  c.out(1, c.dtype(3), c.shape(3));
  c.out(2, c.dtype(4), c.shape(4));
  c.out(3, DType::kF64, c.shape(1));
  c.out(4, DType::kF64, c.shape(1));
}
void infer_grad(InferCtx& c) {
  c.out(0, c.dtype(1), c.shape(1));
  c.out(1, c.dtype(2), c.shape(2));
  c.out(2, c.dtype(2), c.shape(2));
  c.out(3, c.dtype(1), c.shape(1));
}

// Before opset 14 training mode was told by the number of outputs; 9 dropped `spatial`.
void adapt(RawNode& n) {
  if (n.opset >= 14) return;
  if (n.opset >= 9 || !per_position(n.attrs)) n.attrs.erase("spatial");
  if (n.wanted.size() > 1) n.attrs.set("training_mode", int64_t{1});
  if (n.wanted.size() > 3) n.wanted.resize(3);  // saved_mean and saved_var are gone
}

// Running value `input` becomes state of its own and takes output `output` at the end of the step.
void update_state(Graph& g, NodeId n, int input, int output) {
  ValueId state = g.node(n).inputs[static_cast<size_t>(input)];
  bool shared = false;
  for (const StateUpdate& u : g.updates()) shared |= u.state == state;
  if (shared) {  // equal initial statistics that an exporter merged: separate them
    const HostTensor* initial = g.tensor(state);
    ORTRAIN_CHECK(initial, "running statistics without contents");
    const std::string name = cat(g.value(state).name, "/", g.node(n).origin);
    state = g.add_state(initial->clone(), name);
    g.set_input(n, input, state);
  }
  const Source source = g.value(state).source;
  if (source == Source::kNode || source == Source::kInput)
    fail(ErrorCode::kUnsupported, "running statistics of ", g.describe(n),
         " are computed by the graph; give them as initializers or use --batch-norm frozen");
  if (source != Source::kState) g.set_source(state, Source::kState);
  g.add_update(state, g.add_output(n, output));
}
void policy(Graph& g, NodeId n, const TrainingPolicy& p) {
  Attrs& attrs = g.node(n).attrs;
  const bool wanted = p.as_written ? attrs.i("training_mode", 0) != 0 : p.training;
  const bool batch_statistics = wanted && !p.batch_norm_frozen;
  attrs.set("training_mode", int64_t{batch_statistics});
  if (batch_statistics && !p.as_written) attrs.set("unbiased", int64_t{1});
  if (batch_statistics && p.update_states) {
    update_state(g, n, 3, 1);
    update_state(g, n, 4, 2);
  }
  g.infer(n);
}

Expr gradient(Grad& g, int output) {
  Attrs a = g.attrs();
  a.erase("momentum");
  a.erase("unbiased");
  return share_node(g.b, "ortrain.BatchNormalizationGrad",
                    {g.dy(), g.x(0), g.x(1), g.y(3), g.y(4), g.x(2),
                     g.has_x(5) && g.attrs().i("relu", 0) ? g.y(0) : Expr()},
                    a, output);
}

Expr grad_z(Grad& g) { return g.attrs().i("relu", 0) ? gradient(g, 3) : g.dy(); }

std::optional<LayoutChange> to_channels_last(Graph& g, NodeId n) {
  if (per_position(g.node(n).attrs)) return std::nullopt;
  g.node(n).attrs.set("channels_last", int64_t{1});
  if (g.node(n).inputs.size() > 5) return LayoutChange{{0, 5}, {0}};
  return LayoutChange{{0}, {0}};
}

// A channel of zeros with scale 0 and bias 0 stays one; its variance is 0, so epsilon must not be.
std::optional<PadAxes> pad_axes(const Graph& g, const Node& n) {
  if (per_position(n.attrs) || n.attrs.i("channels_last", 0) || !(n.attrs.f("epsilon", 1e-5) > 0))
    return std::nullopt;
  const std::string x =
      ".c" + std::string(static_cast<size_t>(g.value(n.inputs[0]).shape.rank() - 2), '.');
  return PadAxes{{x, "c", "c", "c", "c", x}, {x, "c", "c", "c", "c"}};
}

const Attrs kTrain = {{"training_mode", int64_t{1}}};
Attrs train(Attrs more) {
  more.set("training_mode", int64_t{1});
  return more;
}
std::vector<ExampleInput> data(Dims x, int64_t c) {
  return {f(std::move(x)), f({c}), f({c}), f({c}), f({c}, 0.5, 2)};
}
std::vector<ExampleInput> with_residual(Dims x, int64_t c) {
  std::vector<ExampleInput> in = data(x, c);
  in.push_back(f(std::move(x)));
  return in;
}

OpDef batch_norm_op() {
  const Attrs nhwc = {{"channels_last", int64_t{1}}};
  const Attrs relu = {{"channels_last", int64_t{1}}, {"relu", int64_t{1}}};
  Attrs relu6 = relu;
  relu6.set("relu_max", 1.0);
  const std::vector<ExampleInput> positions{f({4, 2, 3}), f({2, 3}), f({2, 3}), f({2, 3}),
                                            f({2, 3}, 0.5, 2)};
  const std::string running = "the gradient does not flow through running values";
  return {
      .name = "BatchNormalization",
      .inputs = {"X", "scale", "B", "input_mean", "input_var", "z?"},
      .outputs = {"Y", "running_mean?", "running_var?", "saved_mean?", "saved_invstd?"},
      .infer = infer_batch_norm,
      .grad = {grad("X", [](Grad& g) { return gradient(g, 0); }),
               grad("scale", [](Grad& g) { return gradient(g, 1); }),
               grad("B", [](Grad& g) { return gradient(g, 2); }), no_grad("input_mean"),
               no_grad("input_var"), grad("z", grad_z)},
      .adapt = adapt,
      .training_policy = policy,
      .channels_last = to_channels_last,
      .state_inputs = {3, 4},
      .kernels = {{"cpu", "nhwc", batch_norm_reject, flattened<batch_norm_nhwc>},
                  {"cpu", "ref", nullptr, flattened<batch_norm_ref>}},
      .examples =
          {
              {.in = data({2, 3, 4, 5}, 3)},
              {.in = data({2, 3, 4, 5}, 3), .attrs = kTrain},
              {.in = data({2, 3, 4, 5}, 3),
               .attrs = train({{"momentum", 0.6}, {"epsilon", 0.1}, {"unbiased", int64_t{1}}}),
               .outputs = 5,
               .check_grad = false,
               .note = running},
              {.in = data({33, 17}, 17), .attrs = kTrain},
              {.in = data({33, 17}, 17)},
              {.in = data({4, 3, 7}, 3), .attrs = kTrain},
              {.in = data({2, 3, 2, 3, 4}, 3), .attrs = kTrain},
              {.in = data({2, 30, 11, 5}, 5),
               .attrs = train(nhwc),
               .outputs = 5,
               .check_grad = false,
               .note = running},
              {.in = data({2, 4, 5, 3}, 3), .attrs = train(nhwc)},
              {.in = data({2, 4, 5, 3}, 3), .attrs = train(relu)},
              {.in = data({2, 4, 5, 3}, 3), .attrs = train(relu6)},
              {.in = data({2, 4, 5, 3}, 3), .attrs = relu},
              {.in = with_residual({2, 4, 5, 3}, 3), .attrs = train(relu)},
              {.in = with_residual({2, 3, 4, 5}, 3), .attrs = kTrain},
              {.in = {f({40, 40, 3}, 1000, 1001), f({3}), f({3}), f({3}), f({3}, 0.5, 2)},
               .attrs = train(nhwc)},
              {.in = data({0, 3, 4, 5}, 3)},
              {.in = positions, .attrs = {{"spatial", 0}}},
              {.in = positions, .attrs = train({{"spatial", 0}})},
          },
      .note =
          "while training, running variance is unbiased, as in PyTorch and unlike the ONNX text",
  };
}

OpDef batch_norm_grad_op() {
  const std::vector<ExampleInput> in = {f({2, 4, 5, 3}), f({2, 4, 5, 3}), f({3}),
                                        f({3}),          f({3}, 0.5, 2),  f({3})};
  std::vector<ExampleInput> residual = in;
  residual.push_back(f({2, 4, 5, 3}));
  const Attrs nhwc = {{"channels_last", int64_t{1}}};
  const Attrs relu = {{"channels_last", int64_t{1}}, {"relu", int64_t{1}}, {"relu_max", 1.5}};
  return {
      .name = "ortrain.BatchNormalizationGrad",
      .inputs = {"dy", "x", "scale", "mean", "invstd", "bias", "y?"},
      .outputs = {"dx", "dscale?", "dbias?", "dz?"},
      .infer = infer_grad,
      .kernels = {{"cpu", "nhwc", batch_norm_reject, flattened<batch_norm_grad_nhwc>},
                  {"cpu", "ref", nullptr, flattened<batch_norm_grad_ref>}},
      .examples = {{.in = in, .attrs = nhwc, .outputs = 3},
                   {.in = in, .attrs = train(nhwc), .outputs = 3},
                   {.in = in, .attrs = train(relu), .outputs = 3},
                   {.in = residual, .attrs = train(relu), .outputs = 4},
                   {.in = residual, .attrs = train(relu), .outputs = 3},
                   {.in = {f({2, 3, 4, 5}), f({2, 3, 4, 5}), f({3}), f({3}), f({3}, 0.5, 2),
                           f({3})},
                    .attrs = kTrain,
                    .outputs = 3}},
  };
}

}  // namespace

void register_batch_normalization(OpTable& table) {
  add_pad_rule("BatchNormalization", {pad_axes});
  table.add(batch_norm_op());
  table.add(batch_norm_grad_op());
}

}  // namespace ortrain::ops
