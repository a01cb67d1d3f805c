// QuantizeLinear, y = saturate(round(x / scale) + zero), and DequantizeLinear, y = (x - zero)
// scale, of both domains; one scale per tensor, axis index or block, every opset form since 10.
//
// Quantization-aware training: the pair Q -> DQ with one scale becomes ortrain.FakeQuantize
// (ops/fake_quantize.cc) before the trainable set is decided, by DequantizeLinear's training
// policy, and that carries the straight-through gradient. So float weights and activations in front
// of a pair train, and no integer tensor needs a gradient. A QuantizeLinear without its
// DequantizeLinear, or one with another scale, passes no gradient. Data stored as integers is
// frozen; the scale of a DequantizeLinear has its gradient, sum of dy (x - zero).
//
// Fake quantization spelled out with Div, Round, Clip, Mul keeps the ordinary gradients of these,
// which is zero through Round.
#include <cstring>

#include "graph/error.h"
#include "ops/common/quantize.h"

namespace ortrain::ops {
namespace {

std::optional<DType> type_attribute(const Attrs& a, const char* name) {
  const std::string text = a.s(name, "");
  if (text.empty()) return std::nullopt;
  const auto d = dtype_from_name(text);
  if (!d) fail(ErrorCode::kUnsupported, name, " '", text, "'");
  return d;
}

bool quantized_type(DType d) {
  return int_range(d).high > 0 || (is_storage_float(d) && d != DType::kF8E8M0);
}
bool scale_type(DType d) { return is_float(d) || d == DType::kI32 || d == DType::kF8E8M0; }

// The type whose rounding the division has.
DType precision_of(const Attrs& a, DType scale) {
  if (const auto p = type_attribute(a, "precision"); p && is_float(*p)) return *p;
  return is_float(scale) ? scale : scale == DType::kI32 ? DType::kF64 : DType::kF32;
}

void infer_quantize(InferCtx& c) {
  if (!is_float(c.dtype(0)) && c.dtype(0) != DType::kI32)
    c.fail(cat("cannot quantize ", name_of(c.dtype(0))));
  if (!scale_type(c.dtype(1))) c.fail(cat("the scale is ", name_of(c.dtype(1))));
  check_scale(c, 1);
  const auto named = type_attribute(c.attrs(), "output_dtype");
  const DType to = c.has(2) ? c.dtype(2) : named.value_or(DType::kU8);
  if (named && *named != to)
    c.fail(cat("output_dtype is ", name_of(*named), ", the zero point ", name_of(to)));
  if (!quantized_type(to)) c.fail(cat("cannot quantize to ", name_of(to)));
  c.out(0, to, c.shape(0));
}

void infer_dequantize(InferCtx& c) {
  const DType x = c.dtype(0);
  if (!quantized_type(x) && x != DType::kI32) c.fail(cat("cannot dequantize ", name_of(x)));
  if (!scale_type(c.dtype(1))) c.fail(cat("the scale is ", name_of(c.dtype(1))));
  if (c.has(2) && c.dtype(2) != x)
    c.fail(cat("x is ", name_of(x), ", its zero point ", name_of(c.dtype(2))));
  check_scale(c, 1);
  const DType to = type_attribute(c.attrs(), "output_dtype").value_or(c.dtype(1));
  if (!is_float(to))
    c.fail(cat("output_dtype is needed with a scale of type ", name_of(c.dtype(1))));
  c.out(0, to, c.shape(0));
}

Kernel quantize(const KernelQuery& q) {
  const Quantizer z(q.out[0].dtype, precision_of(q.attrs, q.in[1].dtype),
                    q.attrs.i("saturate", 1) != 0);
  const DType zero_type = q.has_in(2) ? q.in[2].dtype : DType::kUndefined;
  return {
      0,
      [=, map = ScaleMap(q.attrs, q.in[0].dims, q.in[1].dims), from = q.in[0].dtype,
       scale_type = q.in[1].dtype, n = q.in[0].count(), threads = q.threads](const KernelArgs& a) {
        for_scaled_runs(
            threads, n, map, scale_type, a.in[1], zero_type,
            zero_type == DType::kUndefined ? nullptr : a.in[2],
            [&](int64_t at, int64_t count, const double* scale, const double* zero, int64_t step) {
              std::array<double, kRun> run;
              load_run(from, a.in[0], at, count, run.data());
              for (int64_t i = 0; i < count; ++i) {
                double& v = run[static_cast<size_t>(i)];
                v = z.divide(v, scale[i * step]);
                v = z.integer ? z.code(v, zero[i * step]).value : v + zero[i * step];
              }
              store_run(z.to, run.data(), count, a.out[0], at, {.saturate = z.saturate});
            });
      }};
}

Kernel dequantize(const KernelQuery& q) {
  const DType zero_type = q.has_in(2) ? q.in[2].dtype : DType::kUndefined;
  return {0, [=, map = ScaleMap(q.attrs, q.in[0].dims, q.in[1].dims), from = q.in[0].dtype,
              to = q.out[0].dtype, scale_type = q.in[1].dtype, n = q.in[0].count(),
              threads = q.threads](const KernelArgs& a) {
            for_scaled_runs(threads, n, map, scale_type, a.in[1], zero_type,
                            zero_type == DType::kUndefined ? nullptr : a.in[2],
                            [&](int64_t at, int64_t count, const double* scale, const double* zero,
                                int64_t step) {
                              std::array<double, kRun> run;
                              load_run(from, a.in[0], at, count, run.data());
                              for (int64_t i = 0; i < count; ++i) {
                                double& v = run[static_cast<size_t>(i)];
                                v = (v - zero[i * step]) * scale[i * step];
                              }
                              store_run(to, run.data(), count, a.out[0], at);
                            });
          }};
}

// dscale = sum of dy (x - zero): the codes themselves, dequantized with scales of 1.
Expr scale_gradient(Grad& g) {
  const Attrs attrs = g.attrs();
  const Shape scale = g.x(1).shape();
  const Expr ones = g.b.ones_like(g.b.cast(g.x(1), g.dy().dtype()));
  std::vector<Expr> in{g.x(0), ones};
  if (g.has_x(2)) in.push_back(g.x(2));
  Attrs plain = attrs;
  plain.erase("output_dtype");
  const Expr codes = g.b.op("DequantizeLinear", in, plain);
  return sum_to_scale(g.b, g.dy() * codes, attrs, scale);
}

// --- Q -> DQ
const HostTensor* contents(const Graph& g, ValueId v) {
  const Source s = g.value(v).source;
  return s == Source::kConst || s == Source::kParam ? g.tensor(v) : nullptr;
}

bool same_contents(const Graph& g, ValueId a, ValueId b) {
  const HostTensor *x = contents(g, a), *y = contents(g, b);
  return x && y && x->dtype() == y->dtype() && x->dims() == y->dims() &&
         (x->bytes() == 0 || std::memcmp(x->raw(), y->raw(), x->bytes()) == 0);
}

// Whether the two read the same numbers, now and after training: a scale that the file holds twice
// would part in the export, so both copies are frozen.
bool one_value(Graph& g, ValueId a, ValueId b) {
  if (a == b) return true;
  if (a == kNone || b == kNone || !same_contents(g, a, b)) return false;
  for (ValueId v : {a, b}) g.set_source(v, Source::kConst);
  return true;
}

ValueId input_of(const Node& n, size_t i) { return i < n.inputs.size() ? n.inputs[i] : kNone; }

// In every mode: the numbers are the same, and one kernel that stays in floats is faster.
void fuse_pair(Graph& g, NodeId n, const TrainingPolicy&) {
  const ValueId y = g.node(n).outputs[0], codes = g.node(n).inputs[0];
  if (y == kNone || g.value(codes).producer == kNone) return;
  const Node quantizer = g.node(g.value(codes).producer);
  if (!quantizer.op->name.ends_with("QuantizeLinear") ||
      quantizer.op->name.find("Dynamic") != std::string::npos)
    return;
  const Node dequantizer = g.node(n);
  const ValueId x = quantizer.inputs[0], scale = quantizer.inputs[1];
  for (const char* name : {"axis", "block_size"})
    if (quantizer.attrs.i(name, name[0] == 'a') != dequantizer.attrs.i(name, name[0] == 'a') &&
        g.value(scale).shape.rank() > 0)
      return;
  const bool zeros = input_of(quantizer, 2) == kNone && input_of(dequantizer, 2) == kNone;
  if (!is_float(g.value(x).dtype) || !is_float(g.value(scale).dtype) ||
      !one_value(g, scale, dequantizer.inputs[1]) ||
      !(zeros || one_value(g, input_of(quantizer, 2), input_of(dequantizer, 2))))
    return;
  Attrs attrs = quantizer.attrs;
  attrs.erase("output_dtype");
  attrs.set("dtype", std::string(name_of(g.value(codes).dtype)));
  attrs.set("precision", std::string(name_of(precision_of(quantizer.attrs, g.value(scale).dtype))));
  Builder b(g, quantizer.origin + "|straight_through");
  std::vector<Expr> in{b.wrap(x), b.wrap(scale)};
  if (!zeros) in.push_back(b.wrap(input_of(quantizer, 2)));
  g.replace_uses(y, b.cast(b.op("ortrain.FakeQuantize", in, attrs), g.value(y).dtype).id());
}

Attrs blocked(int64_t axis, int64_t size) { return {{"axis", axis}, {"block_size", size}}; }
ExampleInput u8(Dims dims, std::vector<double> values) {
  return typed(DType::kU8, floats(std::move(dims), std::move(values)));
}
const char* const kNeedsPair =
    "integer codes have no gradient; with a DequantizeLinear of the same scale right behind it the "
    "pair trains by the straight-through estimator";

OpDef quantize_op(const char* name) {
  return {
      .name = name,
      .inputs = {"x", "y_scale", "y_zero_point?"},
      .outputs = {"y"},
      .since = name[0] == 'Q' ? 10 : 1,
      .infer = infer_quantize,
      .grad = {not_differentiable("x", kNeedsPair), not_differentiable("y_scale", kNeedsPair),
               no_grad("y_zero_point")},
      .storage = true,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, quantize}},
      .examples = {{.in = {f({2, 3, 700}), floats({}, {0.0078125}), u8({}, {128})}},
                   {.in = {f({2, 3, 4}), floats({3}, {0.01, 0.02, 0.05}), u8({3}, {0, 128, 255})}},
                   {.in = {f({5, 3}), floats({3}, {0.01, 0.02, 0.05})},
                    .attrs = {{"axis", int64_t{-1}}, {"output_dtype", std::string("i16")}}},
                   {.in = {f({2, 5, 3}), f({2, 3, 3}, 0.1, 0.5)},
                    .attrs = {{"axis", int64_t{1}},
                              {"block_size", int64_t{2}},
                              {"output_dtype", std::string("i4")}}},
                   {.in = {f({2, 5}), f({2, 2}, 0.1, 0.5)},
                    .attrs = {{"axis", int64_t{1}},
                              {"block_size", int64_t{3}},
                              {"output_dtype", std::string("u2")}}},
                   {.in = {f({9}), floats({1}, {0.5}), typed(DType::kF8E4M3FN, floats({1}, {0}))}},
                   {.in = {f({9}, -9, 9), floats({}, {0.5})},
                    .attrs = {{"output_dtype", std::string("f4e2m1")}}},
                   {.in = {f({0, 3}), floats({}, {0.5})}},
                   {.in = {f({}), floats({}, {0.5})}}},
      .note = "saturates; NaN gives the smallest integer",
  };
}

