// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot, BitShift (attribute direction LEFT or RIGHT;
// unsigned types): elementwise on integers, with broadcasting. No gradient flows.
#include "graph/error.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

OpDef binary(const char* name, Ew code, int since) {
  return {.name = name,
          .inputs = {"a", "b"},
          .outputs = {"c"},
          .since = since,
          .infer = infer_broadcast,
          .grad = {no_grad("a"), no_grad("b")},
          .ew = code,
          .inplace = {{0, 0}, {0, 1}},
          .kernels = ew_kernels(),
          .examples = {{.in = {ints({2, 3}, 0, 60), ints({3}, 0, 9)}},
                       {.in = {ints({70}, 0, 60), ints({}, 0, 9)}}}};
}

OpDef bitwise_not_op() {
  return {.name = "BitwiseNot",
          .inputs = {"x"},
          .outputs = {"y"},
          .since = 18,
          .infer = infer_same_as_first,
          .grad = {no_grad("x")},
          .ew = Ew::kBitNot,
          .inplace = {{0, 0}},
          .kernels = ew_kernels(),
          .examples = {{.in = {ints({2, 3}, -60, 60)}}}};
}

OpDef bit_shift_op() {
  const auto direction = [](const char* d) { return Attrs{{"direction", std::string(d)}}; };
  return {
      .name = "BitShift",
      .inputs = {"x", "by"},
      .outputs = {"y"},
      .since = 11,
      .infer = infer_broadcast,
      .grad = {no_grad("x"), no_grad("by")},
      .decompose = [](Decompose& d) -> std::vector<Expr> {
        const std::string direction = d.attrs().s("direction", "");
        if (direction != "LEFT" && direction != "RIGHT")
          fail(ErrorCode::kModel, "BitShift: direction must be LEFT or RIGHT");
        return {d.b.op(direction == "LEFT" ? "ortrain.ShiftLeft" : "ortrain.ShiftRight",
                       {d.x(0), d.x(1)})};
      },
      .kernels = ew_kernels(),
      .examples = {{.in = {ints({2, 3}, 0, 60), ints({3}, 0, 9)}, .attrs = direction("LEFT")},
                   {.in = {ints({2, 3}, 0, 60), ints({3}, 0, 9)}, .attrs = direction("RIGHT")}}};
}

}  // namespace

void register_bitwise(OpTable& table) {
  table.add(binary("BitwiseAnd", Ew::kBitAnd, 18));
  table.add(binary("BitwiseOr", Ew::kBitOr, 18));
  table.add(binary("BitwiseXor", Ew::kBitXor, 18));
  table.add(bitwise_not_op());
  table.add(binary("ortrain.ShiftLeft", Ew::kShiftLeft, 1));
  table.add(binary("ortrain.ShiftRight", Ew::kShiftRight, 1));
  table.add(bit_shift_op());
}

}  // namespace ortrain::ops
