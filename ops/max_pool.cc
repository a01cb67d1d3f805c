// MaxPool, GlobalMaxPool and their gradient ortrain.MaxPoolGrad. 1 to 3 spatial axes, dilations,
// ceil_mode, auto_pad, the file's Indices output.
//
// The gradient goes to the first maximum of a window, NaN counts as larger than any number: both as
// PyTorch. What it needs is a third output of our own, argmax: the tap number inside the window
// (u8, i32 for windows of more than 255 taps), 1 byte per output instead of the 8 of Indices.
// Gradients: no atomics, any thread count gives the same bits.
#include <limits>
#include <span>

#include "graph/pad_axes.h"
#include "ops/common/max_pool_rows.h"
#include "ops/common/pool_planes.h"
#include "ops/common/ref.h"
#include "ops/common/window.h"

namespace ortrain::ops {
namespace {

void infer_max_pool(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (x.rank() < 3 || x.rank() > 5) c.fail(cat("takes rank 3 to 5, not ", x.str()));
  const Attrs& a = c.attrs();
  const Dims kernel = a.ints("kernel_shape");
  const Dim channels = x[channel_axis(a, x.rank())];
  const Shape y = assemble(a, x[0], channels,
                           window_output(c, spatial_dims(x, a), kernel, a.i("ceil_mode", 0) != 0));
  c.out(0, c.dtype(0), y);
  c.out(1, DType::kI64, y);
  c.out(2, element_count(kernel) > 255 ? DType::kI32 : DType::kU8, y);
}
void infer_global(InferCtx& c) {
  const Shape& x = c.shape(0);
  if (x.rank() < 3 || x.rank() > 5) c.fail(cat("takes rank 3 to 5, not ", x.str()));
  const Attrs& a = c.attrs();
  c.out(0, c.dtype(0),
        assemble(a, x[0], x[channel_axis(a, x.rank())],
                 std::vector<Dim>(static_cast<size_t>(x.rank() - 2), Dim(1))));
}
void infer_grad(InferCtx& c) { c.out(0, c.dtype(0), Shape(c.attrs().ints("in_shape"))); }

Window window(const KernelQuery& q) {
  return window_of(q.attrs, q.in[0].dims, q.out[0].dims, q.attrs.ints("kernel_shape"));
}
Window grad_window(const KernelQuery& q) {
  return window_of(q.attrs, q.attrs.ints("in_shape"), q.in[0].dims, q.attrs.ints("kernel_shape"));
}

// --- reference: any layout, any type ------------------------------------------------------------
int64_t index_in_tensor(const Window& w, int64_t n, int64_t c, const std::array<int64_t, 3>& i,
                        bool column_major) {
  const int64_t at = column_major ? (i[2] * w.in[1] + i[1]) * w.in[0] + i[0]
                                  : (i[0] * w.in[1] + i[1]) * w.in[2] + i[2];
  return (n * w.cx + c) * w.in_count() + at;
}

template <class T>
void ref_plane(const Window& w, const T* x, T* y, int64_t n, int64_t c, bool column_major,
               int64_t* indices, uint8_t* arg8, int32_t* arg32) {
  std::array<int64_t, 3> o, first, last, t, at;
  for (o[0] = 0; o[0] < w.out[0]; ++o[0])
    for (o[1] = 0; o[1] < w.out[1]; ++o[1])
      for (o[2] = 0; o[2] < w.out[2]; ++o[2]) {
        for (size_t i = 0; i < 3; ++i) w.valid(static_cast<int>(i), o[i], first[i], last[i]);
        T best{};
        int64_t tap = -1, index = 0;
        for (t[0] = first[0]; t[0] < last[0]; ++t[0])
          for (t[1] = first[1]; t[1] < last[1]; ++t[1])
            for (t[2] = first[2]; t[2] < last[2]; ++t[2]) {
              int64_t offset = n * w.x.n + c * w.x.c;
              for (size_t i = 0; i < 3; ++i) {
                at[i] = o[i] * w.stride[i] - w.begin[i] + t[i] * w.dilation[i];
                offset += at[i] * w.x.s[i];
              }
              const auto v = load(x[offset]);
              if (tap >= 0 && !(v > load(best)) && v == v) continue;
              best = x[offset];
              tap = (t[0] * w.kernel[1] + t[1]) * w.kernel[2] + t[2];
              index = index_in_tensor(w, n, c, at, column_major);
            }
        const int64_t to =
            n * w.y.n + c * w.y.c + o[0] * w.y.s[0] + o[1] * w.y.s[1] + o[2] * w.y.s[2];
        y[to] = best;
        if (indices) indices[to] = index;
        if (arg8) arg8[to] = static_cast<uint8_t>(std::max<int64_t>(tap, 0));
        if (arg32) arg32[to] = static_cast<int32_t>(tap);
      }
}

Kernel prepare_ref(const KernelQuery& q) {
  Kernel out;
  dispatch(q.in[0].dtype, [&]<class T>() {
    out.run = [w = window(q), threads = q.threads, indices = q.has_out(1),
               arg8 = q.has_out(2) && q.out[2].dtype == DType::kU8,
               arg32 = q.has_out(2) && q.out[2].dtype == DType::kI32,
               column_major = q.attrs.i("storage_order", 0) != 0](const KernelArgs& a) {
      parallel_for(threads, w.n * w.cx, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          ref_plane<T>(w, a.x<T>(0), a.y<T>(0), i / w.cx, i % w.cx, column_major,
                       indices ? a.y<int64_t>(1) : nullptr, arg8 ? a.y<uint8_t>(2) : nullptr,
                       arg32 ? a.y<int32_t>(2) : nullptr);
      });
    };
  });
  return out;
}

Kernel prepare_grad_ref(const KernelQuery& q) {
  Kernel out;
  dispatch_float(q.in[0].dtype, [&]<class T>() {
    out.run = [w = grad_window(q), threads = q.threads, type = q.in[1].dtype](const KernelArgs& a) {
      const auto arg = [&](int64_t at) -> int64_t {
        return type == DType::kU8    ? a.x<uint8_t>(1)[at]
               : type == DType::kI32 ? a.x<int32_t>(1)[at]
                                     : a.x<int64_t>(1)[at];
      };
      const auto one = [&](int64_t n, int64_t c, int64_t i0, int64_t i1, int64_t i2) {
        double sum = 0;
        w.covering(0, i0, [&](int64_t o0, int64_t t0) {
          w.covering(1, i1, [&](int64_t o1, int64_t t1) {
            w.covering(2, i2, [&](int64_t o2, int64_t t2) {
              const int64_t at =
                  n * w.y.n + c * w.y.c + o0 * w.y.s[0] + o1 * w.y.s[1] + o2 * w.y.s[2];
              if (arg(at) == (t0 * w.kernel[1] + t1) * w.kernel[2] + t2) sum += load(a.x<T>(0)[at]);
            });
          });
        });
        a.y<T>(0)[n * w.x.n + c * w.x.c + i0 * w.x.s[0] + i1 * w.x.s[1] + i2 * w.x.s[2]] =
            store<T>(sum);
      };
      parallel_for(threads, w.n * w.cx, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          for (int64_t i0 = 0; i0 < w.in[0]; ++i0)
            for (int64_t i1 = 0; i1 < w.in[1]; ++i1)
              for (int64_t i2 = 0; i2 < w.in[2]; ++i2) one(i / w.cx, i % w.cx, i0, i1, i2);
      });
    };
  });
  return out;
}

