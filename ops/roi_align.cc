// RoiAlign and MaxRoiPool: regions of x [N,C,H,W] pooled to a fixed size; rois [R,4] with
// batch_indices [R], or rois [R,5] whose first column is the image.
//
// RoiAlign samples each bin on a grid (sampling_ratio, or with 0 one sample per pixel), bilinearly,
// as torchvision does; mode max takes the largest of all weighted corners, as ONNX defines it.
// MaxRoiPool takes the largest pixel of each bin (Caffe's rounding; an empty bin gives 0).
// Gradients go to x: to the corners by their weights, or to the first maximum; none to rois
// (torchvision). Image numbers out of range are reported. Threads share the channels, so sums keep
// their order.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

constexpr int64_t kBlock = 16;             // channels that share one walk over the samples
constexpr int64_t kMostSamples = 1 << 12;  // per bin and axis

struct Spec {
  int64_t images, channels, height, width, rois, out_h, out_w;
  double scale = 1;
  int64_t ratio = 0;
  bool half_pixel = false, max = false;
  bool whole = false;  // MaxRoiPool: whole pixels, rois of 5 columns
  int64_t plane() const { return height * width; }
};

Spec spec_of(const KernelQuery& q, size_t x, size_t rois, size_t y, bool y_is_input) {
  const Dims& d = q.in[x].dims;
  const Dims& out = y_is_input ? q.in[y].dims : q.out[y].dims;
  Spec s{d[0], d[1], d[2], d[3], q.in[rois].dims[0], out[2], out[3]};
  s.scale = q.attrs.f("spatial_scale", 1);
  s.whole = q.op.find("MaxRoiPool") != std::string::npos;
  s.max = s.whole || q.attrs.s("mode", "avg") == "max";
  s.ratio = q.attrs.i("sampling_ratio", 0);
  s.half_pixel = q.attrs.s("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  return s;
}

// The samples of a bin along one axis that read pixels: number k of `count` lies at
// start + (k + 0.5) step.
struct Axis {
  double start = 0, step = 0;
  int64_t count = 0, first = 0, last = 0;
  Axis(double from, double bin, int64_t which, int64_t ratio, int64_t size) {
    start = from + static_cast<double>(which) * bin;
    const double wanted = ratio > 0 ? static_cast<double>(ratio) : std::ceil(bin);
    if (!(wanted >= 1) || !std::isfinite(start)) return;  // an empty or unusable region
    count = static_cast<int64_t>(std::min(wanted, 1e9));
    step = bin / static_cast<double>(count);
    // Those outside of [-1, size] read nothing: found by division, a region may be huge.
    first = 0, last = count;
    if (step > 0) {
      const double low = std::floor((-1 - start) / step - 1.5);
      const double high = std::ceil((static_cast<double>(size) - start) / step + 1.5);
      first = static_cast<int64_t>(std::clamp(low, 0.0, static_cast<double>(count)));
      last = static_cast<int64_t>(std::clamp(high, 0.0, static_cast<double>(count)));
    } else if (count > kMostSamples) {
      last = 0;
    }
  }
  double at(int64_t k) const { return start + (static_cast<double>(k) + 0.5) * step; }
};

// The two pixels that position p reads and the weight of the second; false outside.
bool corners(double p, int64_t size, int64_t& low, int64_t& high, double& weight) {
  if (!(p >= -1 && p <= static_cast<double>(size))) return false;
  p = std::max(p, 0.0);
  low = static_cast<int64_t>(p);
  if (low >= size - 1) {
    low = high = size - 1;
    weight = 0;
  } else {
    high = low + 1;
    weight = p - static_cast<double>(low);
  }
  return true;
}

template <class T>
double number(const T* p, int64_t i) {
  return static_cast<double>(static_cast<Acc<T>>(p[i]));
}

// Sets `count`, the number of samples that an average divides by, then calls f(offset, weight) for
// every pixel that the bin (ph, pw) of a region reads, in order.
template <class T, class F>
void bin_pixels(const Spec& s, const T* roi, int64_t ph, int64_t pw, int64_t& count, F&& f) {
  count = 1;
  if (s.whole) {
    const auto pixel = [&](int64_t i) {
      const double v = std::round(number(roi, i) * s.scale);
      return v == v ? std::clamp(v, -1e9, 1e9) : 0.0;
    };
    const auto range = [&](double from, double to, int64_t which, int64_t bins, int64_t size,
                           int64_t& begin, int64_t& end) {
      const double bin = std::max(to - from + 1, 1.0) / static_cast<double>(bins);
      const double low = std::floor(static_cast<double>(which) * bin) + from;
      const double high = std::ceil(static_cast<double>(which + 1) * bin) + from;
      begin = static_cast<int64_t>(std::clamp(low, 0.0, static_cast<double>(size)));
      end = static_cast<int64_t>(std::clamp(high, 0.0, static_cast<double>(size)));
    };
    int64_t y0, y1, x0, x1;
    range(pixel(2), pixel(4), ph, s.out_h, s.height, y0, y1);
    range(pixel(1), pixel(3), pw, s.out_w, s.width, x0, x1);
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x) f(y * s.width + x, 1.0);
    return;
  }
  const double shift = s.half_pixel ? 0.5 : 0.0;
  double box[4];
  for (int i = 0; i < 4; ++i) box[i] = number(roi, i) * s.scale - shift;
  double w = box[2] - box[0], h = box[3] - box[1];
  if (!s.half_pixel) w = std::max(w, 1.0), h = std::max(h, 1.0);
  const Axis ys(box[1], h / static_cast<double>(s.out_h), ph, s.ratio, s.height);
  const Axis xs(box[0], w / static_cast<double>(s.out_w), pw, s.ratio, s.width);
  const int64_t samples =
      std::min<int64_t>(ys.count, 1 << 30) * std::min<int64_t>(xs.count, 1 << 30);
  count = std::max<int64_t>(samples, 1);
  // A sample outside is 0 among those of a maximum.
  if (s.max && samples > (ys.last - ys.first) * (xs.last - xs.first)) f(0, 0.0);
  for (int64_t i = ys.first; i < ys.last; ++i) {
    int64_t y0, y1, x0, x1;
    double wy, wx;
    if (!corners(ys.at(i), s.height, y0, y1, wy)) {
      if (s.max) f(0, 0.0);
      continue;
    }
    for (int64_t j = xs.first; j < xs.last; ++j) {
      if (!corners(xs.at(j), s.width, x0, x1, wx)) {
        if (s.max) f(0, 0.0);
        continue;
      }
      f(y0 * s.width + x0, (1 - wy) * (1 - wx));
      f(y0 * s.width + x1, (1 - wy) * wx);
      f(y1 * s.width + x0, wy * (1 - wx));
      f(y1 * s.width + x1, wy * wx);
    }
  }
}

