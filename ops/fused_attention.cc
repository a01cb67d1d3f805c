// ortrain.Attention and its gradient: y = softmax(scale q k^T + mask) v per batch and head, without
// a tensor of size T x S.
//
// q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv] -> y [B,H,T,Dv]; H is a multiple of Hk (each key head
// serves H/Hk neighbouring query heads). `token_major`: q, k, v and y are [B,T,H,D] instead, what a
// projection leaves. Without k and v, q is all three: [B,T,3,H,D] (token_major only). mask: added
// float or bool (false hides), broadcast to [B,H,T,S]. `causal`: query t sees keys 0..t. A row that
// sees nothing is NaN, as in ONNX and PyTorch; 0 with `guard` (what exporters' IsNaN test makes).
// stats [B,H,T,2]: row maximum and 1/sum, from which the gradient computes the probabilities again.
// Gradient (p: probabilities, g = dy): dv = p^T g; ds = p (g v^T - rowsum(g y)); dq = scale ds k;
// dk = scale ds^T q; dmask = ds. T. Dao et al., "FlashAttention", 2022. f32 by "simd"; "ref" in
// double loops. With 16-bit q, k, v the statistics are f32 and a float mask may be.
#include <cmath>

#include "graph/error.h"
#include "graph/half.h"
#include "graph/pad_axes.h"
#include "ops/common/attention_half.h"
#include "ops/common/checks.h"
#include "ops/common/ref.h"
#include "ops/common/share_node.h"

namespace ortrain::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool token_major(const Attrs& a) { return a.i("token_major", 0) != 0; }

// --- inference ----------------------------------------------------------------------------------
// Logical extents of the operands at inputs 0..2.
struct Extents {
  Dim batch, heads, kv_heads, queries, keys, width, v_width;
};
Extents extents(InferCtx& c) {
  const bool tokens = token_major(c.attrs());
  const Shape& q = c.shape(0);
  if (!c.has(1) || !c.has(2)) {
    if (c.has(1) || c.has(2) || !tokens || q.rank() != 5 || !(q[2] == Dim(3)))
      c.fail(cat("without k and v, q must be [B,T,3,H,D] with token_major; got ", q.str()));
    return {q[0], q[3], q[3], q[1], q[1], q[4], q[4]};
  }
  const Shape &k = c.shape(1), &v = c.shape(2);
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) c.fail("q, k and v must have rank 4");
  const int head = tokens ? 2 : 1, row = tokens ? 1 : 2;
  const Extents e{q[0], q[head], k[head], q[row], k[row], q[3], v[3]};
  const auto same = [&](const Dim& a, const Dim& b, const char* what) {
    if (prove_equal(a, b) == Tri::kNo)
      c.fail(cat(what, " differ: q ", q.str(), ", k ", k.str(), ", v ", v.str()));
  };
  same(e.batch, k[0], "batch extents");
  same(e.batch, v[0], "batch extents");
  same(k[head], v[head], "key heads");
  same(e.keys, v[row], "numbers of keys");
  same(e.width, k[3], "widths");
  if (e.heads.is_const() && e.kv_heads.is_const() &&
      (e.kv_heads.value() == 0 || e.heads.value() % e.kv_heads.value() != 0))
    c.fail(cat("query heads are no multiple of key heads: q ", q.str(), ", k ", k.str()));
  return e;
}

// Of the statistics, and of a float mask where that is not of q's type: f32 beside 16-bit q.
DType stats_type(InferCtx& c) { return is_half(c.dtype(0)) ? DType::kF32 : c.dtype(0); }
template <class T>
using Stats = std::conditional_t<std::is_same_v<T, double>, double, float>;