// --- channels-last f32
// ----------------------------------------------------------------------------
std::string reject_nhwc(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  if (!channels_last(q.attrs)) return "takes channels-last data";
  if (q.op == "MaxPool" && q.has_out(1)) return "the file's Indices are wanted";
  return {};
}
int64_t row_grain(int64_t row_elements) { return 1 + 8192 / std::max<int64_t>(1, row_elements); }

Kernel prepare_nhwc(const KernelQuery& q) {
  const Window w = window(q);
  return {0, [w, t = MaxPoolTables(w), threads = q.threads,
              arg8 = q.has_out(2) && q.out[2].dtype == DType::kU8,
              arg32 = q.has_out(2) && q.out[2].dtype == DType::kI32](const KernelArgs& a) {
            parallel_for(threads, w.n * w.out[0] * w.out[1], row_grain(w.out[2] * w.cx * w.taps()),
                         [&](int64_t begin, int64_t end) {
                           max_pool_rows(w, t, a.x<float>(0), a.y<float>(0),
                                         arg8 ? a.y<uint8_t>(2) : nullptr,
                                         arg32 ? a.y<int32_t>(2) : nullptr, begin, end);
                         });
          }};
}
Kernel prepare_grad_nhwc(const KernelQuery& q) {
  const Window w = grad_window(q);
  return {0, [w, t = MaxPoolTables(w), threads = q.threads,
              bytes = q.in[1].dtype == DType::kU8](const KernelArgs& a) {
            parallel_for(threads, w.n * w.in[0] * w.in[1], row_grain(w.in[2] * w.cx),
                         [&](int64_t begin, int64_t end) {
                           max_pool_grad_rows(
                               w, t, a.x<float>(0), bytes ? a.x<uint8_t>(1) : nullptr,
                               bytes ? nullptr : a.x<int32_t>(1), a.y<float>(0), begin, end);
                         });
          }};
}

