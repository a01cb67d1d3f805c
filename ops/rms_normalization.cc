// RMSNormalization and friends that divide by the size of a row, by their meaning.
//
// RMSNormalization: x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` to the last
// (stash_type is not looked at: statistics are at least f32). LpNormalization: x / |x|_p along one
// axis, p 1 or 2; a zero vector stays zero. MeanVarianceNormalization: (x - mean) / (std + 1e-9)
// over `axes` ([0,2,3] by default).
#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {
namespace {

void infer_rms(InferCtx& c) {
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  const Shape &x = c.shape(0), &scale = c.shape(1);
  if (scale.rank() > c.rank(0) - axis)
    c.fail(cat("scale ", scale.str(), " does not broadcast to the normalised axes of ", x.str()));
  for (int i = 0; i < scale.rank(); ++i)
    if (!(scale[i] == Dim(1)) && prove_equal(scale[i], x[x.rank() - scale.rank() + i]) == Tri::kNo)
      c.fail(cat("scale ", scale.str(), " does not broadcast to the normalised axes of ", x.str()));
  c.out(0, c.dtype(1), c.shape(0));
}

std::vector<Expr> rms(Decompose& d) {
  const Attrs standard{{"axis", d.attrs().i("axis", -1)},
                       {"epsilon", d.attrs().f("epsilon", 1e-5)},
                       {"centre", int64_t{0}}};
  const Expr h = d.b.op("ortrain.Standardize", {d.x(0)}, standard);
  return {d.b.cast(h, d.x(1).dtype()) * d.x(1)};
}

void infer_lp(InferCtx& c) {
  normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  const int64_t p = c.attrs().i("p", 2);
  if (p != 1 && p != 2) c.fail(cat("p must be 1 or 2, got ", p));
  infer_same_as_first(c);
}

std::vector<Expr> lp(Decompose& d) {
  const bool one = d.attrs().i("p", 2) == 1;
  const int64_t axis = d.attrs().i("axis", -1);
  const Expr x = d.x(0);
  const Expr size = d.b.reduce(one ? "ReduceL1" : "ReduceL2", x, {axis}, true);
  const Expr zero = d.b.op("Equal", {size, d.b.scalar(x.dtype(), 0)});
  return {x / d.b.where(zero, d.b.scalar(x.dtype(), 1), size)};
}

std::vector<Expr> mean_variance(Decompose& d) {
  const std::vector<int64_t> axes = d.attrs().ints("axes", {0, 2, 3});
  const Expr x = d.x(0), centred = x - d.b.mean(x, axes);
  return {centred / (d.b.sqrt(d.b.mean(centred * centred, axes)) + 1e-9)};
}

}  // namespace

void register_rms_normalization(OpTable& table) {
  table.add({
      .name = "RMSNormalization",
      .inputs = {"X", "scale"},
      .outputs = {"Y"},
      .since = 23,
      .infer = infer_rms,
      .decompose = rms,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({4, 6}), f({6})}},
                   {.in = {f({2, 3, 4}), f({3, 4})},
                    .attrs = {{"axis", int64_t{1}}, {"epsilon", 1e-2}}},
                   {.in = {f({2, 3, 4}), f({1})}}},
  });
  table.add({
      .name = "LpNormalization",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer_lp,
      .decompose = lp,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({3, 4}, 0.5, 2)}},
                   {.in = {f({2, 3, 4}, 0.5, 2)},
                    .attrs = {{"p", int64_t{1}}, {"axis", int64_t{1}}}}},
      .note = "a zero vector stays zero",
  });
  table.add({
      .name = "MeanVarianceNormalization",
      .inputs = {"X"},
      .outputs = {"Y"},
      .since = 9,
      .infer = infer_same_as_first,
      .decompose = mean_variance,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 3, 2, 2})}},
                   {.in = {f({3, 4})}, .attrs = {{"axes", std::vector<int64_t>{1}}}}},
  });
}

}  // namespace ortrain::ops