void infer(InferCtx& c) {
  same_floats(c, {0, 1, 2});
  const Extents e = extents(c);
  const Shape scores{e.batch, e.heads, e.queries, e.keys};
  if (c.has(3)) {
    const Shape& m = c.shape(3);
    if (m.rank() > 4) c.fail("mask must have rank 4 at most, got " + m.str());
    if (c.dtype(3) != DType::kBool && c.dtype(3) != c.dtype(0) && c.dtype(3) != stats_type(c))
      c.fail(cat("mask must be bool or ", name_of(c.dtype(0))));
    for (int i = 0; i < m.rank(); ++i) {
      const Dim& have = m[i];
      if (!(have == Dim(1)) && prove_equal(have, scores[4 - m.rank() + i]) == Tri::kNo)
        c.fail(cat("mask ", m.str(), " does not broadcast to ", scores.str()));
    }
  }
  c.out(0, c.dtype(0),
        token_major(c.attrs()) ? Shape{e.batch, e.queries, e.heads, e.v_width}
                               : Shape{e.batch, e.heads, e.queries, e.v_width});
  c.out(1, stats_type(c), Shape{e.batch, e.heads, e.queries, Dim(2)});
}

void infer_grad(InferCtx& c) {  // q, k?, v?, mask?, y, stats, dy
  const Extents e = extents(c);
  for (int i = 0; i < 3; ++i)
    if (c.has(i)) c.out(i, c.dtype(0), c.shape(i));
  c.out(3, c.has(3) && is_float(c.dtype(3)) ? c.dtype(3) : c.dtype(0),
        Shape{e.batch, e.heads, e.queries, e.keys});
}

// --- operands as planes -------------------------------------------------------------------------
struct Layout {
  AttentionSizes s;
  bool tokens = false, packed = false, has_mask = false;
  bool wide_mask = false;  // f32 beside 16-bit q
  AttentionMask mask;      // without its pointer

  template <class T>
  AttentionPlane<T> plane(T* p, int64_t heads, int64_t rows, int64_t width) const {
    if (tokens) return {p, rows * heads * width, width, heads * width};
    return {p, heads * rows * width, rows * width, width};
  }
  // Part 0, 1, 2 (q, k, v) of one tensor, or a tensor of its own.
  template <class T>
  AttentionPlane<T> operand(T* base, T* own, int part) const {
    if (packed) {
      const int64_t step = s.heads * s.width;
      return {base ? base + part * step : nullptr, s.queries * 3 * step, s.width, 3 * step};
    }
    return plane(own, part == 0 ? s.heads : s.kv_heads, part == 0 ? s.queries : s.keys,
                 part == 2 ? s.v_width : s.width);
  }
  template <class T>
  AttentionPlane<T> result(T* p) const {
    return plane(p, s.heads, s.queries, s.v_width);
  }
  AttentionMask mask_of(const KernelArgs& a) const {
    AttentionMask m = mask;
    m.p = has_mask ? a.in[3] : nullptr;
    return m;
  }
};

Layout layout_of(const KernelQuery& q) {
  Layout l;
  AttentionSizes& s = l.s;
  l.tokens = token_major(q.attrs);
  l.packed = !q.has_in(1);
  const Dims& d = q.in[0].dims;
  s.batch = d[0];
  if (l.packed) {
    s.heads = s.kv_heads = d[3], s.queries = s.keys = d[1], s.width = s.v_width = d[4];
  } else {
    const size_t head = l.tokens ? 2 : 1, row = l.tokens ? 1 : 2;
    s.heads = d[head], s.queries = d[row], s.width = d[3];
    s.kv_heads = q.in[1].dims[head], s.keys = q.in[1].dims[row], s.v_width = q.in[2].dims[3];
  }
  s.scale = static_cast<float>(q.attrs.f("scale", 1));
  s.causal = q.attrs.i("causal", 0) != 0;
  s.guard = q.attrs.i("guard", 0) != 0;
  l.has_mask = q.has_in(3);
  if (l.has_mask) {
    int64_t* strides[] = {&l.mask.batch, &l.mask.head, &l.mask.row, &l.mask.key};
    const Dims& m = q.in[3].dims;
    int64_t step = 1;
    for (size_t i = 1; i <= m.size(); ++i) {
      const int64_t extent = m[m.size() - i];
      *strides[4 - i] = extent == 1 ? 0 : step;
      step *= extent;
    }
    l.mask.dtype = q.in[3].dtype;
    l.wide_mask = is_float(l.mask.dtype) && l.mask.dtype != q.in[0].dtype;
  }
  return l;
}

