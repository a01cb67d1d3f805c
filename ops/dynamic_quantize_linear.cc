// DynamicQuantizeLinear: x to u8 with the scale and zero point of its own range (0 included). Built
// from simpler operators as ONNX's function body does. No gradient: training through a dynamic
// range is not defined by ONNX; a QuantizeLinear with a scale of its own trains.
#include <numeric>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {

namespace {

void infer(InferCtx& c) {
  if (!is_float(c.dtype(0))) c.fail(cat("takes a float tensor, not ", name_of(c.dtype(0))));
  c.out(0, DType::kU8, c.shape(0));
  c.out(1, c.dtype(0), Shape());
  c.out(2, DType::kU8, Shape());
}

std::vector<Expr> parts(Decompose& d) {
  Builder& b = d.b;
  const Expr x = d.x(0);
  std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  const Expr zero = b.scalar(x.dtype(), 0);
  const auto extreme = [&](const char* reduce, const char* with) {
    return b.op(with, {axes.empty() ? x : b.reduce(reduce, x, axes, false), zero});
  };
  const Expr low = extreme("ReduceMin", "Min"), high = extreme("ReduceMax", "Max");
  const Expr range = high - low;  // a tensor of zeros: scale 1 / 255
  const Expr scale = b.where(b.op("Equal", {range, zero}), b.scalar(x.dtype(), 1), range) / 255.0;
  const Expr point =
      b.unary("Round", b.op("Clip", {-(low / scale), zero, b.scalar(x.dtype(), 255)}));
  const Expr code = b.cast(point, DType::kU8);
  return {b.op("QuantizeLinear", {x, scale, code}), scale, code};
}

}  // namespace

void register_dynamic_quantize_linear(OpTable& table) {
  table.add({
      .name = "DynamicQuantizeLinear",
      .inputs = {"x"},
      .outputs = {"y", "y_scale", "y_zero_point"},
      .since = 11,
      .infer = infer,
      .grad = {not_differentiable("x",
                                  "codes of a dynamic range have no gradient; QuantizeLinear with "
                                  "a scale of its own, followed by DequantizeLinear, trains")},
      .decompose = parts,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 3})}, .outputs = 3, .check_grad = false, .note = "integer codes"},
                   {.in = {f({5}, 1, 2)}, .outputs = 3, .check_grad = false, .note = "same"}},
      .note = "a tensor of zeros has scale 1/255",
  });
}

}  // namespace ortrain::ops
