// Col2Im: columns [N, C * taps, windows] summed back into images [N, C, spatial...], any number of
// spatial axes (PyTorch's fold); image and block shape are constant inputs. All numeric types.
// Gradient: ortrain.Im2Col, the windows of an image as columns, whose gradient is Col2Im. Threads
// share the images' planes, so sums keep their order.
#include <algorithm>

#include "graph/error.h"
#include "ops/common/ref.h"

namespace ortrain::ops {

namespace {

struct Axis {
  int64_t image, block, windows, stride, dilation, begin;
};

// The attributes with the two shapes; fails on what does not fit. Extents are at least 0 and
// products are checked against overflow.
struct Spec {
  std::vector<Axis> axes;
  int64_t taps = 1, windows = 1, pixels = 1;
};

int64_t entry(const Dims& v, const char* name, size_t i, size_t n, int64_t missing) {
  if (v.empty()) return missing;
  if (v.size() != n) fail(ErrorCode::kShape, name, " has ", v.size(), " entries, expected ", n);
  constexpr int64_t kMost = int64_t{1} << 31;
  if (v[i] < 0 || v[i] > kMost) fail(ErrorCode::kShape, name, " has the entry ", v[i]);
  return v[i];
}

Spec spec_of(const Attrs& a, const Dims& image, const Dims& block) {
  const size_t n = image.size();
  if (n == 0 || block.size() != n)
    fail(ErrorCode::kShape, "image_shape has ", n, " entries, block_shape ", block.size());
  const Dims strides = a.ints("strides"), dilations = a.ints("dilations"), pads = a.ints("pads");
  Spec s;
  Dims windows;
  for (size_t i = 0; i < n; ++i) {
    Axis x{};
    x.image = entry(image, "image_shape", i, n, 0);
    x.block = entry(block, "block_shape", i, n, 0);
    x.stride = entry(strides, "strides", i, n, 1);
    x.dilation = entry(dilations, "dilations", i, n, 1);
    x.begin = entry(pads, "pads", i, 2 * n, 0);
    if (x.stride < 1 || x.dilation < 1 || x.block < 1)
      fail(ErrorCode::kShape, "strides, dilations and block extents must be positive");
    const int64_t room =
        x.image + x.begin + entry(pads, "pads", n + i, 2 * n, 0) - (x.block - 1) * x.dilation - 1;
    if (room < 0) fail(ErrorCode::kShape, "the block does not fit into the image along axis ", i);
    x.windows = room / x.stride + 1;
    windows.push_back(x.windows);
    s.axes.push_back(x);
  }
  s.taps = element_count(block), s.windows = element_count(windows),
  s.pixels = element_count(image);
  return s;
}

Dims constant_dims(InferCtx& c, int i, const char* what) {
  Dims out;
  for (const Dim& d : c.need_ints(i, what)) {
    if (!d.is_const()) c.fail(cat(what, " must be numbers"));
    out.push_back(d.value());
  }
  return out;
}

void infer_col2im(InferCtx& c) {
  const Dims image = constant_dims(c, 1, "image_shape"), block = constant_dims(c, 2, "block_shape");
  const Spec s = spec_of(c.attrs(), image, block);
  const Shape& x = c.shape(0);
  if (x.rank() != 3 || prove_equal(x[2], Dim(s.windows)) == Tri::kNo ||
      (x[1].is_const() && x[1].value() % s.taps != 0))
    c.fail(cat("input ", x.str(), ", expected [N, C * ", s.taps, ", ", s.windows, "]"));
  Shape y{x[0], floordiv(x[1], Dim(s.taps))};
  for (int64_t e : image) y.push_back(Dim(e));
  c.out(0, c.dtype(0), y);
}
// ortrain.Im2Col(x [N, C, spatial...]) {block_shape, ...}.
void infer_im2col(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (x.rank() < 3) c.fail(cat("takes [N, C, spatial...], not ", x.str()));
  const Dims dims = x.values();
  const Spec s =
      spec_of(c.attrs(), Dims(dims.begin() + 2, dims.end()), c.attrs().ints("block_shape"));
  c.out(0, c.dtype(0), Shape{x[0], Dim(dims[1] * s.taps), Dim(s.windows)});
}

// Calls f(offset in the column plane, offset in the image, windows along the last axis, first,
// last) for every tap and every window position of all axes but the last; of that the windows
// [first, last) lie inside and their pixels are `stride` apart.
template <class F>
void rows(const Spec& s, F&& f) {
  const size_t n = s.axes.size();
  const Axis& inner = s.axes[n - 1];
  const int64_t outer = s.windows / std::max<int64_t>(1, inner.windows);
  for (int64_t tap = 0; tap < s.taps; ++tap)
    for (int64_t w = 0; w < outer; ++w) {
      int64_t rest_tap = tap / inner.block, rest = w, image = 0, step = inner.image;
      bool inside = true;
      for (size_t k = n - 1; k-- > 0;) {
        const Axis& x = s.axes[k];
        const int64_t at = rest % x.windows * x.stride - x.begin + rest_tap % x.block * x.dilation;
        rest /= x.windows, rest_tap /= x.block;
        inside &= at >= 0 && at < x.image;
        image += at * step;
        step *= x.image;
      }
      const int64_t start = tap % inner.block * inner.dilation - inner.begin;
      int64_t first = start < 0 ? (-start + inner.stride - 1) / inner.stride : 0;
      int64_t last =
          start >= inner.image
              ? 0
              : std::min(inner.windows, (inner.image - start + inner.stride - 1) / inner.stride);
      if (!inside) last = 0;
      first = std::min(first, last);
      f(tap * s.windows + w * inner.windows, image + start, first, last);
    }
}

Kernel col2im(const KernelQuery& q) {
  const Dims block = q.need_ints(2, "block_shape");
  const Spec s = spec_of(q.attrs, q.need_ints(1, "image_shape"), block);
  const int64_t planes = q.out[0].dims[0] * q.out[0].dims[1];
  const int64_t pieces = std::max<int64_t>(1, std::min<int64_t>(q.threads, planes));
  return dispatch(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {planes == 0 ? 0 : sizeof(Acc<T>) * static_cast<size_t>(s.pixels * pieces),
            [s, planes, pieces, threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, pieces, 1, [&](int64_t piece, int64_t end) {
                for (; piece < end; ++piece) {
                  Acc<T>* sums = static_cast<Acc<T>*>(a.workspace) + piece * s.pixels;
                  for (int64_t p = planes * piece / pieces; p < planes * (piece + 1) / pieces;
                       ++p) {
                    const T* x = a.x<T>(0) + p * s.taps * s.windows;
                    std::fill_n(sums, s.pixels, Acc<T>(0));
                    const int64_t stride = s.axes.back().stride;
                    rows(s, [&](int64_t column, int64_t image, int64_t first, int64_t last) {
                      for (int64_t i = first; i < last; ++i)
                        sums[image + i * stride] += load(x[column + i]);
                    });
                    T* y = a.y<T>(0) + p * s.pixels;
                    for (int64_t i = 0; i < s.pixels; ++i) y[i] = store<T>(sums[i]);
                  }
                }
              });
            }};
  });
}

