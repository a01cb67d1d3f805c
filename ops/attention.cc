// Attention (ONNX, opset 23 and newer), by its meaning: ortrain.Attention where that covers it,
// else simpler operators.
//
// Q, K, V are [B,H,T,D], or [B,T,H*D] with q_num_heads and kv_num_heads. Key heads may be fewer
// than query heads (neighbouring query heads share one). attn_mask is bool or added and may be
// shorter than the keys; past_key and past_value go before K and V; nonpad_kv_seqlen hides padding.
// Simpler operators serve softcap, qk_matmul_output, nonpad_kv_seqlen and is_causal behind a past.
// softmax_precision is not looked at: the softmax of a 16-bit graph runs in f32 anyway.
#include <cmath>

#include "ops/common/checks.h"
#include "ops/common/contrib.h"

namespace ortrain::ops {
namespace {

constexpr int kMask = 3, kPastKey = 4, kPastValue = 5, kLengths = 6;

struct Heads {
  Dim queries, keys;
};
Heads heads_of(InferCtx& c) {
  if (c.rank(0) != c.rank(1) || c.rank(0) != c.rank(2) || (c.rank(0) != 3 && c.rank(0) != 4))
    c.fail("Q, K and V must all have rank 3 or 4");
  if (c.rank(0) == 4) return {c.shape(0)[1], c.shape(1)[1]};
  return {head_count(c, "q_num_heads"), head_count(c, "kv_num_heads")};
}

void infer(InferCtx& c) {
  same_floats(c, {0, 1, 2, kPastKey, kPastValue});
  const Heads h = heads_of(c);
  const bool flat = c.rank(0) == 3;
  const int row = flat ? 1 : 2;
  const auto width = [&](int i, const Dim& heads) {
    return flat ? head_width(c, c.shape(i)[2], heads.value()) : c.shape(i)[3];
  };
  const Dim batch = c.shape(0)[0], queries = c.shape(0)[row], v_width = width(2, h.keys);
  width(0, h.queries);
  if (h.queries.is_const() && h.keys.is_const() &&
      (h.keys.value() == 0 || h.queries.value() % h.keys.value() != 0))
    c.fail(cat(h.queries.str(), " query heads are no multiple of ", h.keys.str(), " key heads"));
  Dim keys = c.shape(1)[row];
  if (c.has(kPastKey) != c.has(kPastValue)) c.fail("past_key and past_value come together");
  if (c.has(kPastKey)) {
    if (c.rank(kPastKey) != 4 || c.rank(kPastValue) != 4) c.fail("a past must have rank 4");
    keys = keys + c.shape(kPastKey)[2];
  }
  c.out(0, c.dtype(0),
        flat ? Shape{batch, queries, h.queries * v_width}
             : Shape{batch, h.queries, queries, v_width});
  c.out(1, c.dtype(1), Shape{batch, h.keys, keys, width(1, h.keys)});
  c.out(2, c.dtype(2), Shape{batch, h.keys, keys, v_width});
  c.out(3, c.dtype(0), Shape{batch, h.queries, queries, keys});
}

// [B,T,H*D] -> [B,H,T,D]; rank 4 as it is.
Expr by_heads(Builder& b, Expr x, int64_t heads) {
  if (x.rank() == 4) return x;
  const Dims s = x.shape().values();
  return b.transpose(b.reshape(x, {s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

// The mask, in the type of q, as wide as the keys: what is missing is hidden.
Expr whole_mask(Builder& b, Expr m, DType dtype, int64_t keys) {
  if (m.dtype() != DType::kBool) m = b.cast(m, dtype);
  Dims rest = m.shape().values();
  if (rest.empty() || rest.back() == keys || rest.back() == 1) return m;
  rest.back() = keys - rest.back();
  HostTensor hidden(m.dtype(), rest);
  if (m.dtype() != DType::kBool)
    for (int64_t i = 0; i < hidden.count(); ++i) hidden.set_double(i, -INFINITY);
  return b.concat({m, b.constant(std::move(hidden))}, -1);
}

Expr repeat_heads(Builder& b, Expr x, int64_t heads) {
  const Dims s = x.shape().values();
  if (s[1] == heads) return x;
  const Expr wide = b.expand(b.unsqueeze(x, {2}), {s[0], s[1], heads / s[1], s[2], s[3]});
  return b.reshape(wide, {s[0], heads, s[2], s[3]});
}

struct Parts {
  Expr q, k, v, mask;
  double scale = 1;
  int64_t past = 0;
};

// Output 0 by heads, and output 3, in simpler operators.
std::vector<Expr> spelled_out(Decompose& d, const Parts& p, const Attrs& attrs) {
  Builder& b = d.b;
  const int64_t heads = p.q.shape()[1].value(), queries = p.q.shape()[2].value(),
                keys = p.k.shape()[2].value();
  const DType dtype = p.q.dtype();
  const Expr low = b.scalar(dtype, -INFINITY);
  const double half = std::sqrt(p.scale);
  Expr scores = b.matmul(p.q * half, b.swap_last_two(repeat_heads(b, p.k, heads)) * half);
  if (const double cap = attrs.f("softcap", 0); cap > 0)
    scores = b.unary("Tanh", scores / cap) * cap;
  Expr shown = scores;
  if (p.mask)
    scores = p.mask.dtype() == DType::kBool ? b.where(p.mask, scores, low) : scores + p.mask;
  if (attrs.i("is_causal", 0)) {
    if (element_count(Dims{queries, keys}) > int64_t{1} << 31)
      fail(ErrorCode::kUnsupported, "a causal mask of ", queries, " x ", keys);
    HostTensor sees(DType::kBool, {queries, keys});
    for (int64_t i = 0; i < queries * keys; ++i)
      sees.mutable_data<bool>()[i] = i % keys <= i / keys + p.past;
    scores = b.where(b.constant(std::move(sees)), scores, low);
  }
  if (d.has_x(kLengths)) {
    HostTensor at(DType::kI64, {1, 1, 1, keys});
    for (int64_t i = 0; i < keys; ++i) at.mutable_data<int64_t>()[i] = i;
    const Expr length = b.reshape(d.x(kLengths), {p.q.shape()[0].value(), 1, 1, 1});
    scores = b.where(b.op("Less", {b.constant(std::move(at)), length}), scores, low);
  }
  const Expr soft = b.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const int64_t mode = attrs.i("qk_matmul_output_mode", 0);
  if (mode == 2) shown = scores;
  if (mode == 3) shown = soft;
  return {b.matmul(soft, repeat_heads(b, p.v, heads)), shown};
}

std::vector<Expr> decompose(Decompose& d) {
  Builder& b = d.b;
  const Attrs attrs = d.attrs();  // a copy: nodes move as the graph grows
  const bool flat = d.x(0).rank() == 3;
  const int64_t heads = flat ? attrs.i("q_num_heads", 1) : d.x(0).shape()[1].value();
  const int64_t kv_heads = flat ? attrs.i("kv_num_heads", 1) : d.x(1).shape()[1].value();
  Parts p{by_heads(b, d.x(0), heads), by_heads(b, d.x(1), kv_heads), by_heads(b, d.x(2), kv_heads),
          Expr()};
  if (d.has_x(kPastKey)) {
    p.past = d.x(kPastKey).shape()[2].value();
    p.k = b.concat({d.x(kPastKey), p.k}, 2);
    p.v = b.concat({d.x(kPastValue), p.v}, 2);
  }
  p.scale = attrs.f("scale", 1 / std::sqrt(static_cast<double>(p.q.shape()[3].value())));
  if (d.has_x(kMask)) p.mask = whole_mask(b, d.x(kMask), p.q.dtype(), p.k.shape()[2].value());
  const bool causal = attrs.i("is_causal", 0) != 0;
  std::vector<Expr> out(4);
  if (attrs.f("softcap", 0) > 0 || d.wants(3) || d.has_x(kLengths) || (causal && p.past > 0)) {
    const std::vector<Expr> ys = spelled_out(d, p, attrs);
    out[0] = ys[0], out[3] = ys[1];
  } else {
    Attrs fused{{"scale", p.scale}};
    if (causal) fused.set("causal", int64_t{1});
    out[0] = b.op("ortrain.Attention", {p.q, p.k, p.v, p.mask}, fused);
  }
  out[1] = p.k, out[2] = p.v;
  if (flat) {
    const Dims s = out[0].shape().values();
    out[0] = b.reshape(b.transpose(out[0], {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
  }
  return out;
}

// --- FlexAttention (ai.onnx.preview): as it is without modifiers, else its two halves
void infer_flex(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) c.fail("Q, K and V must have rank 4");
  c.out(0, c.dtype(0), Shape{q[0], q[1], q[2], v[3]});
}
std::vector<Expr> flex(Decompose& d) {
  Attrs attrs;
  if (d.attrs().has("scale")) attrs.set("scale", d.attrs().f("scale", 1));
  return {d.b.op("Attention", {d.x(0), d.x(1), d.x(2)}, attrs)};
}

void check_groups(InferCtx& c, const Dim& heads, const Dim& kv_heads) {
  if (heads.is_const() && kv_heads.is_const() &&
      (kv_heads.value() < 1 || heads.value() % kv_heads.value() != 0))
    c.fail(cat(heads.str(), " query heads are no multiple of ", kv_heads.str(), " key heads"));
}

void infer_flex_scores(InferCtx& c) {
  same_floats(c, {0, 1});
  const Shape &q = c.shape(0), &k = c.shape(1);
  if (q.rank() != 4 || k.rank() != 4 || prove_equal(q[0], k[0]) == Tri::kNo ||
      prove_equal(q[3], k[3]) == Tri::kNo)
    c.fail(cat("Q ", q.str(), " and K ", k.str(), " do not fit"));
  check_groups(c, q[1], k[1]);
  const auto given = dtype_from_name(c.attrs().s("dtype", ""));
  c.out(0,
        given                       ? *given
        : c.dtype(0) == DType::kF64 ? DType::kF64
                                    : DType::kF32,
        Shape{q[0], q[1], q[2], k[2]});
}
std::vector<Expr> flex_scores(Decompose& d) {
  const Node n = d.node();  // a copy: nodes move as the graph grows
  const DType dtype = d.b.graph().value(n.outputs[0]).dtype;
  const Expr q = d.b.cast(d.x(0), dtype), k = d.b.cast(d.x(1), dtype);
  const double width = static_cast<double>(q.shape()[3].value());
  const Expr keys = repeat_heads(d.b, k, q.shape()[1].value());
  return {d.b.matmul(q, d.b.swap_last_two(keys)) * n.attrs.f("scale", 1 / std::sqrt(width))};
}

void infer_flex_values(InferCtx& c) {
  const Shape &p = c.shape(0), &v = c.shape(1);
  if (!is_float(c.dtype(0)) || !is_float(c.dtype(1)) || p.rank() != 4 || v.rank() != 4 ||
      prove_equal(p[0], v[0]) == Tri::kNo || prove_equal(p[3], v[2]) == Tri::kNo)
    c.fail(cat("probabilities ", p.str(), " and V ", v.str(), " do not fit"));
  check_groups(c, p[1], v[1]);
  c.out(0, c.dtype(1), Shape{p[0], p[1], p[2], v[3]});
}
std::vector<Expr> flex_values(Decompose& d) {
  const Expr p = d.x(0), v = d.x(1);
  const Expr values = repeat_heads(d.b, d.b.cast(v, p.dtype()), p.shape()[1].value());
  return {d.b.cast(d.b.matmul(p, values), v.dtype())};
}

}  // namespace

void register_attention(OpTable& table) {
  ExampleInput seen = bools({3, 3});
  seen.values = {1, 0, 0, 1, 1, 0, 0, 1, 1};
  table.add({
      .name = "Attention",
      .inputs = {"Q", "K", "V", "attn_mask?", "past_key?", "past_value?", "nonpad_kv_seqlen?"},
      .outputs = {"Y", "present_key?", "present_value?", "qk_matmul_output?"},
      .since = 23,
      .infer = infer,
      .decompose = decompose,
      .examples = {{.in = {f({2, 2, 3, 4}), f({2, 2, 5, 4}), f({2, 2, 5, 4})}},
                   {.in = {f({2, 3, 8}), f({2, 5, 4}), f({2, 5, 6}), f({3, 5})},
                    .attrs = {{"q_num_heads", int64_t{4}},
                              {"kv_num_heads", int64_t{2}},
                              {"is_causal", int64_t{1}}}},
                   {.in = {f({1, 2, 3, 4}), f({1, 2, 2, 4}), f({1, 2, 2, 4}), f({3, 5}),
                           f({1, 2, 4, 4}), f({1, 2, 4, 4})},
                    .attrs = {{"softcap", 2.0}, {"is_causal", int64_t{1}}},
                    .outputs = 3},
                   {.in = {f({2, 4, 3, 2}), f({2, 2, 5, 2}), f({2, 2, 5, 3}), f({2, 1, 3, 4})},
                    .attrs = {{"qk_matmul_output_mode", int64_t{2}}, {"scale", 0.7}},
                    .outputs = 1},
                   {.in = {f({2, 4, 3, 2}), f({2, 2, 5, 2}), f({2, 2, 5, 3}), f({4, 3, 5})},
                    .attrs = {{"qk_matmul_output_mode", int64_t{2}}},
                    .outputs = 4},
                   {.in = {f({2, 2, 3, 2}), f({2, 2, 5, 2}), f({2, 2, 5, 2}), absent(), absent(),
                           absent(), iconst({2}, {3, 5})}},
                   {.in = {f({1, 2, 3, 2}), f({1, 2, 2, 2}), f({1, 2, 2, 2}), seen, f({1, 2, 1, 2}),
                           f({1, 2, 1, 2})},
                    .attrs = {{"qk_matmul_output_mode", int64_t{3}}},
                    .outputs = 4},
                   {.in = {f({2, 3, 4}), f({2, 3, 4}), f({2, 3, 4})},
                    .attrs = {{"q_num_heads", int64_t{2}},
                              {"kv_num_heads", int64_t{2}},
                              {"qk_matmul_output_mode", int64_t{1}},
                              {"softcap", 1.5}},
                    .outputs = 4},
                   {.in = {f({1, 1, 1, 1}), f({1, 1, 1, 1}), f({1, 1, 1, 1})}},
                   {.in = {f({0, 2, 3, 4}), f({0, 2, 3, 4}), f({0, 2, 3, 4})}}},
      .note = "softmax_precision is not looked at",
  });
  table.add({
      .name = "ai.onnx.preview.FlexAttention",
      .inputs = {"Q", "K", "V"},
      .outputs = {"Y"},
      .infer = infer_flex,
      .decompose = flex,
      .training_policy = expand_early,
      .examples = {{.in = {f({1, 4, 3, 2}), f({1, 2, 5, 2}), f({1, 2, 5, 3})}},
                   {.in = {f({1, 1, 2, 4}), f({1, 1, 2, 4}), f({1, 1, 2, 4})},
                    .attrs = {{"scale", 0.3}}}},
      .note =
          "score_mod and prob_mod are inlined on import; softmax_precision matters to them only",
  });
  table.add({
      .name = "ortrain.FlexScores",
      .inputs = {"Q", "K"},
      .outputs = {"scores"},
      .infer = infer_flex_scores,
      .decompose = flex_scores,
      .training_policy = expand_early,
      .examples = {{.in = {f({1, 4, 3, 2}), f({1, 2, 5, 2})}}},
  });
  table.add({
      .name = "ortrain.FlexValues",
      .inputs = {"probabilities", "V"},
      .outputs = {"Y"},
      .infer = infer_flex_values,
      .decompose = flex_values,
      .training_policy = expand_early,
      .examples = {{.in = {f({1, 4, 3, 5}), f({1, 2, 5, 3})}}},
  });
}

}  // namespace ortrain::ops