// --- vectors ------------------------------------------------------------------------------------
std::string reject(const KernelQuery& q) {
  const DType dtype = q.in[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "only f32 and 16-bit floats";
  const Layout l = layout_of(q);
  const AttentionSizes& s = l.s;
  return s.units() * s.queries * s.keys * s.width * s.v_width == 0 ? "empty tensor" : "";
}
std::string reject_grad(const KernelQuery& q) {
  return q.has_out(3) && is_half(q.in[0].dtype) ? "the 16-bit gradient of a mask" : reject(q);
}

template <class T>
AttentionForward<T> forward_args(const Layout& l, const KernelArgs& a) {
  const T* base = a.x<T>(0);
  return {l.s,
          l.operand(base, base, 0),
          l.operand(base, a.x<T>(1), 1),
          l.operand(base, a.x<T>(2), 2),
          l.mask_of(a),
          l.result(a.y<T>(0)),
          a.y<float>(1)};
}
template <class T>
AttentionBackward<T> backward_args(const Layout& l, const KernelArgs& a, float* dmask) {
  const T* base = a.x<T>(0);
  T* out = a.y<T>(0);
  return {l.s,
          l.operand(base, base, 0),
          l.operand(base, a.x<T>(1), 1),
          l.operand(base, a.x<T>(2), 2),
          l.result(a.x<T>(4)),
          l.result(a.x<T>(6)),
          l.mask_of(a),
          a.x<float>(5),
          l.operand(out, out, 0),
          l.operand(out, a.y<T>(1), 1),
          l.operand(out, a.y<T>(2), 2),
          dmask};
}

Kernel prepare_simd(const KernelQuery& q) {
  const Layout l = layout_of(q);
  const DType dtype = q.in[0].dtype;
  return {attention_forward_workspace(l.s, dtype) * static_cast<size_t>(q.threads),
          [l, dtype, threads = q.threads](const KernelArgs& a) {
            if (is_half(dtype))
              attention_forward(forward_args<uint16_t>(l, a), dtype, threads, a.workspace);
            else
              attention_forward(forward_args<float>(l, a), threads, a.workspace);
          }};
}
Kernel prepare_simd_grad(const KernelQuery& q) {
  const Layout l = layout_of(q);
  const DType dtype = q.in[0].dtype;
  return {attention_backward_workspace(l.s, dtype) * static_cast<size_t>(q.threads),
          [l, dtype, threads = q.threads](const KernelArgs& a) {
            if (is_half(dtype))
              attention_backward(backward_args<uint16_t>(l, a, nullptr), dtype, threads,
                                 a.workspace);
            else
              attention_backward(backward_args<float>(l, a, a.y<float>(3)), threads, a.workspace);
          }};
}

// --- products of 16-bit floats ------------------------------------------------------------------
std::string reject_half(const KernelQuery& q) {
  const Layout l = layout_of(q);
  return reject_half_attention(q, l.s, l.has_mask && is_half(l.mask.dtype));
}
std::string reject_half_grad(const KernelQuery& q) {
  return q.has_out(3) ? "the gradient of a mask" : reject_half(q);
}
template <bool kForward>
Kernel prepare_half(const KernelQuery& q) {
  const Layout l = layout_of(q);
  const HalfAttention half = half_attention(q, l.s, !kForward);
  return {half.workspace, [l, half](const KernelArgs& a) {
            if constexpr (kForward)
              half.forward(forward_args<uint16_t>(l, a), a);
            else
              half.backward(backward_args<uint16_t>(l, a, nullptr), a);
          }};
}

// --- reference ----------------------------------------------------------------------------------
// Scores of one query row, masked; scale in full precision.
template <class T>
void ref_scores(const Layout& l, double scale, const AttentionMask& mask, const T* q,
                const AttentionPlane<const T>& k, int64_t b, int64_t h, int64_t t, double* out) {
  const AttentionSizes& s = l.s;
  const int64_t kv = h / (s.heads / s.kv_heads);
  for (int64_t j = 0; j < s.keys; ++j) {
    double sum = 0;
    const T* key = k.at(b, kv, j);
    for (int64_t i = 0; i < s.width; ++i) sum += load(q[i]) * load(key[i]);
    out[j] = sum * scale;
    if (mask.p) {
      const int64_t at = mask.at(b, h, t) + j * mask.key;
      if (mask.dtype != DType::kBool)
        out[j] += l.wide_mask ? static_cast<double>(static_cast<const Stats<T>*>(mask.p)[at])
                              : load(static_cast<const T*>(mask.p)[at]);
      else if (!static_cast<const bool*>(mask.p)[at])
        out[j] = -kInf;
    }
    if (s.causal && j > t) out[j] = -kInf;
  }
}

template <class T>
void ref_forward(const Layout& l, double scale, const KernelArgs& a) {
  const AttentionSizes& s = l.s;
  const T* base = a.x<T>(0);
  const auto q = l.operand(base, base, 0), k = l.operand(base, a.x<T>(1), 1),
             v = l.operand(base, a.x<T>(2), 2);
  const auto y = l.result(a.y<T>(0));
  std::vector<double> p(static_cast<size_t>(s.keys));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t t = 0; t < s.queries; ++t) {
        ref_scores(l, scale, l.mask_of(a), q.at(b, h, t), k, b, h, t, p.data());
        double top = -kInf, sum = 0;
        for (double x : p) top = std::max(top, x);
        const bool empty = s.guard && top == -kInf;
        if (empty) top = 0;
        for (double& x : p) sum += x = std::exp(x - top);
        const double inverse = empty ? 0 : 1 / sum;
        const int64_t kv = h / (s.heads / s.kv_heads);
        for (int64_t i = 0; i < s.v_width; ++i) {
          double total = 0;
          for (int64_t j = 0; j < s.keys; ++j)
            if (p[static_cast<size_t>(j)] != 0)
              total += p[static_cast<size_t>(j)] * load(v.at(b, kv, j)[i]);
          y.at(b, h, t)[i] = store<T>(total * inverse);
        }
        if (Stats<T>* stats = a.y<Stats<T>>(1)) {
          const int64_t row = (b * s.heads + h) * s.queries + t;
          stats[2 * row] = store<Stats<T>>(top), stats[2 * row + 1] = store<Stats<T>>(inverse);
        }
      }
}

