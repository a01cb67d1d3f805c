// Transpose: axes in the order of `perm` (default: reversed). One strided copy: contiguous rows
// when the last axis stays ([0,2,1,3]), 64 x 64 tiles when it does not. Gradient: the inverse
// permutation.
#include <numeric>

#include "graph/error.h"
#include "graph/pad_axes.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

std::vector<int64_t> permutation(const Attrs& attrs, int rank) {
  std::vector<int64_t> perm = attrs.ints("perm");
  if (!attrs.has("perm"))
    for (int i = rank; i-- > 0;) perm.push_back(i);
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  if (static_cast<int>(perm.size()) != rank)
    fail(ErrorCode::kShape, "perm has ", perm.size(), " axes, the input ", rank);
  for (int64_t& p : perm) {
    p = normalize_axis(p, rank);
    if (seen[static_cast<size_t>(p)]) fail(ErrorCode::kShape, "perm names axis ", p, " twice");
    seen[static_cast<size_t>(p)] = true;
  }
  return perm;
}

void infer_transpose(InferCtx& c) {
  const std::vector<int64_t> perm = permutation(c.attrs(), c.rank(0));
  const Shape in = c.shape(0);
  Shape out;
  for (int64_t p : perm) out.push_back(in[static_cast<int>(p)]);
  c.out(0, c.dtype(0), out);
  if (in.is_const()) carry_ints(c, permuted(in.values(), perm, 8));
}

StridedCopy make(const KernelQuery& q) {
  return permuted(q.in[0].dims, permutation(q.attrs, q.in[0].rank()), size_of(q.in[0].dtype));
}

Expr transpose_grad(Grad& g) {
  const std::vector<int64_t> perm = permutation(g.attrs(), g.x(0).rank());
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return g.b.transpose(g.dy(), inverse);
}

std::optional<PadAxes> transpose_pad_axes(const Graph& g, const Node& n) {
  const std::vector<int64_t> perm = permutation(n.attrs, g.value(n.inputs[0]).shape.rank());
  std::string in, out;
  for (size_t i = 0; i < perm.size(); ++i) in += static_cast<char>('a' + i);
  for (int64_t axis : perm) out += in[static_cast<size_t>(axis)];
  return PadAxes{{in}, {out}};
}

using Perm = std::vector<int64_t>;

}  // namespace

void register_transpose(OpTable& table) {
  add_pad_rule("Transpose", {transpose_pad_axes});
  table.add({
      .name = "Transpose",
      .inputs = {"data"},
      .outputs = {"transposed"},
      .infer = infer_transpose,
      .grad = {grad("data", transpose_grad)},
      .storage = true,
      .kernels = copy_kernels<make>(),
      .examples = {{.in = {f({3, 5})}},
                   {.in = {f({67, 130})}},
                   {.in = {f({2, 3, 4})}, .attrs = {{"perm", Perm{2, 0, 1}}}},
                   {.in = {f({2, 5, 3, 16})}, .attrs = {{"perm", Perm{0, 2, 1, 3}}}},
                   {.in = {f({2, 3, 5, 7})}, .attrs = {{"perm", Perm{0, 2, 3, 1}}}},
                   {.in = {f({2, 9, 5, 6})}, .attrs = {{"perm", Perm{0, 3, 1, 2}}}},
                   {.in = {f({2, 3, 4, 5})}, .attrs = {{"perm", Perm{3, 1, 2, 0}}}},
                   {.in = {f({2, 3, 2, 2, 3})}, .attrs = {{"perm", Perm{4, 2, 0, 3, 1}}}},
                   {.in = {f({1, 4, 1})}, .attrs = {{"perm", Perm{2, 1, 0}}}},
                   {.in = {f({0, 3})}},
                   {.in = {f({4})}},
                   {.in = {f({})}}},
  });
}

}  // namespace ortrain::ops
