// Reference convolution: plain loops over rows of windows, exact in f64. See conv_kernels.h.
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

// The part of one row of windows (all o2 of one o0, o1) that one tap can see: windows [first, last)
// of the row; x[at + o2 * step] is what window o2 sees; y row and x row as positions in dense
// planes.
struct Row {
  int64_t first, last, at, step, y, y_plane, x_plane, x_step;
};

// Calls f(row) for every row of windows in which the tap sees a part of the tensor.
template <class F>
void for_rows(const Window& w, int64_t tap, F&& f) {
  const int64_t t0 = tap / (w.kernel[1] * w.kernel[2]), t1 = tap / w.kernel[2] % w.kernel[1],
                t2 = tap % w.kernel[2];
  const int64_t back = t2 * w.dilation[2] - w.begin[2], s = w.stride[2];
  const int64_t first = back >= 0 ? 0 : (-back + s - 1) / s;
  const int64_t last = back >= w.in[2] ? 0 : std::min(w.out[2], (w.in[2] - 1 - back) / s + 1);
  if (first >= last) return;
  for (int64_t o0 = 0; o0 < w.out[0]; ++o0) {
    const int64_t i0 = o0 * w.stride[0] - w.begin[0] + t0 * w.dilation[0];
    if (i0 < 0 || i0 >= w.in[0]) continue;
    for (int64_t o1 = 0; o1 < w.out[1]; ++o1) {
      const int64_t i1 = o1 * w.stride[1] - w.begin[1] + t1 * w.dilation[1];
      if (i1 < 0 || i1 >= w.in[1]) continue;
      f(Row{first, last, i0 * w.x.s[0] + i1 * w.x.s[1] + back * w.x.s[2], s * w.x.s[2],
            o0 * w.y.s[0] + o1 * w.y.s[1], (o0 * w.out[1] + o1) * w.out[2],
            (i0 * w.in[1] + i1) * w.in[2] + back, s});
    }
  }
}

// Runs body(i, plane of `size` doubles) for i in [0, n), one plane of scratch per thread.
template <class Body>
void for_planes(int threads, int64_t n, int64_t size, void* scratch, Body&& body) {
  const int64_t pieces = std::min<int64_t>(threads, n);
  parallel_for(threads, pieces, 1, [&](int64_t piece, int64_t end) {
    for (; piece < end; ++piece)
      for (int64_t i = n * piece / pieces; i < n * (piece + 1) / pieces; ++i)
        body(i, static_cast<double*>(scratch) + piece * size);
  });
}
size_t planes_bytes(int threads, int64_t size) {
  return static_cast<size_t>(size) * sizeof(double) * static_cast<size_t>(threads);
}

}  // namespace

Kernel conv_ref(const KernelQuery& q) {
  const Conv c = conv_of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  Kernel out;
  const int64_t plane = c.w.out_count();  // sums of one channel of y, in double
  out.workspace = planes_bytes(q.threads, plane);
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [c, plane, has_bias = q.has_in(2)](const KernelArgs& a) {
      for_planes(c.threads, c.w.n * c.w.cy, plane, a.workspace, [&](int64_t i, double* sums) {
        const int64_t n = i / c.w.cy, o = i % c.w.cy, first = o / c.og * c.cg;
        std::fill(sums, sums + plane, has_bias ? load(a.x<T>(2)[o]) : 0.0);
        for (int64_t k = 0; k < c.cg; ++k) {
          const T* x = a.x<T>(0) + n * c.w.x.n + (first + k) * c.w.x.c;
          for (int64_t tap = 0; tap < c.w.taps(); ++tap) {
            const double weight = load(a.x<T>(1)[c.weight(o, k, tap)]);
            for_rows(c.w, tap, [&](const Row& r) {
              for (int64_t j = r.first; j < r.last; ++j)
                sums[r.y_plane + j] += weight * load(x[r.at + j * r.step]);
            });
          }
        }
        T* y = a.y<T>(0) + n * c.w.y.n + o * c.w.y.c;
        for (int64_t j = 0; j < plane; ++j) y[j * c.w.y.s[2]] = store<T>(sums[j]);
      });
    };
  });
  return out;
}

Kernel conv_grad_input_ref(const KernelQuery& q) {
  const Conv c = conv_of(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
  Kernel out;
  const int64_t plane = c.w.in_count();  // sums of one channel of dx, in double
  out.workspace = planes_bytes(q.threads, plane);
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [c, plane](const KernelArgs& a) {
      for_planes(c.threads, c.w.n * c.w.cx, plane, a.workspace, [&](int64_t i, double* sums) {
        const int64_t n = i / c.w.cx, ch = i % c.w.cx, g = ch / c.cg;
        std::fill(sums, sums + plane, 0.0);
        for (int64_t o = g * c.og; o < (g + 1) * c.og; ++o) {
          const T* dy = a.x<T>(0) + n * c.w.y.n + o * c.w.y.c;
          for (int64_t tap = 0; tap < c.w.taps(); ++tap) {
            const double weight = load(a.x<T>(1)[c.weight(o, ch - g * c.cg, tap)]);
            for_rows(c.w, tap, [&](const Row& r) {
              for (int64_t j = r.first; j < r.last; ++j)
                sums[r.x_plane + j * r.x_step] += weight * load(dy[r.y + j * c.w.y.s[2]]);
            });
          }
        }
        T* dx = a.y<T>(0) + n * c.w.x.n + ch * c.w.x.c;
        for (int64_t j = 0; j < plane; ++j) dx[j * c.w.x.s[2]] = store<T>(sums[j]);
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
          const T* dy = a.x<T>(1) + o * c.w.y.c;
          for (int64_t k = 0; want_w && k < c.cg; ++k)
            for (int64_t tap = 0; tap < c.w.taps(); ++tap) {
              double sum = 0;
              for (int64_t n = 0; n < c.w.n; ++n) {
                const T* x = a.x<T>(0) + n * c.w.x.n + (first + k) * c.w.x.c;
                for_rows(c.w, tap, [&](const Row& r) {
                  const T* dy_row = dy + n * c.w.y.n + r.y;
                  for (int64_t j = r.first; j < r.last; ++j)
                    sum += load(x[r.at + j * r.step]) * load(dy_row[j * c.w.y.s[2]]);
                });
              }
              a.y<T>(0)[c.weight(o, k, tap)] = store<T>(sum);
            }
          double sum = 0;
          for (int64_t n = 0; want_b && n < c.w.n; ++n)
            for (int64_t j = 0; j < c.w.out_count(); ++j)
              sum += load(dy[n * c.w.y.n + j * c.w.y.s[2]]);
          if (want_b) a.y<T>(1)[o] = store<T>(sum);
        }
      });
    };
  });
  return out;
}

}  // namespace ortrain::ops
