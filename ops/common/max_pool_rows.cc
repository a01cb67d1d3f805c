// See max_pool_rows.h. Vector code in Highway, compiled for AVX2, AVX-512 and the baseline.
#include "ops/common/max_pool_rows.h"

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
  for (int64_t r = begin; r < end; ++r) {
    const Span s0 = t.spans[0][static_cast<size_t>(r % rows / w.out[1])];
    const Span s1 = t.spans[1][static_cast<size_t>(r % w.out[1])];
    const float* x = x0 + r / rows * w.x.n + s0.start * w.x.s[0] + s1.start * w.x.s[1];
    float* y = y0 + r * row;
    Arg* arg = arg0 ? arg0 + r * row : nullptr;
    for (int64_t o = 0; o < w.out[2]; ++o, y += w.cx, arg += arg ? w.cx : 0) {
      const Span s = t.spans[2][static_cast<size_t>(o)];
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
              const auto take = hn::Or(hn::Gt(v, best), hn::Ne(v, v));
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

void rows(const Window& w, const MaxPoolTables& t, const float* x, float* y, uint8_t* arg8,
          int32_t* arg32, int64_t begin, int64_t end) {
  arg32 ? rows_of(w, t, x, y, arg32, begin, end) : rows_of(w, t, x, y, arg8, begin, end);
}
void grad_rows(const Window& w, const MaxPoolTables& t, const float* dy, const uint8_t* arg8,
               const int32_t* arg32, float* dx, int64_t begin, int64_t end) {
  arg32 ? grad_rows_of(w, t, dy, arg32, dx, begin, end)
        : grad_rows_of(w, t, dy, arg8, dx, begin, end);
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
