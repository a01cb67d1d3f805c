// See max_pool_rows.h. Vector code in Highway, compiled for AVX2, AVX-512 and the baseline.
#include "ops/common/max_pool_rows.h"

#include <algorithm>
#include <limits>

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/max_pool_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using Span = MaxPoolTables::Span;
using Cover = MaxPoolTables::Cover;

// body(offset) over the vectors of a window's channels, `lanes` each. The last one ends where the
// channels end, unless they fill none: then it runs on into the next window.
template <class Body>
HWY_INLINE void over_channels(int64_t channels, int64_t lanes, Body&& body) {
  int64_t c = 0;
  for (; c + lanes < channels; c += lanes) body(c);
  body(std::max<int64_t>(0, std::min(c, channels - lanes)));
}

// `count` neighbouring windows of KH x KW taps, all inside x: `row`, `pixel`: floats from tap to
// tap, `step`: from window to window.
template <size_t L, int KH, int KW>
void whole_windows(const float* HWY_RESTRICT x, int64_t row, int64_t pixel, int64_t step,
                   int64_t channels, int64_t count, float* HWY_RESTRICT y,
                   uint8_t* HWY_RESTRICT arg) {
  const hn::CappedTag<float, L> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> da;
  for (int64_t o = 0; o < count; ++o)
    over_channels(channels, static_cast<int64_t>(hn::Lanes(d)), [&](int64_t c) HWY_ATTR {
      const float* at = x + o * step + c;
      auto best = hn::LoadU(d, at);
      auto which = hn::Zero(di);
#pragma GCC unroll 9
      for (int t = 1; t < KH * KW; ++t) {
        const auto v = hn::LoadU(d, at + t / KW * row + t % KW * pixel);
        const auto take = hn::Or(hn::Gt(v, best), hn::IsNaN(v));
        best = hn::IfThenElse(take, v, best);
        which = hn::IfThenElse(hn::RebindMask(di, take), hn::Set(di, t), which);
      }
      hn::StoreU(best, d, y + o * channels + c);
      if (arg) hn::StoreU(hn::DemoteTo(da, which), da, arg + o * channels + c);
    });
}

// A row of dx under windows 2 wide that do not overlap: each position takes dy where its tap, `tap`
// or the next, is the maximum's.
template <size_t L>
void pairs_of(const float* HWY_RESTRICT dy, const uint8_t* HWY_RESTRICT arg, int32_t tap,
              int64_t channels, int64_t count, float* HWY_RESTRICT dx) {
  const hn::CappedTag<float, L> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> da;
  for (int64_t o = 0; o < count; ++o)
    for (int32_t t = 0; t < 2; ++t)
      over_channels(channels, static_cast<int64_t>(hn::Lanes(d)), [&](int64_t c) HWY_ATTR {
        const auto which = hn::PromoteTo(di, hn::LoadU(da, arg + o * channels + c));
        const auto mine = hn::RebindMask(d, hn::Eq(which, hn::Set(di, tap + t)));
        const auto v = hn::IfThenElseZero(mine, hn::LoadU(d, dy + o * channels + c));
        hn::StoreU(hn::Add(hn::Zero(d), v), d, dx + (2 * o + t) * channels + c);  // -0 becomes 0
      });
}

// Vectors of 4, 8 and 16 by number. The one that holds most channels at least cost, and one that
// the channels fill, for where the first would run on too far (4 channels or more).
size_t wide(int64_t channels) { return channels <= 4 ? 0 : channels <= 8 ? 1 : 2; }
size_t filled(int64_t channels) { return channels >= 8 ? 1 : 0; }
int64_t lanes_of(size_t width) {
  return std::min(int64_t{4} << width, static_cast<int64_t>(hn::Lanes(D())));
}
// Of `count` windows, `step` floats apart, those whose vectors stay inside `floats`.
int64_t inside(int64_t count, int64_t channels, int64_t lanes, int64_t step, int64_t floats) {
  if (channels >= lanes) return count;
  return floats < lanes ? 0 : std::min(count, (floats - lanes) / step + 1);
}

using WholeFn = void (*)(const float*, int64_t, int64_t, int64_t, int64_t, int64_t, float*,
                         uint8_t*);
using PairsFn = void (*)(const float*, const uint8_t*, int32_t, int64_t, int64_t, float*);
template <int K>
constexpr WholeFn kWhole[] = {&whole_windows<4, K, K>, &whole_windows<8, K, K>,
                              &whole_windows<16, K, K>};
constexpr PairsFn kPairs[] = {&pairs_of<4>, &pairs_of<8>, &pairs_of<16>};