// The image of region r, or -1.
template <class T>
int64_t image_of(const Spec& s, const T* rois, const void* batch, bool wide, int64_t r,
                 Fault* fault) {
  int64_t i = -1;
  if (s.whole) {
    const double v = number(rois, r * 5);
    i = v >= -1e9 && v <= 1e9 ? static_cast<int64_t>(v) : -1;
  } else {
    i = index_at(batch, wide, r);
  }
  if (i >= 0 && i < s.images) return i;
  fault->report(r, i, 0, s.images);
  return -1;
}

void infer(InferCtx& c, int64_t out_h, int64_t out_w, int columns) {
  const Shape &x = c.shape(0), &rois = c.shape(1);
  if (x.rank() != 4 || rois.rank() != 2 || prove_equal(rois[1], columns) == Tri::kNo)
    c.fail(cat("X ", x.str(), " and rois ", rois.str(), ", expected rank 4 and [R,", columns, "]"));
  if (!is_float(c.dtype(0)) || c.dtype(1) != c.dtype(0))
    c.fail("X and rois must be of one float type");
  if (out_h < 1 || out_w < 1 || out_h > 1 << 20 || out_w > 1 << 20)
    c.fail(cat("output of ", out_h, " x ", out_w));
  c.out(0, c.dtype(0), {rois[0], x[1], out_h, out_w});
}

void infer_align(InferCtx& c) {
  const Attrs& a = c.attrs();
  const std::string mode = a.s("mode", "avg");
  const std::string way = a.s("coordinate_transformation_mode", "half_pixel");
  if (mode != "avg" && mode != "max") c.fail(cat("mode '", mode, "', expected avg or max"));
  if (way != "half_pixel" && way != "output_half_pixel")
    c.fail(cat("coordinate_transformation_mode '", way, "'"));
  const int64_t ratio = a.i("sampling_ratio", 0);
  if (ratio < 0 || ratio > kMostSamples) c.fail(cat("sampling_ratio is ", ratio));
  check_index_type(c, 2);
  if (c.rank(2) != 1 || prove_equal(c.shape(2)[0], c.shape(1)[0]) == Tri::kNo)
    c.fail(cat("batch_indices ", c.shape(2).str(), " for rois ", c.shape(1).str()));
  infer(c, a.i("output_height", 1), a.i("output_width", 1), 4);
}

void infer_pool(InferCtx& c) {
  const Dims out = c.attrs().ints("pooled_shape");
  if (out.size() != 2) c.fail("pooled_shape must have two numbers");
  infer(c, out[0], out[1], 5);
}

