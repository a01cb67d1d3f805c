// com.microsoft Attention (projects q, k, v itself), MultiHeadAttention and GroupQueryAttention, by
// the standard Attention.
//
// Padding masks become additions of mask_filter_value (-10000), so that a row without a visible key
// is not NaN; mask forms: lengths [B], [B,T], [B,S,T], and for Attention [2B] (ends, then starts).
// GroupQueryAttention is causal; seqlens_k + 1 is the length of a sample with its past; without a
// past it hides nothing more than causality does (padding is at the end). local_window_size counts
// the query's own position (onnxruntime since 1.21; 1.19 showed one key more). Refused: the [3B+2]
// and 4D masks, rotary inside Attention, shared past buffers, smooth softmax.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/checks.h"
#include "ops/common/contrib.h"

namespace ortrain::ops {
namespace {

Expr positions(Builder& b, int64_t from, const Dims& dims) {
  if (element_count(dims) > int64_t{1} << 28)
    fail(ErrorCode::kUnsupported, "attention over ", element_count(dims), " positions");
  HostTensor t(DType::kI64, dims);
  for (int64_t i = 0; i < t.count(); ++i) t.mutable_data<int64_t>()[i] = from + i;
  return b.constant(std::move(t));
}

// [B,S,n*D] -> [B,n,S,D]
Expr by_heads(Builder& b, Expr x, int64_t heads) {
  const Dims s = x.shape().values();
  return b.transpose(b.reshape(x, {s[0], s[1], heads, s[2] / std::max<int64_t>(1, heads)}),
                     {0, 2, 1, 3});
}
// [B,n,S,D] -> [B,S,n*D]
Expr flat(Builder& b, Expr x) {
  const Dims s = x.shape().values();
  return b.reshape(b.transpose(x, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
}

void check_mask(InferCtx& c, int i, const Dim& batch, const Dim& queries, const Dim& keys,
                bool ranges) {
  if (!c.has(i)) return;
  const Shape& m = c.shape(i);
  const bool fits =
      (m.rank() == 1 && (prove_equal(m[0], batch) != Tri::kNo ||
                         (ranges && prove_equal(m[0], batch * Dim(2)) != Tri::kNo))) ||
      (m.rank() == 2 && prove_equal(m, Shape{batch, keys}) != Tri::kNo) ||
      (m.rank() == 3 && prove_equal(m, Shape{batch, queries, keys}) != Tri::kNo);
  if (!fits)
    fail(ErrorCode::kUnsupported, "a padding mask of shape ", m.str(), " (batch ", batch.str(),
         ", ", keys.str(), " keys)");
}

// What a padding mask adds to the scores, [B,1,1 or S,T].
Expr padding(Builder& b, Expr mask, int64_t batch, int64_t keys, DType dtype, double filter) {
  Expr seen;
  if (mask.rank() == 1) {
    const bool ranges = mask.shape()[0].value() == 2 * batch && batch > 0;
    const Expr at = positions(b, 0, {1, 1, 1, keys}), all = b.cast(mask, DType::kI64);
    const auto part = [&](int64_t from) {
      return b.reshape(ranges ? b.slice(all, 0, from, from + batch) : all, {batch, 1, 1, 1});
    };
    seen = b.op("Less", {at, part(0)});
    if (ranges) seen = b.op("And", {seen, b.op("GreaterOrEqual", {at, part(batch)})});
  } else {
    seen = b.op("Greater", {mask, b.constant(HostTensor::scalar_of(mask.dtype(), 0))});
    seen =
        b.unsqueeze(seen, mask.rank() == 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1});
  }
  return b.where(seen, b.scalar(dtype, 0), b.scalar(dtype, filter));
}

struct Parts {
  Expr q, k, v;  // [B,S,H*D]; or all [B,H,S,D]
  Expr mask;     // added or bool, or empty
  Expr past_key, past_value;
  int64_t heads = 1, kv_heads = 1;
  double scale = 0, softcap = 0;
  bool causal = false;
};

// y and, with a past or on demand, the present key and value.
std::vector<Expr> standard(Builder& b, const Parts& p, bool present) {
  Attrs a{{"q_num_heads", p.heads}, {"kv_num_heads", p.kv_heads}};
  if (p.scale != 0) a.set("scale", p.scale);
  if (p.softcap > 0) a.set("softcap", p.softcap);
  if (p.causal) a.set("is_causal", int64_t{1});
  std::vector<Expr> y =
      b.ops("Attention", {p.q, p.k, p.v, p.mask, p.past_key, p.past_value}, a, present ? 3 : 1);
  y.resize(3);
  return y;
}

// --- Attention: input, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length?
enum Packed : int { kInput, kWeights, kBias, kMask, kPast, kScores, kPastLength };

std::vector<int64_t> hidden_sizes(const Attrs& a, int64_t width) {
  std::vector<int64_t> sizes = a.ints("qkv_hidden_sizes");
  if (sizes.empty()) sizes = {width / 3, width / 3, width / 3};
  return sizes;
}

void infer_packed(InferCtx& c) {
  const Attrs& a = c.attrs();
  const int64_t heads = head_count(c, "num_heads");
  same_floats(c, {kInput, kWeights, kBias, kPast, kScores});
  if (a.i("do_rotary", 0)) fail(ErrorCode::kUnsupported, "Attention with do_rotary");
  if (a.i("past_present_share_buffer", 0) || c.has(kPastLength))
    fail(ErrorCode::kUnsupported, "Attention with past_present_share_buffer");
  const Shape &x = c.shape(kInput), &w = c.shape(kWeights);
  if (x.rank() != 3 || w.rank() != 2 || prove_equal(x[2], w[0]) == Tri::kNo || !w[1].is_const())
    c.fail(cat("input ", x.str(), " and weights ", w.str(), " do not fit"));
  const std::vector<int64_t> sizes = hidden_sizes(a, w[1].value());
  if (sizes.size() != 3 || sizes[0] != sizes[1] || sizes[0] + sizes[1] + sizes[2] != w[1].value() ||
      sizes[0] < 1 || sizes[2] < 1 || sizes[0] % heads != 0 || sizes[2] % heads != 0)
    c.fail(cat("qkv_hidden_sizes do not fit weights ", w.str(), " and ", heads, " heads"));
  if (c.has(kBias) && prove_equal(c.shape(kBias), Shape{w[1]}) == Tri::kNo)
    c.fail(cat("bias is ", c.shape(kBias).str(), ", weights ", w.str()));
  Dim keys = x[1];
  if (c.has(kPast)) {
    const Shape& p = c.shape(kPast);
    if (p.rank() != 5 || !(p[0] == Dim(2)) || sizes[0] != sizes[2] ||
        prove_equal(Shape{p[1], p[2], p[4]}, Shape{x[0], Dim(heads), Dim(sizes[0] / heads)}) ==
            Tri::kNo)
      c.fail(cat("past is ", p.str(), ", expected [2,B,heads,P,size]"));
    keys = keys + p[3];
  }
  check_mask(c, kMask, x[0], x[1], keys, /*ranges=*/true);
  c.out(0, c.dtype(0), Shape{x[0], x[1], Dim(sizes[2])});
  c.out(1, c.dtype(0), Shape{Dim(2), x[0], Dim(heads), keys, Dim(sizes[0] / heads)});
}

std::vector<Expr> packed(Decompose& d) {
  Builder& b = d.b;
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const bool present = d.wants(1);
  Parts p;
  p.heads = p.kv_heads = a.i("num_heads", 1);
  p.scale = a.f("scale", 0);
  p.causal = a.i("unidirectional", 0) != 0;
  Expr qkv = b.matmul(d.x(kInput), d.x(kWeights));
  if (d.has_x(kBias)) qkv = qkv + d.x(kBias);
  const std::vector<int64_t> sizes = hidden_sizes(a, qkv.shape()[2].value());
  const std::vector<Expr> parts = b.ops("Split", {qkv, b.ints(sizes)}, {{"axis", int64_t{2}}}, 3);
  p.q = parts[0], p.k = parts[1], p.v = parts[2];
  int64_t keys = p.k.shape()[1].value();
  if (d.has_x(kPast)) {
    keys += d.x(kPast).shape()[3].value();
    p.past_key = b.squeeze(b.slice(d.x(kPast), 0, 0, 1), {0});
    p.past_value = b.squeeze(b.slice(d.x(kPast), 0, 1, 2), {0});
  }
  if (d.has_x(kMask))
    p.mask = padding(b, d.x(kMask), p.q.shape()[0].value(), keys, p.q.dtype(),
                     a.f("mask_filter_value", -10000));
  if (d.has_x(kScores)) p.mask = p.mask ? p.mask + d.x(kScores) : d.x(kScores);
  const std::vector<Expr> y = standard(b, p, present);
  return {y[0], present ? b.concat({b.unsqueeze(y[1], {0}), b.unsqueeze(y[2], {0})}, 0) : Expr()};
}

// --- MultiHeadAttention: query, key?, value?, bias?, key_padding_mask?, attention_bias?,
// past_key?, past_value?
enum Multi : int { kQuery, kKey, kValue, kMultiBias, kPadding, kMultiScores, kPastKey, kPastValue };

struct MultiShape {
  Dim batch, queries, keys, width, v_width;  // widths per head
};
MultiShape multi_shape(InferCtx& c, int64_t heads) {
  const Shape& q = c.shape(kQuery);
  const auto per_head = [&](const Dim& d) { return head_width(c, d, heads); };
  if (q.rank() == 5) {
    if (c.has(kKey) || c.has(kValue) || !(q[3] == Dim(3)) ||
        prove_equal(q[2], Dim(heads)) == Tri::kNo)
      c.fail("a packed query must be [B,S,heads,3,size], alone; got " + q.str());
    return {q[0], q[1], q[1], q[4], q[4]};
  }
  if (q.rank() != 3 || !c.has(kKey)) c.fail("query [B,S,H*D] and key are needed");
  const Shape& k = c.shape(kKey);
  const Dim width = per_head(q[2]);
  if (k.rank() == 5) {
    if (c.has(kValue) || !(k[3] == Dim(2)) || prove_equal(k[2], Dim(heads)) == Tri::kNo)
      c.fail("a packed key must be [B,L,heads,2,size], without value; got " + k.str());
    return {q[0], q[1], k[1], width, k[4]};
  }
  if (!c.has(kValue)) c.fail("value is needed");
  const Shape& v = c.shape(kValue);
  if (k.rank() != v.rank() || (k.rank() != 3 && k.rank() != 4))
    c.fail(cat("key ", k.str(), " and value ", v.str(), " do not fit"));
  if (k.rank() == 4) return {q[0], q[1], k[2], width, v[3]};
  return {q[0], q[1], k[1], width, per_head(v[2])};
}

void infer_multi(InferCtx& c) {
  const int64_t heads = head_count(c, "num_heads");
  same_floats(c, {kQuery, kKey, kValue, kMultiBias, kMultiScores, kPastKey, kPastValue});
  const MultiShape s = multi_shape(c, heads);
  Dim keys = s.keys;
  if (c.has(kPastKey) != c.has(kPastValue)) c.fail("past_key and past_value come together");
  if (c.has(kPastKey)) {
    if (c.rank(kPastKey) != 4 || c.rank(kPastValue) != 4) c.fail("a past must have rank 4");
    keys = keys + c.shape(kPastKey)[2];
  }
  check_mask(c, kPadding, s.batch, s.queries, keys, /*ranges=*/false);
  if (c.has(kMultiBias) && (c.rank(kMultiBias) != 1 ||
                            prove_equal(c.shape(kMultiBias)[0],
                                        (s.width * Dim(2) + s.v_width) * Dim(heads)) == Tri::kNo))
    c.fail(
        cat("bias is ", c.shape(kMultiBias).str(), ", expected one value per column of q, k, v"));
  c.out(0, c.dtype(0), Shape{s.batch, s.queries, s.v_width * Dim(heads)});
  c.out(1, c.dtype(0), Shape{s.batch, Dim(heads), keys, s.width});
  c.out(2, c.dtype(0), Shape{s.batch, Dim(heads), keys, s.v_width});
}

// Piece i of x [B,S,heads,n,D], as [B,S,heads*D].
Expr piece(Builder& b, Expr x, int64_t i) {
  const Dims s = x.shape().values();
  return b.reshape(b.slice(x, 3, i, i + 1), {s[0], s[1], s[2] * s[4]});
}

std::vector<Expr> multi(Decompose& d) {
  Builder& b = d.b;
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const bool present = d.wants(1) || d.wants(2);
  Parts p;
  p.heads = p.kv_heads = a.i("num_heads", 1);
  p.scale = a.f("scale", 0);
  p.causal = a.i("unidirectional", 0) != 0;
  p.q = d.x(kQuery);
  bool ready = false;  // key and value are [B,H,L,D], projected and with bias
  if (p.q.rank() == 5) {
    const Expr all = p.q;
    p.q = piece(b, all, 0), p.k = piece(b, all, 1), p.v = piece(b, all, 2);
  } else if (d.x(kKey).rank() == 5) {
    p.k = piece(b, d.x(kKey), 0), p.v = piece(b, d.x(kKey), 1);
  } else {
    p.k = d.x(kKey), p.v = d.x(kValue);
    ready = p.k.rank() == 4;
  }
  if (d.has_x(kMultiBias)) {
    const Expr bias = d.x(kMultiBias);
    const int64_t width = p.q.shape()[2].value(), all = bias.shape()[0].value();
    p.q = p.q + b.slice(bias, 0, 0, width);
    if (!ready) {
      p.k = p.k + b.slice(bias, 0, width, 2 * width);
      p.v = p.v + b.slice(bias, 0, 2 * width, all);
    }
  }
  const int64_t batch = p.q.shape()[0].value();
  int64_t keys = p.k.shape()[ready ? 2 : 1].value();
  if (d.has_x(kPastKey)) {
    p.past_key = d.x(kPastKey), p.past_value = d.x(kPastValue);
    keys += p.past_key.shape()[2].value();
  }
  if (d.has_x(kPadding))
    p.mask = padding(b, d.x(kPadding), batch, keys, p.q.dtype(), a.f("mask_filter_value", -10000));
  if (d.has_x(kMultiScores)) p.mask = p.mask ? p.mask + d.x(kMultiScores) : d.x(kMultiScores);
  if (ready) p.q = by_heads(b, p.q, p.heads);
  std::vector<Expr> y = standard(b, p, present);
  if (ready) y[0] = flat(b, y[0]);
  return y;
}

// --- GroupQueryAttention: query, key?, value?, past_key?, past_value?, seqlens_k,
// total_sequence_length, cos_cache?, sin_cache?
enum Group : int { kG, kGKey, kGValue, kGPastKey, kGPastValue, kLengths, kTotal, kCos, kSin };

bool has_past(const Shape& past) { return !(past[2] == Dim(0)); }

void infer_group(InferCtx& c) {
  const Attrs& a = c.attrs();
  const int64_t heads = head_count(c, "num_heads"), kv = head_count(c, "kv_num_heads");
  same_floats(c, {kG, kGKey, kGValue, kGPastKey, kGPastValue, kCos, kSin});
  if (heads % kv != 0)
    c.fail(cat("num_heads (", heads, ") must be a multiple of kv_num_heads (", kv, ")"));
  if (a.i("smooth_softmax", 0))
    fail(ErrorCode::kUnsupported, "GroupQueryAttention with smooth_softmax");
  const Shape& q = c.shape(kG);
  if (q.rank() != 3 || c.has(kGKey) != c.has(kGValue)) c.fail("query [B,S,H*D], key and value");
  const int64_t parts = c.has(kGKey) ? heads : heads + 2 * kv;
  if (!q[2].is_const() || q[2].value() < parts || q[2].value() % parts != 0)
    c.fail(cat("query ", q.str(), " does not divide into ", parts, " heads"));
  const int64_t width = q[2].value() / parts;
  for (int i : {int{kGKey}, int{kGValue}})
    if (c.has(i) && prove_equal(c.shape(i), Shape{q[0], q[1], Dim(kv * width)}) == Tri::kNo)
      c.fail(cat("key or value is ", c.shape(i).str(), ", expected [B,S,", kv * width, "]"));
  if (a.i("do_rotary", 0) &&
      (!c.has(kCos) || !c.has(kSin) || c.rank(kCos) != 2 || c.rank(kSin) != 2))
    c.fail("do_rotary needs both caches, [positions, R/2]");
  if (prove_equal(c.shape(kLengths).count(), q[0]) == Tri::kNo || !is_integer(c.dtype(kLengths)))
    c.fail("seqlens_k must be one integer per sample");
  if (!is_integer(c.dtype(kTotal))) c.fail("total_sequence_length must be an integer");
  Dim keys = q[1];
  if (c.has(kGPastKey) != c.has(kGPastValue)) c.fail("past_key and past_value come together");
  if (c.has(kGPastKey)) {
    const Shape& past = c.shape(kGPastKey);
    if (past.rank() != 4 || prove_equal(past, c.shape(kGPastValue)) == Tri::kNo ||
        prove_equal(Shape{past[0], past[1], past[3]}, Shape{q[0], Dim(kv), Dim(width)}) == Tri::kNo)
      c.fail(cat("past_key is ", past.str(), ", expected [B,", kv, ",P,", width, "]"));
    if (has_past(past)) {
      const std::vector<Dim> total = c.need_ints(kTotal, "total_sequence_length");
      if (total.size() != 1 || !total[0].is_const() || !past[2].is_const())
        c.fail("total_sequence_length must be one number");
      keys = std::max(past[2].value(), total[0].value());
      if (q[1].is_const() &&
          (keys.value() < q[1].value() || total[0].value() > past[2].value() + q[1].value()))
        c.fail(cat("total_sequence_length ", total[0].value(), " does not fit a past of ",
                   past[2].value(), " and a query of ", q[1].value()));
    }
  }
  c.out(0, c.dtype(0), Shape{q[0], q[1], Dim(heads * width)});
  for (int i = 1; i <= 2; ++i) c.out(i, c.dtype(0), Shape{q[0], Dim(kv), keys, Dim(width)});
}

// A number that inference has asked for.
int64_t total_length(const Graph& g, ValueId v) {
  if (const HostTensor* t = g.tensor(v)) return t->as_int(0);
  return g.value(v).ints.at(0).value();
}

std::vector<Expr> group(Decompose& d) {
  Builder& b = d.b;
  const Attrs a = d.attrs();  // a copy: nodes move as the graph grows
  const bool present = d.wants(1) || d.wants(2);
  Parts p;
  p.heads = a.i("num_heads", 1), p.kv_heads = a.i("kv_num_heads", 1);
  p.scale = a.f("scale", 0), p.softcap = a.f("softcap", 0);
  p.q = d.x(kG);
  const Dims s = p.q.shape().values();
  const int64_t batch = s[0], steps = s[1];
  if (d.has_x(kGKey)) {
    p.k = d.x(kGKey), p.v = d.x(kGValue);
  } else {
    const int64_t width = s[2] / (p.heads + 2 * p.kv_heads);
    const std::vector<int64_t> sizes{p.heads * width, p.kv_heads * width, p.kv_heads * width};
    const std::vector<Expr> parts = b.ops("Split", {p.q, b.ints(sizes)}, {{"axis", int64_t{2}}}, 3);
    p.q = parts[0], p.k = parts[1], p.v = parts[2];
  }
  const bool past = d.has_x(kGPastKey) && has_past(d.x(kGPastKey).shape());
  // Where each sample's first query stands, [B].
  Expr first;
  if (past)
    first = b.reshape(b.cast(d.x(kLengths), DType::kI64), {batch}) +
            b.constant(HostTensor::scalar<int64_t>(1 - steps));
  if (a.i("do_rotary", 0)) {
    Expr ids = positions(b, 0, {1, steps});
    ids = past ? ids + b.reshape(first, {batch, 1}) : b.expand(ids, {batch, steps});
    const auto turn = [&](Expr x, int64_t heads) {
      const int64_t rotary = 2 * d.x(kCos).shape()[1].value();
      return b.op("RotaryEmbedding", {x, d.x(kCos), d.x(kSin), ids},
                  {{"num_heads", heads},
                   {"interleaved", a.i("rotary_interleaved", 0)},
                   {"rotary_embedding_dim", rotary}});
    };
    p.q = turn(p.q, p.heads);
    p.k = turn(p.k, p.kv_heads);
  }
  int64_t keys = steps;
  if (past) {
    const int64_t room = d.x(kGPastKey).shape()[2].value();
    keys = std::max(room, total_length(b.graph(), d.x(kTotal).id()));
    const auto cache = [&](int input, Expr x) {
      Expr old = d.x(input);
      Dims more = old.shape().values();
      more[2] = keys - room;
      if (more[2] > 0) old = b.concat({old, b.constant(HostTensor(old.dtype(), more))}, 2);
      return b.op("TensorScatter", {old, by_heads(b, x, p.kv_heads), first});
    };
    p.k = cache(kGPastKey, p.k);
    p.v = cache(kGPastValue, p.v);
    p.q = by_heads(b, p.q, p.heads);
  }
  const int64_t window = a.i("local_window_size", -1);
  if (past || window > 0) {
    const Expr at = positions(b, 0, {1, 1, 1, keys});
    Expr query = positions(b, 0, {1, 1, steps, 1});
    if (past) query = query + b.reshape(first, {batch, 1, 1, 1});
    Expr seen = b.op("LessOrEqual", {at, query});
    if (window > 0)
      seen = b.op("And", {seen, b.op("Greater", {at, query - static_cast<double>(window)})});
    p.mask = seen;
  } else {
    p.causal = true;
  }
  std::vector<Expr> y = standard(b, p, present && !past);
  if (past) y = {flat(b, y[0]), p.k, p.v};
  return y;
}

OpDef base(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs,
           InferFn infer, DecomposeFn parts, std::vector<Example> examples, const char* note) {
  return {.name = cat("com.microsoft.", name),
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .infer = infer,
          .decompose = parts,
          .training_policy = expand_early,
          .examples = std::move(examples),
          .note = note};
}

}  // namespace

void register_contrib_attention(OpTable& table) {
  using Ints = std::vector<int64_t>;
  const Attrs two{{"num_heads", 2}};
  const ExampleInput x = f({2, 3, 5}), w = f({5, 12}), bias = f({12}),
                     seen = iconst({2, 3}, {1, 1, 0, 1, 1, 1});
  table.add(
      base("Attention",
           {"input", "weights", "bias?", "mask_index?", "past?", "attention_bias?",
            "past_sequence_length?"},
           {"output", "present?"}, infer_packed, packed,
           {{.in = {x, w, bias}, .attrs = two},
            {.in = {x, w, bias, seen, absent(), f({1, 2, 3, 3})}, .attrs = two},
            {.in = {x, f({5, 10}), absent(), iconst({4}, {3, 2, 0, 1})},
             .attrs = {{"num_heads", 2}, {"qkv_hidden_sizes", Ints{4, 4, 2}}, {"scale", 0.3}}},
            {.in = {x, w, bias, absent(), f({2, 2, 2, 2, 2})},
             .attrs = {{"num_heads", 2}, {"unidirectional", 1}},
             .outputs = 2}},
           "4D and [3B+2] masks, do_rotary and shared buffers are refused"));
  const ExampleInput q = f({2, 3, 4}), k = f({2, 5, 4});
  table.add(base("MultiHeadAttention",
                 {"query", "key?", "value?", "bias?", "key_padding_mask?", "attention_bias?",
                  "past_key?", "past_value?"},
                 {"output", "present_key?", "present_value?"}, infer_multi, multi,
                 {{.in = {q, k, k}, .attrs = two},
                  {.in = {q, k, f({2, 5, 6}), f({14}), iconst({2}, {5, 2}), f({2, 2, 3, 5})},
                   .attrs = {{"num_heads", 2}, {"scale", 0.4}}},
                  {.in = {f({2, 3, 2, 3, 2})}, .attrs = two},
                  {.in = {q, f({2, 5, 2, 2, 2})}, .attrs = two},
                  {.in = {q, f({2, 2, 5, 2}), f({2, 2, 5, 2})}, .attrs = two},
                  {.in = {q, q, q, absent(), absent(), absent(), f({2, 2, 1, 2}), f({2, 2, 1, 2})},
                   .attrs = {{"num_heads", 2}, {"unidirectional", 1}},
                   .outputs = 3}},
                 "[3B+2] masks are refused"));
  const Attrs grouped{{"num_heads", 2}, {"kv_num_heads", 1}};
  Attrs rotary = grouped;
  rotary.set("do_rotary", int64_t{1});
  Attrs local = grouped;
  local.set("local_window_size", int64_t{2});
  local.set("softcap", 3.0);
  const ExampleInput small = f({2, 3, 2}), total = iconst({1}, {3});
  table.add(base(
      "GroupQueryAttention",
      {"query", "key?", "value?", "past_key?", "past_value?", "seqlens_k", "total_sequence_length",
       "cos_cache?", "sin_cache?"},
      {"output", "present_key?", "present_value?"}, infer_group, group,
      {{.in = {q, small, small, absent(), absent(), iconst({2}, {2, 1}), total}, .attrs = grouped},
       {.in = {f({2, 3, 8}), absent(), absent(), absent(), absent(), iconst({2}, {2, 2}), total,
               f({6, 1}), f({6, 1})},
        .attrs = rotary,
        .outputs = 3},
       {.in = {q, small, small, absent(), absent(), iconst({2}, {2, 2}), total}, .attrs = local},
       {.in = {f({2, 1, 4}), f({2, 1, 2}), f({2, 1, 2}), f({2, 1, 3, 2}), f({2, 1, 3, 2}),
               iconst({2}, {3, 1}), iconst({1}, {4}), f({6, 1}), f({6, 1})},
        .attrs = rotary,
        .outputs = 3}},
      "smooth_softmax is refused"));
}

}  // namespace ortrain::ops