// Windows of whole_windows' sizes, else null.
const WholeFn* whole_of(const Window& w) {
  if (w.kernel == std::array<int64_t, 3>{1, 2, 2}) return kWhole<2>;
  return w.kernel == std::array<int64_t, 3>{1, 3, 3} ? kWhole<3> : nullptr;
}
// `count` windows of a row, all taps of which lie inside; x: tap 0 of the first. `y_room`: floats
// left in the row of y. Returns how many of them are done.
int64_t whole_row(const Window& w, const WholeFn* fns, const float* x, const float* x_end,
                  int64_t count, float* y, int64_t y_room, uint8_t* arg) {
  const int64_t row = w.dilation[1] * w.x.s[1], pixel = w.dilation[2] * w.x.s[2];
  const int64_t step = w.stride[2] * w.x.s[2];
  const int64_t x_room = x_end - x - (w.kernel[1] - 1) * row - (w.kernel[2] - 1) * pixel;
  const size_t width = wide(w.cx);
  const int64_t lanes = lanes_of(width);
  const int64_t n =
      std::min(inside(count, w.cx, lanes, w.cx, y_room), inside(count, w.cx, lanes, step, x_room));
  fns[width](x, row, pixel, step, w.cx, n, y, arg);
  if (n == count || w.cx < 4) return n;
  fns[filled(w.cx)](x + n * step, row, pixel, step, w.cx, count - n, y + n * w.cx,
                    arg ? arg + n * w.cx : nullptr);
  return count;
}

// A row of dx.
void pairs_row(const Window& w, const float* dy, const uint8_t* arg, int32_t tap, float* dx) {
  const size_t width = wide(w.cx);
  const int64_t count = w.out[2], n = inside(count, w.cx, lanes_of(width), w.cx, count * w.cx);
  kPairs[width](dy, arg, tap, w.cx, n, dx);
  if (n < count && w.cx >= 4) {
    const int64_t at = n * w.cx;
    kPairs[filled(w.cx)](dy + at, arg + at, tap, w.cx, count - n, dx + 2 * at);
  } else {
    for (int64_t o = n; o < count; ++o)
      for (int64_t i = 0; i < 2 * w.cx; ++i) {
        const int64_t at = o * w.cx + i % w.cx;
        dx[2 * o * w.cx + i] = arg[at] == tap + i / w.cx ? 0.f + dy[at] : 0.f;
      }
  }
  std::fill(dx + 2 * count * w.cx, dx + w.in[2] * w.cx, 0.f);
}

// Arg: the type of tap numbers.
template <class Arg>
void rows_of(const Window& w, const MaxPoolTables& t, const float* x0, float* y0, Arg* arg0,
             int64_t begin, int64_t end) {
  const D d;
  const hn::Rebind<Arg, D> da;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* x_end = x0 + w.n * w.x.n;
  const int64_t rows = w.out[0] * w.out[1], row = w.out[2] * w.cx;
  const int64_t step0 = w.dilation[0] * w.x.s[0], step1 = w.dilation[1] * w.x.s[1],
                step2 = w.dilation[2] * w.x.s[2];
  const WholeFn* fns = whole_of(w);
  for (int64_t r = begin; r < end; ++r) {
    const Span s0 = t.spans[0][static_cast<size_t>(r % rows / w.out[1])];
    const Span s1 = t.spans[1][static_cast<size_t>(r % w.out[1])];
    const float* x = x0 + r / rows * w.x.n + s0.start * w.x.s[0] + s1.start * w.x.s[1];
    bool whole = fns && s0.last - s0.first == w.kernel[0] && s1.last - s1.first == w.kernel[1] &&
                 t.whole_begin < t.whole_end;
    for (int64_t o = 0; o < w.out[2]; ++o) {
      if constexpr (sizeof(Arg) == 1)
        if (whole && o == t.whole_begin) {
          whole = false;
          o += whole_row(w, fns, x + t.spans[2][static_cast<size_t>(o)].start * w.x.s[2], x_end,
                         t.whole_end - o, y0 + r * row + o * w.cx, row - o * w.cx,
                         arg0 ? arg0 + r * row + o * w.cx : nullptr);
          if (o == w.out[2]) break;
        }
      const Span s = t.spans[2][static_cast<size_t>(o)];
      float* y = y0 + r * row + o * w.cx;
      Arg* arg = arg0 ? arg0 + r * row + o * w.cx : nullptr;
      const float* base = x + s.start * w.x.s[2];
      // A vector past the channels must end inside x at the last tap, and inside this row of y.
      const float* last =
          base + (s0.last - 1) * step0 + (s1.last - 1) * step1 + (s.last - 1) * step2;
      const int64_t room = std::min((w.out[2] - o) * w.cx, static_cast<int64_t>(x_end - last));
      const int64_t first = (s0.first * w.kernel[1] + s1.first) * w.kernel[2] + s.first;
      int64_t c = 0;
      for (; c < w.cx && c + lanes <= std::max(room, w.cx); c += lanes) {
        auto best = hn::Set(d, -std::numeric_limits<float>::infinity());
        auto which = hn::Set(di, static_cast<int32_t>(first));
        for (int64_t t0 = s0.first; t0 < s0.last; ++t0)
          for (int64_t t1 = s1.first; t1 < s1.last; ++t1)
            for (int64_t t2 = s.first; t2 < s.last; ++t2) {
              const auto v = hn::LoadU(d, base + t0 * step0 + t1 * step1 + t2 * step2 + c);
              const auto take = hn::Or(hn::Gt(v, best), hn::IsNaN(v));
              const int64_t tap = (t0 * w.kernel[1] + t1) * w.kernel[2] + t2;
              best = hn::IfThenElse(take, v, best);
              which = hn::IfThenElse(hn::RebindMask(di, take),
                                     hn::Set(di, static_cast<int32_t>(tap)), which);
            }
        hn::StoreU(best, d, y + c);
        if (arg) {
          if constexpr (sizeof(Arg) == 1)
            hn::StoreU(hn::DemoteTo(da, which), da, arg + c);
          else
            hn::StoreU(which, da, arg + c);
        }
      }
      for (; c < w.cx; ++c) {
        float best = -std::numeric_limits<float>::infinity();
        int64_t which = first;
        for (int64_t t0 = s0.first; t0 < s0.last; ++t0)
          for (int64_t t1 = s1.first; t1 < s1.last; ++t1)
            for (int64_t t2 = s.first; t2 < s.last; ++t2) {
              const float v = base[t0 * step0 + t1 * step1 + t2 * step2 + c];
              if (!(v > best) && v == v) continue;
              best = v;
              which = (t0 * w.kernel[1] + t1) * w.kernel[2] + t2;
            }
        y[c] = best;
        if (arg) arg[c] = static_cast<Arg>(which);
      }
    }
  }
}