Kernel kernel(const KernelQuery& q) {
  return {0, [s = spec_of(q, 0, 1, 0, false), dtype = q.in[0].dtype, threads = q.threads,
              wide = q.has_in(2) && q.in[2].dtype == DType::kI64](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              const int64_t blocks = (s.channels + kBlock - 1) / kBlock;
              parallel_for(threads, s.rois * blocks, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t r = i / blocks, c0 = i % blocks * kBlock;
                  const int64_t n = std::min(kBlock, s.channels - c0);
                  const int64_t image = image_of(s, a.x<T>(1), a.in[2], wide, r, a.fault);
                  const int64_t bins = s.out_h * s.out_w;
                  T* y = a.y<T>(0) + (r * s.channels + c0) * bins;
                  if (image < 0) {
                    std::fill_n(y, n * bins, T(0));
                    continue;
                  }
                  const T* x = a.x<T>(0) + (image * s.channels + c0) * s.plane();
                  const T* roi = a.x<T>(1) + r * (s.whole ? 5 : 4);
                  for (int64_t bin = 0; bin < bins; ++bin) {
                    C acc[kBlock] = {};
                    bool any = false;
                    int64_t count = 1;
                    bin_pixels(s, roi, bin / s.out_w, bin % s.out_w, count,
                               [&](int64_t offset, double weight) {
                                 const C w = static_cast<C>(weight);
                                 for (int64_t c = 0; c < n; ++c) {
                                   const C v = w * static_cast<C>(x[c * s.plane() + offset]);
                                   acc[c] = !s.max ? acc[c] + v : !any || v > acc[c] ? v : acc[c];
                                 }
                                 any = true;
                               });
                    const C divisor = s.max ? C(1) : static_cast<C>(count);
                    for (int64_t c = 0; c < n; ++c)
                      y[c * bins + bin] = static_cast<T>(acc[c] / divisor);
                  }
                }
              });
            });
          }};
}

// --- ortrain.RoiAlignGrad, ortrain.MaxRoiPoolGrad (dy, x, rois, batch_indices?) -> dx
void infer_grad(InferCtx& c) { c.out(0, c.dtype(1), c.shape(1)); }

Kernel grad_kernel(const KernelQuery& q) {
  const Spec spec = spec_of(q, 1, 2, 0, true);
  // Sums of 16-bit gradients are kept in f32 until the end.
  const bool narrow = q.in[0].dtype == DType::kF16 || q.in[0].dtype == DType::kBF16;
  return {narrow ? q.in[1].count() * sizeof(float) : 0,
          [s = spec, dtype = q.in[0].dtype, threads = q.threads,
           wide = q.has_in(3) && q.in[3].dtype == DType::kI64](const KernelArgs& a) {
            dispatch_float(dtype, [&]<class T>() {
              using C = Acc<T>;
              C* sums =
                  sizeof(T) == sizeof(C) ? static_cast<C*>(a.out[0]) : static_cast<C*>(a.workspace);
              const int64_t bins = s.out_h * s.out_w;
              parallel_for(threads, s.channels, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = 0; i < s.images; ++i)
                  std::fill_n(sums + (i * s.channels + begin) * s.plane(),
                              (end - begin) * s.plane(), C(0));
                for (int64_t r = 0; r < s.rois; ++r) {
                  const int64_t image = image_of(s, a.x<T>(2), a.in[3], wide, r, a.fault);
                  if (image < 0) continue;
                  const T* roi = a.x<T>(2) + r * (s.whole ? 5 : 4);
                  for (int64_t c0 = begin; c0 < end; c0 += kBlock) {
                    const int64_t n = std::min(kBlock, end - c0);
                    const T* dy = a.x<T>(0) + (r * s.channels + c0) * bins;
                    const T* x = a.x<T>(1) + (image * s.channels + c0) * s.plane();
                    C* dx = sums + (image * s.channels + c0) * s.plane();
                    for (int64_t bin = 0; bin < bins; ++bin) {
                      const int64_t ph = bin / s.out_w, pw = bin % s.out_w;
                      int64_t count = 1;
                      if (!s.max) {
                        bin_pixels(s, roi, ph, pw, count, [&](int64_t offset, double weight) {
                          const C w = static_cast<C>(weight) / static_cast<C>(count);
                          for (int64_t c = 0; c < n; ++c)
                            dx[c * s.plane() + offset] += w * static_cast<C>(dy[c * bins + bin]);
                        });
                        continue;
                      }
                      C best[kBlock] = {}, weight_at[kBlock] = {};
                      int64_t at[kBlock] = {};
                      bool any = false;
                      bin_pixels(s, roi, ph, pw, count, [&](int64_t offset, double weight) {
                        const C w = static_cast<C>(weight);
                        for (int64_t c = 0; c < n; ++c) {
                          const C v = w * static_cast<C>(x[c * s.plane() + offset]);
                          if (!any || v > best[c]) best[c] = v, weight_at[c] = w, at[c] = offset;
                        }
                        any = true;
                      });
                      for (int64_t c = 0; any && c < n; ++c)
                        dx[c * s.plane() + at[c]] +=
                            weight_at[c] * static_cast<C>(dy[c * bins + bin]);
                    }
                  }
                }
                if constexpr (sizeof(T) != sizeof(C))
                  for (int64_t i = 0; i < s.images; ++i) {
                    const int64_t from = (i * s.channels + begin) * s.plane();
                    for (int64_t k = from; k < from + (end - begin) * s.plane(); ++k)
                      a.y<T>(0)[k] = static_cast<T>(sums[k]);
                  }
              });
            });
          }};
}

