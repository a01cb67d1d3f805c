// See attention_half.h. Per tile: scores = q k^T; softmax; y = p v. Backward: scores and dp = dy
// v^T; ds = p (dp - delta); dq = ds k, dk += ds^T q, dv += p^T dy.
#include "ops/common/attention_half.h"

#include <cstring>
#include <limits>

#include "graph/half.h"
#include "ops/common/half_units.h"
#include "ops/common/onednn.h"
#include "ops/common/recurrent.h"
#include "ops/common/softmax_lines.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kRows = 128;
constexpr float kInf = std::numeric_limits<float>::infinity();

// c[heads, m, n] = op(a) op(b), all dense.
Gemm batched(const KernelQuery& q, int64_t heads, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
             DType in, DType out) {
  const auto md = [&](int64_t rows, int64_t cols, bool trans, DType dtype) {
    return onednn::strided({heads, rows, cols},
                           trans ? Dims{rows * cols, 1, rows} : Dims{rows * cols, cols, 1}, dtype);
  };
  const onednn::Primitive p =
      onednn::matmul(md(m, k, ta, in), md(k, n, tb, in), md(m, n, false, out));
  onednn::Program program(q);
  program.add(p, {{DNNL_ARG_SRC, onednn::in(0, p.src)},
                  {DNNL_ARG_WEIGHTS, onednn::in(1, p.weights)},
                  {DNNL_ARG_DST, onednn::out(0, p.dst)}});
  return {std::move(program).finish()};
}

// One row of scores, scaled, masked and cut at `visible`; its maximum.
ORTRAIN_SIMD float prepare_row(float* row, int64_t visible, int64_t keys, float scale) {
  for (int64_t j = 0; j < visible; ++j) row[j] *= scale;
  for (int64_t j = visible; j < keys; ++j) row[j] = -kInf;
  return row_top(row, visible);
}
ORTRAIN_SIMD float exp_row(float* row, int64_t keys, float top) {
  return row_exp(row, row, keys, top);
}
ORTRAIN_SIMD void scale_row(float* row, int64_t keys, float by) {
  for (int64_t j = 0; j < keys; ++j) row[j] *= by;
}
// row: probabilities; ds: their gradients, then those of the unscaled scores.
ORTRAIN_SIMD void gradient_row(const float* row, float* ds, int64_t keys, float delta,
                               float scale) {
  for (int64_t j = 0; j < keys; ++j) ds[j] = row[j] * (ds[j] - delta) * scale;
}
ORTRAIN_SIMD void add_rows(const float* from, float* to, int64_t n) {
  for (int64_t j = 0; j < n; ++j) to[j] += from[j];
}

struct Tile {
  int64_t begin = 0, rows = 0, keys = 0;
  Gemm scores, result;        // forward
  Gemm dp, to_q, to_k, to_v;  // backward
};

struct Work {
  uint16_t *q, *k, *v, *dy, *y, *p, *ds;
  float *scores, *dp, *part, *dk, *dv;
  void* scratch;
};

struct Pass {
  AttentionSizes s;
  DType dtype;
  bool backward = false;
  int threads = 1;
  std::vector<Tile> tiles;

  Work work(Cut& cut) const {
    const int64_t h = s.heads, rows = std::min(kRows, s.queries), most = rows * s.keys;
    const int64_t width = std::max(s.width, s.v_width), b = backward;
    Work w{};
    w.q = cut.take<uint16_t>(h * rows * s.width);
    w.k = cut.take<uint16_t>(h * s.keys * s.width);
    w.v = cut.take<uint16_t>(h * s.keys * s.v_width);
    w.dy = cut.take<uint16_t>(b * h * rows * s.v_width);
    w.y = cut.take<uint16_t>(h * rows * width);
    w.p = cut.take<uint16_t>(h * most);
    w.ds = cut.take<uint16_t>(b * h * most);
    w.scores = cut.take<float>(h * most);
    w.dp = cut.take<float>(b * h * most);
    w.part = cut.take<float>(b * h * s.keys * width);
    w.dk = cut.take<float>(b * h * s.keys * s.width);
    w.dv = cut.take<float>(b * h * s.keys * s.v_width);
    size_t scratch = 0;
    for (const Tile& t : tiles)
      for (const Gemm* g : {&t.scores, &t.result, &t.dp, &t.to_q, &t.to_k, &t.to_v})
        scratch = std::max(scratch, g->kernel.workspace);
    w.scratch = cut.take<std::byte>(static_cast<int64_t>(scratch));
    return w;
  }

