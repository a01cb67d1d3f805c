// Where: y = condition ? x : other, all three broadcast; x and other of any one type.
//
// Gradients: dy where the branch was taken, exactly 0 elsewhere, also when the untaken branch holds
// NaN or infinities.
#include "graph/error.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

void infer_where(InferCtx& c) {
  if (c.dtype(0) != DType::kBool) c.fail("the condition must be bool");
  if (c.dtype(1) != c.dtype(2))
    c.fail(
        cat("branches have different types: ", name_of(c.dtype(1)), " and ", name_of(c.dtype(2))));
  c.out(0, c.dtype(1), broadcast(broadcast(c.shape(0), c.shape(1)), c.shape(2)));
  // Carried shapes: torch exports Where(shape == -1, other, shape) for view and expand.
  const auto condition = c.ints(0), x = c.ints(1), other = c.ints(2);
  if (!condition || !x || !other || !is_integer(c.dtype(1))) return;
  if (c.rank(0) > 1 || c.rank(1) > 1 || c.rank(2) > 1) return;
  const size_t sizes[] = {condition->size(), x->size(), other->size()};
  size_t n = 1;
  for (size_t s : sizes) n = s != 1 ? s : n;
  for (size_t s : sizes)
    if (s != 1 && s != n) return;
  std::vector<Dim> out;
  for (size_t i = 0; i < n; ++i) {
    const Dim pick = (*condition)[sizes[0] == 1 ? 0 : i];
    if (!pick.is_const()) return;
    out.push_back(pick.value() != 0 ? (*x)[sizes[1] == 1 ? 0 : i]
                                    : (*other)[sizes[2] == 1 ? 0 : i]);
  }
  c.out_ints(0, std::move(out));
}

}  // namespace

OpDef where_op() {
  return {
      .name = "Where",
      .inputs = {"condition", "x", "other"},
      .outputs = {"y"},
      .since = 9,
      .infer = infer_where,
      .grad =
          {no_grad("condition"),
           grad("x",
                [](Grad& g) { return g.b.where(g.x(0), g.dy(), g.b.scalar(g.x(1).dtype(), 0)); }),
           grad("other",
                [](Grad& g) { return g.b.where(g.x(0), g.b.scalar(g.x(1).dtype(), 0), g.dy()); })},
      .ew = Ew::kWhere,
      .inplace = {{0, 1}, {0, 2}},
      .kernels = ew_kernels(),
      .examples = {{.in = {bools({2, 3}), f({2, 3}), f({2, 3})}},
                   {.in = {bools({2, 1}), f({}), f({3})}},
                   {.in = {bools({}), f({2, 70}), f({2, 70})}},
                   {.in = {bools({1, 300}), f({3, 1}), f({3, 300})}},
                   {.in = {bools({4, 1, 3}), f({5, 1}), f({3})}},
                   {.in = {bools({2, 3}), ints({2, 3}, -5, 5), ints({}, -5, 5)}},
                   {.in = {bools({0, 3}), f({3}), f({})}}},
  };
}

void register_where(OpTable& table) { table.add(where_op()); }

}  // namespace ortrain::ops
