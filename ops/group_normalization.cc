// GroupNormalization and InstanceNormalization: ortrain.Standardize over each group of channels (or
// each channel) of a sample, then scale and bias per channel.
//
// X [N,C,...]. GroupNormalization took scale and bias per group up to opset 20 (attribute
// `per_group` after import), per channel since. Statistics are of the sample alone, in training and
// inference alike.
#include "graph/error.h"
#include "graph/op_def.h"

namespace ortrain::ops {
namespace {

void infer(InferCtx& c) {
  if (c.rank(0) < 3 && c.node().op->name == "InstanceNormalization")
    c.fail("X must be [N,C,spatial...], got " + c.shape(0).str());
  if (c.rank(0) < 2) c.fail("X must be [N,C,...], got " + c.shape(0).str());
  const Dim channels = c.shape(0)[1];
  const int64_t groups = c.attrs().i("num_groups", 1);
  if (groups < 1 || (channels.is_const() && channels.value() % groups != 0))
    c.fail(cat(channels.str(), " channels do not divide into ", groups, " groups"));
  const Dim each = c.attrs().i("per_group", 0) ? Dim(groups) : channels;
  for (int i = 1; i <= 2; ++i)
    if (c.rank(i) != 1 || prove_equal(c.shape(i)[0], each) == Tri::kNo)
      c.fail(cat(i == 1 ? "scale" : "bias", " must have shape [", each.str(), "], got ",
                 c.shape(i).str()));
  c.out(0, c.dtype(0), c.shape(0));
}

// One value per channel, as [1,C,1,...].
Expr per_channel(Builder& b, Expr v, int64_t channels, int rank) {
  const int64_t have = v.shape()[0].value();
  if (have != channels)
    v = b.expand(b.reshape(v, {have, 1}), {have, channels / std::max<int64_t>(have, 1)});
  Dims dims(static_cast<size_t>(rank), 1);
  dims[1] = channels;
  return b.reshape(v, dims);
}

std::vector<Expr> normalize(Decompose& d, int64_t groups, double epsilon) {
  Builder& b = d.b;
  const Expr x = d.x(0);
  const Dims s = x.shape().values();
  int64_t rest = 1;
  for (size_t i = 1; i < s.size(); ++i) rest *= s[i];
  const Expr rows = b.reshape(x, {s[0], groups, groups > 0 ? rest / groups : 0});
  const Expr h = b.reshape(b.op("ortrain.Standardize", {rows}, {{"epsilon", epsilon}}), s);
  return {h * per_channel(b, d.x(1), s[1], x.rank()) + per_channel(b, d.x(2), s[1], x.rank())};
}

std::vector<Expr> group(Decompose& d) {
  return normalize(d, d.attrs().i("num_groups", 1), d.attrs().f("epsilon", 1e-5));
}
std::vector<Expr> instance(Decompose& d) {
  return normalize(d, d.x(0).shape()[1].value(), d.attrs().f("epsilon", 1e-5));
}

void adapt_group(RawNode& n) {
  if (n.opset < 21) n.attrs.set("per_group", int64_t{1});
}

}  // namespace

void register_group_normalization(OpTable& table) {
  table.add({
      .name = "GroupNormalization",
      .inputs = {"X", "scale", "bias"},
      .outputs = {"Y"},
      .since = 18,
      .infer = infer,
      .decompose = group,
      .adapt = adapt_group,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 6, 3, 2}), f({6}), f({6})}, .attrs = {{"num_groups", int64_t{3}}}},
                   {.in = {f({2, 6, 4}), f({2}), f({2})},
                    .attrs = {{"num_groups", int64_t{2}}, {"per_group", int64_t{1}}}}},
  });
  table.add({
      .name = "InstanceNormalization",
      .inputs = {"input", "scale", "B"},
      .outputs = {"output"},
      .infer = infer,
      .decompose = instance,
      .precision = Precision::kNever16,
      .examples = {{.in = {f({2, 3, 4}), f({3}), f({3})}},
                   {.in = {f({1, 2, 3, 3}), f({2}), f({2})}, .attrs = {{"epsilon", 1e-2}}}},
  });
}

}  // namespace ortrain::ops
