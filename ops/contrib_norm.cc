// Layer normalisations of onnxruntime's optimised files: SimplifiedLayerNormalization (also written
// without a domain), com.microsoft.LayerNormalization, SkipLayerNormalization,
// SkipSimplifiedLayerNormalization and EmbedLayerNormalization, by their meaning.
//
// Simplified: x / sqrt(mean(x^2) + epsilon) * scale. Skip: the sum input + skip + bias goes first
// (skip may lack the batch). Embed: word + position + segment embeddings go first. Statistics that
// a file asks for are given.
#include <algorithm>
#include <tuple>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/contrib.h"

namespace ortrain::ops {
namespace {

void check_last(InferCtx& c, int i, const char* what) {
  const Shape& x = c.shape(0);
  if (c.has(i) && (c.rank(i) != 1 || prove_equal(c.shape(i)[0], x[x.rank() - 1]) == Tri::kNo))
    c.fail(cat(what, " is ", c.shape(i).str(), ", expected [", x[x.rank() - 1].str(), "]"));
}

Shape statistics(const Shape& x, int axis) {
  Shape s;
  for (int i = 0; i < x.rank(); ++i) s.push_back(i < axis ? x[i] : Dim(1));
  return s;
}

// h * scale with h = x / rms(x); the inverse root mean square where it is wanted.
std::pair<Expr, Expr> simplified(Builder& b, Expr x, Expr scale, int64_t axis, double epsilon,
                                 bool statistics) {
  Expr inv;
  if (statistics) {
    std::vector<int64_t> axes;
    for (int i = normalize_axis(axis, x.rank()); i < x.rank(); ++i) axes.push_back(i);
    inv = b.unary("Reciprocal", b.sqrt(b.mean(x * x, axes) + epsilon));
  }
  return {b.op("RMSNormalization", {x, scale}, {{"axis", axis}, {"epsilon", epsilon}}), inv};
}

// --- SimplifiedLayerNormalization(X, scale) -> Y, inv_std_var?
void infer_simplified(InferCtx& c) {
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  Shape normal;
  for (int i = axis; i < c.rank(0); ++i) normal.push_back(c.shape(0)[i]);
  if (prove_equal(c.shape(1).count(), normal.count()) == Tri::kNo)
    c.fail(cat("scale is ", c.shape(1).str(), ", the normalised axes are ", normal.str()));
  c.out(0, c.dtype(1), c.shape(0));
  c.out(1, c.dtype(0), statistics(c.shape(0), axis));
}

std::vector<Expr> simplified_alone(Decompose& d) {
  const int64_t axis = d.attrs().i("axis", -1);
  const double epsilon = d.attrs().f("epsilon", 1e-5);
  const bool stats = d.wants(1);
  const Expr x = d.x(0);
  Dims normal = x.shape().values();
  normal.erase(normal.begin(), normal.begin() + normalize_axis(axis, x.rank()));
  const auto [y, inv] = simplified(d.b, x, d.b.reshape(d.x(1), normal), axis, epsilon, stats);
  return {y, inv};
}

// --- com.microsoft.LayerNormalization: the standard one
void infer_layer(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const int axis = normalize_axis(c.attrs().i("axis", -1), c.rank(0));
  c.out(0, c.dtype(0), c.shape(0));
  for (int i = 1; i <= 2; ++i) c.out(i, c.dtype(0), statistics(c.shape(0), axis));
}
std::vector<Expr> layer(Decompose& d) {
  const Attrs attrs = d.attrs();
  const bool stats = d.wants(1) || d.wants(2);
  std::vector<Expr> y = d.b.ops(
      "LayerNormalization", {d.x(0), d.x(1), d.has_x(2) ? d.x(2) : Expr()}, attrs, stats ? 3 : 1);
  y.resize(3);
  return y;
}

// --- Skip forms
constexpr bool kPlain = false, kSimplified = true;

// input, skip, gamma, beta? (not simplified), bias? -> output, mean?, inv_std_var?, sum?
template <bool kRms>
void infer_skip(InferCtx& c) {
  same_floats(c, {0, 1, 2, 3, 4});
  const Shape x = c.shape(0);
  if (x.rank() != 2 && x.rank() != 3) c.fail("input must have rank 2 or 3, got " + x.str());
  const Shape both = broadcast(x, c.shape(1));
  if (prove_equal(both, x) == Tri::kNo || both.rank() != x.rank())
    c.fail(cat("skip ", c.shape(1).str(), " does not broadcast to ", x.str()));
  check_last(c, 2, "gamma");
  check_last(c, 3, kRms ? "bias" : "beta");
  if (!kRms) check_last(c, 4, "bias");
  const Shape stats = statistics(x, x.rank() - 1);
  c.out(0, c.dtype(0), x);
  c.out(1, c.dtype(0), stats);
  c.out(2, c.dtype(0), stats);
  c.out(3, c.dtype(0), x);
}

template <bool kRms>
std::vector<Expr> skip(Decompose& d) {
  Builder& b = d.b;
  const double epsilon = d.attrs().f("epsilon", 1e-12);
  const bool stats = d.wants(1) || d.wants(2);
  const int bias = kRms ? 3 : 4;
  Expr sum = d.x(0) + d.x(1);
  if (d.has_x(bias)) sum = sum + d.x(bias);
  std::vector<Expr> y(4);
  if (kRms) {
    std::tie(y[0], y[2]) = simplified(b, sum, d.x(2), -1, epsilon, stats);
    if (d.wants(1)) y[1] = b.zeros_like(y[2]);  // there is no mean
  } else {
    const std::vector<Expr> n =
        b.ops("LayerNormalization", {sum, d.x(2), d.has_x(3) ? d.x(3) : Expr()},
              {{"axis", int64_t{-1}}, {"epsilon", epsilon}}, stats ? 3 : 1);
    std::copy(n.begin(), n.end(), y.begin());
  }
  y[3] = sum;
  return y;
}

// --- EmbedLayerNormalization
enum Embed : int { kIds, kSegments, kWords, kPlaces, kKinds, kGamma, kBeta, kMask, kPlaceIds };

void infer_embed(InferCtx& c) {
  const Shape ids = c.shape(kIds), words = c.shape(kWords);
  if (ids.rank() != 2 || words.rank() != 2 || c.rank(kPlaces) != 2)
    c.fail("input_ids [B,S] and embeddings [n,H] are needed");
  same_floats(c, {kWords, kPlaces, kKinds, kGamma, kBeta});
  const Dim width = words[1];
  const bool segments = c.has(kSegments);
  if (segments && (!c.has(kKinds) || prove_equal(c.shape(kSegments), ids) == Tri::kNo))
    c.fail("segment_ids must be like input_ids and need a segment embedding");
  for (int i : {int{kPlaces}, int{kKinds}})
    if (c.has(i) && (c.rank(i) != 2 || prove_equal(c.shape(i)[1], width) == Tri::kNo))
      c.fail(cat("input ", i, " is ", c.shape(i).str(), ", word embeddings ", words.str()));
  if (!c.has(kGamma) || !c.has(kBeta)) c.fail("gamma and beta are needed");
  if (c.has(kMask) && prove_equal(c.shape(kMask), ids) == Tri::kNo)
    c.fail("mask must be like input_ids");
  if (c.has(kPlaceIds)) {
    const Shape& p = c.shape(kPlaceIds);
    if (p.rank() != 2 || prove_equal(p[1], ids[1]) == Tri::kNo ||
        (!(p[0] == Dim(1)) && prove_equal(p[0], ids[0]) == Tri::kNo))
      c.fail("position_ids must be [B,S] or [1,S], got " + p.str());
  }
  const Shape y{ids[0], ids[1], width};
  c.out(0, c.dtype(kWords), y);
  c.out(1, DType::kI32, Shape{ids[0]});
  c.out(2, c.dtype(kWords), y);
}

std::vector<Expr> embed(Decompose& d) {
  Builder& b = d.b;
  const double epsilon = d.attrs().f("epsilon", 1e-12);
  const Dims ids = d.x(kIds).shape().values();
  const bool wants_index = d.wants(1);
  const auto rows = [&](int table, int at) {
    return b.op("Gather", {d.x(table), d.x(at)}, {{"axis", int64_t{0}}});
  };
  Expr sum = rows(kWords, kIds);
  sum = sum + (d.has_x(kPlaceIds) ? rows(kPlaces, kPlaceIds)
                                  : b.unsqueeze(b.slice(d.x(kPlaces), 0, 0, ids[1]), {0}));
  if (d.has_x(kSegments)) sum = sum + rows(kKinds, kSegments);
  std::vector<Expr> y(3);
  y[0] = b.op("LayerNormalization", {sum, d.x(kGamma), d.x(kBeta)},
              {{"axis", int64_t{-1}}, {"epsilon", epsilon}});
  if (wants_index)  // how many tokens the mask shows
    y[1] = d.has_x(kMask)
               ? b.sum(b.cast(b.op("Equal", {d.x(kMask), b.ones_like(d.x(kMask))}), DType::kI32),
                       {1}, /*keepdims=*/false)
               : b.constant(HostTensor(DType::kI32, {ids[0]}));
  y[2] = sum;
  return y;
}

OpDef base(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs,
           InferFn infer, DecomposeFn parts, std::vector<Example> examples) {
  return {.name = name,
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .infer = infer,
          .decompose = parts,
          .training_policy = expand_early,
          .precision = Precision::kNever16,
          .examples = std::move(examples)};
}

}  // namespace

void register_contrib_norm(OpTable& table) {
  const ExampleInput x = f({2, 3, 4}), w = f({4}), flat = f({3, 4});
  const std::vector<Example> plain = {{.in = {x, w}},
                                      {.in = {x, w}, .attrs = {{"epsilon", 1e-2}}, .outputs = 2},
                                      {.in = {f({2, 2, 3}), f({2, 3})}, .attrs = {{"axis", 1}}},
                                      {.in = {f({0, 4}), w}}};
  for (const char* name :
       {"SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization"})
    table.add(base(name, {"X", "scale"}, {"Y", "inv_std_var?"}, infer_simplified, simplified_alone,
                   plain));
  table.add(base("com.microsoft.LayerNormalization", {"X", "Scale", "B?"},
                 {"Y", "Mean?", "InvStdDev?"}, infer_layer, layer,
                 {{.in = {x, w, w}}, {.in = {x, w}, .attrs = {{"epsilon", 1e-2}}}}));
  OpDef op = base(
      "com.microsoft.SkipLayerNormalization", {"input", "skip", "gamma", "beta?", "bias?"},
      {"output", "mean?", "inv_std_var?", "input_skip_bias_sum?"}, infer_skip<kPlain>, skip<kPlain>,
      {{.in = {x, x, w, w, w}},
       {.in = {x, flat, w, absent(), w}, .attrs = {{"epsilon", 1e-3}}},
       {.in = {flat, flat, w}}});
  table.add(op);
  op = base(
      "com.microsoft.SkipSimplifiedLayerNormalization", {"input", "skip", "gamma", "bias?"},
      {"output", "mean?", "inv_std_var?", "input_skip_bias_sum?"}, infer_skip<kSimplified>,
      skip<kSimplified>,
      {{.in = {x, x, w, w}}, {.in = {x, f({1, 3, 4}), w}, .outputs = 4}, {.in = {flat, flat, w}}});
  table.add(op);
  const ExampleInput ids = iconst({2, 3}, {1, 0, 4, 2, 2, 3}),
                     kinds = iconst({2, 3}, {0, 0, 1, 1, 0, 1});
  table.add(base("com.microsoft.EmbedLayerNormalization",
                 {"input_ids", "segment_ids?", "word_embedding", "position_embedding",
                  "segment_embedding?", "gamma", "beta", "mask?", "position_ids?"},
                 {"output", "mask_index?", "embedding_sum?"}, infer_embed, embed,
                 {{.in = {ids, kinds, f({5, 4}), f({3, 4}), f({2, 4}), w, w}, .outputs = 3},
                  {.in = {ids, absent(), f({5, 4}), f({4, 4}), absent(), w, w, kinds,
                          iconst({1, 3}, {3, 0, 1})},
                   .outputs = 2}}));
}

}  // namespace ortrain::ops