OpDef dequantize_op(const char* name) {
  return {
      .name = name,
      .inputs = {"x", "x_scale", "x_zero_point?"},
      .outputs = {"y"},
      .since = name[0] == 'D' ? 10 : 1,
      .infer = infer_dequantize,
      .grad = {not_differentiable("x", "data stored as integers is frozen"),
               grad("x_scale", scale_gradient), no_grad("x_zero_point")},
      .training_policy = fuse_pair,
      .storage = true,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, dequantize}},
      .examples = {{.in = {typed(DType::kU8, ints({2, 3, 700}, 0, 256)), floats({}, {0.25}),
                           u8({}, {128})}},
                   {.in = {typed(DType::kI8, ints({2, 3, 4}, -128, 128)), f({3}, 0.1, 1)}},
                   {.in = {typed(DType::kI16, ints({5, 3}, -999, 999)), f({3}, 0.1, 1),
                           typed(DType::kI16, floats({3}, {-3, 0, 7}))},
                    .attrs = {{"axis", int64_t{-1}}}},
                   {.in = {typed(DType::kI4, ints({2, 5, 3}, -8, 8)), f({2, 3, 3}, 0.1, 1)},
                    .attrs = blocked(1, 2)},
                   {.in = {typed(DType::kU2, ints({2, 5}, 0, 4)), f({2, 2}, 0.1, 1),
                           typed(DType::kU2, ints({2, 2}, 0, 4))},
                    .attrs = blocked(-1, 3)},
                   {.in = {typed(DType::kI32, ints({4}, -99, 99)), f({1}, 0.1, 1)}},
                   {.in = {typed(DType::kF8E5M2, f({9})), f({}, 0.5, 1)}},
                   {.in = {typed(DType::kF4E2M1, f({9})), typed(DType::kF8E8M0, floats({}, {0.5}))},
                    .attrs = {{"output_dtype", std::string("f32")}}},
                   {.in = {typed(DType::kI8, ints({0, 3}, 0, 1)), f({})}}},
      .note =
          "data stored as integers is frozen; behind a QuantizeLinear of the same scale it "
          "trains by the straight-through estimator with clipping",
  };
}

}  // namespace

void register_quantize_linear(OpTable& table) {
  table.add(quantize_op("QuantizeLinear"));
  table.add(quantize_op("com.microsoft.QuantizeLinear"));
  table.add(dequantize_op("DequantizeLinear"));
  table.add(dequantize_op("com.microsoft.DequantizeLinear"));
}

}  // namespace ortrain::ops