template <class T>
void ref_backward(const Layout& l, double scale, const KernelArgs& a) {
  const AttentionSizes& s = l.s;
  const T* base = a.x<T>(0);
  const auto q = l.operand(base, base, 0), k = l.operand(base, a.x<T>(1), 1),
             v = l.operand(base, a.x<T>(2), 2);
  const auto y = l.result(a.x<T>(4)), dy = l.result(a.x<T>(6));
  T* out = a.y<T>(0);
  const auto dq = l.operand(out, out, 0), dk = l.operand(out, a.y<T>(1), 1),
             dv = l.operand(out, a.y<T>(2), 2);
  std::vector<double> p(static_cast<size_t>(s.keys)), sum_k(static_cast<size_t>(s.keys * s.width)),
      sum_v(static_cast<size_t>(s.keys * s.v_width)), sum_q(static_cast<size_t>(s.width));
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t kv = 0; kv < s.kv_heads; ++kv) {
      std::fill(sum_k.begin(), sum_k.end(), 0);
      std::fill(sum_v.begin(), sum_v.end(), 0);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t t = 0; t < s.queries; ++t) {
          const int64_t row = (b * s.heads + h) * s.queries + t;
          ref_scores(l, scale, l.mask_of(a), q.at(b, h, t), k, b, h, t, p.data());
          const T *g = dy.at(b, h, t), *have = y.at(b, h, t);
          double delta = 0;
          for (int64_t i = 0; i < s.v_width; ++i) delta += load(g[i]) * load(have[i]);
          std::fill(sum_q.begin(), sum_q.end(), 0);
          for (int64_t j = 0; j < s.keys; ++j) {
            const Stats<T>* stats = a.x<Stats<T>>(5) + 2 * row;
            const double prob =
                std::exp(p[static_cast<size_t>(j)] - load(stats[0])) * load(stats[1]);
            double dp = 0;
            for (int64_t i = 0; i < s.v_width; ++i) {
              dp += load(g[i]) * load(v.at(b, kv, j)[i]);
              sum_v[static_cast<size_t>(j * s.v_width + i)] += prob * load(g[i]);
            }
            const double ds = prob * (dp - delta);
            if (a.y<T>(3) && l.wide_mask)
              a.y<Stats<T>>(3)[row * s.keys + j] = store<Stats<T>>(ds);
            else if (a.y<T>(3))
              a.y<T>(3)[row * s.keys + j] = store<T>(ds);
            for (int64_t i = 0; i < s.width; ++i) {
              sum_q[static_cast<size_t>(i)] += scale * ds * load(k.at(b, kv, j)[i]);
              sum_k[static_cast<size_t>(j * s.width + i)] += scale * ds * load(q.at(b, h, t)[i]);
            }
          }
          for (int64_t i = 0; dq.p && i < s.width; ++i)
            dq.at(b, h, t)[i] = store<T>(sum_q[static_cast<size_t>(i)]);
        }
      for (int64_t j = 0; j < s.keys; ++j) {
        for (int64_t i = 0; dk.p && i < s.width; ++i)
          dk.at(b, kv, j)[i] = store<T>(sum_k[static_cast<size_t>(j * s.width + i)]);
        for (int64_t i = 0; dv.p && i < s.v_width; ++i)
          dv.at(b, kv, j)[i] = store<T>(sum_v[static_cast<size_t>(j * s.v_width + i)]);
      }
    }
}

