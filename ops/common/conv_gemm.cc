// Convolution as one matrix product: see conv_kernels.h. Rows are windows, x's taps are gathered
// into rows of [C, taps] (a 1x1 convolution of stride 1 has them already), the weight is used as
// stored.
//
// Wins where the direct convolution spends its time on packing and re-reading a large weight for
// few windows. Measured, one core, f32, GF/s direct against product (forward, input, weight
// gradient): 1x1 512>2048 on 196 windows 55 99 74 against 122 118 114; 1x1 64>256 on 12544 windows
// 154 150 139 against 116 115 100; 3x3 512>512 on 196 windows 71 73 61 against 119 120 117 plus
// gathering.
#include "ops/common/conv_kernels.h"
#include "ops/common/matrix_product.h"
#include "ops/common/panel_product.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kPointwiseWindows = 4096;  // product up to this many windows
constexpr int64_t kGatherWindows = 640;      // the same where x must be gathered first
constexpr int64_t kLargeWeight = 1 << 18;    // elements

struct Conv {
  Window w;
  int64_t rows, k, n;  // windows, taps of one output, output channels
  bool gather;         // x is not its own matrix
  int threads;
};

Conv conv_of(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  Conv c;
  c.w = window_of(q.attrs, x, y, Dims(weight.begin() + 2, weight.end()));
  const Window& w = c.w;
  c.rows = w.n * w.out_count();
  c.k = w.cx * w.taps();
  c.n = w.cy;
  c.gather = w.taps() > 1 || w.in != w.out;
  for (size_t i = 0; i < 3; ++i) c.gather |= w.stride[i] > 1 || w.begin[i] != 0;
  c.threads = q.threads;
  return c;
}

std::string reject(const KernelQuery& q, const Dims& x, const Dims& weight, const Dims& y) {
  if (std::string why = conv_own_reject(q); !why.empty()) return why;
  const Conv c = conv_of(q, x, weight, y);
  if (c.rows > (c.gather ? kGatherWindows : kPointwiseWindows))
    return "many windows: the direct convolution is faster";
  return c.gather && c.k * c.n < kLargeWeight ? "small weight: the direct convolution is faster"
                                              : "";
}

// col[row][c * taps + tap] = x at that tap of window `row`, 0 outside.
void gather(const Conv& c, const float* x, float* col) {
  const Window& w = c.w;
  const int64_t taps = w.taps();
  parallel_for(c.threads, c.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t o = row % w.out_count();
      const std::array<int64_t, 3> at{o / (w.out[1] * w.out[2]), o / w.out[2] % w.out[1],
                                      o % w.out[2]};
      const float* sample = x + row / w.out_count() * w.x.n;
      float* to = col + row * c.k;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const std::array<int64_t, 3> t{tap / (w.kernel[1] * w.kernel[2]),
                                       tap / w.kernel[2] % w.kernel[1], tap % w.kernel[2]};
        int64_t offset = 0;
        bool inside = true;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t p = at[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i];
          inside &= p >= 0 && p < w.in[i];
          offset += p * w.x.s[i];
        }
        if (inside)
          for (int64_t ch = 0; ch < w.cx; ++ch) to[ch * taps + tap] = sample[offset + ch];
        else
          for (int64_t ch = 0; ch < w.cx; ++ch) to[ch * taps + tap] = 0;
      }
    }
  });
}

// dx = sum over the windows that cover a position of their dcol at its tap.
void scatter(const Conv& c, const float* dcol, float* dx) {
  const Window& w = c.w;
  const int64_t taps = w.taps(), plane = w.in[1] * w.in[2];
  parallel_for(c.threads, w.n * w.in_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t n = p / w.in_count(), i = p % w.in_count();
      float* to = dx + p * w.cx;
      std::fill(to, to + w.cx, 0.0f);
      w.covering(0, i / plane, [&](int64_t o0, int64_t t0) {
        w.covering(1, i / w.in[2] % w.in[1], [&](int64_t o1, int64_t t1) {
          w.covering(2, i % w.in[2], [&](int64_t o2, int64_t t2) {
            const int64_t row = n * w.out_count() + (o0 * w.out[1] + o1) * w.out[2] + o2;
            const float* from = dcol + row * c.k + (t0 * w.kernel[1] + t1) * w.kernel[2] + t2;
            for (int64_t ch = 0; ch < w.cx; ++ch) to[ch] += from[ch * taps];
          });
        });
      });
    }
  });
}