// --- channels first f32
// ----------------------------------------------------------------------------
std::string reject_planes(const KernelQuery& q) {
  if (q.in[0].dtype != DType::kF32) return "takes f32";
  if (channels_last(q.attrs)) return "takes channels-first data";
  return q.has_out(1) && q.attrs.i("storage_order", 0) != 0 ? "column-major Indices" : "";
}
Kernel prepare_planes(const KernelQuery& q) {
  return {0, [planes = PoolPlanes(window(q), q.threads), indices = q.has_out(1),
              arg8 = q.has_out(2) && q.out[2].dtype == DType::kU8,
              arg32 = q.has_out(2) && q.out[2].dtype == DType::kI32](const KernelArgs& a) {
            planes.max(a.x<float>(0), a.y<float>(0), arg8 ? a.y<uint8_t>(2) : nullptr,
                       arg32 ? a.y<int32_t>(2) : nullptr, indices ? a.y<int64_t>(1) : nullptr);
          }};
}
Kernel prepare_grad_planes(const KernelQuery& q) {
  return {0, [planes = PoolPlanes(grad_window(q), q.threads),
              bytes = q.in[1].dtype == DType::kU8](const KernelArgs& a) {
            planes.max_grad(a.x<float>(0), bytes ? a.x<uint8_t>(1) : nullptr,
                            bytes ? nullptr : a.x<int32_t>(1), a.y<float>(0));
          }};
}
std::string reject_i64(const KernelQuery& q) {
  return q.in[1].dtype != DType::kU8 && q.in[1].dtype != DType::kI32 ? "argmax is i64" : "";
}
std::string reject_grad_nhwc(const KernelQuery& q) {
  const std::string why = reject_i64(q);
  return why.empty() ? reject_nhwc(q) : why;
}
std::string reject_grad_planes(const KernelQuery& q) {
  const std::string why = reject_i64(q);
  return why.empty() ? reject_planes(q) : why;
}

// --- records ------------------------------------------------------------------------------------
Expr grad_x(Grad& g) {
  Attrs a = g.attrs();
  a.set("in_shape", g.x(0).shape().values());
  return g.b.op("ortrain.MaxPoolGrad", {g.dy(), g.y(2)}, std::move(a));
}
std::optional<LayoutChange> to_channels_last(Graph& g, NodeId n) {
  Node& node = g.node(n);
  if (node.outputs.size() > 1 && node.outputs[1] != kNone) return std::nullopt;
  node.attrs.set("channels_last", int64_t{1});
  return LayoutChange{{0}, {0}};
}

// A GlobalMaxPool is a MaxPool with one window (extents are known when it is replaced).
std::vector<Expr> decompose_global(Decompose& d) {
  const Shape& x = d.x(0).shape();
  Dims kernel;
  for (const Dim& e : spatial_dims(x, d.attrs())) kernel.push_back(e.value());
  Attrs a = d.attrs();
  a.set("kernel_shape", kernel);
  return {d.b.op("MaxPool", {d.x(0)}, std::move(a))};
}

using L = std::vector<int64_t>;

