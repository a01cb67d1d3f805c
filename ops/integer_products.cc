// MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv: products of quantized tensors.
//
// Each is MatMul or Conv of the dequantized numbers in double precision, where every sum of
// products of 8-bit integers below 2^53 is exact, and, for the QLinear ones, one QuantizeLinear of
// the result: scaled, rounded to nearest even, the zero point added, saturated. They run in forward
// only: integers have no gradient, which the records say with the way out.
#include <algorithm>

#include "graph/error.h"
#include "graph/op_def.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

const char* const kIntegers =
    "integer products have no gradient; train the float model, or one with QuantizeLinear and "
    "DequantizeLinear pairs around float operators";

bool byte_type(DType d) {
  return d == DType::kU8 || d == DType::kI8 || (is_storage_float(d) && file_bits(d) == 8);
}
void check_bytes(InferCtx& c, int i) {
  if (!byte_type(c.dtype(i)))
    c.fail(cat("input ", i, " is ", name_of(c.dtype(i)), ", expected i8, u8 or an 8-bit float"));
}
// A zero point is one number or has `extent` elements.
void check_zero(InferCtx& c, int i, Dim extent) {
  if (!c.has(i)) return;
  const Shape& s = c.shape(i);
  if (s.is_const() && s.count() == Dim(1)) return;
  if (s.rank() == 0 || (s.rank() == 1 && prove_equal(s[0], extent) == Tri::kNo))
    c.fail(cat("input ", i, " has shape ", s.str(), ", expected one element or ", extent.str()));
}

void infer_matmul_integer(InferCtx& c) {
  for (int i : {0, 1, 2, 3})
    if (i < 2 || c.has(i)) check_bytes(c, i);
  const Shape y = product_shape(c, 0, 1);
  check_zero(c, 2, c.shape(0)[std::max(0, c.rank(0) - 2)]);
  check_zero(c, 3, c.shape(1)[c.rank(1) - 1]);
  c.out(0, DType::kI32, y);
}
void infer_conv_integer(InferCtx& c) {
  for (int i : {0, 1, 2, 3})
    if (i < 2 || c.has(i)) check_bytes(c, i);
  const Shape y = conv_shape(c, 0, 1);
  check_zero(c, 2, Dim(1));
  check_zero(c, 3, c.shape(1)[0]);
  c.out(0, DType::kI32, y);
}
void check_scales(InferCtx& c) {
  for (int i : {1, 4, 6})
    if (!is_float(c.dtype(i))) c.fail(cat("input ", i, " is ", name_of(c.dtype(i))));
  for (int i : {6, 7})
    if (c.shape(i).is_const() && c.shape(i).count() != Dim(1))
      c.fail(cat("the output's scale and zero point must be one number, input ", i, " has shape ",
                 c.shape(i).str()));
  for (int i : {0, 2, 3, 5, 7}) check_bytes(c, i);
}
void infer_qlinear_matmul(InferCtx& c) {
  check_scales(c);
  const Shape y = product_shape(c, 0, 3);
  for (int i : {1, 2}) check_zero(c, i, c.shape(0)[std::max(0, c.rank(0) - 2)]);
  for (int i : {4, 5}) check_zero(c, i, c.shape(3)[c.rank(3) - 1]);
  c.out(0, c.dtype(7), y);
}
void infer_qlinear_conv(InferCtx& c) {
  check_scales(c);
  const Shape y = conv_shape(c, 0, 3);
  for (int i : {1, 2}) check_zero(c, i, Dim(1));
  for (int i : {4, 5}) check_zero(c, i, c.shape(3)[0]);
  if (c.has(8) && (c.rank(8) != 1 || prove_equal(c.shape(8)[0], c.shape(3)[0]) == Tri::kNo))
    c.fail(cat("the bias has shape ", c.shape(8).str()));
  c.out(0, c.dtype(7), y);
}

// --- parts, all f64
Expr wide(Builder& b, Expr x) { return b.cast(x, DType::kF64); }

// A per-row, per-column or per-channel vector as a factor of the matrix: along `axis` from the end.
Expr spread(Builder& b, Expr v, int rank, int axis) {
  const Dims dims = v.shape().values();
  if (element_count(dims) == 1) return b.reshape(v, {});
  if (dims.size() != 1) return v;  // shaped for broadcasting already
  Dims out(static_cast<size_t>(std::max(rank, 1)), 1);
  const int at = std::max(0, rank - axis);
  out[static_cast<size_t>(at)] = dims[0];
  return b.reshape(v, out);
}
Expr shifted(Decompose& d, int x, int zero, int axis) {
  const Expr v = wide(d.b, d.x(x));
  return d.has_x(zero) ? v - wide(d.b, spread(d.b, d.x(zero), v.rank(), axis)) : v;
}
// The axis of output channels, counted from the end, in a weight [M, C, k...] of this rank.
Expr conv(Decompose& d, int x, int x_zero, int w, int w_zero, Expr bias) {
  const Attrs attrs = d.attrs();
  const int rank = d.x(w).rank();
  std::vector<Expr> in{shifted(d, x, x_zero, 1), shifted(d, w, w_zero, rank)};
  if (bias) in.push_back(bias);
  return d.b.op("Conv", in, attrs);
}
// round(y * scale) + zero, saturated to the zero point's type.
Expr requantize(Decompose& d, Expr y, Expr scale) {
  const Expr one = d.b.scalar(DType::kF64, 1);
  const Expr zero = d.b.reshape(d.x(7), {});
  return d.b.op("QuantizeLinear", {y * wide(d.b, scale), one, zero});
}