  template <class Body>  // body(head, row of the tile)
  void each(int64_t rows, Body&& body) const {
    parallel_for(threads, s.heads * rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i / rows, i % rows);
    });
  }
  template <class T>  // rows [begin, begin + rows) of all heads of a batch, between `x` and dense
  void pack(const AttentionPlane<T>& x, int64_t b, int64_t begin, int64_t rows, int64_t width,
            uint16_t* to) const {
    each(rows, [&](int64_t h, int64_t r) {
      std::copy_n(x.at(b, h, begin + r), width, to + (h * rows + r) * width);
    });
  }
  void unpack(const uint16_t* from, int64_t b, int64_t begin, int64_t rows, int64_t width,
              const AttentionPlane<uint16_t>& x) const {
    each(rows, [&](int64_t h, int64_t r) {
      std::copy_n(from + (h * rows + r) * width, width, x.at(b, h, begin + r));
    });
  }

  // Scaled and masked scores of a row; the maximum of what it sees.
  float masked(const AttentionMask& m, int64_t b, int64_t h, int64_t t, float* row,
               int64_t keys) const {
    const int64_t visible = s.causal ? std::min(keys, t + 1) : keys;
    float top = prepare_row(row, visible, keys, s.scale);
    if (!m.p) return top;
    const int64_t at = m.at(b, h, t);
    top = -kInf;
    for (int64_t j = 0; j < visible; ++j) {
      if (m.dtype != DType::kBool)
        row[j] += static_cast<const float*>(m.p)[at + j * m.key];
      else if (!static_cast<const uint8_t*>(m.p)[at + j * m.key])
        row[j] = -kInf;
      top = row[j] > top ? row[j] : top;
    }
    return top;
  }

  void forward_tile(const AttentionForward<uint16_t>& x, const KernelArgs& a, const Work& w,
                    const Tile& t, int64_t b) const {
    pack(x.q, b, t.begin, t.rows, s.width, w.q);
    t.scores(w.q, w.k, w.scores, a, w.scratch);
    each(t.rows, [&](int64_t h, int64_t r) {
      const int64_t at = (h * t.rows + r) * t.keys;
      float* row = w.scores + at;
      float top = masked(x.mask, b, h, t.begin + r, row, t.keys);
      const bool empty = s.guard && top == -kInf;
      if (empty) top = 0;
      const float sum = exp_row(row, t.keys, top);
      const float inverse = s.guard && sum == 0 ? 0 : 1 / sum;
      scale_row(row, t.keys, inverse);
      float_to_half(dtype, row, w.p + at, t.keys);
      if (!x.stats) return;
      float* stats = x.stats + 2 * ((b * s.heads + h) * s.queries + t.begin + r);
      stats[0] = top, stats[1] = inverse;
    });
    t.result(w.p, w.v, w.y, a, w.scratch);
    unpack(w.y, b, t.begin, t.rows, s.v_width, x.y);
  }

  void backward_tile(const AttentionBackward<uint16_t>& x, const KernelArgs& a, const Work& w,
                     const Tile& t, int64_t b) const {
    pack(x.q, b, t.begin, t.rows, s.width, w.q);
    pack(x.dy, b, t.begin, t.rows, s.v_width, w.dy);
    t.scores(w.q, w.k, w.scores, a, w.scratch);
    t.dp(w.dy, w.v, w.dp, a, w.scratch);
    each(t.rows, [&](int64_t h, int64_t r) {
      const int64_t i = t.begin + r, at = (h * t.rows + r) * t.keys;
      const float* stats = x.stats + 2 * ((b * s.heads + h) * s.queries + i);
      float delta = 0;
      const uint16_t *y = x.y.at(b, h, i), *dy = x.dy.at(b, h, i);
      for (int64_t j = 0; j < s.v_width; j += 64) {
        float left[64], right[64];
        const int64_t n = std::min<int64_t>(64, s.v_width - j);
        half_to_float(dtype, y + j, left, n);
        half_to_float(dtype, dy + j, right, n);
        for (int64_t c = 0; c < n; ++c) delta += left[c] * right[c];
      }
      float *row = w.scores + at, *ds = w.dp + at;
      masked(x.mask, b, h, i, row, t.keys);
      exp_row(row, t.keys, stats[0]);
      scale_row(row, t.keys, stats[1]);
      gradient_row(row, ds, t.keys, delta, s.scale);
      float_to_half(dtype, row, w.p + at, t.keys);
      float_to_half(dtype, ds, w.ds + at, t.keys);
    });
    if (x.dq.p) {
      t.to_q(w.ds, w.k, w.y, a, w.scratch);
      unpack(w.y, b, t.begin, t.rows, s.width, x.dq);
    }
    const auto add = [&](const Gemm& g, const uint16_t* p, const uint16_t* rows, int64_t width,
                         float* sums) {
      g(p, rows, w.part, a, w.scratch);
      each(t.keys, [&](int64_t h, int64_t j) {
        add_rows(w.part + (h * t.keys + j) * width, sums + (h * s.keys + j) * width, width);
      });
    };
    if (x.dv.p) add(t.to_v, w.p, w.dy, s.v_width, w.dv);
    if (x.dk.p) add(t.to_k, w.ds, w.q, s.width, w.dk);
  }

  // tile(Tile) with the keys and values that it sees packed.
  template <class Args, class Body>
  void each_tile(const Args& x, const Work& w, int64_t b, Body&& tile) const {
    int64_t packed = -1;
    for (const Tile& t : tiles) {
      if (t.keys != packed) {  // a tile's products take dense [heads, keys, width]
        pack(x.k, b, 0, t.keys, s.width, w.k);
        pack(x.v, b, 0, t.keys, s.v_width, w.v);
        packed = t.keys;
      }
      tile(t);
    }
  }
  void run(const AttentionForward<uint16_t>& x, const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    const Work w = work(cut);
    for (int64_t b = 0; b < s.batch; ++b)
      each_tile(x, w, b, [&](const Tile& t) { forward_tile(x, a, w, t, b); });
  }
  void run(const AttentionBackward<uint16_t>& x, const KernelArgs& a) const {
    Cut cut{static_cast<std::byte*>(a.workspace)};
    const Work w = work(cut);
    for (int64_t b = 0; b < s.batch; ++b) {
      std::fill_n(w.dk, s.heads * s.keys * s.width, 0.f);
      std::fill_n(w.dv, s.heads * s.keys * s.v_width, 0.f);
      each_tile(x, w, b, [&](const Tile& t) { backward_tile(x, a, w, t, b); });
      each(s.keys, [&](int64_t h, int64_t j) {
        const int64_t row = h * s.keys + j;
        if (x.dk.p) float_to_half(dtype, w.dk + row * s.width, x.dk.at(b, h, j), s.width);
        if (x.dv.p) float_to_half(dtype, w.dv + row * s.v_width, x.dv.at(b, h, j), s.v_width);
      });
    }
  }
};

}  // namespace