template <class Arg>
void grad_rows_of(const Window& w, const MaxPoolTables& t, const float* dy0, const Arg* arg0,
                  float* dx0, int64_t begin, int64_t end) {
  const D d;
  const hn::Rebind<Arg, D> da;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t rows = w.in[0] * w.in[1], row = w.in[2] * w.cx, dy_count = w.n * w.y.n;
  const auto list = [&](size_t axis, int64_t i) {
    const auto& at = t.cover_begin[axis];
    const Cover* c = t.covers[axis].data();
    return std::pair(c + at[static_cast<size_t>(i)], c + at[static_cast<size_t>(i) + 1]);
  };
  const auto taps = [&](int64_t at) {
    if constexpr (sizeof(Arg) == 1)
      return hn::PromoteTo(di, hn::LoadU(da, arg0 + at));
    else
      return hn::LoadU(da, arg0 + at);
  };
  for (int64_t r = begin; r < end; ++r) {
    const auto [a0, b0] = list(0, r % rows / w.in[1]);
    const auto [a1, b1] = list(1, r % w.in[1]);
    const int64_t sample = r / rows * w.y.n;
    float* dx = dx0 + r * row;
    for (int64_t i = 0; i < w.in[2]; ++i, dx += w.cx) {
      const auto [a2, b2] = list(2, i);
      int64_t room = (w.in[2] - i) * w.cx;  // as for the forward rows
      if (a0 != b0 && a1 != b1 && a2 != b2)
        room = std::min(room, dy_count - sample - (b0 - 1)->window * w.y.s[0] -
                                  (b1 - 1)->window * w.y.s[1] - (b2 - 1)->window * w.y.s[2]);
      int64_t c = 0;
      for (; c < w.cx && c + lanes <= std::max(room, w.cx); c += lanes) {
        auto sum = hn::Zero(d);
        for (const Cover* p = a0; p != b0; ++p)
          for (const Cover* q = a1; q != b1; ++q)
            for (const Cover* s = a2; s != b2; ++s) {
              const int64_t at =
                  sample + p->window * w.y.s[0] + q->window * w.y.s[1] + s->window * w.y.s[2] + c;
              const int64_t tap = (p->tap * w.kernel[1] + q->tap) * w.kernel[2] + s->tap;
              const auto mine = hn::Eq(taps(at), hn::Set(di, static_cast<int32_t>(tap)));
              sum =
                  hn::Add(sum, hn::IfThenElseZero(hn::RebindMask(d, mine), hn::LoadU(d, dy0 + at)));
            }
        hn::StoreU(sum, d, dx + c);
      }
      for (; c < w.cx; ++c) {
        float sum = 0;
        for (const Cover* p = a0; p != b0; ++p)
          for (const Cover* q = a1; q != b1; ++q)
            for (const Cover* s = a2; s != b2; ++s) {
              const int64_t at =
                  sample + p->window * w.y.s[0] + q->window * w.y.s[1] + s->window * w.y.s[2] + c;
              if (arg0[at] == (p->tap * w.kernel[1] + q->tap) * w.kernel[2] + s->tap)
                sum += dy0[at];
            }
        dx[c] = sum;
      }
    }
  }
}

