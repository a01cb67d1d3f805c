// Cast: converts elements to the type in attribute `to` ("f32", "bool", ...); CastLike takes the
// type of its second input.
//
// Floats to integers truncate and saturate, NaN gives 0 (ONNX leaves it open); integers wrap; to
// bool: not zero; f16 and bf16 round to nearest even. Gradient: float to float is cast back,
// anything else stops with 0. Contents of integer tensors that carry shapes pass through.
#include "graph/error.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

void infer_to(InferCtx& c, DType to) {
  const auto contents = c.ints(0);
  c.out(0, to, c.shape(0));
  if (contents && (is_integer(to) || (to == DType::kBool && c.dtype(0) == DType::kBool)))
    c.out_ints(0, *contents);
}

void infer_cast(InferCtx& c) {
  const std::string name = c.attrs().s("to", "");
  const auto to = dtype_from_name(name);
  if (!to) fail(ErrorCode::kUnsupported, "Cast to the type '", name, "'");
  infer_to(c, *to);
}

Expr cast_back(Grad& g) {
  const DType from = g.x(0).dtype();
  if (!is_float(from) || !is_float(g.dy().dtype())) return {};
  return g.b.cast(g.dy(), from);
}

Attrs to(const char* dtype) { return {{"to", std::string(dtype)}}; }

OpDef cast_op() {
  return {
      .name = "Cast",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 6,
      .infer = infer_cast,
      .grad = {grad("x", cast_back)},
      .ew = Ew::kCast,
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3})}, .attrs = to("f64")},
                   {.in = {f({2, 3})},
                    .attrs = to("f32"),
                    .check_grad = false,
                    .note = "rounding to f32 hides central differences"},
                   {.in = {f({3, 70})}, .attrs = to("i64")},
                   {.in = {floats({5}, {0, 1, -2.75, 3.5, 100})}, .attrs = to("i32")},
                   {.in = {f({2, 3})}, .attrs = to("bool")},
                   {.in = {ints({2, 3}, -9, 9)}, .attrs = to("f32")},
                   {.in = {ints({2, 3}, -900, 900)}, .attrs = to("u8")},
                   {.in = {bools({2, 33})}, .attrs = to("f32")},
                   {.in = {f({2, 3})},
                    .attrs = to("f16"),
                    .check_grad = false,
                    .note = "rounding to f16 hides central differences"},
                   {.in = {f({2, 3})},
                    .attrs = to("bf16"),
                    .check_grad = false,
                    .note = "rounding to bf16 hides central differences"},
                   {.in = {f({0, 3})}, .attrs = to("i64")}},
  };
}

OpDef cast_like_op() {
  return {
      .name = "CastLike",
      .inputs = {"x", "like"},
      .outputs = {"y"},
      .since = 15,
      .infer = [](InferCtx& c) { infer_to(c, c.dtype(1)); },
      .grad = {grad("x", cast_back), no_grad("like")},
      .ew = Ew::kCast,
      .kernels = ew_kernels(),
      .examples = {{.in = {f({2, 3}), f({1})}}, {.in = {f({2, 3}), ints({2}, 0, 2)}}},
  };
}

}  // namespace

void register_cast(OpTable& table) {
  table.add(cast_op());
  table.add(cast_like_op());
}

}  // namespace ortrain::ops