std::vector<Expr> matmul_integer(Decompose& d) {
  return {d.b.cast(d.b.matmul(shifted(d, 0, 2, 2), shifted(d, 1, 3, 1)), DType::kI32)};
}
std::vector<Expr> conv_integer(Decompose& d) {
  return {d.b.cast(conv(d, 0, 2, 1, 3, {}), DType::kI32)};
}
std::vector<Expr> qlinear_matmul(Decompose& d) {
  const Expr y = d.b.matmul(shifted(d, 0, 2, 2), shifted(d, 3, 5, 1));
  const Expr scale = spread(d.b, d.x(1), y.rank(), 2) * spread(d.b, d.x(4), y.rank(), 1) /
                     spread(d.b, d.x(6), y.rank(), 1);
  return {requantize(d, y, scale)};
}
std::vector<Expr> qlinear_conv(Decompose& d) {
  const Expr bias = d.has_x(8) ? wide(d.b, d.x(8)) : Expr();
  const Expr y = conv(d, 0, 2, 3, 5, bias);
  const Expr scale = spread(d.b, d.x(1), 0, 1) * spread(d.b, d.x(4), y.rank(), y.rank() - 1) /
                     spread(d.b, d.x(6), 0, 1);
  return {requantize(d, y, scale)};
}

std::vector<GradRule> no_gradients(const std::vector<std::string>& inputs,
                                   const std::vector<std::string>& data) {
  std::vector<GradRule> rules;
  for (std::string name : inputs) {
    if (name.back() == '?') name.pop_back();
    const bool is_data = std::find(data.begin(), data.end(), name) != data.end();
    rules.push_back(is_data ? not_differentiable(name, kIntegers) : no_grad(name));
  }
  return rules;
}

ExampleInput bytes(DType d, Dims dims) {
  return d == DType::kI8 ? typed(d, ints(std::move(dims), -128, 128))
                         : typed(d, ints(std::move(dims), 0, 256));
}
ExampleInput u8(Dims dims, std::vector<double> v) {
  return typed(DType::kU8, floats(std::move(dims), std::move(v)));
}
ExampleInput i8(Dims dims, std::vector<double> v) {
  return typed(DType::kI8, floats(std::move(dims), std::move(v)));
}
using L = std::vector<int64_t>;
const DType kI = DType::kI8, kU = DType::kU8;

OpDef record(const char* name, std::vector<std::string> inputs, std::vector<std::string> data,
             InferFn infer, DecomposeFn parts, std::vector<Example> examples) {
  for (Example& e : examples) e.check_grad = false, e.note = "integers";
  return {.name = name,
          .inputs = inputs,
          .outputs = {"y"},
          .since = 10,
          .infer = infer,
          .grad = no_gradients(inputs, data),
          .decompose = parts,
          .storage = true,
          .examples = std::move(examples),
          .note = "exact in double precision; forward only"};
}

}  // namespace

void register_integer_products(OpTable& table) {
  table.add(record("MatMulInteger", {"A", "B", "a_zero_point?", "b_zero_point?"}, {"A", "B"},
                   infer_matmul_integer, matmul_integer,
                   {{.in = {bytes(kU, {3, 4}), bytes(kI, {4, 5}), u8({}, {128}), i8({}, {3})}},
                    {.in = {bytes(kU, {2, 3, 4}), bytes(kU, {4, 5}), u8({3}, {1, 2, 3}),
                            u8({5}, {1, 2, 3, 4, 255})}},
                    {.in = {bytes(kI, {3, 0}), bytes(kI, {0, 2})}},
                    {.in = {bytes(kI, {4}), bytes(kI, {4, 2})}}}));
  table.add(record(
      "ConvInteger", {"x", "w", "x_zero_point?", "w_zero_point?"}, {"x", "w"}, infer_conv_integer,
      conv_integer,
      {{.in = {bytes(kU, {1, 2, 5, 4}), bytes(kI, {3, 2, 3, 3}), u8({}, {7}), i8({3}, {0, -1, 5})},
        .attrs = {{"pads", L{1, 1, 1, 1}}}},
       {.in = {bytes(kU, {1, 4, 5}), bytes(kU, {4, 2, 3})}, .attrs = {{"group", int64_t{2}}}}}));
  table.add(record(
      "QLinearMatMul",
      {"a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point"},
      {"a", "b"}, infer_qlinear_matmul, qlinear_matmul,
      {{.in = {bytes(kU, {3, 4}), floats({}, {0.02}), u8({}, {120}), bytes(kI, {4, 5}),
               floats({}, {0.01}), i8({}, {3}), floats({}, {0.1}), u8({}, {128})}},
       {.in = {bytes(kU, {2, 4}), f({2}, 0.01, 0.03), u8({2}, {120, 100}), bytes(kI, {4, 3}),
               f({3}, 0.01, 0.03), i8({3}, {3, 4, 5}), floats({1}, {0.1}), i8({1}, {-3})}}}));
  table.add(
      record("QLinearConv",
             {"x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale",
              "y_zero_point", "B?"},
             {"x", "w"}, infer_qlinear_conv, qlinear_conv,
             {{.in = {bytes(kU, {1, 2, 5, 4}), floats({}, {0.02}), u8({}, {120}),
                      bytes(kI, {3, 2, 3, 3}), f({3}, 0.01, 0.03), i8({3}, {0, -1, 5}),
                      floats({}, {0.13}), u8({}, {128}), typed(DType::kI32, ints({3}, -999, 999))},
               .attrs = {{"pads", L{1, 1, 1, 1}}}},
              {.in = {bytes(kU, {1, 1, 7, 7}), floats({1}, {0.02}), u8({1}, {120}),
                      bytes(kU, {1, 1, 1, 1}), floats({1}, {0.01}), u8({1}, {3}),
                      floats({1}, {0.13}), u8({1}, {128})}}}));
}

}  // namespace ortrain::ops