// Rows of dx under windows 2 wide and 2 apart without padding along the rows: pairs, but for those
// under no window or several.
void pairs_rows(const Window& w, const MaxPoolTables& t, const float* dy, const uint8_t* arg,
                float* dx, int64_t begin, int64_t end) {
  const int64_t rows = w.in[0] * w.in[1];
  const auto one = [&](size_t axis, int64_t i) -> const Cover* {
    const int64_t* at = &t.cover_begin[axis][static_cast<size_t>(i)];
    return at[1] - at[0] == 1 ? &t.covers[axis][static_cast<size_t>(*at)] : nullptr;
  };
  for (int64_t r = begin; r < end; ++r) {
    const Cover *p = one(0, r % rows / w.in[1]), *q = one(1, r % w.in[1]);
    if (!p || !q) {
      grad_rows_of(w, t, dy, arg, dx, r, r + 1);
      continue;
    }
    const int64_t at = r / rows * w.y.n + p->window * w.y.s[0] + q->window * w.y.s[1];
    pairs_row(w, dy + at, arg + at, static_cast<int32_t>(p->tap * w.kernel[1] + q->tap) * 2,
              dx + r * w.in[2] * w.cx);
  }
}

void rows(const Window& w, const MaxPoolTables& t, const float* x, float* y, uint8_t* arg8,
          int32_t* arg32, int64_t begin, int64_t end) {
  arg32 ? rows_of(w, t, x, y, arg32, begin, end) : rows_of(w, t, x, y, arg8, begin, end);
}
void grad_rows(const Window& w, const MaxPoolTables& t, const float* dy, const uint8_t* arg8,
               const int32_t* arg32, float* dx, int64_t begin, int64_t end) {
  if (arg32)
    grad_rows_of(w, t, dy, arg32, dx, begin, end);
  else if (w.kernel[2] == 2 && w.stride[2] == 2 && w.dilation[2] == 1 && w.begin[2] == 0 &&
           2 * w.out[2] <= w.in[2])
    pairs_rows(w, t, dy, arg8, dx, begin, end);
  else
    grad_rows_of(w, t, dy, arg8, dx, begin, end);
}

}  // namespace ortrain::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain::ops {
HWY_EXPORT(rows);
HWY_EXPORT(grad_rows);

MaxPoolTables::MaxPoolTables(const Window& w) {
  for (size_t a = 0; a < 3; ++a) {
    for (int64_t o = 0; o < w.out[a]; ++o) {
      Span s{o * w.stride[a] - w.begin[a], 0, 0};
      w.valid(static_cast<int>(a), o, s.first, s.last);
      spans[a].push_back(s);
    }
    for (int64_t i = 0; i < w.in[a]; ++i) {
      cover_begin[a].push_back(static_cast<int64_t>(covers[a].size()));
      w.covering(static_cast<int>(a), i, [&](int64_t o, int64_t tap) {
        covers[a].push_back({o, tap});
      });
    }
    cover_begin[a].push_back(static_cast<int64_t>(covers[a].size()));
  }
  const auto whole = [&](int64_t o) {
    const Span& s = spans[2][static_cast<size_t>(o)];
    return s.last - s.first == w.kernel[2];
  };
  while (whole_begin < w.out[2] && !whole(whole_begin)) ++whole_begin;
  whole_end = whole_begin;
  while (whole_end < w.out[2] && whole(whole_end)) ++whole_end;
}

void max_pool_rows(const Window& w, const MaxPoolTables& t, const float* x, float* y, uint8_t* arg8,
                   int32_t* arg32, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(rows)(w, t, x, y, arg8, arg32, begin, end);
}
void max_pool_grad_rows(const Window& w, const MaxPoolTables& t, const float* dy,
                        const uint8_t* arg8, const int32_t* arg32, float* dx, int64_t begin,
                        int64_t end) {
  HWY_DYNAMIC_DISPATCH(grad_rows)(w, t, dy, arg8, arg32, dx, begin, end);
}

}  // namespace ortrain::ops
#endif  // HWY_ONCE