// Opset 10 has no half pixel shift.
void adapt(RawNode& r) {
  if (r.opset < 16) r.attrs.set("coordinate_transformation_mode", std::string("output_half_pixel"));
}

}  // namespace

void register_roi_align(OpTable& table) {
  const ExampleInput boxes =
      floats({3, 4}, {0.3, 0.7, 4.2, 3.6, -2.1, 1.3, 1.7, 8.4, 2.2, 2.4, 2.6, 2.5});
  const ExampleInput images = iconst({3}, {1, 0, 1});
  OpDef op{
      .name = "RoiAlign",
      .inputs = {"X", "rois", "batch_indices"},
      .outputs = {"Y"},
      .since = 10,
      .infer = infer_align,
      .grad = {grad("X",
                    [](Grad& g) {
                      return g.b.op("ortrain.RoiAlignGrad", {g.dy(), g.x(0), g.x(1), g.x(2)},
                                    Attrs(g.attrs()));
                    }),
               no_grad("rois"), no_grad("batch_indices")},
      .adapt = adapt,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .note = "no gradient to rois (torchvision); mode max is the largest weighted corner",
  };
  for (const char* mode : {"avg", "max"})
    for (const char* way : {"half_pixel", "output_half_pixel"})
      for (const int64_t ratio : {0, 2})
        op.examples.push_back({.in = {f({2, 3, 5, 6}), boxes, images},
                               .attrs = {{"mode", mode},
                                         {"coordinate_transformation_mode", way},
                                         {"sampling_ratio", ratio},
                                         {"output_height", 2},
                                         {"output_width", 3},
                                         {"spatial_scale", 0.9}}});
  op.examples.push_back(
      {.in = {f({1, 19, 3, 3}), floats({1, 4}, {0.2, 0.3, 2, 2}), iconst({1}, {0})}});
  op.examples.push_back({.in = {f({1, 2, 3, 3}), f({0, 4}), ints({0}, 0, 1)}});
  table.add(std::move(op));
  table.add({
      .name = "ortrain.RoiAlignGrad",
      .inputs = {"dy", "x", "rois", "batch_indices"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, grad_kernel}},
      .examples = {{.in = {f({3, 20, 2, 2}), f({2, 20, 5, 6}), boxes, images}}},
  });
  const ExampleInput regions = floats({3, 5}, {1, 0, 1, 3, 4, 0, -2, 2.6, 9, 3.2, 1, 7, 7, 9, 9});
  table.add({
      .name = "MaxRoiPool",
      .inputs = {"X", "rois"},
      .outputs = {"Y"},
      .since = 1,
      .infer = infer_pool,
      .grad = {grad("X",
                    [](Grad& g) {
                      return g.b.op("ortrain.MaxRoiPoolGrad", {g.dy(), g.x(0), g.x(1)},
                                    Attrs(g.attrs()));
                    }),
               no_grad("rois")},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {f({2, 3, 5, 6}), regions},
                    .attrs = {{"pooled_shape", std::vector<int64_t>{2, 3}}}},
                   {.in = {f({2, 3, 5, 6}), regions},
                    .attrs = {{"pooled_shape", std::vector<int64_t>{7, 1}},
                              {"spatial_scale", 0.6}}}},
      .note = "gradient to the first maximum; none to rois; an empty bin gives 0",
  });
  table.add({
      .name = "ortrain.MaxRoiPoolGrad",
      .inputs = {"dy", "x", "rois"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, grad_kernel}},
      .examples = {{.in = {f({3, 3, 2, 3}), f({2, 3, 5, 6}), regions},
                    .attrs = {{"pooled_shape", std::vector<int64_t>{2, 3}}}}},
  });
}

}  // namespace ortrain::ops