template <bool kForward>
Kernel prepare_ref(const KernelQuery& q) {
  const Layout l = layout_of(q);
  const double scale = q.attrs.f("scale", 1);
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [l, scale](const KernelArgs& a) {
              kForward ? ref_forward<T>(l, scale, a) : ref_backward<T>(l, scale, a);
            }};
  });
}

// --- gradient and meaning -----------------------------------------------------------------------
Expr part(Grad& g, int output) {
  const auto optional = [&](int i) { return g.has_x(i) ? g.x(i) : Expr(); };
  return share_node(g.b, "ortrain.AttentionGrad",
                    {g.x(0), optional(1), optional(2), optional(3), g.y(0), g.y(1), g.dy(0)},
                    g.attrs(), output);
}

std::vector<Expr> decompose(Decompose& d) {
  Builder& b = d.b;
  const Attrs attrs = d.attrs();  // a copy: the node moves as the graph grows
  const bool tokens = token_major(attrs);
  std::vector<Expr> x;
  for (int i = 0; i < 3; ++i) {
    Expr e = d.x(0);
    e = d.has_x(1) ? d.x(i) : b.squeeze(b.slice(e, 2, i, i + 1), {2});
    if (is_half(e.dtype())) e = b.cast(e, DType::kF32);  // f32 inside, as in the kernels
    x.push_back(tokens ? b.transpose(e, {0, 2, 1, 3}) : e);
  }
  const int64_t heads = x[0].shape()[1].value(), kv_heads = x[1].shape()[1].value();
  for (int i = 1; i < 3 && kv_heads != heads; ++i) {  // each key head serves a group
    Dims s = x[static_cast<size_t>(i)].shape().values();
    Expr e = b.unsqueeze(x[static_cast<size_t>(i)], {2});
    e = b.expand(e, {s[0], s[1], heads / kv_heads, s[2], s[3]});
    x[static_cast<size_t>(i)] = b.reshape(e, {s[0], heads, s[2], s[3]});
  }
  Expr scores = b.matmul(x[0], b.swap_last_two(x[1])) * attrs.f("scale", 1);
  const auto hide = [&](Expr visible) {
    scores = b.where(visible, scores, b.scalar(scores.dtype(), -kInf));
  };
  if (d.has_x(3)) {
    if (d.x(3).dtype() == DType::kBool)
      hide(d.x(3));
    else
      scores = scores + b.cast(d.x(3), scores.dtype());
  }
  if (attrs.i("causal", 0)) {
    const int64_t t = scores.shape()[2].value(), s = scores.shape()[3].value();
    HostTensor sees(DType::kBool, {t, s});
    for (int64_t i = 0; i < t * s; ++i) sees.mutable_data<bool>()[i] = i % s <= i / s;
    hide(b.constant(std::move(sees)));
  }
  Expr p = b.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (attrs.i("guard", 0)) p = b.where(b.unary("IsNaN", p), b.scalar(p.dtype(), 0), p);
  Expr y = b.cast(b.matmul(p, x[2]), d.x(0).dtype()), stats;
  if (d.wants(1)) {
    Expr top = b.reduce("ReduceMax", scores, {-1}, true);
    const Expr zero = b.scalar(top.dtype(), 0);
    const bool guard = attrs.i("guard", 0) != 0;
    if (guard) top = b.where(b.op("Equal", {top, b.scalar(top.dtype(), -kInf)}), zero, top);
    const Expr sum = b.sum(b.exp(scores - top), {-1});
    stats =
        b.concat({top, guard ? b.where(b.op("Equal", {sum, zero}), zero, 1 / sum) : 1 / sum}, -1);
  }
  return {tokens ? b.transpose(y, {0, 2, 1, 3}) : y, stats};
}