OpDef max_pool_op() {
  return {
      .name = "MaxPool",
      .inputs = {"X"},
      .outputs = {"Y", "Indices?", "argmax?"},
      .infer = infer_max_pool,
      .grad = {grad("X", grad_x)},
      .channels_last = to_channels_last,
      .kernels = {{"cpu", "nhwc", reject_nhwc, prepare_nhwc},
                  {"cpu", "planes", reject_planes, prepare_planes},
                  {"cpu", "ref", nullptr, prepare_ref}},
      .examples =
          {
              {.in = {f({2, 3, 6, 8})}, .attrs = {{"kernel_shape", L{2, 2}}, {"strides", L{2, 2}}}},
              {.in = {f({2, 3, 7, 8}, -90, 90)},
               .attrs = {{"kernel_shape", L{3, 3}}, {"strides", L{2, 2}}, {"pads", L{1, 1, 1, 1}}},
               .outputs = 3},
              {.in = {f({2, 7, 8, 5}, -90, 90)},
               .attrs = {{"kernel_shape", L{3, 3}},
                         {"strides", L{2, 2}},
                         {"pads", L{1, 1, 1, 1}},
                         {"channels_last", int64_t{1}}}},
              {.in = {f({1, 9, 8, 70}, -900, 900)},
               .attrs = {{"kernel_shape", L{2, 3}},
                         {"strides", L{3, 1}},
                         {"dilations", L{2, 1}},
                         {"channels_last", int64_t{1}}}},
              {.in = {f({1, 2, 5, 5})},
               .attrs = {{"kernel_shape", L{3, 3}},
                         {"strides", L{3, 3}},
                         {"pads", L{1, 1, 1, 1}},
                         {"ceil_mode", int64_t{1}}}},
              {.in = {f({1, 2, 9, 8})},
               .attrs = {{"kernel_shape", L{3, 2}}, {"dilations", L{2, 3}}, {"strides", L{2, 1}}}},
              {.in = {f({1, 2, 7, 6})},
               .attrs = {{"kernel_shape", L{3, 2}},
                         {"strides", L{2, 2}},
                         {"auto_pad", std::string("SAME_LOWER")}}},
              {.in = {f({2, 3, 9})}, .attrs = {{"kernel_shape", L{3}}, {"strides", L{5}}}},
              {.in = {f({1, 2, 4, 5, 6})}, .attrs = {{"kernel_shape", L{2, 2, 2}}}, .outputs = 2},
              {.in = {f({1, 1, 17, 17}, -900, 900)}, .attrs = {{"kernel_shape", L{16, 16}}}},
              {.in = {f({2, 301, 21}, -9000, 9000)},
               .attrs = {{"kernel_shape", L{300}}, {"channels_last", int64_t{1}}}},
              {.in = {f({1, 2, 300}, -900, 900)},
               .attrs = {{"kernel_shape", L{3}}, {"strides", L{2}}, {"pads", L{1, 0}}},
               .outputs = 3},
              {.in = {f({0, 3, 6, 8})}, .attrs = {{"kernel_shape", L{2, 2}}}},
          },
      .note = "gradient to the first maximum; NaN is the maximum",
  };
}
OpDef max_pool_grad_op() {
  return {
      .name = "ortrain.MaxPoolGrad",
      .inputs = {"dy", "argmax"},
      .outputs = {"dx"},
      .infer = infer_grad,
      .kernels = {{"cpu", "nhwc", reject_grad_nhwc, prepare_grad_nhwc},
                  {"cpu", "planes", reject_grad_planes, prepare_grad_planes},
                  {"cpu", "ref", nullptr, prepare_grad_ref}},
      .examples = {{.in = {f({2, 3, 3, 4}), ints({2, 3, 3, 4}, 0, 9)},
                    .attrs = {{"kernel_shape", L{3, 3}},
                              {"strides", L{2, 2}},
                              {"pads", L{1, 1, 1, 1}},
                              {"in_shape", L{2, 3, 6, 7}}}}},
  };
}
OpDef global_max_pool_op() {
  return {
      .name = "GlobalMaxPool",
      .inputs = {"X"},
      .outputs = {"Y"},
      .infer = infer_global,
      .decompose = decompose_global,
      .channels_last = to_channels_last,
      .examples = {{.in = {f({2, 3, 6, 5})}}, {.in = {f({2, 3, 7})}}},
  };
}

}  // namespace

void register_max_pool(OpTable& table) {
  add_pad_rule("MaxPool", {pad_axes_of_channels});
  table.add(max_pool_op());
  table.add(max_pool_grad_op());
  table.add(global_max_pool_op());
}

}  // namespace ortrain::ops