std::string reject_half_attention(const KernelQuery& q, const AttentionSizes& s, bool half_mask) {
  const DType dtype = q.in[0].dtype;
  if (!is_half(dtype)) return "takes 16-bit floats";
  if (std::string why = reject_not_native(dtype, onednn::HalfUnits::kTiles); !why.empty())
    return why;
  if (s.units() * s.queries * s.keys * s.width * s.v_width == 0) return "empty tensor";
  if (s.heads != s.kv_heads) return "key heads that serve groups";
  if (half_mask) return "a 16-bit mask";
  return onednn::why_not([&] {
    const onednn::Md md = onednn::dense({s.heads, 8, 8}, dtype);
    onednn::matmul(md, md, onednn::dense({s.heads, 8, 8}), onednn::Make::kProbe);
  });
}

HalfAttention half_attention(const KernelQuery& q, const AttentionSizes& s, bool backward) {
  auto pass = std::make_shared<Pass>();
  pass->s = s, pass->dtype = q.in[0].dtype, pass->backward = backward, pass->threads = q.threads;
  const DType d = pass->dtype, f = DType::kF32;
  for (int64_t at = 0; at < s.queries; at += kRows) {
    Tile t;
    t.begin = at, t.rows = std::min(kRows, s.queries - at);
    t.keys = s.causal ? std::min(s.keys, at + t.rows) : s.keys;
    if (!pass->tiles.empty() && pass->tiles.back().rows == t.rows &&
        pass->tiles.back().keys == t.keys) {  // the same products
      Tile same = pass->tiles.back();
      same.begin = at;
      pass->tiles.push_back(std::move(same));
      continue;
    }
    const int64_t h = s.heads, r = t.rows, n = t.keys;
    t.scores = batched(q, h, r, n, s.width, false, true, d, f);
    if (backward) {
      t.dp = batched(q, h, r, n, s.v_width, false, true, d, f);
      t.to_q = batched(q, h, r, s.width, n, false, false, d, d);
      t.to_k = batched(q, h, n, s.width, r, true, false, d, f);
      t.to_v = batched(q, h, n, s.v_width, r, true, false, d, f);
    } else {
      t.result = batched(q, h, r, s.v_width, n, false, false, d, d);
    }
    pass->tiles.push_back(std::move(t));
  }
  Cut cut;
  pass->work(cut);
  HalfAttention out{cut.used, {}, {}};
  if (backward)
    out.backward = [pass](const auto& x, const KernelArgs& a) { pass->run(x, a); };
  else
    out.forward = [pass](const auto& x, const KernelArgs& a) { pass->run(x, a); };
  return out;
}

}  // namespace ortrain::ops