float* at(const KernelArgs& a, const onednn::Slot& slot) {
  return reinterpret_cast<float*>(static_cast<std::byte*>(a.workspace) + slot.index);
}

// The gathered matrix of input `x`, or x itself.
onednn::Slot columns(onednn::Program& program, const Conv& c, size_t x) {
  const onednn::Md md = onednn::matrix(c.rows, c.k, false);
  if (!c.gather) return onednn::in(x, md);
  const onednn::Slot col = program.work(md);
  program.call([c, x, col](const KernelArgs& a) { gather(c, a.x<float>(x), at(a, col)); });
  return col;
}

}  // namespace

std::string conv_gemm_reject(const KernelQuery& q) {
  return reject(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
}
std::string conv_grad_input_gemm_reject(const KernelQuery& q) {
  return reject(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
}
std::string conv_grad_weight_gemm_reject(const KernelQuery& q) {
  if (!q.has_out(0)) return "only the bias gradient is wanted";
  return reject(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
}

Kernel conv_gemm(const KernelQuery& q) {
  const Conv c = conv_of(q, q.in[0].dims, q.in[1].dims, q.out[0].dims);
  onednn::Program program(q);
  const onednn::Slot col = columns(program, c, 0);
  if (const PanelProduct p{c.rows, c.n, c.k, c.threads}; p.reject().empty()) {
    const auto floats = static_cast<int64_t>(p.workspace() / sizeof(float));
    program.call([p, col, gather = c.gather, bias = q.has_in(2),
                  work = program.work(onednn::dense({floats}))](const KernelArgs& a) {
      p(gather ? at(a, col) : a.x<float>(0), a.x<float>(1), bias ? a.x<float>(2) : nullptr,
        a.y<float>(0), at(a, work));
    });
    return std::move(program).finish();
  }
  add_product(program, {c.rows, c.n, c.k, false, true}, col, onednn::in(1, {}), onednn::out(0, {}),
              q.has_in(2) ? 2 : -1);
  return std::move(program).finish();
}

Kernel conv_grad_input_gemm(const KernelQuery& q) {
  const Conv c = conv_of(q, q.out[0].dims, q.in[1].dims, q.in[0].dims);
  const onednn::Primitive p = onednn::inner_product_grad_input(onednn::matrix(c.rows, c.k, false),
                                                               onednn::matrix(c.n, c.k, false),
                                                               onednn::matrix(c.rows, c.n, false));
  onednn::Program program(q);
  const onednn::Slot dcol = c.gather ? program.work(p.src) : onednn::out(0, p.src);
  program.add(p, {{DNNL_ARG_DIFF_DST, onednn::in(0, p.dst)},
                  {DNNL_ARG_WEIGHTS, onednn::in(1, p.weights)},
                  {DNNL_ARG_DIFF_SRC, dcol}});
  if (c.gather)
    program.call([c, dcol](const KernelArgs& a) { scatter(c, at(a, dcol), a.y<float>(0)); });
  return std::move(program).finish();
}

Kernel conv_grad_weight_gemm(const KernelQuery& q) {
  const Conv c = conv_of(q, q.in[0].dims, q.attrs.ints("w_shape"), q.in[1].dims);
  const onednn::Md bias = q.has_out(1) ? onednn::dense({c.n}) : onednn::Md();
  const onednn::Primitive p = onednn::inner_product_grad_weight(
      onednn::matrix(c.rows, c.k, false), onednn::matrix(c.n, c.k, false), bias,
      onednn::matrix(c.rows, c.n, false));
  onednn::Program program(q);
  std::vector<std::pair<int, onednn::Slot>> args = {
      {DNNL_ARG_SRC, columns(program, c, 0)},
      {DNNL_ARG_DIFF_DST, onednn::in(1, p.dst)},
      {DNNL_ARG_DIFF_WEIGHTS, onednn::out(0, p.weights)}};
  if (q.has_out(1)) args.push_back({DNNL_ARG_DIFF_BIAS, onednn::out(1, bias)});
  program.add(p, args);
  return std::move(program).finish();
}

}  // namespace ortrain::ops