// Widths of the heads; the scale is an attribute, it does not follow.
std::optional<PadAxes> pad_axes(const Graph&, const Node& n) {
  if (n.inputs.size() < 2 || n.inputs[1] == kNone) return PadAxes{{"....D"}, {"...D"}};
  return PadAxes{{"...D", "...D", "...E"}, {"...E"}};
}

double flops(const Graph& g, const Node& n) {
  const Shape &y = g.value(n.outputs[0]).shape, &q = g.value(n.inputs[0]).shape;
  if (!y.is_const() || !q.is_const()) return 0;
  const bool tokens = token_major(n.attrs), packed = n.inputs.size() < 2 || n.inputs[1] == kNone;
  const ValueId keys = packed ? n.inputs[0] : n.inputs[1];
  if (!g.value(keys).shape.is_const()) return 0;
  const double s = static_cast<double>(g.value(keys).shape.values()[tokens ? 1 : 2]);
  const double both = 2 * s * static_cast<double>(element_count(q.values())) / (packed ? 3 : 1) * 2;
  return both * (n.attrs.i("causal", 0) ? 0.5 : 1) * (n.op->name == "ortrain.Attention" ? 1 : 2.5);
}

}  // namespace

void register_fused_attention(OpTable& table) {
  add_pad_rule("ortrain.Attention", {pad_axes});
  const Attrs causal{{"scale", 0.5}, {"causal", int64_t{1}}};
  const Attrs tokens{{"scale", 0.7}, {"causal", int64_t{1}}, {"token_major", int64_t{1}}};
  const Attrs guard{{"scale", 0.5}, {"guard", int64_t{1}}};
  ExampleInput blind = bools({3, 5});  // the second query sees nothing
  blind.values = {1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
  table.add({
      .name = "ortrain.Attention",
      .inputs = {"q", "k?", "v?", "mask?"},
      .outputs = {"y", "stats?"},
      .infer = infer,
      .grad = {grad("q", [](Grad& g) { return part(g, 0); }),
               grad("k", [](Grad& g) { return part(g, 1); }),
               grad("v", [](Grad& g) { return part(g, 2); }),
               grad("mask", [](Grad& g) { return part(g, 3); })},
      .decompose = decompose,
      .precision = Precision::kAlways16,
      .flops = flops,
      .kernels = {{"cpu", "half", reject_half, prepare_half<true>},
                  {"cpu", "simd", reject, prepare_simd},
                  {"cpu", "ref", nullptr, prepare_ref<true>}},
      .examples =
          {{.in = {f({2, 2, 5, 4}), f({2, 2, 5, 4}), f({2, 2, 5, 4})}},
           {.in = {f({1, 2, 19, 6}), f({1, 2, 19, 6}), f({1, 2, 19, 6})}, .attrs = causal},
           {.in = {f({2, 4, 3, 5}), f({2, 2, 21, 5}), f({2, 2, 21, 7})}},
           {.in = {f({2, 2, 3, 4}), f({2, 2, 5, 4}), f({2, 2, 5, 4}), f({2, 1, 1, 5})}},
           {.in = {f({2, 2, 3, 4}), f({2, 2, 5, 4}), f({2, 2, 5, 4}), f({3, 5})}, .attrs = causal},
           {.in = {f({1, 2, 3, 4}), f({1, 2, 70, 4}), f({1, 2, 70, 4}), bools({1, 2, 3, 70})}},
           {.in = {f({1, 2, 3, 4}), f({1, 2, 5, 4}), f({1, 2, 5, 4}), blind}, .attrs = guard},
           {.in = {f({1, 2, 3, 4}), f({1, 2, 5, 4}), f({1, 2, 5, 4}), blind},
            .attrs = guard,
            .outputs = 2,
            .check_grad = false,
            .note = "nothing differentiates stats"},
           {.in = {f({2, 20, 3, 17}), f({2, 20, 3, 17}), f({2, 20, 3, 16})}, .attrs = tokens},
           {.in = {f({2, 11, 3, 2, 8})}, .attrs = tokens},
           {.in = {f({0, 2, 3, 4}), f({0, 2, 5, 4}), f({0, 2, 5, 4})}}},
      .note = "a row that sees no key: NaN, or 0 with guard",
  });
  const ExampleInput stats = f({1, 2, 3, 2}, 1, 2);
  table.add({
      .name = "ortrain.AttentionGrad",
      .inputs = {"q", "k?", "v?", "mask?", "y", "stats", "dy"},
      .outputs = {"dq?", "dk?", "dv?", "dmask?"},
      .infer = infer_grad,
      .precision = Precision::kAlways16,
      .flops = flops,
      .kernels = {{"cpu", "half", reject_half_grad, prepare_half<false>},
                  {"cpu", "simd", reject_grad, prepare_simd_grad},
                  {"cpu", "ref", nullptr, prepare_ref<false>}},
      .examples = {{.in = {f({1, 2, 3, 4}), f({1, 2, 5, 4}), f({1, 2, 5, 6}), f({5}),
                           f({1, 2, 3, 6}), stats, f({1, 2, 3, 6})},
                    .attrs = causal,
                    .outputs = 4},
                   {.in = {f({1, 1, 150, 20}), f({1, 1, 150, 20}), f({1, 1, 150, 33}), absent(),
                           f({1, 1, 150, 33}), f({1, 1, 150, 2}, 1, 2), f({1, 1, 150, 33})},
                    .attrs = causal,
                    .outputs = 4},
                   {.in = {f({2, 4, 9, 8}), f({2, 2, 21, 8}), f({2, 2, 21, 8}), bools({9, 21}),
                           f({2, 4, 9, 8}), f({2, 4, 9, 2}, 1, 2), f({2, 4, 9, 8})},
                    .attrs = {{"scale", 0.3}},
                    .outputs = 3},
                   {.in = {f({2, 37, 3, 2, 16}), absent(), absent(), f({2, 1, 1, 37}),
                           f({2, 37, 2, 16}), f({2, 2, 37, 2}, 1, 2), f({2, 37, 2, 16})},
                    .attrs = tokens},
                   {.in = {f({1, 3, 3, 2, 4}), absent(), absent(), absent(), f({1, 3, 2, 4}), stats,
                           f({1, 3, 2, 4})},
                    .attrs = tokens}},
  });
}

}  // namespace ortrain::ops