Kernel im2col(const KernelQuery& q) {
  const Dims& x = q.in[0].dims;
  const Spec s = spec_of(q.attrs, Dims(x.begin() + 2, x.end()), q.attrs.ints("block_shape"));
  return dispatch_float(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {0, [s, planes = x[0] * x[1], threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, planes, 1, [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p) {
                  const T* from = a.x<T>(0) + p * s.pixels;
                  T* y = a.y<T>(0) + p * s.taps * s.windows;
                  const int64_t stride = s.axes.back().stride, width = s.axes.back().windows;
                  rows(s, [&](int64_t column, int64_t image, int64_t first, int64_t last) {
                    T* to = y + column;
                    std::fill_n(to, first, T());
                    for (int64_t i = first; i < last; ++i) to[i] = from[image + i * stride];
                    std::fill_n(to + last, width - last, T());
                  });
                }
              });
            }};
  });
}

Expr col2im_gradient(Grad& g) {
  Attrs attrs = g.attrs();
  const HostTensor* block = g.b.graph().tensor(g.x(2).id());
  if (block) {
    attrs.set("block_shape", block->as_ints());
  } else {
    Dims dims;
    for (const Dim& d : g.b.graph().value(g.x(2).id()).ints) dims.push_back(d.value());
    attrs.set("block_shape", dims);
  }
  return g.b.op("ortrain.Im2Col", {g.dy()}, attrs);
}
Expr im2col_gradient(Grad& g) {
  Attrs attrs = g.attrs();
  const Dims x = g.x(0).shape().values(), block = attrs.ints("block_shape");
  attrs.erase("block_shape");
  return g.b.op("Col2Im", {g.dy(), g.b.ints(Dims(x.begin() + 2, x.end())), g.b.ints(block)}, attrs);
}

using L = std::vector<int64_t>;

}  // namespace

void register_col2im(OpTable& table) {
  table.add({
      .name = "Col2Im",
      .inputs = {"input", "image_shape", "block_shape"},
      .outputs = {"output"},
      .since = 18,
      .infer = infer_col2im,
      .grad = {grad("input", col2im_gradient), no_grad("image_shape"), no_grad("block_shape")},
      .kernels = {{"cpu", "ref", nullptr, col2im}},
      .examples = {{.in = {f({2, 6, 4}), ivals({3, 3}), ivals({2, 1})},
                    .attrs = {{"strides", L{1, 2}}}},
                   {.in = {f({1, 9, 4}), ivals({4, 4}), ivals({3, 3})}},
                   {.in = {f({1, 18, 16}), ivals({4, 4}), ivals({3, 3})},
                    .attrs = {{"pads", L{1, 1, 1, 1}}}},
                   {.in = {f({1, 4, 9}), ivals({5, 4}), ivals({2, 2})},
                    .attrs = {{"dilations", L{2, 2}}, {"pads", L{0, 1, 0, 0}}}},
                   {.in = {f({2, 3, 5}), ivals({7}), ivals({3})}},
                   {.in = {f({1, 8, 8}), ivals({3, 3, 3}), ivals({2, 2, 2})}},
                   {.in = {ints({1, 4, 4}, -9, 9), ivals({3, 3}), ivals({2, 2})}},
                   {.in = {f({0, 4, 4}), ivals({3, 3}), ivals({2, 2})}}},
  });
  table.add({
      .name = "ortrain.Im2Col",
      .inputs = {"x"},
      .outputs = {"columns"},
      .infer = infer_im2col,
      .grad = {grad("x", im2col_gradient)},
      .kernels = {{"cpu", "ref", nullptr, im2col}},
      .examples =
          {{.in = {f({2, 3, 5, 4})},
            .attrs = {{"block_shape", L{3, 2}}, {"pads", L{1, 0, 1, 1}}, {"strides", L{2, 1}}}}},
  });
}

}  // namespace ortrain::ops
