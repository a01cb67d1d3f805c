// Reference convolution: plain loops over windows, exact in f64. See conv_kernels.h.
#include "ops/common/conv_kernels.h"
#include "ops/common/ref.h"

namespace ortrain::ops {
namespace {

struct Conv {
  Window w;
  int64_t group, cg, og;  // channels per group of x and y
  int threads;
  int64_t weight(int64_t o, int64_t c, int64_t tap) const { return (o * cg + c) * w.taps() + tap; }
};

Conv conv_of(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  Conv c;
  c.w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  c.group = q.attrs.i("group", 1);
  c.cg = c.w.cx / c.group, c.og = c.w.cy / c.group;
  c.threads = q.threads;
  return c;
}

// Calls f(tap, offset in x) for every tap of window (o0, o1, o2) inside the tensor.
template <class F>
void for_taps(const Window& w, int64_t o0, int64_t o1, int64_t o2, F&& f) {
  int64_t a0, b0, a1, b1, a2, b2;
  w.valid(0, o0, a0, b0), w.valid(1, o1, a1, b1), w.valid(2, o2, a2, b2);
  for (int64_t t0 = a0; t0 < b0; ++t0)
    for (int64_t t1 = a1; t1 < b1; ++t1)
      for (int64_t t2 = a2; t2 < b2; ++t2)
        f((t0 * w.kernel[1] + t1) * w.kernel[2] + t2,
          (o0 * w.stride[0] - w.begin[0] + t0 * w.dilation[0]) * w.x.s[0] +
              (o1 * w.stride[1] - w.begin[1] + t1 * w.dilation[1]) * w.x.s[1] +
              (o2 * w.stride[2] - w.begin[2] + t2 * w.dilation[2]) * w.x.s[2]);
}
// Offset in x of one tap of window o, -1 outside the tensor.
int64_t tap_offset(const Window& w, int64_t tap, const std::array<int64_t, 3>& o) {
  const std::array<int64_t, 3> t{tap / (w.kernel[1] * w.kernel[2]), tap / w.kernel[2] % w.kernel[1],
                                 tap % w.kernel[2]};
  int64_t offset = 0;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t at = o[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i];
    if (at < 0 || at >= w.in[i]) return -1;
    offset += at * w.x.s[i];
  }
  return offset;
}
// Calls f(o0, o1, o2, offset in y) for every window.
template <class F>
void for_windows(const Window& w, F&& f) {
  for (int64_t o0 = 0; o0 < w.out[0]; ++o0)
    for (int64_t o1 = 0; o1 < w.out[1]; ++o1)
      for (int64_t o2 = 0; o2 < w.out[2]; ++o2)
        f(o0, o1, o2, o0 * w.y.s[0] + o1 * w.y.s[1] + o2 * w.y.s[2]);
}

}  // namespace

Kernel conv_ref(const KernelQuery& q) {
  const Conv c = conv_of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [c, has_bias = q.has_in(2)](const KernelArgs& a) {
      parallel_for(c.threads, c.w.n * c.w.cy, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t n = i / c.w.cy, o = i % c.w.cy, first = o / c.og * c.cg;
          const T* x = a.x<T>(0) + n * c.w.x.n;
          T* y = a.y<T>(0) + n * c.w.y.n + o * c.w.y.c;
          const double bias = has_bias ? load(a.x<T>(2)[o]) : 0;
          for_windows(c.w, [&](int64_t o0, int64_t o1, int64_t o2, int64_t at) {
            double sum = bias;
            for (int64_t k = 0; k < c.cg; ++k)
              for_taps(c.w, o0, o1, o2, [&](int64_t tap, int64_t offset) {
                sum +=
                    load(x[(first + k) * c.w.x.c + offset]) * load(a.x<T>(1)[c.weight(o, k, tap)]);
              });
            y[at] = store<T>(sum);
          });
        }
      });
    };
  });
  return out;
}

Kernel conv_grad_input_ref(const KernelQuery& q) {
  const Conv c = conv_of(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
  Kernel out;
  // Sums of one channel plane of dx, in double.
  const int64_t plane = c.w.in_count();
  out.workspace = static_cast<size_t>(plane) * sizeof(double) * static_cast<size_t>(q.threads);
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [c, plane](const KernelArgs& a) {
      const int64_t planes = c.w.n * c.w.cx;
      const int64_t pieces = std::min<int64_t>(c.threads, planes);
      parallel_for(c.threads, pieces, 1, [&](int64_t piece, int64_t piece_end) {
        for (; piece < piece_end; ++piece) {
          double* sums = static_cast<double*>(a.workspace) + piece * plane;
          for (int64_t i = planes * piece / pieces; i < planes * (piece + 1) / pieces; ++i) {
            const int64_t n = i / c.w.cx, ch = i % c.w.cx, g = ch / c.cg;
            std::fill(sums, sums + plane, 0.0);
            // Offsets of channels-last x divide by the channel count.
            const int64_t unit = c.w.x.s[2];
            for (int64_t o = g * c.og; o < (g + 1) * c.og; ++o) {
              const T* dy = a.x<T>(0) + n * c.w.y.n + o * c.w.y.c;
              for_windows(c.w, [&](int64_t o0, int64_t o1, int64_t o2, int64_t at) {
                const double d = load(dy[at]);
                for_taps(c.w, o0, o1, o2, [&](int64_t tap, int64_t offset) {
                  sums[offset / unit] += d * load(a.x<T>(1)[c.weight(o, ch - g * c.cg, tap)]);
                });
              });
            }
            T* dx = a.y<T>(0) + n * c.w.x.n + ch * c.w.x.c;
            for (int64_t j = 0; j < plane; ++j) dx[j * unit] = store<T>(sums[j]);
          }
        }
      });
    };
  });
  return out;
}

Kernel conv_grad_weight_ref(const KernelQuery& q) {
  const Conv c = conv_of(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [c, want_w = q.has_out(0), want_b = q.has_out(1)](const KernelArgs& a) {
      parallel_for(c.threads, c.w.cy, 1, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          const int64_t first = o / c.og * c.cg;
          for (int64_t k = 0; want_w && k < c.cg; ++k)
            for (int64_t tap = 0; tap < c.w.taps(); ++tap) {
              double sum = 0;
              for (int64_t n = 0; n < c.w.n; ++n) {
                const T* x = a.x<T>(0) + n * c.w.x.n + (first + k) * c.w.x.c;
                const T* dy = a.x<T>(1) + n * c.w.y.n + o * c.w.y.c;
                for_windows(c.w, [&](int64_t o0, int64_t o1, int64_t o2, int64_t at) {
                  const int64_t offset = tap_offset(c.w, tap, {o0, o1, o2});
                  if (offset >= 0) sum += load(x[offset]) * load(dy[at]);
                });
              }
              a.y<T>(0)[c.weight(o, k, tap)] = store<T>(sum);
            }
          double sum = 0;
          for (int64_t n = 0; want_b && n < c.w.n; ++n)
            for_windows(c.w, [&](int64_t, int64_t, int64_t, int64_t at) {
              sum += load(a.x<T>(1)[n * c.w.y.n + o * c.w.y.c + at]);
            });
          if (want_b) a.y<T>(1)[o] = store<T>(sum);
        }
      });
    };
  });
  return out;
}

}  // namespace ortrain::ops
